/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is no checkpoint, or cannot be read, or is not what it says: paths, descriptors, sources,
 * ranges. Each is one sentence; none hangs, leaks or is read wrongly (F1, F5, W10).
 */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/format/pickle_assembler.h"
#include "tests/support/load/archive.h"
#include "tests/support/load/deflated_scene.h"

TestSuite(bad_input, .init = begin_sample_file, .fini = end_sample_file);

/* ---- paths and descriptors ---- */

/* By every function that opens a path. */
static void expect_no_path(const char *what, int code, const char *text)
{
    berth_archive *archive = (berth_archive *)path;
    char expected[700];

    checkpoint = (berth_checkpoint *)path;
    (void)snprintf(expected, sizeof expected, "%s: %s", *what ? what : "''", text);
    cr_expect_eq(berth_open(what, NULL, &checkpoint, &error), code);
    cr_expect_str_eq(error.message, expected);
    cr_expect_null(checkpoint);
    cr_expect_eq(berth_archive_open(FROM_PATH(what), NULL, &archive, NULL, &error), code);
    cr_expect_str_eq(error.message, expected);
    cr_expect_null(archive);
    cr_expect_eq(berth_verify(FROM_PATH(what), NULL, NULL, NULL, NULL, &error), code);
    cr_expect_str_eq(error.message, expected);
}

static void count_global(void *context, const char *module, const char *name, bool is_allowed)
{
    (void)module, (void)name, (void)is_allowed;
    *(int *)context += 1;
}

Test(bad_input, globals_of_nothing)
{
    int n = 0;

    cr_expect_eq(berth_list_globals(NULL, count_global, &n, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_list_globals(FROM_PATH(NULL), count_global, &n, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_list_globals(FROM_PATH(path), NULL, &n, &error), BERTH_E_ARGUMENT);
    assert_ok(berth_list_globals(FROM_PATH(path), count_global, &n, &error));
    cr_expect_gt(n, 0);
}

/* Of what is in .metadata only a pickle is told. */
Test(bad_input, a_folder_with_metadata)
{
    static const char *const cases[][2] = {
        {"\x80\2ctorch.distributed.checkpoint.metadata\nMetadata\n.",
         "is a folder, not a file; in it is the .metadata of a checkpoint of "
         "torch.distributed.checkpoint: `berth convert %s NEW.pt` makes a checkpoint of its "
         "directory"},
        {"\x80\2ctorch.distributed.checkpoint.metadata\nMetadata\ncbuiltins\ngetattr\n.",
         "is a folder, not a file; in it is the .metadata of a checkpoint of "
         "torch.distributed.checkpoint: `berth convert %s NEW.pt` makes a checkpoint of its "
         "directory"},
        {"\x80\2cposix\nsystem\n.",
         "is a folder, not a file; in it is a bare pickle, not a PyTorch checkpoint; it names the "
         "global posix system, which Berth never calls"},
        {"a text", "is a folder, not a file"},
        {"", "is a folder, not a file"},
    };
    char *metadata = test_path(folder, ".metadata"), says[400];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_write_file(metadata, cases[i][0], strlen(cases[i][0]));
        (void)snprintf(says, sizeof says, cases[i][1], folder);
        expect_no_path(folder, BERTH_E_NOT_CHECKPOINT, says);
    }
    free(metadata);
}

/* The folder of a .metadata is a word of the command, if it can be one. */
Test(bad_input, the_folder_of_metadata)
{
    static const char metadata[] = "\x80\2ctorch.distributed.checkpoint.metadata\nMetadata\n.";
    char long_name[203]; /* and without two of its bytes: 200 */
    const char *const cases[][2] = {
        {"a", "a"},       {"a/b", "a/b"},         {"a b", "'a b'"},
        {".", "."},       {"it's", "'it'\\''s'"}, {"-a", "./-a"},
        {"./-a", "./-a"}, {long_name, ""},        {long_name + 2, NULL}};
    char place[300], says[400];

    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    cr_assert_eq(chdir(folder), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i][0], *word = cases[i][1] ? cases[i][1] : name;
        cr_assert(mkdir(name, 0700) == 0 || errno == EEXIST, "%s", name);
        (void)snprintf(place, sizeof place, "%s/.metadata", name);
        test_write_file(place, metadata, sizeof metadata - 1);
        (void)snprintf(says, sizeof says, *word ? "`berth convert %s NEW.pt`" : "`berth convert%s`",
                       word);
        cr_expect_eq(berth_open(place, NULL, &checkpoint, &error), BERTH_E_NOT_CHECKPOINT);
        cr_expect(strstr(error.message, says), "%s, not %s", error.message, says);
    }
}

