/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Verification: it finds what an open that compares everything finds, in one sweep that reads every
 * byte once, and tells every bad record.
 */
#include <berth/config.h>
#include <errno.h>
#include <stdatomic.h>

#include "io/syscalls.h"
#include "tests/support/format/pickle_assembler.h"
#include "tests/support/load/archive.h"

/* What the last verification said. */
static berth_verdict verdict;
static berth_stats stats;

static void tear_down(void)
{
    bth_system_restore();
    end_sample_file();
}

TestSuite(verify, .init = begin_sample_file, .fini = tear_down);

/* With these options alone, whatever the environment says of debug. */
static int verify_with(const char *options, berth_record_function tell, void *context)
{
    return berth_verify(FROM_PATH(path), only(options, &stats), tell, context, &verdict, &error);
}

static void expect_good(const char *options)
{
    cr_assert_eq(verify_with(options, NULL, NULL), 0, "%s: %s", options, error.message);
}

static int open_everything(const char *options)
{
    char all[200];

    (void)snprintf(all, sizeof all, "load.check=data %s", options);
    const berth_params *call = only(all, NULL);
    int result = berth_open(path, call, &checkpoint, &error);
    if (result == 0)
        result = berth_load(checkpoint, NULL, call, &error);
    close_opened();
    return result;
}

