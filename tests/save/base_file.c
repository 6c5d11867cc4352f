/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W12: a save with a base is the file of a save without one. Here a stand-in for the ioctl copies
 * the bytes, so that every way of comparing runs on any file system, under the sanitizers, and
 * without memory. tests/python/bases.py and tests/faults/bases.py have file systems that share
 * blocks.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/syscalls.h"
#include "tests/support/save/records.h"

#define N_RECORDS ((size_t)7)
#define NBYTES ((size_t)300000)

static char *folder, *old_path, *path;
static uint8_t *bytes;
static berth_new_record records[N_RECORDS];
static berth_error error;
static berth_stats stats;
static int read_failure;
static unsigned n_reads, changes_at_read; /* its first bytes change then; 0: never */
static void (*before_clone)(void), (*after_clone)(void);
static uint8_t *old_bytes; /* of the whole base */
static size_t old_nbytes;

/* ---- blocks that are copied, not shared ---- */

/* X1: what is of the base goes to a file that nobody else can open; only from there, to the new
 * one. */
static int clone_by_copying(int fd, unsigned long request, void *argument)
{
    const struct file_clone_range *range = argument;
    struct stat to, from;

    cr_assert(fstat((int)range->src_fd, &from) == 0 && fstat(fd, &to) == 0);
    if (range->src_offset >= (uint64_t)from.st_size)
        return test_clone_by_copying(fd, request, argument); /* only a question */
    if (from.st_nlink == 0)
        return test_clone_by_copying(fd, request, argument);
    if (before_clone)
        before_clone();
    cr_assert(to.st_nlink == 0 && (to.st_mode & 077) == 0);
    cr_assert_eq(range->src_offset % 4096 + range->src_length % 4096 + range->dest_offset % 4096,
                 0);
    if (test_clone_by_copying(fd, request, argument) < 0)
        return -1;
    if (after_clone)
        after_clone();
    return 0;
}

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    if (offset == 0 && ++n_reads == changes_at_read)
        ((uint8_t *)context)[10] ^= 1;
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return read_failure;
}

static void set_up(void)
{
    static const char *const names[N_RECORDS] = {"data.pkl", "data/0", "data/1", "data/2",
                                                 "data/3",   "data/4", "other"};

    folder = test_folder_new();
    old_path = test_path(folder, "old.pt");
    path = test_path(folder, "new.pt");
    bytes = sample_bytes(N_RECORDS * NBYTES);
    for (size_t i = 0; i < N_RECORDS; i++)
        records[i] = (berth_new_record){
            .name = names[i], .nbytes = NBYTES, .data = bytes + i * (NBYTES - 4)};
    records[0].data = "\x80\2}."; /* an empty dict */
    records[0].nbytes = 4;
    records[4].data = NULL;
    records[4].read = read_bytes;
    records[4].context = bytes + 4 * (NBYTES - 4);
    before_clone = after_clone = NULL;
    read_failure = 0;
    n_reads = changes_at_read = 0;
    bth_system.ioctl = clone_by_copying;
}

static void tear_down(void)
{
    bth_system_restore();
    test_folder_remove(folder);
    free(old_path);
    free(path);
    free(bytes);
}

TestSuite(base_file, .init = set_up, .fini = tear_down);

static int save_there(const char *to, const char *base, const char *options)
{
    berth_config *config = berth_config_new(&error);
    berth_params params = {.config = config, .stats = &stats, .archive_name = "a", .base = base};

    assert_ok(berth_config_apply(config, options, &error));
    int status = berth_save_to(TO_PATH(to), OF_RECORDS(records, N_RECORDS, 0), &params, &error);
    berth_config_free(config);
    return status;
}

/* Saves the old file, changes one storage, and returns the file that the new one must be. */
static uint8_t *make_expected(const char *options, size_t *nbytes)
{
    assert_ok(save_there(old_path, "", options));
    bytes[2 * (NBYTES - 4) + 150000] ^= 1;
    assert_ok(save_there(path, "", options));
    uint8_t *expected = test_read_file(path, nbytes);
    unlink(path);
    return expected;
}

