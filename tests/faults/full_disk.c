/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W1 for real: a small file system with every amount of room, and limits of file sizes. Mounting
 * needs a right; says so without.
 */
#include <berth/config.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/support/faults/save_scene.h"

TestSuite(full_disk, .init = begin_faults, .fini = end_faults, .timeout = 600);

static const char *const all_options[] = {"io.threads=1 io.chunk_nbytes=4096",
                                          "io.threads=4 io.chunk_nbytes=4096",
                                          "io.threads=4 save.method=direct"};
#define N_OPTIONS (sizeof all_options / sizeof *all_options)

/* ---- who tells that there is no room ---- */

static int no_forecast(int fd, struct statvfs *status)
{
    (void)fd, (void)status;
    errno = ENOSYS;
    return -1;
}

static int no_getrlimit(int resource, struct rlimit *limit)
{
    (void)resource, (void)limit;
    errno = EPERM;
    return -1;
}

/* Lets a file be cut, but takes no room. */
static int no_ftruncate(int fd, off_t nbytes)
{
    struct stat status;

    return fstat(fd, &status) == 0 && nbytes < status.st_size ? ftruncate(fd, nbytes) : 0;
}

enum teller { AT_ONCE, FORECAST, WHILE_WRITING, N_TELLERS };

static void set_teller(enum teller teller)
{
    if (teller >= FORECAST)
        bth_system.fallocate = no_fallocate;
    if (teller >= WHILE_WRITING) {
        bth_system.fstatvfs = no_forecast;
        bth_system.getrlimit = no_getrlimit;
        bth_system.ftruncate = no_ftruncate;
    }
}

/* ---- file systems ---- */

/* One that only this process sees. False: not allowed here. */
static bool mount_small(const char *room)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", folder, "tmpfs", 0, room) == 0;
}

static bool is_told(int status, const berth_error *error, int system_errno)
{
    char said[64];

    snprintf(said, sizeof said, "%s (", strerrordesc_np(system_errno));
    return status == BERTH_E_NO_SPACE && error->system_errno == system_errno &&
           strncmp(error->message, path, strlen(path)) == 0 && strstr(error->message, said) &&
           strstr(error->message, " missing)");
}

/* One save with so much room left. The old file has a page of its own. */
static int save_into(size_t free_nbytes, size_t room_nbytes, enum teller teller)
{
    char *ballast = test_path(folder, "ballast");
    const scene tried = {.replaces = true};
    berth_error error;

    prepare_folder(&tried);
    test_write_file(ballast, bytes, 0);
    cr_assert_eq(truncate(ballast, 0), 0);
    int fd = open(ballast, O_RDWR | O_CLOEXEC);
    cr_assert_eq(posix_fallocate(fd, 0, (off_t)(room_nbytes - 4096 - free_nbytes)), 0);
    close(fd);
    set_teller(teller);
    int status = save_records(path, &error);
    bth_system_restore();
    if (status == 0)
        cr_assert(test_file_holds(path, expected, expected_nbytes));
    else {
        cr_assert(is_told(status, &error, ENOSPC), "%d: %s", status, error.message);
        cr_assert(test_file_holds(path, OLD, strlen(OLD)));
    }
    cr_assert_eq(test_folder_count(folder), 2, "something is left behind");
    cr_assert_eq(unlink(ballast), 0);
    free(ballast);
    n_points++;
    return status;
}

static void try_every_room(enum teller teller)
{
    enum { PAGE = 4096, ROOM = 64 * PAGE };
    bool fitted = false;

    for (size_t n_pages = 0; n_pages <= N_BYTES / PAGE + 4; n_pages++) {
        int status = save_into(n_pages * PAGE, ROOM, teller);
        cr_assert(!fitted || status == 0, "%zu pages do not suffice, fewer do", n_pages);
        cr_assert_eq(status == 0, n_pages * PAGE >= expected_nbytes, "%zu pages", n_pages);
        fitted = status == 0;
    }
    cr_assert(fitted);
}

/* W1 */
Test(full_disk, every_amount_of_room_keeps_the_old_file_or_gives_the_new_one)
{
    const scene tried = {.options = all_options[0]};

    cr_assert(make_expected(&tried));
    if (!mount_small("size=256k"))
        cr_skip_test("mounting is not permitted here");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        for (enum teller teller = AT_ONCE; teller < N_TELLERS; teller++)
            try_every_room(teller);
        berth_config_unpatch(NULL);
    }
    umount(folder);
    check_points(1, n_points, 100);
}

/* ---- limits of file sizes ---- */

/* What is known before the first byte names the path and all that is missing. */
static bool is_exact(const berth_error *error, size_t max_nbytes)
{
    size_t missing_nbytes = expected_nbytes - max_nbytes;
    char said[400];

    snprintf(said, sizeof said, "%s: File too large (%zu %s missing)", path,
             missing_nbytes < 10000 ? missing_nbytes : (missing_nbytes + 1023) / 1024,
             missing_nbytes < 10000 ? "bytes" : "KiB");
    return strcmp(error->message, said) == 0;
}

/* In a child: a limit cannot be raised again by everybody. Ends with 0 if all is as it should be.
 */
static void save_below(size_t most_nbytes, enum teller teller)
{
    struct rlimit limit;
    berth_error error;

    if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
        _exit(2);
    limit.rlim_cur = most_nbytes;
    if (teller == WHILE_WRITING) /* the caller's business, where the limit cannot be asked for */
        (void)signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        _exit(3);
    set_teller(teller);
    int status = save_records(path, &error);
    if (most_nbytes >= expected_nbytes)
        _exit(status == 0 ? 0 : 4);
    if (is_told(status, &error, EFBIG) && (teller > AT_ONCE || is_exact(&error, most_nbytes)))
        _exit(0);
    (void)fprintf(stderr, "%d: %s\n", status, error.message);
    _exit(5);
}

static void try_limit(size_t most_nbytes, enum teller teller)
{
    const scene tried = {.replaces = true};
    int status = -1;

    prepare_folder(&tried);
    pid_t child = fork();
    if (child == 0)
        save_below(most_nbytes, teller);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "a limit of %zu bytes: child ended with %x", most_nbytes,
                 (unsigned)status);
    cr_assert(most_nbytes >= expected_nbytes ? test_file_holds(path, expected, expected_nbytes)
                                             : test_file_holds(path, OLD, strlen(OLD)));
    cr_assert_eq(test_folder_count(folder), 2, "something is left behind");
    n_points++;
}

/* W1 */
Test(full_disk, every_limit_of_file_sizes_keeps_the_old_file_or_gives_the_new_one)
{
    const scene tried = {.options = all_options[0]};
    size_t step = test_is_long() ? 256 : 2048;

    cr_assert(make_expected(&tried));
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        for (enum teller teller = AT_ONCE; teller < N_TELLERS; teller++) {
            if (i == 2 && teller == WHILE_WRITING)
                continue; /* direct writes ask for the limit, to pad the last block below it */
            for (size_t most = 0; most < expected_nbytes + 8192; most += step)
                try_limit(most, teller);
            try_limit(expected_nbytes - 1, teller);
            try_limit(expected_nbytes, teller);
        }
        berth_config_unpatch(NULL);
    }
    check_points(1, n_points, test_is_long() ? 1260 : 176);
}