/* By both functions that take a descriptor, which stays open. */
static void expect_no_descriptor(int fd, int code, const char *text)
{
    berth_archive *archive = (berth_archive *)path;

    checkpoint = (berth_checkpoint *)path;
    cr_assert_geq(fd, 0);
    cr_expect_eq(berth_open_source(FROM_FD(fd), NULL, &checkpoint, &error), code);
    cr_expect_not_null(strstr(error.message, text), "%s", error.message);
    cr_expect_null(checkpoint);
    cr_expect_eq(berth_archive_open(FROM_FD(fd), NULL, &archive, NULL, &error), code);
    cr_expect_not_null(strstr(error.message, text), "%s", error.message);
    cr_expect_null(archive);
    cr_expect_eq(close(fd), 0);
}

Test(bad_input, what_is_no_regular_file)
{
    char *fifo = test_path(folder, "fifo"), *link = test_path(folder, "link");
    char *socket_path = test_path(folder, "socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_assert_eq(symlink(fifo, link), 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    expect_no_path(folder, BERTH_E_NOT_CHECKPOINT, "is a folder, not a file");
#define PIPE                                                                                       \
    "is a pipe, which can be read only once and in order: read it into memory or into a file, "    \
    "and "                                                                                         \
    "open that"
    expect_no_path(fifo, BERTH_E_NOT_CHECKPOINT, PIPE);
    expect_no_path(link, BERTH_E_NOT_CHECKPOINT, PIPE);
    expect_no_path("/proc/version", BERTH_E_NOT_CHECKPOINT,
                   "does not report its size, as files of /proc do not: read it into memory or "
                   "into a file, and open that");
    expect_no_path("/dev/null", BERTH_E_NOT_CHECKPOINT, "is not a regular file");
    expect_no_path("/dev/zero", BERTH_E_NOT_CHECKPOINT, "is not a regular file");
    expect_no_path(socket_path, BERTH_E_SYSTEM, "cannot be opened: No such device or address");
    expect_no_descriptor(open(folder, O_RDONLY | O_CLOEXEC), BERTH_E_NOT_CHECKPOINT,
                         "is a folder, not a file");
    expect_no_descriptor(open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC), BERTH_E_NOT_CHECKPOINT,
                         PIPE);
    expect_no_descriptor(open("/dev/zero", O_RDONLY | O_CLOEXEC), BERTH_E_NOT_CHECKPOINT,
                         "is not a regular file");
    expect_no_descriptor(dup(listener), BERTH_E_NOT_CHECKPOINT, "is not a regular file");
    (void)close(listener);
    free(fifo), free(link), free(socket_path);
}

Test(bad_input, what_is_not_there)
{
    char *none = test_path(folder, "none.pt"), *below = test_path(path, "below");
    char *loop = test_path(folder, "loop");

    cr_assert_eq(symlink("loop", loop), 0);
    expect_no_path(none, BERTH_E_NOT_FOUND, "cannot be opened: No such file or directory");
    expect_no_path("", BERTH_E_NOT_FOUND, "cannot be opened: No such file or directory");
    expect_no_path(below, BERTH_E_SYSTEM, "cannot be opened: Not a directory");
    expect_no_path(loop, BERTH_E_SYSTEM, "cannot be opened: Too many levels of symbolic links");
    free(none), free(below), free(loop);
}

Test(bad_input, what_may_not_be_read)
{
    cr_assert_eq(chmod(path, 0), 0);
    cr_assert_eq(chmod(folder, 0755), 0);
    /* Root may read anything. */
    if (geteuid() == 0 && seteuid(65534) < 0)
        cr_skip_test("root without the right to become somebody else");
    expect_no_path(path, BERTH_E_SYSTEM, "cannot be opened: Permission denied");
    if (getuid() == 0)
        cr_assert_eq(seteuid(0), 0);
    expect_no_descriptor(open(path, O_WRONLY | O_CLOEXEC), BERTH_E_SYSTEM, "Bad file descriptor");
    cr_assert_eq(chmod(path, 0600), 0);
    expect_no_descriptor(open(path, O_WRONLY | O_CLOEXEC), BERTH_E_SYSTEM, "Bad file descriptor");
}

/* ---- files that shrink: what was there at open ---- */

static const char *const unmapped[] = {"load.mmap=off", "load.method=read", "load.method=direct",
                                       "load.mmap=off load.check=data"};

