/* SPDX-License-Identifier: BSD-3-Clause */
/* How bytes get to the file: what auto decides from facts, and what is told. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/magic.h>
#include <unistd.h>

#include "base/error.h"
#include "io/direct.h"
#include "io/syscalls.h"
#include "save/output.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

#define MIB ((uint64_t)1 << 20)

static uint8_t *bytes;

static void set_up(void)
{
    begin_model_scene();
    bytes = sample_bytes(MIB);
}

static void tear_down(void)
{
    bth_system_restore();
    free(bytes);
    end_scene();
}

TestSuite(method, .init = set_up, .fini = tear_down);

/* ---- auto ---- */

static unsigned long type;

static int fstatfs_of_type(int fd, struct statfs *status)
{
    (void)fd;
    *status = (struct statfs){0};
    status->f_type = (__fsword_t)type;
    return 0;
}

static int no_fstatfs(int fd, struct statfs *status)
{
    (void)fd, (void)status;
    errno = ENOSYS;
    return -1;
}

static const char *choose(const char *options, uint64_t nbytes, bool *is_direct)
{
    struct berth_config config;
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    berth_config_unpatch(NULL);
    return bth_output_method_choose(&config, -1, nbytes, is_direct);
}

/* /proc/meminfo with 5 GiB to be had, and no groups. */
static int open_little_memory(const char *name, int flags, mode_t mode)
{
    if (strcmp(name, "/proc/meminfo") == 0)
        return open(path, flags, mode);
    errno = ENOENT;
    return -1;
}

Test(method, auto_goes_by_file_system_size_memory_and_durability)
{
    static const char memory[] = "MemTotal: 9 kB\nMemAvailable:    5242880 kB\n";
    static const char larger[] = "the file is larger than the memory that is free";
    static const struct {
        const char *options;
        unsigned long type;
        uint64_t nbytes;
        bool is_direct;
        const char *reason;
    } cases[] = {
        {"", EXT4_SUPER_MAGIC, 4096 * MIB, true, "the file goes to a disk"},
        {"", 0x58465342, 4096 * MIB, true, "the file goes to a disk"},
        {"save.durability=file", EXT4_SUPER_MAGIC, 4096 * MIB, true, "the file goes to a disk"},
        {"save.durability=none", EXT4_SUPER_MAGIC, 5120 * MIB, false,
         "save.durability=none does not wait for a disk"},
        {"save.durability=none", EXT4_SUPER_MAGIC, 5120 * MIB + 1, true, larger},
        {"save.durability=none", TMPFS_MAGIC, 5120 * MIB + 1, false,
         "the file system is in memory"},
        {"save.method=buffered", EXT4_SUPER_MAGIC, 5120 * MIB + 1, false, "save.method=buffered"},
        {"", NFS_SUPER_MAGIC, 5120 * MIB + 1, true, larger},
        {"io.memory_nbytes=100KiB", EXT4_SUPER_MAGIC, 5120 * MIB + 1, false,
         "io.memory_nbytes is too little for direct writes"},
        {"", EXT4_SUPER_MAGIC, 64 * MIB, true, "the file goes to a disk"},
        {"", EXT4_SUPER_MAGIC, 64 * MIB - 1, false, "the file is small"},
        {"", TMPFS_MAGIC, 4096 * MIB, false, "the file system is in memory"},
        {"", NFS_SUPER_MAGIC, 4096 * MIB, false,
         "direct writes are not measured on this file system"},
        {"io.memory_nbytes=100KiB", EXT4_SUPER_MAGIC, 4096 * MIB, false,
         "io.memory_nbytes is too little for direct writes"},
        {"save.method=buffered", EXT4_SUPER_MAGIC, 4096 * MIB, false, "save.method=buffered"},
        {"save.method=direct", EXT4_SUPER_MAGIC, 1, true, "save.method=direct"},
        {"save.method=direct save.durability=none", NFS_SUPER_MAGIC, 1, true, "save.method=direct"},
        {"save.method=direct", TMPFS_MAGIC, 4096 * MIB, false, "the file system is in memory"},
        {"save.method=direct io.memory_nbytes=100KiB", EXT4_SUPER_MAGIC, 1, false,
         "io.memory_nbytes is too little for direct writes"},
    };

    bool is_direct;

    test_write_file(path, memory, sizeof memory - 1);
    bth_system.open = open_little_memory;
    bth_system.fstatfs = fstatfs_of_type;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        type = cases[i].type;
        cr_expect_str_eq(choose(cases[i].options, cases[i].nbytes, &is_direct), cases[i].reason);
        cr_expect_eq(is_direct, cases[i].is_direct, "%zu", i);
    }
    bth_system.fstatfs = no_fstatfs;
    (void)choose("", 4096 * MIB, &is_direct);
    cr_expect_not(is_direct);
}

/* ---- the second description (F1) ---- */

static const char *other_path;

