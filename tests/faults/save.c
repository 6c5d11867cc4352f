/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * After any single fault the path holds the complete old file or the complete new one (W1, W2, W3,
 * W6, W8): every call of every row that a save makes fails, with every errno that it can give.
 */
#include <berth/config.h>

#include "config/options.h"
#include "tests/support/faults/save_scene.h"

TestSuite(save_faults, .init = begin_faults, .fini = end_faults);

#define SERIAL "io.threads=1 io.chunk_nbytes=4096 "
#define PARALLEL "io.threads=4 io.chunk_nbytes=4096 "
#define BUFFERED "save.method=buffered "
#define DIRECT "save.method=direct "
#define LARGE "io.chunk_nbytes=64KiB "

static const scene scenes[] = {
    {.options = SERIAL BUFFERED "save.durability=full", .replaces = true},
    {.options = SERIAL BUFFERED "save.durability=full", .through_link = true, .leftover = true},
    {.options = SERIAL BUFFERED "save.durability=file", .replaces = true, .no_fallocate = true},
    {.options = SERIAL "save.durability=none debug=on", .replaces = true, .through_link = true},
    {.options = PARALLEL BUFFERED "save.durability=full", .replaces = true},
    {.options = SERIAL "save.durability=full", .replaces = true, .values = true},
    {.options = SERIAL DIRECT "save.durability=full", .replaces = true},
    {.options = PARALLEL DIRECT "save.durability=file debug=on", .replaces = true, .values = true},
    {.options = SERIAL LARGE BUFFERED "save.durability=full", .large = true},
    {.options = PARALLEL LARGE DIRECT "save.durability=full save.storage_alignment=4096",
     .replaces = true,
     .through_link = true,
     .large = true},
    {.options = SERIAL BUFFERED "save.durability=full", .replaces = true, .job = true},
    {.options = PARALLEL DIRECT "save.durability=full", .replaces = true, .snapshot = true},
};
#define N_SCENES (sizeof scenes / sizeof *scenes)

/* Every row that a save calls, and what it can give. (ENOENT of fstatat is an answer, not a fault.)
 */
