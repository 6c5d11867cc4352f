/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * After any single fault the path holds the complete old file or the complete new one (W1, W2, W3,
 * W6, W8): every call of every row that a save makes fails once, with every plausible errno.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "config/options.h"
#include "tests/faults/inject.h"
#include "tests/save/records.h"

#define OLD "the old file"

static char *folder, *path, *link_path;
static uint8_t *bytes, *expected;
static size_t expected_nbytes;
static unsigned n_points;

/* What a save is tried with. */
typedef struct scene {
    const char *options;
    bool no_fallocate; /* a file system without it */
    bool through_link;
    bool replaces;
} scene;

static int no_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = EOPNOTSUPP;
    return -1;
}

static int save(const char *to, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = 30000, .data = bytes},
                                        {.name = "data/1", .nbytes = 17, .data = bytes}};

    return berth_save_records(to, "archive", records, 3, 0, NULL, error);
}

static void set_up(void)
{
    berth_error error;

    folder = test_folder_new();
    path = test_path(folder, "model.pt");
    link_path = test_path(folder, "link.pt");
    bytes = sample_bytes(30000);
    cr_assert_eq(symlink("model.pt", link_path), 0);
    cr_assert_eq(save(path, &error), 0, "%s", error.message);
    expected = test_read_file(path, &expected_nbytes);
    n_points = 0;
}

static void tear_down(void)
{
    fault_clear();
    printf("fault points tried: %u\n", n_points);
    free(path), free(link_path), free(bytes), free(expected);
    test_folder_remove(folder);
}

TestSuite(save_faults, .init = set_up, .fini = tear_down);

static bool holds(const void *what, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(path, &n);
    bool same = n == nbytes && memcmp(file, what, n) == 0;
    free(file);
    return same;
}

/* Nothing but the link, and the target if it is there. */
static void check_nothing_left(bool with_target, const char *about)
{
    cr_assert_eq(test_folder_count(folder), with_target ? 2u : 1u, "%s: something is left behind",
                 about);
}

/* Old or new, never both, never neither; and never less than what was said. */
static void check_outcome(const scene *tried, int status, const berth_error *error,
                          const char *about)
{
    const char *to = tried->through_link ? link_path : path;

    cr_assert_eq(status, error->code, "%s", about);
    if (status == 0 || status == BERTH_E_NOT_DURABLE) {
        cr_assert(holds(expected, expected_nbytes), "%s: not the new file", about);
        check_nothing_left(true, about);
    } else {
        if (tried->replaces)
            cr_assert(holds(OLD, strlen(OLD)), "%s: not the old file: %s", about, error->message);
        check_nothing_left(tried->replaces, about);
    }
    if (status < 0)
        cr_assert(strncmp(error->message, to, strlen(to)) == 0 && error->message[strlen(to)] == ':',
                  "%s: %s", about, error->message);
    if (status == BERTH_E_NOT_DURABLE)
        cr_assert(strstr(error->message, "in place, but not known to be durable"), "%s",
                  error->message);
}

static size_t n_open_files(void)
{
    return test_folder_count("/proc/self/fd");
}