static int open_other(const char *name, int flags, mode_t mode)
{
    (void)name;
    return open(other_path, (flags & ~O_DIRECT) | O_CREAT, mode | 0600);
}

static uint32_t offset_align, memory_align;

static int statx_tells(int at, const char *name, int flags, unsigned mask, struct statx *told)
{
    (void)at, (void)name, (void)flags;
    cr_assert(mask & STATX_DIOALIGN);
    *told = (struct statx){.stx_mask = STATX_DIOALIGN,
                           .stx_dio_offset_align = offset_align,
                           .stx_dio_mem_align = memory_align};
    return 0;
}

static int statx_fails(int at, const char *name, int flags, unsigned mask, struct statx *told)
{
    (void)at, (void)name, (void)flags, (void)mask, (void)told;
    errno = ENOSYS;
    return -1;
}

static int open_plain(const char *name, int flags, mode_t mode)
{
    cr_assert(flags & O_CLOEXEC);
    cr_assert(flags & O_DIRECT);
    return open(name, flags & ~O_DIRECT, mode);
}

Test(method, the_second_description_is_of_the_same_file_or_none)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    char *other = test_path(folder, "other.pt");
    const char *reason;
    bth_direct direct;

    other_path = other;
    bth_system.open = open_other;
    cr_assert_not(bth_direct_open(fd, O_WRONLY, &direct, &reason));
    cr_assert_eq(direct.fd, -1);
    cr_assert_str_eq(reason, "the file cannot be opened a second time");
    bth_system.open = open_plain;
    cr_assert(bth_direct_open(fd, O_WRONLY, &direct, &reason));
    cr_assert_neq(direct.fd, fd);
    bth_direct_close(&direct);
    close(fd);
    free(other);
}

Test(method, alignment_is_what_the_file_tells_and_at_least_a_block)
{
    static const struct {
        uint32_t offset, memory;
        bool works;
        uint32_t block, aligned;
    } cases[] = {
        {512, 4, true, 4096, 4}, {4096, 512, true, 4096, 512}, {16384, 4096, true, 16384, 4096},
        {0, 0, false, 0, 0}, /* none */
        {512, 0, false, 0, 0},   {131072, 4096, false, 0, 0},  {3000, 512, false, 0, 0},
        {4096, 3, false, 0, 0},
    };
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    const char *reason;
    bth_direct direct;

    bth_system.open = open_plain;
    bth_system.statx = statx_tells;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        offset_align = cases[i].offset;
        memory_align = cases[i].memory;
        cr_expect_eq(bth_direct_open(fd, O_WRONLY, &direct, &reason), cases[i].works, "%zu", i);
        if (!cases[i].works) {
            cr_expect_str_eq(reason, "the file system does not support direct writes");
            continue;
        }
        cr_expect_eq(direct.block_nbytes, cases[i].block, "%zu", i);
        cr_expect_eq(direct.memory_alignment, cases[i].aligned, "%zu", i);
        bth_direct_close(&direct);
    }
    bth_system.statx = statx_fails;
    cr_expect(bth_direct_open(fd, O_WRONLY, &direct, &reason));
    cr_expect_eq(direct.block_nbytes, 4096);
    cr_expect_eq(direct.memory_alignment, 4096);
    bth_direct_close(&direct);
    close(fd);
}

/* ---- what is told ---- */

static uint64_t storage_nbytes = 100000;

static berth_stats save(const char *to, const char *options)
{
    const berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
        {.name = "data/0", .nbytes = storage_nbytes, .data = bytes}};
    berth_stats stats;
    const berth_params call = {.stats = &stats, .archive_name = "archive"};
    berth_error error;

    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    cr_assert_eq(berth_save_to(TO_PATH(to), OF_RECORDS(records, 2, 0), &call, &error), 0, "%s",
                 error.message);
    berth_config_unpatch(NULL);
    return stats;
}

static void check_told(const char *options, const char *method, const char *reason)
{
    berth_stats stats = save(path, options);

    cr_expect_str_eq(stats.method, method, "%s: %s", options, stats.reason);
    cr_expect_str_eq(stats.reason, reason, "%s", options);
}

static int n_refused;

/* As a file system without alignments of its own may do. */
static ssize_t refuse_direct(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT && offset >= 3 * 8192) {
        n_refused++;
        errno = EINVAL;
        return -1;
    }
    return pwrite(fd, buffer, nbytes, offset);
}