static const fault_kind faults[] = {
    {FAULT_openat,
     {EACCES, EDQUOT, EEXIST, EINTR, EIO, EISDIR, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOENT,
      ENOMEM, ENOSPC, ENOTDIR, ENXIO, EPERM, EROFS, ETXTBSY}},
    {FAULT_open, {EACCES, EINTR, EINVAL, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, EOPNOTSUPP, EPERM}},
    {FAULT_fstatat, {EACCES, EIO, ELOOP, ENAMETOOLONG, ENOMEM, ENOTDIR, EOVERFLOW}},
    {FAULT_statx, {EACCES, EINVAL, EIO, ENOMEM, ENOSYS}},
    {FAULT_ioctl, {EFAULT, EINVAL, ENOMEM, ENOTTY, EPERM}},
    {FAULT_madvise, {EINVAL, ENOMEM}},
    {FAULT_mincore, {EAGAIN, ENOMEM}},
    {FAULT_fstat, {EIO, ENOMEM, EOVERFLOW}},
    {FAULT_fstatfs, {EINTR, EIO, ENOMEM, ENOSYS}},
    {FAULT_fstatvfs, {EINTR, EIO, ENOMEM, ENOSYS, EOVERFLOW}},
    {FAULT_faccessat, {EACCES, EIO, ELOOP, ENOENT, ENOMEM, EPERM, EROFS, ETXTBSY}},
    {FAULT_readlinkat, {EACCES, EINVAL, EIO, ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR}},
    {FAULT_getrlimit, {EINVAL, EPERM}},
    {FAULT_getrandom, {EAGAIN, EINTR, EIO, ENOSYS}},
    {FAULT_fchown, {EACCES, EINVAL, EIO, ENOMEM, ENOSYS, EPERM, EROFS}},
    {FAULT_getxattr, {EACCES, EIO, ENODATA, ENOENT, ENOMEM, EOPNOTSUPP, ERANGE}},
    {FAULT_listxattr, {EACCES, EIO, ENOENT, ENOMEM, EOPNOTSUPP, ERANGE}},
    {FAULT_setxattr,
     {EACCES, EDQUOT, EEXIST, EIO, ENOENT, ENOMEM, ENOSPC, EOPNOTSUPP, EPERM, EROFS}},
    {FAULT_fgetxattr, {EACCES, EIO, ENODATA, ENOMEM, EOPNOTSUPP, ERANGE}},
    {FAULT_flistxattr, {EACCES, EIO, ENOMEM, EOPNOTSUPP, ERANGE}},
    {FAULT_fsetxattr,
     {EACCES, EDQUOT, EEXIST, EINVAL, EIO, ENOMEM, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, EROFS}},
    {FAULT_fremovexattr, {EACCES, EIO, ENODATA, ENOMEM, EOPNOTSUPP, EPERM, EROFS}},
    {FAULT_kill, {EPERM}},
    {FAULT_fchmod, {EACCES, EINVAL, EIO, ENOMEM, ENOSYS, EPERM, EROFS}},
    {FAULT_fallocate,
     {EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENODEV, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, ETXTBSY}},
    {FAULT_ftruncate, {EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOSPC, EPERM, EROFS, ETXTBSY}},
    {FAULT_pwrite,
     {EAGAIN, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOMEM, ENOSPC, ENXIO, EOPNOTSUPP, EPERM,
      FAULT_SHORT}},
    {FAULT_pwritev,
     {EAGAIN, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOMEM, ENOSPC, ENXIO, EOPNOTSUPP, EPERM,
      FAULT_SHORT}},
    {FAULT_pread, {EAGAIN, EINTR, EINVAL, EIO, ENXIO, FAULT_SHORT}},
    {FAULT_poll, {EINTR, ENOMEM}},
    {FAULT_sync_file_range, {EDQUOT, EINTR, EINVAL, EIO, ENOMEM, ENOSPC, ENOSYS, ESPIPE}},
    {FAULT_fsync, {EDQUOT, EINTR, EINVAL, EIO, ENOSPC, EROFS}},
    {FAULT_fdatasync, {EDQUOT, EINTR, EINVAL, EIO, ENOSPC, EROFS}},
    {FAULT_dup, {EINVAL, EMFILE}},
    {FAULT_close, {EDQUOT, EINTR, EIO, ENOSPC}},
    {FAULT_renameat,
     {EACCES, EBUSY, EDQUOT, EINVAL, EIO, EISDIR, ELOOP, EMLINK, ENOENT, ENOMEM, ENOSPC, ENOTDIR,
      EPERM, EROFS, EXDEV}},
    {FAULT_unlinkat, {EACCES, EBUSY, EIO, ENOENT, EPERM, EROFS}},
    {FAULT_sched_getaffinity, {EINVAL, EPERM}},
    {FAULT_pthread_create, {EAGAIN, EINVAL, EPERM}},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

/* A new row of the system-call table gets a stand-in, and one that saving calls its errnos. */
Test(save_faults, no_row_is_forgotten)
{
    fault_set(FAULT_open, 0, 0, false);
    cr_assert_null(fault_row_without(), "%s: no stand-in in inject.h", fault_row_without());
    for (size_t i = 0; i < N_SCENES; i++) {
        int status;
        if (!make_expected(&scenes[i]))
            continue;
        (void)try_fault(&scenes[i], FAULT_open, 0, EIO, false, &status);
        cr_assert_eq(status, 0);
        check_no_row_is_forgotten(faults, N_FAULTS);
    }
}

/* What is tried again until it works cannot fail for ever. */
static bool is_tried_again(enum fault_row row, int system_errno)
{
    return system_errno == EINTR ||
           (system_errno == EAGAIN &&
            (row == FAULT_pwrite || row == FAULT_pwritev || row == FAULT_pread));
}

/* The line of the table of SAFETY.md that a row belongs to. */
static unsigned line_of(enum fault_row row, bool parallel)
{
    switch (row) {
    case FAULT_fallocate:
    case FAULT_ftruncate:
    case FAULT_pwrite:
    case FAULT_pwritev:
    case FAULT_dup:
    case FAULT_close:
    case FAULT_renameat:
        return parallel ? 8 : 1;
    case FAULT_sync_file_range:
    case FAULT_fsync:
    case FAULT_fdatasync:
        return 2;
    case FAULT_pread:
    case FAULT_poll:
        return 3;
    default:
        return row == FAULT_pthread_create ? 8 : 6;
    }
}

/* Every call of every row with every errno. Points are counted by line; W8: in several threads. */
static void try_all(bool for_ever)
{
    for (size_t i = 0; i < N_SCENES; i++) {
        if (!make_expected(&scenes[i]))
            continue;
        bool parallel = strstr(scenes[i].options, "threads=4");
        for (size_t j = 0; j < N_FAULTS; j++) {
            unsigned before = n_points;
            for (const int *each = faults[j].errnos; *each; each++)
                if (!for_ever || !is_tried_again(faults[j].row, *each))
                    try_row(&scenes[i], faults[j].row, *each, for_ever);
            n_points_of[line_of(faults[j].row, parallel)] += n_points - before;
        }
    }
}

/* W1, W2, W3, W6, W8 */
Test(save_faults, any_single_fault_leaves_the_old_file_or_the_new_one, .timeout = 600)
{
    try_all(false);
    check_points(1, n_points_of[1], 1100);
    check_points(2, n_points_of[2], 540);
    check_points(3, n_points_of[3], 205);
    check_points(6, n_points_of[6], 1280);
    check_points(8, n_points_of[8], 585);
}

/* W1, W2, W3, W6, W8 */
Test(save_faults, faults_that_stay_leave_the_old_file_or_the_new_one, .timeout = 600)
{
    try_all(true);
    check_points(1, n_points_of[1], 935);
    check_points(2, n_points_of[2], 470);
    check_points(3, n_points_of[3], 135);
    check_points(6, n_points_of[6], 1215);
    check_points(8, n_points_of[8], 510);
}

/* W1 */
Test(save_faults, every_failing_write_fails_the_save)
{
    static const int errnos[] = {ENOSPC, EDQUOT, EFBIG, EIO};

    for (size_t i = 0; i < N_SCENES; i++) {
        unsigned before = n_points, n_failed = 0;
        if (!make_expected(&scenes[i]))
            continue;
        for (size_t j = 0; j < 4; j++)
            n_failed += try_row(&scenes[i], FAULT_pwrite, errnos[j], false) +
                        try_row(&scenes[i], FAULT_pwritev, errnos[j], false);
        cr_assert_eq(n_failed, n_points - before);
        cr_assert_geq(n_failed, 4 * 5, "%u: %s", n_failed, scenes[i].options);
    }
    check_points(1, n_points, 350);
}

/* W2: the disk fails, or is full, before the sync at the end. */
Test(save_faults, every_failing_start_of_a_writeback_fails_the_save)
{
    static const int errnos[] = {EIO, ENOSPC, EDQUOT};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; make_expected(&scenes[i]) && j < 3; j++) {
            unsigned before = n_points;
            unsigned n_failed = try_row(&scenes[i], FAULT_sync_file_range, errnos[j], false);
            cr_assert_eq(n_failed, n_points - before, "%s", scenes[i].options);
        }
    check_points(2, n_points, 150);
}