/* F1, W9: at every byte, behind the back of who has opened it. */
Test(bad_input, a_file_that_was_cut_since_it_was_opened)
{
    for (size_t i = 0; i < sizeof unmapped / sizeof *unmapped; i++)
        for (size_t cut = 800; cut < file_nbytes; cut += 7) {
            test_write_file(path, file, file_nbytes);
            open_as(unmapped[i]);
            cr_assert_eq(truncate(path, (off_t)cut), 0);
            bool is_whole = cut >= 1220; /* the end of the last storage */
            cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error),
                         is_whole ? 0 : BERTH_E_TRUNCATED, "%s, cut at %zu: %s", unmapped[i], cut,
                         error.message);
            if (!is_whole)
                cr_expect(strncmp(error.record, "data/", 5) == 0 && error.offset >= cut &&
                              error.offset < 1220,
                          "cut at %zu: %s", cut, error.message);
            if (cut >= 984) /* the end of data/0 */
                cr_expect_not_null(data_of("weight"));
        }
}

/* ---- sources ---- */

struct shelf {
    size_t nbytes; /* that are really there */
    unsigned nth;  /* the read that fails; 0: none */
    bool for_ever;
    int result;
    unsigned n_reads;
};

static int read_shelf(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct shelf *shelf = context;

    shelf->n_reads++;
    if (shelf->nth > 0 &&
        (shelf->n_reads == shelf->nth || (shelf->for_ever && shelf->n_reads > shelf->nth)))
        return shelf->result;
    if (offset > shelf->nbytes || nbytes > shelf->nbytes - offset)
        return ENXIO;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static int open_shelf(struct shelf *shelf, uint64_t nbytes)
{
    const berth_source source = {
        .nbytes = nbytes, .name = "shelf", .read = read_shelf, .context = shelf};

    checkpoint = (berth_checkpoint *)&error;
    return berth_open_source(&source, NULL, &checkpoint, &error);
}

/* Opens, fetches, reads: 0 or the first error. */
static int use_shelf(struct shelf *shelf)
{
    if (open_shelf(shelf, file_nbytes) == 0 && berth_load(checkpoint, NULL, NULL, &error) == 0)
        expect_sample_values();
    close_opened();
    return error.code;
}

/* W6, F5: the Nth read fails, by an errno value or by a number that is none. */
Test(bad_input, a_source_that_fails)
{
    static const char *const options[] = {"load.check=none load.head_nbytes=600",
                                          "load.check=data load.head_nbytes=600",
                                          "load.calculate_storage_offsets=off"};
    static const struct {
        int result;
        const char *text;
    } results[] = {{EIO, "Input/output error"},
                   {ETIMEDOUT, "Connection timed out"},
                   {-7, "it returned -7"},
                   {100000, "it returned 100000"}};

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 4; j++)
            for (int for_ever = 0; for_ever < 2; for_ever++) {
                struct shelf shelf = {.nbytes = file_nbytes, .result = results[j].result};
                cr_assert_eq(berth_config_patch(options[i], NULL), 0);
                do {
                    shelf.nth++;
                    shelf.n_reads = 0;
                    shelf.for_ever = for_ever;
                    test_memory_watch();
                    int status = use_shelf(&shelf);
                    cr_expect_eq(test_memory_seen().live_nbytes, 0);
                    test_memory_unwatch();
                    cr_expect_eq(status, shelf.n_reads >= shelf.nth ? BERTH_E_CALLBACK : 0, "%s",
                                 error.message);
                    if (status == 0)
                        continue;
                    cr_expect_eq(strncmp(error.message, "shelf: ", 7), 0, "%s", error.message);
                    cr_expect_not_null(strstr(error.message, results[j].text), "%s", error.message);
                    cr_expect_eq(error.system_errno, j < 2 ? results[j].result : 0);
                    cr_expect_neq(error.offset, BERTH_NO_OFFSET);
                } while (shelf.n_reads >= shelf.nth);
                cr_expect_gt(shelf.nth, 2);
                berth_config_unpatch(NULL);
            }
}

/* A source cannot give too little: `read` fills the buffer or fails. It can lie about its size. */
Test(bad_input, a_source_that_is_shorter_than_it_says)
{
    struct shelf shelf = {.nbytes = file_nbytes};

    for (size_t more = 1; more < 100000; more *= 3) {
        shelf.n_reads = 0;
        cr_expect_eq(open_shelf(&shelf, file_nbytes + more), BERTH_E_CALLBACK, "%zu more: %s", more,
                     error.message);
        cr_expect_not_null(strstr(error.message, "shelf: "), "%s", error.message);
        cr_expect_null(checkpoint);
    }
}