/* One save with the nth call of a row failing. False when the fault was not reached any more. */
static bool try_fault(const scene *tried, enum fault_row row, unsigned nth, int system_errno,
                      bool for_ever, int *status)
{
    size_t n_open = n_open_files();
    berth_error error;
    char about[160];

    (void)unlink(path);
    if (tried->replaces)
        test_write_file(path, OLD, strlen(OLD));
    cr_assert_eq(berth_config_patch(tried->options, &error), 0, "%s", error.message);
    fault_set(row, nth, system_errno, for_ever);
    if (tried->no_fallocate && row != FAULT_fallocate)
        berth_system.fallocate = no_fallocate;
    test_memory_watch();
    *status = save(tried->through_link ? link_path : path, &error);
    uint64_t live_nbytes = test_memory_seen().live_nbytes;
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    berth_config_unpatch(NULL);
    snprintf(about, sizeof about, "row %d, call %u, %s, %s%s", row, nth,
             strerrorname_np(system_errno), tried->options, for_ever ? ", for ever" : "");
    check_outcome(tried, *status, &error, about);
    cr_assert_eq(live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    n_points += hit;
    return hit;
}

/* N = 1, 2, 3 … until the row is not called so often. Returns how many saves failed. */
static unsigned try_row(const scene *tried, enum fault_row row, int system_errno, bool for_ever)
{
    unsigned n_failed = 0;
    int status;

    for (unsigned nth = 1; try_fault(tried, row, nth, system_errno, for_ever, &status); nth++)
        n_failed += status < 0;
    return n_failed;
}

#define SERIAL "io.threads=1 io.chunk_nbytes=4096 "
#define PARALLEL "io.threads=4 io.chunk_nbytes=4096 "

static const scene scenes[] = {
    {.options = SERIAL "save.durability=full", .replaces = true},
    {.options = SERIAL "save.durability=full", .replaces = false, .through_link = true},
    {.options = SERIAL "save.durability=file", .replaces = true, .no_fallocate = true},
    {.options = SERIAL "save.durability=none debug=on", .replaces = true, .through_link = true},
    {.options = PARALLEL "save.durability=none", .replaces = true},
};
#define N_SCENES (sizeof scenes / sizeof *scenes)

static const struct {
    enum fault_row row;
    int errnos[7];
} faults[] = {
    {FAULT_openat, {EACCES, EMFILE, ENOSPC, EIO, EINTR, EROFS}},
    {FAULT_fstatat, {EIO, EACCES}},
    {FAULT_fstat, {EIO}},
    {FAULT_fstatvfs, {EIO}},
    {FAULT_faccessat, {EACCES, EROFS}},
    {FAULT_readlinkat, {EIO, EACCES}},
    {FAULT_getrlimit, {EPERM}},
    {FAULT_getrandom, {EINTR, ENOSYS}},
    {FAULT_getdents64, {EIO}},
    {FAULT_flock, {ENOLCK, EINTR, EOPNOTSUPP, EWOULDBLOCK}},
    {FAULT_fchmod, {EPERM, EIO}},
    {FAULT_fallocate, {ENOSPC, EDQUOT, EFBIG, EIO, EOPNOTSUPP, ENOSYS, EINTR}},
    {FAULT_ftruncate, {EIO, ENOSPC}},
    {FAULT_pwrite, {ENOSPC, EDQUOT, EFBIG, EIO, EINTR, EAGAIN}},
    {FAULT_pread, {EIO, EINTR}},
    {FAULT_fsync, {EIO, ENOSPC, EDQUOT, EINVAL}},
    {FAULT_fdatasync, {EIO, ENOSPC}},
    {FAULT_dup, {EMFILE}},
    {FAULT_close, {EIO, ENOSPC, EDQUOT, EINTR}},
    {FAULT_renameat, {EXDEV, EIO, EACCES, EBUSY}},
    {FAULT_unlinkat, {EACCES}},
    {FAULT_sched_getaffinity, {EINVAL}},
    {FAULT_pthread_create, {EAGAIN, EPERM}},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

/* W1, W6, W8 */
Test(save_faults, any_single_fault_leaves_the_old_file_or_the_new_one, .timeout = 300)
{
    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; j < N_FAULTS; j++)
            for (const int *system_errno = faults[j].errnos; *system_errno; system_errno++)
                try_row(&scenes[i], faults[j].row, *system_errno, false);
    cr_assert_geq(n_points, 400, "only %u fault points", n_points);
}

/* W1, W6 */
Test(save_faults, faults_that_stay_leave_the_old_file_or_the_new_one, .timeout = 300)
{
    static const enum fault_row rows[] = {FAULT_openat, FAULT_fstat,     FAULT_fallocate,
                                          FAULT_pwrite, FAULT_fsync,     FAULT_close,
                                          FAULT_dup,    FAULT_getrandom, FAULT_pthread_create};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
            try_row(&scenes[i], rows[j], rows[j] == FAULT_pthread_create ? EAGAIN : EIO, true);
    cr_assert_geq(n_points, 100, "only %u fault points", n_points);
}

/* W1 */
Test(save_faults, every_failing_write_fails_the_save)
{
    static const int errnos[] = {ENOSPC, EDQUOT, EFBIG, EIO};

    for (size_t i = 0; i < 4; i++) {
        unsigned before = n_points;
        unsigned n_failed = try_row(&scenes[0], FAULT_pwrite, errnos[i], false);
        cr_assert_eq(n_failed, n_points - before);
        cr_assert_geq(n_failed, 8);
    }
}

/* W3 */
Test(save_faults, interrupted_and_short_writes_give_identical_bytes)
{
    static const int errnos[] = {EINTR, EAGAIN};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; j < 2; j++)
            cr_assert_eq(try_row(&scenes[i], FAULT_pwrite, errnos[j], false), 0);
    cr_assert_geq(n_points, 80);
}