/* W6: the old file, the new one's owner, and its mode before it is set. */
Test(save_faults, what_cannot_be_examined_is_not_replaced)
{
    for (size_t i = 0; i < N_SCENES; i++)
        if (scenes[i].replaces && make_expected(&scenes[i]))
            cr_assert_eq(try_row(&scenes[i], FAULT_fstat, EIO, false), 3, "%s", scenes[i].options);
    check_points(6, n_points, 35);
}

/* W3 */
Test(save_faults, interrupted_and_short_transfers_give_identical_bytes)
{
    static const enum fault_row rows[] = {FAULT_pwrite, FAULT_pwritev, FAULT_pread};
    static const int errnos[] = {EINTR, EAGAIN, FAULT_SHORT};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; make_expected(&scenes[i]) && j < 9; j++)
            cr_assert_eq(try_row(&scenes[i], rows[j / 3], errnos[j % 3], false), 0);
    for (size_t i = 0; i < N_SCENES; i++) {
        int status;
        if (!make_expected(&scenes[i]))
            continue;
        (void)try_fault(&scenes[i], FAULT_pwrite, 1, FAULT_SHORT, true, &status);
        cr_assert_eq(status, 0);
        (void)try_fault(&scenes[i], FAULT_pread, 1, FAULT_SHORT, true, &status);
        cr_assert_eq(status, 0);
    }
    check_points(3, n_points, 380);
}

