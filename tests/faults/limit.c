/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X14: saves that go beyond RLIMIT_FSIZE, where SIGXFSZ would kill. They are errors, nothing is
 * left, and the thread's signals are as they were.
 */
#include <signal.h>
#include <sys/wait.h>

#include "tests/support/faults/save_scene.h"

#define LIMIT 10000

static volatile sig_atomic_t n_caught;

static void count(int number)
{
    (void)number;
    n_caught++;
}

static int unlimited(int resource, struct rlimit *limit)
{
    (void)resource;
    *limit = (struct rlimit){.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    return 0;
}

/* What became of a signal: it is neither pending nor blocked, and nobody caught it. */
static bool is_untouched(void)
{
    sigset_t pending, mask;

    (void)sigpending(&pending);
    (void)pthread_sigmask(SIG_BLOCK, NULL, &mask);
    return !sigismember(&pending, SIGXFSZ) && !sigismember(&mask, SIGXFSZ) && n_caught == 0;
}

static int save_to_descriptor(berth_error *error)
{
    const int64_t shape[] = {N_BYTES};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *value = test_tensor(tree, BERTH_INT8, bytes, 1, shape);
    int status = berth_save_to(TO_FD(fd), OF_VALUE(value), NAMED("archive"), error);

    berth_tree_free(tree);
    (void)close(fd);
    return status;
}

static void expect_too_large(int status, const berth_error *error, const char *starts)
{
    if (status != BERTH_E_NO_SPACE || error->system_errno != EFBIG ||
        !strstr(error->message, starts) || !strstr(error->message, "File too large"))
        fprintf(stderr, "%d: %s\n", status, status < 0 ? error->message : "");
    else if (!is_untouched())
        fprintf(stderr, "the signal was left\n");
    else
        return;
    _exit(1);
}

static void limit_files(void)
{
    const struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = RLIM_INFINITY};

    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        _exit(2);
}

/* By the caller's thread, which runs into the limit in the midst of the file. */
static void try_descriptor(void)
{
    berth_error error;

    expect_too_large(save_to_descriptor(&error), &error, "data.pkl at byte 0: ");
    expect_too_large(save_to_descriptor(&error), &error, "File too large (31 KiB missing)");
}

/* Who looks finds no limit, as before it is set by another thread; room is asked for beyond it. */
static void try_path(bool has_fallocate, bool is_job)
{
    const scene tried = {.options = "", .job = is_job};
    berth_error error;

    (void)unlink(path);
    bth_system.getrlimit = unlimited;
    if (!has_fallocate)
        bth_system.fallocate = no_fallocate;
    expect_too_large(save(&tried, path, &error), &error, path);
    bth_system_restore();
    if (test_folder_count(folder) != 1)
        _exit(3);
}

static void run(void (*try)(void))
{
    int status;

    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        limit_files();
        try();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "ended with %x", (unsigned)status);
}

static void try_paths(void)
{
    for (int i = 0; i < 4; i++)
        try_path(i & 1, i & 2);
}

static void try_with_handler(void)
{
    (void)signal(SIGXFSZ, count);
    try_descriptor();
    try_paths();
}

/* One that was pending before stays, and the mask, too. */
static void try_while_one_is_pending(void)
{
    sigset_t set;
    berth_error error;

    (void)signal(SIGXFSZ, count);
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)raise(SIGXFSZ);
    if (save_to_descriptor(&error) != BERTH_E_NO_SPACE || n_caught != 0)
        _exit(4);
    (void)sigpending(&set);
    if (!sigismember(&set, SIGXFSZ))
        _exit(5);
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    if (n_caught != 1)
        _exit(6);
}

TestSuite(limit, .init = begin_faults, .fini = end_faults);

/* X14, W1 */
Test(limit, of_a_file_is_an_error_of_a_save_to_a_descriptor)
{
    run(try_descriptor);
}

Test(limit, that_came_meanwhile_is_an_error_of_a_save_to_a_path)
{
    run(try_paths);
}

Test(limit, is_told_to_nobody_else)
{
    run(try_with_handler);
}

Test(limit, that_was_told_before_is_still_told)
{
    run(try_while_one_is_pending);
}