/* W12 */
Test(base_file, gives_the_same_file_in_every_way)
{
    static const char *const options[] = {
        "save.method=buffered io.threads=1",
        "save.method=buffered io.threads=4 io.chunk_nbytes=65536",
        "save.method=direct io.threads=4 io.chunk_nbytes=65536",
        "save.method=direct save.storage_alignment=4096 debug=on",
        "save.storage_alignment=4096 io.memory_nbytes=300000 debug=on",
        "save.durability=none io.large_pages=off",
    };

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t nbytes;
        uint8_t *expected = make_expected(options[i], &nbytes);
        assert_ok(save_there(path, old_path, options[i]));
        cr_assert(test_file_holds(path, expected, nbytes), "%s", options[i]);
        cr_assert_null(stats.base_reason, "%s: %s", options[i], stats.base_reason);
        cr_assert_gt(stats.shared_nbytes, 4 * (NBYTES - (size_t)2 * 4096), "%s", options[i]);
        cr_assert_lt(stats.shared_nbytes,
                     5 * NBYTES - 4096); /* with parts of the one that changed */
        cr_assert_geq(stats.compared_nbytes, stats.shared_nbytes);
        cr_assert_leq(stats.compared_nbytes, 5 * NBYTES);
        cr_assert_eq(stats.moved_nbytes, nbytes - stats.shared_nbytes, "%s", options[i]);
        free(expected);
    }
}

static void write_base(const void *what, size_t nbytes, off_t step)
{
    int fd = open(old_path, O_WRONLY);

    for (off_t at = 0; at < (off_t)old_nbytes; at += step)
        cr_assert_eq(pwrite(fd, what, nbytes, at), nbytes);
    close(fd);
}

/* Before each clone. */
static void spoil_base(void)
{
    write_base("spoiled", 7, 4096);
}

static void cut_base(void)
{
    cr_assert_eq(truncate(old_path, (off_t)(3 * NBYTES)), 0);
}

/* After it: who looks at the base, and not at the clone, sees the right bytes. */
static void restore_base(void)
{
    write_base(old_bytes, old_nbytes, (off_t)old_nbytes);
}

/* W12: between the sums and the clones, and again before they are compared. */
Test(base_file, that_changes_meanwhile_gives_the_same_file)
{
    static void (*const changes[][2])(void) = {
        {spoil_base, NULL}, {spoil_base, restore_base}, {cut_base, NULL}};

    for (size_t i = 0; i < 3; i++) {
        size_t nbytes;
        uint8_t *expected = make_expected("", &nbytes);
        old_bytes = test_read_file(old_path, &old_nbytes);
        before_clone = changes[i][0];
        after_clone = changes[i][1];
        assert_ok(save_there(path, old_path, ""));
        before_clone = after_clone = NULL;
        cr_assert(test_file_holds(path, expected, nbytes), "case %zu", i);
        cr_assert_not_null(stats.base_reason, "case %zu: %llu shared", i,
                           (unsigned long long)stats.shared_nbytes);
        free(expected);
        free(old_bytes);
    }
}

/* W6: each allocation is refused, once and for ever. */
Test(base_file, without_memory_is_saved_or_a_clean_error)
{
    size_t nbytes;
    uint8_t *expected = make_expected("io.threads=2", &nbytes);
    unsigned n = 0;

    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t nth = 1, n_asked = nth; nth <= n_asked; nth++, n++) {
            unlink(path);
            berth_config *config = berth_config_new(&error);
            assert_ok(berth_config_apply(config, "io.threads=2", &error));
            berth_params params = {.config = config, .archive_name = "a", .base = old_path};
            test_memory_watch();
            test_memory_refuse(nth, for_ever);
            int status =
                berth_save_to(TO_PATH(path), OF_RECORDS(records, N_RECORDS, 0), &params, &error);
            n_asked = bth_max(test_memory_seen().n_allocations, status != 0 ? nth + 1 : 0);
            cr_assert_eq(test_memory_seen().live_nbytes, 0, "%llu", (unsigned long long)nth);
            test_memory_unwatch();
            cr_assert(status == BERTH_E_MEMORY || status == 0, "%s", error.message);
            cr_assert_eq(test_folder_count(folder), status == 0 ? 2 : 1);
            cr_assert(status != 0 || test_file_holds(path, expected, nbytes));
            berth_config_free(config);
        }
    cr_assert_gt(n, 30);
    free(expected);
}

/* W12: as without a base, what is written is what is summed, whether the record is shared or not.
 */
Test(base_file, a_source_that_changes_between_two_reads_gives_a_whole_file)
{
    for (unsigned nth = 1; nth <= 3; nth++)
        for (int is_shared = 0; is_shared < 2; is_shared++) {
            assert_ok(save_there(old_path, "", ""));
            bytes[4 * (NBYTES - 4) + 150000] ^= !is_shared;
            n_reads = 0;
            changes_at_read = nth;
            assert_ok(save_there(path, old_path, ""));
            changes_at_read = 0;
            assert_ok(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error));
            cr_assert_gt(stats.shared_nbytes, 3 * (NBYTES - (size_t)2 * 4096));
        }
}