/* The file, and the one at `path`: n tensors of the sizes first, first + step ... */
static void save_many(size_t n, size_t first, size_t step, const char *options)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    uint8_t *data = malloc(first + n * step);
    char name[32];

    for (size_t i = 0; i < first + n * step; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "t%zu", i);
        berth_dict_set(root, name,
                       test_vector(tree, BERTH_UINT8, data, (int64_t)(first + i * step)));
    }
    patch(options);
    assert_ok(berth_save(path, root, NULL, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    berth_tree_free(tree);
    free(data);
    free(file);
    file = test_read_file(path, &file_nbytes);
}

/* ---- one flipped bit ---- */

/* Z5 to Z7, Z10: the same sentence as from an open that reads all headers, then all data. */
Test(verify, every_flipped_byte_is_found_as_an_open_finds_it)
{
    static const char *const options[] = {"", "load.mmap=off",
                                          "load.calculate_storage_offsets=off"};
    berth_error expected;

    for (size_t i = 0; i < 3; i++)
        for (size_t at = 0; at < file_nbytes; at++) {
            file[at] ^= 1;
            test_write_file(path, file, file_nbytes);
            int code = open_everything(options[i]);
            expected = error;
            int verified = verify_with(options[i], NULL, NULL);
            /* What an open refuses for what it is has damage: verification tells that. */
            if (code == BERTH_E_NOT_CHECKPOINT && verified == BERTH_E_ARCHIVE)
                expected = error;
            else
                cr_expect_eq(verified, code, "byte %zu: %s", at, error.message);
            cr_expect_str_eq(error.message, expected.message, "byte %zu: %s, not %s", at,
                             error.message, expected.message);
            file[at] ^= 1;
        }
}

/* ---- every bad record ---- */

struct told {
    size_t n;
    size_t n_bad;
    uint64_t last_offset;
    char text[1024];
};

static void note(void *context, const berth_record_verdict *record)
{
    static const char *const words[] = {"unchecked", "good", "absent", "bad"};
    struct told *told = context;
    size_t at = strlen(told->text);

    cr_expect_gt(record->offset, told->last_offset, "%s", record->name);
    told->last_offset = record->offset;
    told->n++;
    if (!record->bad)
        return;
    told->n_bad++;
    cr_expect_str_eq(record->bad->record, record->name);
    (void)snprintf(told->text + at, sizeof told->text - at, "%s %s, %s\n", record->name,
                   words[record->crc32], record->bad->message);
}

Test(verify, every_bad_record_is_told_in_the_order_of_the_file)
{
    struct told told = {0};

    file[1000 + 14] ^= 1; /* the CRC in the local header of data/1 */
    file[1216] ^= 1;      /* the first element of data/2 */
    file[960] ^= 1;       /* the first element of data/0 */
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(verify_with("", note, &told), BERTH_E_CHECKSUM);
    cr_expect_eq(strncmp(error.message, path, strlen(path)), 0);
    cr_expect_str_eq(error.record, "data/0");
    cr_expect_str_eq(told.text,
                     "data/0 bad, data/0 at byte 960: its bytes have CRC 0x10c2f530, the directory "
                     "says 0x91e79017\n"
                     "data/1 unchecked, data/1 at byte 1000: the local header's CRC is 0x00000001, "
                     "the directory's 0xc37f9b13\n"
                     "data/2 bad, data/2 at byte 1216: its bytes have CRC 0x9f62cde3, the "
                     "directory says 0x27deaa86\n");
    cr_expect_eq(told.n, sample.n);
    cr_expect_eq(verdict.n_records, sample.n);
    cr_expect_eq(verdict.n_bad, 3);
    cr_expect_eq(verdict.n_verified, sample.n - 3);
}

/* Four bytes further on, with a descriptor that lacks its signature: all else stays in its place.
 */
static void shift_last_storage(void)
{
    enum { HEADER = 1128, EXTRA = HEADER + 30 + 13, DATA = 1216, SHIFT = 4 };

    cr_assert_eq(memcmp(file + HEADER, "PK\3\4", 4), 0);
    file[HEADER + 28] = (uint8_t)(file[HEADER + 28] + SHIFT);
    file[EXTRA + 2] = (uint8_t)(file[EXTRA + 2] + SHIFT);
    memcpy(file + DATA + SHIFT, file + DATA, SHIFT); /* over the signature */
    memset(file + DATA, 'Z', SHIFT);
}

Test(verify, a_record_that_is_elsewhere_is_the_last_one_told)
{
    struct told told = {0};

    shift_last_storage();
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(verify_with("", note, &told), BERTH_E_OFFSETS);
    cr_expect_str_eq(told.text,
                     "data/2 unchecked, data/2 at byte 1216: the layout puts its data here, at the "
                     "first multiple of 64 after the header; its local header puts it at byte "
                     "1220; load.calculate_storage_offsets=off reads it there\n");
    cr_expect_eq(told.n, 7);
    cr_expect_eq(verdict.n_bad, 1);
    expect_good("load.calculate_storage_offsets=off");
}

/* Z7: of a storage without a descriptor nothing else tells where it ends. */
Test(verify, a_record_that_reaches_into_the_next_is_told)
{
    enum { HEADER = 1000, EXTRAS = HEADER + 30 + 13, LATER = 32, CRC = 14 };
    uint8_t *entry = find_entry("data/1");

    entry[8] &= (uint8_t)~8, file[HEADER + 6] &= (uint8_t)~8;
    memcpy(file + HEADER + CRC, entry + 16, 12); /* CRC and sizes */
    file[HEADER + 28] += LATER, file[EXTRAS + 2] += LATER;
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(verify_with("", NULL, NULL), BERTH_E_ARCHIVE);
    cr_expect_not_null(
        strstr(error.message, "data/1 at byte 1120: its 24 bytes overlap what begins at byte 1128"),
        "%s", error.message);
}

/* ---- tiles ---- */

static const char *const all_ways[] = {
    "io.chunk_nbytes=65536",
    "io.chunk_nbytes=65536 io.threads=1",
    "io.chunk_nbytes=65536 io.threads=3 load.mmap=off",
    "io.chunk_nbytes=200000 io.threads=2 load.method=read",
    "load.mmap=off io.memory_nbytes=65536",
    "debug=on io.chunk_nbytes=65536",
    "load.calculate_storage_offsets=off io.chunk_nbytes=65536",
};
#define N_WAYS (sizeof all_ways / sizeof *all_ways)

/* Records that end and begin in every way around the tiles' edges. */
Test(verify, records_in_several_tiles_have_their_sums)
{
    for (size_t first = 0; first < 4; first++) {
        save_many(60, 1 + first * 30000, 1 + first * 37, "");
        for (size_t i = 0; i < N_WAYS; i++) {
            expect_good(all_ways[i]);
            cr_expect_eq(verdict.n_verified, 66);
            cr_expect_eq(verdict.n_bad, 0);
        }
    }
}

/* The bytes around every edge of a tile. */
Test(verify, no_byte_at_a_tiles_edge_is_left_out)
{
    enum { TILE = 65536 };
    save_many(20, 30000, 1111, "");

    for (size_t edge = TILE; edge < file_nbytes - 8000; edge += TILE)
        for (size_t at = edge - 2; at < edge + 2; at++)
            for (size_t i = 0; i < N_WAYS; i++) {
                FILE *changed = fopen(path, "r+b");
                (void)fseek(changed, (long)at, SEEK_SET);
                (void)fputc(file[at] ^ 0x20, changed);
                (void)fclose(changed);
                int code = open_everything("io.chunk_nbytes=1048576");
                /* Padding may be anything. */
                cr_expect_eq(verify_with(all_ways[i], NULL, NULL), code, "byte %zu, %s: %s", at,
                             all_ways[i], error.message);
                test_write_file(path, file, file_nbytes);
            }
}

Test(verify, without_memory_for_a_buffer_says_so_before_it_reads)
{
    char expected[300];

    save_many(20, 30000, 1, "");
    cr_expect_eq(verify_with("load.mmap=off io.memory_nbytes=65535", NULL, NULL), BERTH_E_MEMORY);
    (void)snprintf(expected, sizeof expected,
                   "%s: io.memory_nbytes=65535 is too little for a buffer: 1 bytes are missing",
                   path);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(verify_with("load.mmap=off io.memory_nbytes=65536", NULL, NULL), 0, "%s",
                 error.message);
}

/* ---- how much is read ---- */

Test(verify, small_records_share_reads_and_no_byte_is_read_twice)
{
    save_many(3000, 700, 1, "");
    cr_assert_gt(file_nbytes, 6u << 20);
    expect_good("load.method=read load.head_nbytes=1000");
    cr_expect_eq(verdict.n_records, 3006);
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "load.method=read");
    /* Open reads 1 MiB of head, and the directory; the sweep reads pieces of 512 KiB. */
    cr_expect_lt(stats.n_requests, 60, "%llu requests", (unsigned long long)stats.n_requests);
    cr_expect_lt(stats.moved_nbytes, file_nbytes + 1500000, "%llu of %zu bytes",
                 (unsigned long long)stats.moved_nbytes, file_nbytes);
}

