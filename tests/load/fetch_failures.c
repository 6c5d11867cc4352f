/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many storages at once, or none: cancelled, failing, cut short, with wrong sums, without memory.
 */
#include <pthread.h>

#include "tests/support/io/refusals.h"
#include "tests/support/load/fetch_scene.h"

TestSuite(fetch_failures, .init = begin_fetch, .fini = end_fetch);

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    cr_expect_leq(done_nbytes, total_nbytes);
    return ++*(int *)context > 1;
}

Test(fetch_failures, that_is_cancelled_leaves_all_as_it_was_and_may_be_repeated)
{
    static const char *const options[] = {"load.method=read io.threads=1 io.chunk_nbytes=65536",
                                          "load.method=direct io.threads=1 io.chunk_nbytes=65536",
                                          "load.method=map io.threads=1 io.chunk_nbytes=65536"};

    for (size_t i = 0; i < 3; i++) {
        int n_calls = 1;
        berth_stats stats;
        berth_params call = {.progress = cancel, .progress_context = &n_calls, .stats = &stats};
        open_as(options[i]);
        cr_expect_eq(berth_load(checkpoint, NULL, &call, &error), BERTH_E_CANCELLED);
        for (size_t k = 0; k < N_TENSORS; k++)
            cr_expect(!is_memory(k) || lengths[k] == 0);
        cr_expect_null(checkpoint->storages.regions);
        cr_expect_eq(stats.memory_nbytes, 0);
        fetched(NULL);
        expect_elements();
    }
}

Test(fetch_failures, that_fails_names_record_and_byte)
{
    open_as("load.method=read io.threads=1 io.chunk_nbytes=1MiB");
    char expected[300];
    const berth_storage *storage = tensor_at(3)->storage;

    bth_system.pread = failing_pread;
    n_reads_left = 2;
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_SYSTEM);
    cr_expect_str_eq(error.record, "data/3");
    cr_expect(error.offset > storage->offset && error.offset < storage->offset + storage->nbytes);
    (void)snprintf(expected, sizeof expected,
                   "%s: \"t3\": data/3 at byte %llu: 1048576 bytes not read: Input/output error",
                   path, (unsigned long long)error.offset);
    cr_expect_str_eq(error.message, expected);
    cr_expect_not(is_memory(0));
    bth_system_restore();
    fetched(NULL);
    expect_elements();
}

static int failing_fstat(int fd, struct stat *status)
{
    (void)fd, (void)status;
    errno = EIO;
    return -1;
}

/* F2: a map whose file cannot be examined is not looked at: it may end before its bytes. */
Test(fetch_failures, of_a_file_that_cannot_be_examined)
{
    static const char *const options[] = {"load.method=map", "load.method=map load.check=data"};

    for (size_t i = 0; i < 2; i++) {
        open_as(options[i]);
        const berth_tensor *tensor = tensor_at(3);
        bth_system.fstat = failing_fstat;
        FAILS_SAYING(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_SYSTEM,
                     "cannot be examined: Input/output error");
        cr_expect_null(berth_tensor_data(checkpoint, tensor, &error));
        bth_system_restore();
        fetched(NULL);
        expect_elements();
    }
}

/* W6: what failed is told all the same. */
Test(fetch_failures, without_memory_for_a_name_tells_none)
{
    uint64_t nth = 0;
    bool is_named;
    float element;

    open_as("load.method=read");
    const berth_tensor *tensor = tensor_at(3); /* names are made */
    test_memory_watch();
    do {
        test_memory_refuse(++nth, false);
        cr_expect_eq(berth_tensor_read(checkpoint, tensor, -1, 1, &element, &error),
                     BERTH_E_ARGUMENT);
        is_named = strstr(error.message, ": \"t3\": ") != NULL;
        cr_expect_eq(is_named, !test_memory_refused(), "%s", error.message);
        cr_expect_eq(strchr(error.message, '"') != NULL, is_named, "%s", error.message);
    } while (!is_named && nth < 100);
    test_memory_unwatch();
    cr_expect_gt(nth, 2);
}

/* W9, F2 */
Test(fetch_failures, of_a_file_that_got_shorter_is_an_error_and_no_signal)
{
    static const char *const options[] = {
        "load.method=read io.threads=1", "load.method=direct io.threads=1",
        "load.method=map io.threads=1", "io.threads=1", "load.mmap=off io.threads=1"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        save_tensors("save.storage_alignment=64");
        open_as(options[i]);
        cr_assert_eq(truncate(path, 2000000), 0);
        cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_TRUNCATED, "%s: %s",
                     options[i], error.message);
        cr_expect_str_eq(error.record, i == 2 ? "data/0" : "data/3", "%s", options[i]);
        for (size_t k = 0; k < N_TENSORS; k++)
            cr_expect(!is_memory(k) || lengths[k] == 0);
    }
}