static ssize_t write_little(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    return pwrite(fd, buffer, nbytes < 7 ? nbytes : 7, offset);
}

/* W3 */
Test(save_faults, writes_of_a_few_bytes_at_a_time_give_identical_bytes)
{
    berth_error error;

    cr_assert(make_expected(&scenes[0]));
    cr_assert_eq(berth_config_patch(scenes[0].options, &error), 0);
    bth_system.pwrite = write_little;
    cr_assert_eq(save(&scenes[0], path, &error), 0, "%s", error.message);
    berth_config_unpatch(NULL);
    cr_assert(test_file_holds(path, expected, expected_nbytes));
}

/* ---- direct writes ---- */

static bool is_direct(const scene *tried)
{
    return strstr(tried->options, DIRECT) != NULL;
}

/* A refused request is made again through the page cache, wherever it comes, and all after it. */
Test(save_faults, a_refused_direct_write_is_repeated_buffered)
{
    if (!direct_writes_work())
        cr_skip_test("no direct writes in this file system");
    for (size_t i = 0; i < N_SCENES; i++) {
        unsigned before = n_points;
        if (!is_direct(&scenes[i]) || !make_expected(&scenes[i]))
            continue;
        cr_assert_eq(try_row(&scenes[i], FAULT_pwrite, EINVAL, false), 0);
        cr_assert_eq(try_row(&scenes[i], FAULT_pwritev, EINVAL, false), 0);
        cr_assert_geq(n_points - before, 3);
    }
}

/* What cannot be found out, or opened again, is no failure: then writes are buffered. */
Test(save_faults, where_direct_writes_cannot_be_the_file_is_the_same)
{
    static const struct {
        enum fault_row row;
        int system_errno;
    } tried[] = {{FAULT_open, EINVAL},  {FAULT_open, EMFILE},    {FAULT_open, EACCES},
                 {FAULT_statx, ENOSYS}, {FAULT_fstatfs, ENOSYS}, {FAULT_getrlimit, EPERM}};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; is_direct(&scenes[i]) && j < sizeof tried / sizeof *tried; j++)
            if (make_expected(&scenes[i]))
                cr_assert_eq(try_row(&scenes[i], tried[j].row, tried[j].system_errno, true), 0);
}

/* ---- what is said ---- */

static void check_message(enum fault_row row, unsigned nth, int system_errno, int code,
                          const char *message)
{
    berth_error error;
    char whole[640];

    test_write_file(path, OLD, strlen(OLD));
    cr_assert_eq(berth_config_patch(SERIAL BUFFERED "save.durability=full", &error), 0);
    fault_set(row, nth, system_errno, false);
    cr_assert_eq(save_records(path, &error), code, "%s", error.message);
    fault_clear();
    berth_config_unpatch(NULL);
    snprintf(whole, sizeof whole, "%s: %s", path, message);
    cr_assert_str_eq(error.message, whole);
    cr_assert_eq(error.system_errno, system_errno);
    n_points++;
}

/* W1, W2 */
Test(save_faults, messages_name_file_record_byte_and_what_is_missing)
{
    check_message(FAULT_fallocate, 1, ENOSPC, BERTH_E_NO_SPACE,
                  "No space left on device (31 KiB missing)");
    check_message(FAULT_fallocate, 1, EIO, BERTH_E_SYSTEM,
                  "its disk space cannot be reserved: Input/output error");
    check_message(FAULT_pwrite, 3, ENOSPC, BERTH_E_NO_SPACE,
                  "data/0 at byte 8192: No space left on device (23 KiB missing)");
    check_message(FAULT_pwrite, 3, EIO, BERTH_E_SYSTEM,
                  "data/0 at byte 8192: cannot write: Input/output error");
    check_message(FAULT_fsync, 1, EIO, BERTH_E_SYSTEM, "cannot be synced: Input/output error");
    check_message(FAULT_fsync, 2, EIO, BERTH_E_NOT_DURABLE,
                  "the file is in place, but may be lost in a power cut: Input/output error");
    check_message(FAULT_dup, 1, EMFILE, BERTH_E_SYSTEM, "cannot be closed: Too many open files");
    check_message(
        FAULT_renameat, 1, EBUSY, BERTH_E_SYSTEM,
        "cannot be replaced: Device or resource busy; save.replace=in_place can write it in "
        "place");
    check_message(FAULT_openat, 2, ENOSPC, BERTH_E_NO_SPACE,
                  "no temporary file can be created in its folder: No space left on device");
    check_message(FAULT_fchmod, 1, EIO, BERTH_E_SYSTEM,
                  "its mode cannot be kept: Input/output error");
}