Test(verify, what_is_in_the_page_cache_is_summed_where_it_lies)
{
    save_many(20, 300000, 1, "save.method=buffered");
    expect_good("");
    cr_expect_str_eq(stats.method, "map");
    cr_expect_str_eq(stats.reason, "the file is in memory");
    expect_good("load.mmap=off");
    cr_expect_str_eq(stats.method, "read");
}

static int told_nfs(int fd, struct statfs *system)
{
    (void)fd;
    memset(system, 0, sizeof *system);
    system->f_type = 0x6969;
    return 0;
}

/* F2 */
Test(verify, a_file_that_strangers_may_cut_short_is_not_mapped)
{
    save_many(20, 300000, 1, "save.method=buffered");
    bth_system.fstatfs = told_nfs;
    expect_good("");
    bth_system_restore();
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "the file system belongs to a network or a process");
}

Test(verify, records_without_sums_are_counted)
{
    struct told told = {0};

    save_many(20, 300, 1, "save.compute_crc32=off");
    assert_ok(verify_with("", note, &told));
    cr_expect_eq(verdict.n_unverified, 26);
    cr_expect_eq(verdict.n_verified, 0);
    cr_expect_eq(verdict.n_bad, 0);
    cr_expect_eq(told.n, 26);
}

/* ---- what the disk cannot read ---- */

enum { SECTOR_NBYTES = 512 };

static uint64_t bad_sectors[2]; /* where they begin; 0: none */
static int bad_errno;
static atomic_int n_bad_reads; /* that fail before the disk thinks better of it */

static ssize_t read_of_bad_disk(int fd, void *buffer, size_t nbytes, off_t offset)
{
    for (size_t i = 0; i < 2; i++)
        if (bad_sectors[i] > 0 && (uint64_t)offset < bad_sectors[i] + SECTOR_NBYTES &&
            (uint64_t)offset + nbytes > bad_sectors[i] && atomic_fetch_sub(&n_bad_reads, 1) > 0) {
            errno = bad_errno;
            return -1;
        }
    return pread(fd, buffer, nbytes, offset);
}

