/* SPDX-License-Identifier: BSD-3-Clause */
/* What is told of every storage of a save: how its bytes got to the file, and why so. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

#define MIB ((size_t)1 << 20)
#define N_RECORDS 7
#define N_STORAGES 5

static uint8_t *bytes;
static berth_new_record records[N_RECORDS];

static int read_record(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return 0;
}

static void set_up(void)
{
    begin_model_scene();
    bytes = sample_bytes(5 * MIB);
    uint8_t *page = bytes + (4096 - (uintptr_t)bytes % 4096);
    records[0] = (berth_new_record){.name = "data.pkl", .nbytes = 100, .data = bytes};
    records[1] = (berth_new_record){.name = "data/0", .nbytes = MIB, .data = page};
    records[2] = (berth_new_record){.name = "data/1", .nbytes = MIB, .data = page + MIB + 1};
    records[3] = (berth_new_record){.name = "other", .nbytes = 10, .data = bytes};
    records[4] =
        (berth_new_record){.name = "data/2", .nbytes = MIB, .read = read_record, .context = bytes};
    records[5] =
        (berth_new_record){.name = "data/3", .nbytes = 100, .data = bytes, .no_crc32 = true};
    records[6] = (berth_new_record){.name = "data/4", .nbytes = 0};
}

static void tear_down(void)
{
    bth_system_restore();
    free(bytes);
    end_scene();
}

TestSuite(tally, .init = set_up, .fini = tear_down);

/* ---- a machine on which direct writes go everywhere and all memory lies in large pages ---- */

static bool pages_are_large;

static int open_plain(const char *name, int flags, mode_t mode)
{
    return open(name, flags & ~O_DIRECT, mode);
}

/* PAGEMAP_SCAN: see io/memory_region.c. */
static int scan(int fd, unsigned long request, void *argument)
{
    uint64_t *fields = argument;
    uint64_t *found = (uint64_t *)(uintptr_t)fields[5];

    (void)fd, (void)request;
    found[0] = fields[2];
    found[1] = fields[3];
    return pages_are_large;
}

static ssize_t refuse(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    static atomic_int n;

    (void)fd, (void)buffer, (void)nbytes, (void)offset;
    if (atomic_fetch_add(&n, 1) > 0)
        return pwrite(fd, buffer, nbytes, offset);
    errno = EINVAL;
    return -1;
}

static int save(const char *options, berth_stats *stats, berth_storage_stats *told, size_t n)
{
    const berth_params call = {.stats = stats, .storage_stats = told, .n_storage_stats = n};
    berth_error error;

    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    int code = berth_save_to(TO_PATH(path), OF_RECORDS(records, N_RECORDS, 0), &call, &error);
    berth_config_unpatch(NULL);
    return code;
}

struct expected {
    const char *method, *reason;
};

static void check(const char *options, const struct expected expected[N_STORAGES])
{
    static const size_t sizes[N_STORAGES] = {MIB, MIB, MIB, 100, 0};
    berth_storage_stats told[N_STORAGES + 1] = {0};
    berth_stats stats;

    cr_assert_eq(save(options, &stats, told, N_STORAGES + 1), 0);
    cr_assert_eq(stats.n_storages, N_STORAGES);
    for (size_t i = 0; i < N_STORAGES; i++) {
        cr_expect_str_eq(told[i].method, expected[i].method, "%s, %zu: %s", options, i,
                         told[i].method);
        cr_expect_str_eq(told[i].reason, expected[i].reason, "%s, %zu: %s", options, i,
                         told[i].reason);
        cr_expect_eq(told[i].nbytes, sizes[i]);
        cr_expect_eq(told[i].moved_nbytes, sizes[i]);
        cr_expect_eq(told[i].crc32, i == 3   ? BERTH_CRC_ABSENT
                                    : i == 4 ? BERTH_CRC_UNCHECKED
                                             : BERTH_CRC_GOOD);
    }
    cr_expect_null(told[N_STORAGES].method, "there are no more");
}

#define BUFFERED "save.method=buffered "
#define DIRECT "save.method=direct "
#define SMALL "small: copied to a buffer with its neighbours"
#define FETCHED "not in memory: read to a buffer"
#define MISALIGNED "its memory is not aligned as its offset in the file: copied to a buffer"

/* Into the page cache any memory will do. */
Test(tally, of_buffered_writes)
{
    static const struct expected expected[N_STORAGES] = {{"buffered", "save.method=buffered"},
                                                         {"buffered", "save.method=buffered"},
                                                         {"buffered, copied", FETCHED},
                                                         {"buffered, copied", SMALL},
                                                         {"none", "it is empty"}};

    check(BUFFERED, expected);
    check(BUFFERED "io.threads=4 io.chunk_nbytes=300KiB", expected);
    check(BUFFERED "io.chunk_nbytes=340KiB", expected); /* its last bytes lie in a small share */
}