static ssize_t write_little(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    return pwrite(fd, buffer, nbytes < 7 ? nbytes : 7, offset);
}

/* W3 */
Test(save_faults, writes_of_a_few_bytes_at_a_time_give_identical_bytes)
{
    berth_error error;

    berth_system.pwrite = write_little;
    cr_assert_eq(save(path, &error), 0, "%s", error.message);
    cr_assert(holds(expected, expected_nbytes));
    n_points++;
}

/* ---- what is said ---- */

static void check_message(enum fault_row row, unsigned nth, int system_errno, int code,
                          const char *message)
{
    berth_error error;
    char whole[640];

    test_write_file(path, OLD, strlen(OLD));
    cr_assert_eq(berth_config_patch(SERIAL "save.durability=full", &error), 0);
    fault_set(row, nth, system_errno, false);
    cr_assert_eq(save(path, &error), code, "%s", error.message);
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
                  "no room can be taken: Input/output error");
    check_message(FAULT_pwrite, 3, ENOSPC, BERTH_E_NO_SPACE,
                  "data/0 at byte 8192: No space left on device (23 KiB missing)");
    check_message(FAULT_pwrite, 3, EIO, BERTH_E_SYSTEM,
                  "data/0 at byte 8192: cannot write: Input/output error");
    check_message(FAULT_fsync, 1, EIO, BERTH_E_SYSTEM, "cannot be synced: Input/output error");
    check_message(FAULT_fsync, 2, EIO, BERTH_E_NOT_DURABLE,
                  "in place, but not known to be durable: Input/output error");
    check_message(FAULT_dup, 1, EMFILE, BERTH_E_SYSTEM, "cannot be closed: Too many open files");
    check_message(FAULT_renameat, 1, EBUSY, BERTH_E_SYSTEM,
                  "cannot be replaced: Device or resource busy");
    check_message(FAULT_flock, 1, ENOLCK, BERTH_E_SYSTEM,
                  "no temporary file can be created in its folder: No locks available");
    check_message(FAULT_getrandom, 1, ENOSYS, BERTH_E_SYSTEM,
                  "no random name for a temporary file: Function not implemented");
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
    (void)save(path, &error);
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
    cr_assert_str_eq(order_of(SERIAL "save.durability=full", FAULT_fsync, 0), "wsrs");
    cr_assert_str_eq(order_of(PARALLEL "save.durability=full", FAULT_fsync, 0), "wsrs");
    cr_assert_str_eq(order_of(SERIAL "save.durability=file", FAULT_fsync, 0), "wdr");
    cr_assert_str_eq(order_of(SERIAL "save.durability=none", FAULT_fsync, 0), "wr");
}

/* W2 */
Test(save_faults, a_failed_sync_is_never_repeated)
{
    cr_assert_str_eq(order_of(SERIAL "save.durability=full", FAULT_fsync, 1), "wsu");
    cr_assert_str_eq(order_of(SERIAL "save.durability=file", FAULT_fdatasync, 1), "wdu");
    cr_assert_str_eq(order_of(SERIAL "save.durability=full", FAULT_fsync, 2), "wsrs");
}

/* ---- memory ---- */

/* W6 */
Test(save_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (size_t i = 0; i < N_SCENES; i++) {
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            for (unsigned nth = 1;; nth++) {
                berth_error error;
                (void)unlink(path);
                if (scenes[i].replaces)
                    test_write_file(path, OLD, strlen(OLD));
                cr_assert_eq(berth_config_patch(scenes[i].options, &error), 0);
                test_memory_watch();
                test_memory_refuse(nth, for_ever);
                int status = save(scenes[i].through_link ? link_path : path, &error);
                bool reached = test_memory_seen().n_allocations >= nth;
                cr_assert_eq(test_memory_seen().live_nbytes, 0);
                test_memory_unwatch();
                berth_config_unpatch(NULL);
                check_outcome(&scenes[i], status, &error, "no memory");
                if (!reached)
                    break;
                cr_assert_eq(status, BERTH_E_MEMORY, "allocation %u: %s", nth, error.message);
                n_points++;
            }
        }
    }
    cr_assert_geq(n_points, 60, "only %u fault points", n_points);
}