static int verify_on_bad_disk(const char *options, uint64_t first, uint64_t second, int n,
                              struct told *told)
{
    *told = (struct told){0};
    bad_sectors[0] = first;
    bad_sectors[1] = second;
    atomic_store(&n_bad_reads, n);
    bth_system.pread = read_of_bad_disk;
    int result = verify_with(options, note, told);
    bth_system_restore();
    return result;
}

static void note_places(void *context, const berth_record_verdict *record)
{
    uint64_t **next = context;

    if (strncmp(record->name, "data/", 5) == 0)
        *(*next)++ = record->offset;
}

/* F5: the others are looked at all the same. */
Test(verify, a_record_that_cannot_be_read_does_not_keep_others_from_being_told)
{
    static const char *const options[] = {
        "load.head_nbytes=65536 load.method=read io.threads=1",
        "load.head_nbytes=65536 load.method=read io.threads=3 io.chunk_nbytes=65536",
        "load.head_nbytes=65536 load.mmap=off io.memory_nbytes=65536",
        "load.head_nbytes=65536 load.method=read load.calculate_storage_offsets=off"};
    static const int reasons[] = {EIO, ENODATA, EILSEQ, EIO}; /* what disks and file systems say */
    uint64_t places[20], *next = places;
    struct told told;
    char said[200];

    save_many(20, 300000, 1, "");
    cr_assert_eq(verify_with("", note_places, &next), 0);
    cr_assert_eq(next - places, 20);
    file[places[5]] ^= 1;
    test_write_file(path, file, file_nbytes);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        bad_errno = reasons[i];
        (void)snprintf(said, sizeof said, " bytes not read: %s\ndata/5 bad, data/5 at ",
                       strerror(bad_errno));
        cr_expect_lt(
            verify_on_bad_disk(options[i], places[3] + 100000, places[17] + 200000, 1000, &told),
            0);
        cr_expect_str_eq(error.record, "data/3");
        cr_expect_eq(error.system_errno, bad_errno);
        cr_expect_eq(strncmp(error.message, path, strlen(path)), 0);
        cr_expect_eq(told.n, 26);
        cr_expect_eq(verdict.n_records, 26);
        cr_expect_eq(verdict.n_bad, 3, "%s", told.text);
        cr_expect_eq(verdict.n_verified, 23);
        cr_expect_eq(strncmp(told.text, "data/3 unchecked, data/3 at byte ", 33), 0, "%s",
                     told.text);
        cr_expect(strstr(told.text, said), "%s", told.text);
        cr_expect(strstr(told.text, "\ndata/17 unchecked, data/17 at byte "), "%s", told.text);
    }
}

Test(verify, of_small_records_only_those_in_a_bad_sector_are_told)
{
    uint64_t places[3000], *next = places;
    struct told told;

    bad_errno = EIO;
    save_many(3000, 700, 1, "");
    cr_assert_eq(verify_with("", note_places, &next), 0);
    for (uint64_t before = 0; before <= 512; before += 128) {
        cr_expect_lt(verify_on_bad_disk("load.head_nbytes=65536 load.method=read",
                                        places[2000] - before, 0, 100000, &told),
                     0);
        cr_expect_eq(told.n, 3006);
        cr_expect(verdict.n_bad == 1 || verdict.n_bad == 2, "%zu", verdict.n_bad);
        cr_expect_eq(verdict.n_verified, 3006 - verdict.n_bad);
        cr_expect(strstr(told.text, "data/2000 unchecked"), "%s", told.text);
    }
}

static void note_pickle(void *context, const berth_record_verdict *record)
{
    if (strcmp(record->name, "data.pkl") == 0)
        *(uint64_t *)context = record->offset;
}