Test(tally, of_direct_writes)
{
    static const struct expected expected[N_STORAGES] = {{"direct", "save.method=direct"},
                                                         {"direct, copied", MISALIGNED},
                                                         {"direct, copied", FETCHED},
                                                         {"direct, copied", SMALL},
                                                         {"none", "it is empty"}};
    static const char small_pages[] = "its memory is not in large pages: copied to a buffer";
    static const struct expected copied[N_STORAGES] = {{"direct, copied", small_pages},
                                                       {"direct, copied", MISALIGNED},
                                                       {"direct, copied", FETCHED},
                                                       {"direct, copied", SMALL},
                                                       {"none", "it is empty"}};

    bth_system.open = open_plain;
    bth_system.ioctl = scan;
    pages_are_large = true;
    check(DIRECT "save.storage_alignment=4096", expected);
    check(DIRECT "save.storage_alignment=4096 io.threads=4 io.chunk_nbytes=300KiB", expected);
    check(DIRECT "save.storage_alignment=4096 io.chunk_nbytes=340KiB", expected);
    pages_are_large = false;
    check(DIRECT "save.storage_alignment=4096", copied);
}

Test(tally, of_direct_writes_that_are_refused)
{
    static const char why[] = "a direct write was refused (EINVAL), the rest was buffered";
    static const struct expected expected[N_STORAGES] = {{"direct, then buffered", why},
                                                         {"direct, then buffered", why},
                                                         {"direct, then buffered", why},
                                                         {"direct, then buffered", why},
                                                         {"none", "it is empty"}};

    bth_system.open = open_plain;
    bth_system.ioctl = scan;
    bth_system.pwrite = refuse;
    check(DIRECT, expected);
}

/* ---- as much as is asked for ---- */

Test(tally, fills_what_there_is_room_for)
{
    berth_storage_stats told[3] = {0};
    berth_stats stats;

    cr_assert_eq(save(BUFFERED "save.compute_crc32=off", &stats, told, 2), 0);
    cr_expect_eq(stats.n_storages, N_STORAGES);
    cr_expect_eq(told[1].moved_nbytes, MIB);
    cr_expect_eq(told[1].crc32, BERTH_CRC_ABSENT);
    cr_expect_null(told[2].method);
    cr_assert_eq(save(BUFFERED, &stats, NULL, 2), 0);
}

static int no_room(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = ENOSPC;
    return -1;
}

static ssize_t no_writing(int fd, const struct iovec *pieces, int n, off_t offset)
{
    (void)fd, (void)pieces, (void)n, (void)offset;
    errno = EIO;
    return -1;
}

Test(tally, of_a_failed_save_tells_what_was_written)
{
    berth_storage_stats told[N_STORAGES] = {0};
    berth_stats stats;

    bth_system.fallocate = no_room;
    cr_assert_eq(save(BUFFERED, &stats, told, N_STORAGES), BERTH_E_NO_SPACE);
    for (size_t i = 0; i < N_STORAGES; i++) {
        cr_expect_str_eq(told[i].method, "none");
        cr_expect_str_eq(told[i].reason, i == 4 ? "it is empty" : "nothing was written");
        cr_expect_eq(told[i].crc32, BERTH_CRC_UNCHECKED);
        cr_expect_eq(told[i].moved_nbytes, 0);
    }
    bth_system_restore();
    bth_system.pwritev = no_writing;
    cr_assert_eq(save(BUFFERED "io.threads=1", &stats, told, N_STORAGES), BERTH_E_SYSTEM);
    cr_expect_str_eq(told[0].method, "none");
}

/* Storages of values; in another byte order; after a snapshot; into a sink; with a job. */

static int take(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes, (void)offset;
    return 0;
}

static berth_storage_stats of_a_value(const char *options, bool snapshot, const berth_sink *sink)
{
    const int64_t n = MIB / 4;
    const berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = &n, .data = bytes};
    berth_tree *tree = berth_tree_new(NULL);
    berth_storage_stats told = {0};
    const berth_params call = {.storage_stats = &told, .n_storage_stats = 1};
    const uint32_t flags = snapshot ? BERTH_SAVE_SNAPSHOT : 0;
    const berth_value *value = berth_make_tensor(tree, &tensor);
    berth_job *job;
    berth_error error;

    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    cr_assert_eq(berth_save_begin(sink ? TO_SINK(sink) : TO_PATH(path), OF_VALUE(value), flags,
                                  &call, &job, &error),
                 0, "%s", error.message);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    berth_job_free(job);
    berth_config_unpatch(NULL);
    berth_tree_free(tree);
    cr_expect_eq(told.moved_nbytes, MIB);
    return told;
}

Test(tally, of_values_jobs_and_sinks)
{
    const berth_sink sink = {.write = take};
    berth_storage_stats told = of_a_value(BUFFERED, false, NULL);

    cr_expect_str_eq(told.method, "buffered");
    told = of_a_value(BUFFERED "save.byteorder=big", false, NULL);
    cr_expect_str_eq(told.method, "buffered, copied");
    cr_expect_str_eq(told.reason, "save.byteorder differs: swapped in a buffer");
    told = of_a_value(BUFFERED "save.byteorder=big", true, NULL);
    cr_expect_str_eq(told.method, "buffered", "the snapshot has been swapped");
    told = of_a_value("", false, &sink);
    cr_expect_str_eq(told.method, "buffered, copied");
    cr_expect_str_eq(told.reason, "the output takes one piece at a time: copied to a buffer");
}