static off_t cut_at;

static int cutting_madvise(void *address, size_t nbytes, int advice)
{
    if (cut_at > 0)
        cr_assert_eq(truncate(path, cut_at), 0);
    cut_at = 0;
    return madvise(address, nbytes, advice);
}

/* F2: the map was made, and then. */
Test(fetch_failures, of_a_mapped_file_that_is_cut_while_it_is_made_present)
{
    open_as("load.method=map io.threads=1 io.chunk_nbytes=1MiB");
    cut_at = 2000000;
    bth_system.madvise = cutting_madvise;
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_TRUNCATED, "%s",
                 error.message);
    cr_expect_str_eq(error.record, "data/3", "%s", error.message);
}

/* Z10 */
Test(fetch_failures, compares_crcs_of_what_it_brings)
{
    static const char *const options[] = {"load.method=read " BACK, "load.method=direct " BACK,
                                          "load.method=map " BACK};
    const berth_selection others = {.pattern = "t[!3]"};
    char checked[200];

    for (size_t i = 0; i < 3; i++) {
        open_as(options[i]);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        off_t at = (off_t)tensor_at(3)->storage->offset + 3000001;
        uint8_t byte = (uint8_t) ~((const uint8_t *)elements[3])[3000001];
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        (void)snprintf(checked, sizeof checked, "load.check=data %s", options[i]);
        const berth_params *call = only(checked, NULL);
        cr_expect_eq(berth_load(checkpoint, NULL, call, &error), BERTH_E_CHECKSUM, "%s",
                     options[i]);
        cr_expect_str_eq(error.record, "data/3");
        cr_expect_eq(stats_at(3).crc32, BERTH_CRC_BAD);
        cr_expect_not(is_memory(3));
        cr_expect_not(is_memory(5));
        cr_expect_eq(berth_load(checkpoint, &others, call, &error), 0, "%s", error.message);
        cr_expect_eq(stats_at(5).crc32, BERTH_CRC_GOOD);
        byte = (uint8_t)~byte;
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        cr_expect_eq(berth_load(checkpoint, NULL, call, &error), 0, "%s", error.message);
        cr_expect_eq(stats_at(3).crc32, BERTH_CRC_GOOD);
        (void)close(fd);
    }
}

Test(fetch_failures, without_crcs_in_the_file_says_so)
{
    save_tensors("save.compute_crc32=off");
    open_as("load.check=data load.method=read");
    fetched(NULL);
    cr_expect_eq(stats_at(3).crc32, BERTH_CRC_ABSENT);
    expect_elements();
}

/* ---- two who want the same ---- */

struct slow {
    pthread_t other;
    bool has_other;
    atomic_uint n_reads;
    int fails; /* so many reads */
};

/* Asks for what is being fetched: it waits, or brings it when the fetch has failed. */
static void *ask(void *context)
{
    (void)context;
    return (void *)(uintptr_t)berth_tensor_data(checkpoint, tensor_at(3), NULL);
}

static int slow_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct slow *slow = context;

    if (checkpoint && !slow->has_other) {
        slow->has_other = true;
        cr_assert_eq(pthread_create(&slow->other, NULL, ask, NULL), 0);
        (void)usleep(50000); /* long enough for it to ask, most of the time */
    }
    slow->n_reads += checkpoint != NULL;
    if (checkpoint && slow->fails-- > 0)
        return EIO;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static void open_source(int (*read)(void *, void *, size_t, uint64_t), void *context)
{
    berth_source source = {.nbytes = file_nbytes, .read = read, .context = context};
    const berth_params *call = only("io.threads=1 io.chunk_nbytes=128MiB", NULL);

    assert_ok(berth_open_source(&source, call, &checkpoint, &error));
}

Test(fetch_failures, who_asks_for_what_is_coming_waits_and_brings_it_when_it_did_not_come)
{
    for (int fails = 0; fails < 2; fails++) {
        struct slow slow = {.fails = fails};
        void *got;
        open_source(slow_read, &slow);
        int code = berth_load(checkpoint, NULL, NULL, &error);
        cr_expect_eq(code, fails ? BERTH_E_CALLBACK : 0);
        cr_assert_eq(pthread_join(slow.other, &got), 0);
        cr_expect_eq(got, berth_tensor_data(checkpoint, tensor_at(3), &error));
        cr_assert_not_null(got);
        cr_expect_arr_eq(got, elements[3], lengths[3] * 4);
        cr_expect_eq(slow.n_reads, fails ? 2 : 1, "none is read twice");
        cr_expect_eq(is_memory(5), !fails);
        close_opened();
    }
}