/* F5: the pickle, which an open needs: all others are looked at all the same. */
Test(verify, a_pickle_that_cannot_be_read_is_one_bad_record)
{
    uint64_t place = 0;
    struct told told;

    bad_errno = EIO;
    save_many(3000, 700, 1, "");
    cr_assert_eq(verify_with("", note_pickle, &place), 0);
    cr_expect_lt(verify_on_bad_disk("load.head_nbytes=65536 load.method=read", place + 20000, 0,
                                    100000, &told),
                 0);
    cr_expect_str_eq(error.record, "data.pkl", "%s", error.message);
    cr_expect_eq(error.system_errno, EIO);
    cr_expect_eq(told.n, 3006);
    cr_expect_eq(verdict.n_bad, 1);
    cr_expect_eq(verdict.n_verified, 3005);
    cr_expect(!verdict.is_intact);
    /* Only once: no record is bad, and the file is not called intact. */
    cr_expect_lt(
        verify_on_bad_disk("load.head_nbytes=65536 load.method=read", place + 20000, 0, 1, &told),
        0);
    cr_expect_eq(error.system_errno, EIO);
    cr_expect(!verdict.is_intact);
}

/* F5: no record is bad, but the disk is not to be trusted. */
Test(verify, a_read_that_fails_once_is_an_error)
{
    struct told told;
    uint64_t place[20], *next = place;

    bad_errno = EIO;
    save_many(20, 300000, 1, "");
    cr_assert_eq(verify_with("", note_places, &next), 0);
    cr_expect_lt(
        verify_on_bad_disk("load.head_nbytes=65536 load.method=read", place[3], 0, 1, &told), 0);
    cr_expect_eq(error.system_errno, EIO);
    cr_expect_eq(verdict.n_bad, 0);
    cr_expect_eq(verdict.n_verified, 26);
    /* Nothing more comes from a disk that is gone. */
    bad_errno = ENXIO;
    cr_expect_lt(
        verify_on_bad_disk("load.head_nbytes=65536 load.method=read", place[3], 0, 1, &told), 0);
    cr_expect_eq(error.system_errno, ENXIO);
    cr_expect_eq(told.n, 0);
}

/* ---- what is refused for what it names ---- */

/* A file without damage keeps its refusal, and is told to be whole; damage is told instead of it.
 */
Test(verify, a_refused_file_is_looked_at_for_damage)
{
    static const struct {
        const char *words; /* of its pickle; NULL: it has none */
        bool with_sums, is_damaged;
        int code;
        bool is_intact;
        const char *says;
    } cases[] = {
        {"GLOBAL os system STOP", true, false, BERTH_E_FORBIDDEN, true, "os system"},
        {"GLOBAL os system STOP", false, false, BERTH_E_FORBIDDEN, true, "os system"},
        {"GLOBAL os system STOP", true, true, BERTH_E_CHECKSUM, false, "its bytes have CRC"},
        {"GLOBAL os system TUPLE2 STOP", true, false, BERTH_E_FORBIDDEN, true, "os system"},
        {"GLOBAL os system TUPLE2 STOP", false, false, BERTH_E_PICKLE, false, "TUPLE2"},
        {"GLOBAL os system TUPLE2 STOP", true, true, BERTH_E_CHECKSUM, false, "its bytes have CRC"},
        {NULL, true, false, BERTH_E_NOT_CHECKPOINT, true, ""},
        {NULL, true, true, BERTH_E_CHECKSUM, false, "its bytes have CRC"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pickle pickle = {0};
        end_sample();
        begin_sample();
        for (int k = 0; k < N_SAMPLE_STORAGES; k++)
            remove_record(((const char *const[]){"data/0", "data/1", "data/2"})[k]);
        if (cases[i].words) {
            assemble(&pickle, "PROTO 2");
            assemble(&pickle, cases[i].words);
            set_record("data.pkl", pickle.bytes, pickle.nbytes);
        } else
            remove_record("data.pkl");
        add_text("more", "0123456789");
        build_with(64, cases[i].with_sums, NULL);
        uint8_t *more = memmem(file, file_nbytes, "0123456789", 10);
        cr_assert_not_null(more);
        *more ^= cases[i].is_damaged;
        test_write_file(path, file, file_nbytes);
        cr_expect_eq(verify_with("", NULL, NULL), cases[i].code, "%zu: %d: %s", i, error.code,
                     error.message);
        cr_expect_eq(verdict.is_intact, cases[i].is_intact, "%zu: %s", i, error.message);
        cr_expect(strstr(error.message, cases[i].says), "%zu: %s", i, error.message);
        free(pickle.bytes);
    }
}