/* Z1, Z3: there is no other end record to find. */
Test(bad_input, a_source_that_is_longer_than_it_says)
{
    static const char *const options[] = {"", "load.check=data",
                                          "load.calculate_storage_offsets=off"};

    for (size_t i = 0; i < 3; i++)
        for (size_t said = 0; said < file_nbytes; said++) {
            struct shelf shelf = {.nbytes = file_nbytes};
            cr_assert_eq(berth_config_patch(options[i], NULL), 0);
            int status = open_shelf(&shelf, said);
            berth_config_unpatch(NULL);
            cr_expect(status < 0 && status != BERTH_E_CALLBACK && status != BERTH_E_MEMORY,
                      "%zu bytes said: %s", said, error.message);
            cr_expect_null(checkpoint);
        }
}

/* What names globals and is no archive: a bare pickle, also a long one, which takes more
 * reads. One that fails is told. */
Test(bad_input, globals_of_what_is_no_archive)
{
    enum { LONG_NBYTES = 3 << 20 };
    static const struct {
        size_t filler_nbytes;
        int n;
        unsigned n_reads; /* each of which fails once */
    } cases[] = {{0, 2, 1}, {100000, 2, 2}, {LONG_NBYTES, 2, 3}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pickle pickle = {0};
        assemble(&pickle, "PROTO 2 EMPTY_LIST GLOBAL os system APPEND");
        char *filler = calloc(1, cases[i].filler_nbytes + 1);
        memset(filler, 'x', cases[i].filler_nbytes);
        put(&pickle, "X", 1);
        put_little(&pickle, cases[i].filler_nbytes, 4);
        put(&pickle, filler, cases[i].filler_nbytes);
        assemble(&pickle, "APPEND GLOBAL posix system APPEND STOP");
        free(file);
        file = malloc(pickle.nbytes);
        file_nbytes = pickle.nbytes;
        memcpy(file, pickle.bytes, pickle.nbytes);
        for (unsigned nth = 0; nth <= cases[i].n_reads; nth++) {
            struct shelf shelf = {.nbytes = file_nbytes, .nth = nth, .result = EIO};
            const berth_source source = {
                .nbytes = file_nbytes, .name = "shelf", .read = read_shelf, .context = &shelf};
            int n = 0, status = berth_list_globals(&source, count_global, &n, &error);
            cr_expect_eq(status, nth ? BERTH_E_CALLBACK : 0, "%zu, %u: %s", i, nth, error.message);
            cr_expect_eq(n, nth ? 0 : cases[i].n, "%zu, %u: %d", i, nth, n);
            cr_expect(nth || shelf.n_reads == cases[i].n_reads, "%zu: %u", i, shelf.n_reads);
        }
        free(filler);
        free(pickle.bytes);
    }
}

/* A record that cannot be read names nothing; nor does one whose name is no name of a pickle. */
Test(bad_input, globals_of_records_that_cannot_be_read)
{
    struct pickle pickle = {0};

    assemble(&pickle, "PROTO 2 GLOBAL os system BINPUT 0 STOP");
    set_record("data.pkl", pickle.bytes, pickle.nbytes);
    add_record(".pkl", pickle.bytes, pickle.nbytes);
    add_record("data.pkx", pickle.bytes, pickle.nbytes);
    for (int bad = 0; bad < 3; bad++) {
        int n = 0;
        build(NULL);
        if (bad == 1)
            zip_again("data.pkl");
        if (bad == 1) /* no inflate() takes these */
            memset(file + data_of_record("data.pkl"), 0xff, 4);
        if (bad == 2)
            file[data_of_record("data.pkl") + pickle.nbytes + 4] ^= 1; /* its descriptor's CRC */
        cr_expect_eq(berth_list_globals(FROM_MEMORY(file, file_nbytes), count_global, &n, &error),
                     0, "%d: %s", bad, error.message);
        cr_expect_eq(n, bad == 0, "%d: %d", bad, n);
    }
    free(pickle.bytes);
}

/* More than there is room for at first; each is told once. */
Test(bad_input, many_globals)
{
    static const struct {
        const char *begin;
        int n;
    } cases[] = {{"PROTO 2 EMPTY_LIST", 40}, {"PROTO 4 EMPTY_LIST", 40}, {"PROTO 4 EMPTY_LIST", 4}};

    for (size_t k = 0; k < 3; k++) {
        struct pickle pickle = {0};
        char global[40];
        int n = 0;
        assemble(&pickle, cases[k].begin);
        for (int i = 0; i < 2 * cases[k].n; i++) {
            (void)snprintf(global, sizeof global, "GLOBAL os name%d APPEND", i % cases[k].n);
            assemble(&pickle, global);
        }
        assemble(&pickle, "STOP");
        assert_ok(
            berth_list_globals(FROM_MEMORY(pickle.bytes, pickle.nbytes), count_global, &n, &error));
        cr_expect_eq(n, cases[k].n);
        free(pickle.bytes);
    }
}