/* The file, of which one record cannot be read: who tries first waits for who tries next. */
struct broken {
    uint64_t begin, end; /* of the bad bytes */
    atomic_bool is_asked, others_are_read;
    bool is_whole;
};

static int broken_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct broken *broken = context;
    bool is_bad = offset < broken->end && offset + nbytes > broken->begin && !broken->is_whole;

    if (is_bad) {
        atomic_store(&broken->is_asked, true);
        while (!atomic_load(&broken->others_are_read))
            (void)usleep(1000);
        return EIO;
    }
    if (atomic_load(&broken->is_asked))
        atomic_store(&broken->others_are_read, true);
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static void *fetch_one(void *context)
{
    const berth_selection one = {.pattern = "t3"};

    return (void *)(intptr_t)berth_load(context, &one, NULL, NULL);
}

/* All or nothing, also where another fetch is waited for, fails, and so does what is tried then. */
Test(fetch_failures, that_waited_for_another_failure_leaves_nothing)
{
    struct broken broken = {.is_whole = true};
    berth_stats stats;
    berth_params call = {.stats = &stats};
    pthread_t other;
    void *code;

    open_source(broken_read, &broken);
    const berth_storage *storage = tensor_at(3)->storage;
    broken.is_whole = false;
    broken.begin = storage->offset;
    broken.end = storage->offset + storage->nbytes;
    cr_assert_eq(pthread_create(&other, NULL, fetch_one, checkpoint), 0);
    while (!atomic_load(&broken.is_asked))
        (void)usleep(1000);
    cr_expect_eq(berth_load(checkpoint, NULL, &call, &error), BERTH_E_CALLBACK);
    cr_expect_str_eq(error.record, "data/3");
    cr_expect_eq(stats.memory_nbytes, 0);
    cr_assert_eq(pthread_join(other, &code), 0);
    cr_expect_eq((intptr_t)code, BERTH_E_CALLBACK);
    cr_expect(atomic_load(&broken.others_are_read));
    cr_expect_null(checkpoint->storages.regions);
    for (size_t i = 0; i < N_TENSORS; i++)
        cr_expect(!is_memory(i) || lengths[i] == 0, "t%zu", i);
    broken.is_whole = true;
    fetched(NULL);
    expect_elements();
}

/* ---- memory ---- */

#define N_LONG (20 << 20)

static char *fake_meminfo;

static int open_fake(const char *what, int flags, mode_t mode)
{
    if (strcmp(what, "/proc/meminfo") == 0)
        return open(fake_meminfo, flags, mode);
    if (strcmp(what, "/proc/self/cgroup") == 0) {
        errno = ENOENT;
        return -1;
    }
    return open(what, flags, mode);
}

/* A sparse file would do as well, but has no CRCs. */
static void save_long_ones(void)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    void *bytes = calloc(1, N_LONG / 2);

    for (int i = 0; i < 2; i++)
        berth_dict_set(root, i == 0 ? "first" : "second",
                       test_vector(tree, BERTH_UINT8, bytes, N_LONG / 2));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    free(bytes);
}

Test(fetch_failures, that_does_not_fit_names_the_first_tensor_and_what_is_missing)
{
    static const char text[] = "MemAvailable: 12000 kB\n";
    char expected[400];

    save_long_ones();
    fake_meminfo = test_path(folder, "meminfo");
    test_write_file(fake_meminfo, text, sizeof text - 1);
    open_as("load.method=read io.threads=1");
    bth_system.open = open_fake;
    bth_system.pread = failing_pread;
    n_reads_left = 2; /* those of meminfo and nothing else */
    const berth_storage *first = berth_find_tensor(checkpoint, "first", NULL)->storage;
    const berth_storage *second = berth_find_tensor(checkpoint, "second", NULL)->storage;
    uint64_t needed = second->offset + second->nbytes - first->offset + first->offset % 64;
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_MEMORY);
    (void)snprintf(expected, sizeof expected,
                   "%s: \"second\": data/1 at byte %llu: not enough memory: of %llu bytes needed, "
                   "%llu are missing",
                   path, (unsigned long long)second->offset, (unsigned long long)needed,
                   (unsigned long long)(needed - 12000 * 1024));
    cr_expect_str_eq(error.message, expected);
    bth_system.pread = pread;
    /* What is mapped needs none. */
    const berth_storage_rule rules[] = {{.pattern = "second", .method = BERTH_LOAD_MAP}};
    cr_assert_eq(berth_set_storage_rules(checkpoint, rules, 1, &error), 0);
    fetched(NULL);
    bth_system_restore();
    free(fake_meminfo);
}