/* X1: once blocks of the base are no longer in it, the temporary has its rights again. */
Test(base_file, leaves_the_rights_as_they_are)
{
    static const mode_t modes[] = {0600, 0640, 0644, 0664, 0604};
    struct stat status;

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_ok(save_there(old_path, "", ""));
        assert_ok(save_there(path, "", ""));
        cr_assert(chmod(path, modes[i]) == 0 && chmod(old_path, 0600) == 0);
        assert_ok(save_there(path, old_path, ""));
        cr_assert_gt(stats.shared_nbytes, 4 * (NBYTES - (size_t)2 * 4096));
        cr_assert(stat(path, &status) == 0 && (status.st_mode & 0777) == modes[i], "%o", modes[i]);
    }
}

Test(base_file, a_failing_read_of_the_caller_fails_the_save)
{
    assert_ok(save_there(old_path, "", ""));
    read_failure = EIO;
    cr_assert_eq(save_there(path, old_path, ""), BERTH_E_CALLBACK);
    cr_assert_eq(error.system_errno, EIO);
    cr_assert_str_eq(error.record, "data/3");
    cr_assert_eq(test_folder_count(folder), 1);
}

/* A record that does not have the CRC that the caller told is refused, whatever the base has. */
Test(base_file, a_wrong_checksum_is_told)
{
    for (int is_whole = 0; is_whole < 2; is_whole++) { /* all of it is shared */
        records[1].nbytes = is_whole ? NBYTES & ~(size_t)4095 : NBYTES;
        records[1].crc32 = 0;
        assert_ok(save_there(old_path, "", "save.storage_alignment=4096"));
        records[1].crc32 = 7;
        cr_assert_eq(save_there(path, old_path, "save.storage_alignment=4096"), BERTH_E_CHECKSUM);
        cr_assert_str_eq(error.record, "data/0");
    }
}

/* A base that grows when its file system is asked. */
static int grow_and_clone(int fd, unsigned long request, void *argument)
{
    const struct file_clone_range *range = argument;
    struct stat from;

    cr_assert_eq(fstat((int)range->src_fd, &from), 0);
    bool is_question = range->src_offset >= (uint64_t)from.st_size;
    if (is_question)
        cr_assert_eq(truncate(old_path, from.st_size + 4 * 4096), 0);
    int result = test_clone_by_copying(fd, request, argument);
    cr_assert(result < 0 || !is_question, "the question has cloned");
    return result;
}

/* W12, X1 */
Test(base_file, the_question_clones_nothing)
{
    size_t nbytes;
    uint8_t *expected = make_expected("", &nbytes);

    bth_system.ioctl = grow_and_clone;
    assert_ok(save_there(path, old_path, ""));
    cr_assert(test_file_holds(path, expected, nbytes));
    cr_assert_gt(stats.shared_nbytes, 4 * (NBYTES - (size_t)2 * 4096));
    free(expected);
}

static int clones = -1; /* the file in which blocks are compared */

static int note_clones(int fd, unsigned long request, void *argument)
{
    struct stat status;

    if (fstat(fd, &status) == 0 && status.st_nlink == 0)
        clones = fd;
    return test_clone_by_copying(fd, request, argument);
}

/* A quota with room for the new file, and for no other beside it. */
static int reserve_without_clones(int fd, int mode, off_t offset, off_t nbytes)
{
    struct stat status;

    if (clones < 0 || fstat(clones, &status) < 0 || status.st_nlink > 0)
        return fallocate(fd, mode, offset, nbytes);
    errno = EDQUOT;
    return -1;
}

/* W1: XFS counts blocks that are shared in each file. */
Test(base_file, a_quota_need_not_have_room_for_what_is_compared)
{
    size_t nbytes;
    uint8_t *expected = make_expected("", &nbytes);

    bth_system.ioctl = note_clones;
    bth_system.fallocate = reserve_without_clones;
    assert_ok(save_there(path, old_path, ""));
    cr_assert_geq(clones, 0);
    cr_assert(test_file_holds(path, expected, nbytes));
    cr_assert_null(stats.base_reason);
    free(expected);
}

static uint64_t reserved_nbytes;

static int reserve_ranges_only(int fd, int mode, off_t offset, off_t nbytes)
{
    struct stat status;

    cr_assert_eq(fstat(fd, &status), 0);
    if (mode == 0 && nbytes < status.st_size) {
        reserved_nbytes += (uint64_t)nbytes;
        return fallocate(fd, mode, offset, nbytes);
    }
    errno = ENOSPC;
    return -1;
}

/* W1: where there is no room for all of the file, what is not shared has room, to the last byte. */
Test(base_file, all_that_is_not_shared_is_reserved)
{
    size_t nbytes;
    uint8_t *expected = make_expected("", &nbytes);

    bth_system.fallocate = reserve_ranges_only;
    reserved_nbytes = 0;
    assert_ok(save_there(path, old_path, ""));
    cr_assert(test_file_holds(path, expected, nbytes));
    cr_assert_eq(reserved_nbytes, nbytes - stats.shared_nbytes);
    free(expected);
}