/* W6: each allocation fails once; what could not be listed is never left out in silence. */
Test(bad_input, globals_without_memory)
{
    struct pickle pickle = {0};

    assemble(&pickle, "PROTO 2 GLOBAL os system BINPUT 0 STOP");
    berth_source sources[3] = {berth_from_memory(pickle.bytes, pickle.nbytes),
                               berth_from_memory(file, file_nbytes)};
    for (size_t i = 0; i < 3; i++) {
        int all = 0;
        if (i == 2) { /* the pickle is inflated first */
            set_record("data.pkl", pickle.bytes, pickle.nbytes);
            zip_again("data.pkl");
            sources[i] = berth_from_memory(file, file_nbytes);
        }
        assert_ok(berth_list_globals(&sources[i], count_global, &all, &error));
        for (struct test_refusals each = {0}; test_refuse_next(&each);) {
            int n = 0, status = berth_list_globals(&sources[i], count_global, &n, &error);
            cr_assert_eq(status, test_memory_refused() ? BERTH_E_MEMORY : 0, "%zu, %d: %s", i,
                         (int)each.nth, error.message);
            cr_expect_eq(n, status == 0 ? all : 0);
        }
    }
    free(pickle.bytes);
}

/* ---- ranges ---- */

Test(bad_input, ranges_outside)
{
    static const int64_t bad[][2] = {
        {-1, 1}, {0, -1},        {0, 7},         {7, 0},         {6, 1},
        {1, 6},  {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MIN, 1}, {INT64_MAX, INT64_MAX},
        {3, -3}};
    berth_archive *archive;
    berth_record record;
    float few[8];

    cr_assert_eq(berth_open(path, NULL, &checkpoint, &error), 0);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "weight", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(berth_tensor_read(checkpoint, tensor, bad[i][0], bad[i][1], few, &error),
                     BERTH_E_ARGUMENT, "%lld, %lld", (long long)bad[i][0], (long long)bad[i][1]);
        cr_expect_not_null(strstr(error.message, "the tensor has 6"), "%s", error.message);
    }
    cr_expect_eq(berth_tensor_read(checkpoint, tensor, 6, 0, NULL, &error), 0);
    close_opened();

    cr_assert_eq(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error), 0);
    cr_assert_eq(berth_archive_find(archive, "data/0", &record, &error), 0);
    cr_expect_eq(berth_archive_read(archive, &record, few, 24, 0, &error), 0);
    cr_expect_eq(berth_archive_read(archive, &record, few, 25, 0, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_archive_read(archive, &record, few, 1, 24, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_archive_read(archive, &record, few, SIZE_MAX, 2, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_archive_read(archive, &record, few, 2, UINT64_MAX, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_eq(berth_archive_read(archive, &record, NULL, 0, 24, &error), 0);
    record.nbytes = 1000; /* what the caller's struct says is not relied on */
    cr_expect_eq(berth_archive_read(archive, &record, few, 25, 0, &error), BERTH_E_ARGUMENT);
    berth_archive_close(archive);
}

/* T2: a tensor that the caller made itself is checked like those of a file. */
Test(bad_input, tensors_that_do_not_fit_their_storage)
{
    static const int64_t shape[] = {4, 3}, stride[] = {1, 1}, wide[] = {INT64_MAX, 4};
    float few[12];

    cr_assert_eq(berth_open(path, NULL, &checkpoint, &error), 0);
    const berth_tensor *whole = berth_find_tensor(checkpoint, "weight", NULL);
    berth_tensor longer = *whole, behind = *whole, overflows = *whole, negative = *whole;
    longer.shape = shape;
    longer.stride = NULL;
    behind.storage_offset = 1;
    overflows.shape = wide;
    overflows.stride = stride;
    negative.storage_offset = -1;
    const berth_tensor *const bad[] = {&longer, &behind, &overflows, &negative};
    for (size_t i = 0; i < 4; i++) {
        const berth_selection selection = {.tensors = &bad[i], .n_tensors = 1};
        cr_expect_lt(berth_tensor_read(checkpoint, bad[i], 0, 1, few, &error), 0, "%zu", i);
        cr_expect_null(berth_tensor_data(checkpoint, bad[i], &error), "%zu", i);
        cr_expect_lt(berth_load(checkpoint, &selection, NULL, &error), 0, "%zu", i);
    }
}