static int getrlimit_of_file(int resource, struct rlimit *limit)
{
    struct stat status;

    (void)resource;
    *limit = (struct rlimit){.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    if (stat(path, &status) == 0)
        limit->rlim_cur = (rlim_t)status.st_size;
    return 0;
}

#define SMALL "io.threads=1 io.chunk_nbytes=8KiB save.method=direct"

Test(method, is_told_with_its_reason)
{
    const char *reason;
    bth_direct direct;

    int fd = open(path, O_RDWR | O_CREAT, 0600);
    bool possible = bth_direct_open(fd, O_WRONLY, &direct, &reason);
    bth_direct_close(&direct);
    close(fd);
    check_told("", "buffered", "the file is small");
    check_told("save.method=buffered", "buffered", "save.method=buffered");
    if (!possible)
        cr_skip_test("no direct writes here");
    check_told("save.method=direct", "direct", "save.method=direct");
    bth_system.pwrite = refuse_direct;
    check_told(SMALL, "direct, then buffered",
               "a direct write was refused (EINVAL), the rest was buffered");
    cr_expect_eq(n_refused, 1, "direct writes are off after the first that is refused");
    bth_system.pwrite = pwrite;
    bth_system.getrlimit = getrlimit_of_file;
    check_told(SMALL, "buffered",
               "the limit of a file's size leaves no room for a whole last block");
}

Test(method, files_in_memory_are_buffered)
{
    struct statfs status;
    char name[] = "/dev/shm/berth-XXXXXX";

    if (statfs("/dev/shm", &status) != 0 || (unsigned long)status.f_type != TMPFS_MAGIC ||
        !mkdtemp(name))
        cr_skip_test("no /dev/shm in memory here");
    char *to = test_path(name, "model.pt");
    berth_stats stats = save(to, "save.method=direct");
    cr_expect_str_eq(stats.method, "buffered");
    cr_expect_str_eq(stats.reason, "the file system is in memory");
    unlink(to);
    rmdir(name);
    free(to);
}

/* What buffers take is told, and bounded whatever is asked for. */
Test(method, memory_stays_within_its_bound)
{
    static const char *const methods[] = {"direct", "buffered"};
    char options[128];

    for (size_t i = 0; i < 2; i++)
        for (unsigned mib = 1; mib <= 4; mib++) {
            snprintf(options, sizeof options,
                     "save.method=%s io.threads=16 io.chunk_nbytes=1MiB io.memory_nbytes=%uMiB",
                     methods[i], mib);
            berth_stats stats = save(path, options);
            cr_expect(stats.memory_nbytes > 0 && stats.memory_nbytes <= mib * MIB, "%s: %llu",
                      options, (unsigned long long)stats.memory_nbytes);
        }
}

/* ---- how much at a time ---- */

static atomic_size_t longest;

static ssize_t noting_pwrite(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    longest = nbytes > longest ? nbytes : longest;
    return pwrite(fd, buffer, nbytes, offset);
}

static ssize_t noting_pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    ssize_t done = pwritev(fd, pieces, n, offset);

    longest = done > 0 && (size_t)done > longest ? (size_t)done : longest;
    return done;
}

/* The page cache gets large folios from long writes. */
Test(method, writes_are_short_only_where_nothing_is_synced_and_nobody_chose)
{
    static const struct {
        const char *options;
        size_t at_least, at_most;
    } rows[] = {
        {"save.method=buffered save.durability=none", 100 << 10, 128 << 10},
        {"save.method=buffered save.durability=none io.chunk_nbytes=512KiB", 400 << 10, 512 << 10},
        {"save.method=buffered save.durability=file", 900 << 10, 2 << 20},
    };

    storage_nbytes = MIB;
    bth_system.pwrite = noting_pwrite;
    bth_system.pwritev = noting_pwritev;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        longest = 0;
        (void)save(path, rows[i].options);
        cr_expect(longest >= rows[i].at_least && longest <= rows[i].at_most, "%s: %zu",
                  rows[i].options, longest);
    }
}

/* ---- on the way to the disk ---- */

static unsigned n_started;
static uint64_t started_nbytes;

static int count_writeback(int fd, off_t offset, off_t nbytes, unsigned flags)
{
    (void)fd, (void)offset;
    cr_assert_eq(flags, SYNC_FILE_RANGE_WRITE);
    n_started++;
    started_nbytes += (uint64_t)nbytes;
    return 0;
}

static int no_writeback(int fd, off_t offset, off_t nbytes, unsigned flags)
{
    (void)fd, (void)offset, (void)nbytes, (void)flags;
    n_started++;
    errno = ESPIPE;
    return -1;
}

#define BUFFERED "io.threads=1 io.chunk_nbytes=8KiB save.method=buffered "

Test(method, buffered_bytes_start_for_the_disk_only_where_they_must_get_there)
{
    bth_system.sync_file_range = count_writeback;
    save(path, BUFFERED "save.durability=none");
    cr_expect_eq(n_started, 0);
    berth_stats stats = save(path, BUFFERED "save.durability=full");
    cr_expect_eq(started_nbytes, stats.moved_nbytes);
    n_started = 0;
    bth_system.sync_file_range = no_writeback;
    save(path, BUFFERED "save.durability=full");
    cr_expect_eq(n_started, 1, "not asked again where it cannot be");
}