static char logged[640];

static void keep_log(void *context, const char *message)
{
    (void)context;
    snprintf(logged, sizeof logged, "%s", message);
}

Test(save_faults, a_folder_that_cannot_be_synced_is_told_and_no_failure)
{
    int status;

    cr_assert(make_expected(&scenes[0]));
    berth_set_log(keep_log, NULL);
    try_fault(&scenes[0], FAULT_fsync, 2, EINVAL, false, &status);
    berth_set_log(NULL, NULL);
    cr_assert_eq(status, 0);
    cr_assert_str_eq(logged, "model.pt: its file system cannot sync folders");
}

/* ---- the order of things ---- */

/* The trace with repeated letters taken together. */
static const char *order_of(const char *options, enum fault_row row, unsigned nth)
{
    static char order[64];
    berth_error error;
    size_t n = 0;

    cr_assert_eq(berth_config_patch(options, &error), 0);
    fault_set(row, nth, EIO, false);
    (void)save_records(path, &error);
    fault_clear();
    berth_config_unpatch(NULL);
    for (const char *at = fault_trace; *at && n < sizeof order - 1; at++)
        if (*at != 'w' || n == 0 || order[n - 1] != 'w')
            order[n++] = *at;
    order[n] = '\0';
    n_points++;
    return order;
}

/* W2 */
Test(save_faults, data_is_synced_before_the_rename_and_the_folder_after_it)
{
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=full", FAULT_fsync, 0), "wsrs");
    cr_assert_str_eq(order_of(PARALLEL BUFFERED "save.durability=full", FAULT_fsync, 0), "wsrs");
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=file", FAULT_fsync, 0), "wdr");
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=none", FAULT_fsync, 0), "wr");
}

/* W2: the last block is padded inside a size that is rounded up, and cut before the sync. */
Test(save_faults, direct_writes_are_cut_before_they_are_synced)
{
    if (!direct_writes_work())
        cr_skip_test("no direct writes in this file system");
    cr_assert_str_eq(order_of(SERIAL DIRECT "save.durability=full", FAULT_fsync, 0), "twtsrs");
    cr_assert_str_eq(order_of(PARALLEL DIRECT "save.durability=file", FAULT_fsync, 0), "twtdr");
    cr_assert_str_eq(order_of(SERIAL DIRECT "save.durability=none", FAULT_fsync, 0), "twtr");
}

/* W2 */
Test(save_faults, a_failed_sync_is_never_repeated)
{
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=full", FAULT_fsync, 1), "wsu");
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=file", FAULT_fdatasync, 1), "wdu");
    cr_assert_str_eq(order_of(SERIAL BUFFERED "save.durability=full", FAULT_fsync, 2), "wsrs");
    if (direct_writes_work())
        cr_assert_str_eq(order_of(SERIAL DIRECT "save.durability=full", FAULT_fsync, 1), "twtsu");
}

/* ---- memory ---- */

static bool try_refusal(const scene *tried, unsigned nth, bool for_ever)
{
    berth_error error;

    prepare_folder(tried);
    cr_assert_eq(berth_config_patch(tried->options, &error), 0);
    test_memory_watch();
    test_memory_refuse(nth, for_ever);
    int status = save(tried, tried->through_link ? link_path : path, &error);
    bool reached = test_memory_seen().n_allocations >= nth;
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    berth_config_unpatch(NULL);
    check_outcome(tried, status, &error, "no memory");
    if (reached)
        cr_assert_eq(status, BERTH_E_MEMORY, "allocation %u: %s", nth, error.message);
    n_points += reached;
    return reached;
}

/* W6. What values cost before they are saved is refused in tests/api/save.c. */
Test(save_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (size_t i = 0; i < N_SCENES; i++)
        for (unsigned for_ever = 0; for_ever < 2 && !scenes[i].values; for_ever++)
            for (unsigned nth = 1;
                 make_expected(&scenes[i]) && try_refusal(&scenes[i], nth, for_ever);)
                nth++;
    check_points(6, n_points, 240);
}
