/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of other formats that appear whole or not at all, and what killed ones leave. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"

static char *folder, *path;

static void set_up(void)
{
    folder = test_folder_new();
    path = test_path(folder, "model.json");
    test_write_file(path, "old", 3);
}

static void tear_down(void)
{
    free(path);
    test_folder_remove(folder);
}

TestSuite(atomic, .init = set_up, .fini = tear_down);

static void check_holds(const char *expected, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(path, &n);

    cr_assert(n == nbytes && memcmp(file, expected, n) == 0);
    free(file);
    cr_assert_eq(test_folder_count(folder), 1);
}

static berth_atomic_file *begin(uint64_t nbytes, const berth_call *call)
{
    berth_atomic_file *file;
    berth_error error;

    cr_assert_eq(berth_atomic_begin(path, nbytes, call, &file, &error), 0, "%s", error.message);
    return file;
}

/* X7 */
Test(atomic, a_file_appears_whole)
{
    berth_stats stats;
    const berth_call call = {.stats = &stats};
    berth_atomic_file *file = begin(10, &call);

    cr_assert_eq(berth_atomic_write(file, "world", 5, 5, NULL), 0);
    cr_assert_eq(berth_atomic_write(file, "hell", 4, 0, NULL), 0);
    cr_assert_eq(test_folder_count(folder), 2);
    cr_assert_eq(berth_atomic_commit(file, NULL), 0);
    check_holds("hell\0world", 10);
    cr_assert_eq(stats.moved_nbytes, 9);
    cr_assert_eq(stats.n_requests, 2);
    cr_assert_str_eq(stats.method, "buffered");
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return 1;
}

/* X7 */
Test(atomic, or_not_at_all)
{
    const berth_call call = {.progress = cancel};
    berth_error error;

    berth_atomic_abort(begin(10, NULL));
    check_holds("old", 3);
    cr_assert_eq(berth_atomic_commit(begin(10, &call), &error), BERTH_E_CANCELLED);
    check_holds("old", 3);
    berth_atomic_file *file = begin(10, NULL);
    cr_assert_eq(berth_atomic_write(file, "hello", 5, 6, &error), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "model.json: at byte 6: 5 bytes do not fit into a file of 10"),
              "%s", error.message);
    cr_assert_eq(berth_atomic_write(file, "hello", 5, UINT64_MAX, &error), BERTH_E_ARGUMENT);
    berth_atomic_abort(file);
    check_holds("old", 3);
    cr_assert_eq(berth_atomic_begin(NULL, 1, NULL, &file, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_atomic_begin(path, 1, NULL, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_atomic_write(NULL, "", 0, 0, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_atomic_commit(NULL, &error), BERTH_E_ARGUMENT);
    berth_atomic_abort(NULL);
}

/* X11 */
Test(atomic, a_child_leaves_its_parents_file_alone)
{
    berth_atomic_file *file = begin(5, NULL);
    berth_error error;
    int status;
    pid_t child = fork();

    if (child == 0) {
        bool refused = berth_atomic_write(file, "child", 5, 0, &error) == BERTH_E_ARGUMENT &&
                       strstr(error.message, "before this process was forked");
        berth_atomic_abort(file);
        _exit(refused ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(berth_atomic_write(file, "mine!", 5, 0, NULL), 0);
    cr_assert_eq(berth_atomic_commit(file, NULL), 0);
    check_holds("mine!", 5);
}

/* X14, X7 */
Test(atomic, a_limit_of_file_sizes_is_an_error_and_no_signal)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct rlimit limit;
        berth_error error;
        berth_atomic_file *file = begin(100000, NULL);
        if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
            _exit(2);
        limit.rlim_cur = 50000; /* after the room was taken */
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
            _exit(3);
        int code = berth_atomic_write(file, "beyond", 6, 60000, &error);
        berth_atomic_abort(file);
        _exit(code == BERTH_E_NO_SPACE && error.offset == 60000 ? 0 : 4);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "%x", (unsigned)status);
    check_holds("old", 3);
}

/* ---- temporaries ---- */

static unsigned n_alive, n_dead, n_unknown, n_removed;

static void count(void *context, const berth_temporary *found)
{
    (void)context;
    n_alive += found->state == BERTH_TEMPORARY_ALIVE;
    n_dead += found->state == BERTH_TEMPORARY_DEAD;
    n_unknown += found->state == BERTH_TEMPORARY_UNKNOWN;
    n_removed += found->removed;
    cr_assert_null(found->error);
    cr_assert_leq(found->age_seconds, 3600);
}

static void clean(uint32_t flags, double min_age_seconds)
{
    n_alive = n_dead = n_unknown = n_removed = 0;
    cr_assert_eq(berth_clean(folder, flags, min_age_seconds, count, NULL, NULL), 0);
}

/* X5 */
Test(atomic, temporaries_are_listed_and_no_live_one_is_removed)
{
    berth_atomic_file *file = begin(10, NULL);
    char *unknown = test_path(folder, ".berth-0123456789abcdef.tmp");
    char *other = test_path(folder, ".berth-others.tmp");
    berth_error error;

    test_write_file(unknown, "half", 4);
    test_write_file(other, "theirs", 6);
    clean(0, 0);
    cr_assert(n_alive == 1 && n_dead == 0 && n_unknown == 1 && n_removed == 0);
    clean(BERTH_CLEAN_REMOVE, 86400);
    cr_assert(n_alive == 1 && n_unknown == 1 && n_removed == 0);
    clean(BERTH_CLEAN_REMOVE, 0);
    cr_assert(n_alive == 1 && n_unknown == 1 && n_removed == 1);
    cr_assert_eq(access(other, F_OK), 0);
    cr_assert_eq(unlink(other), 0);
    cr_assert_eq(berth_atomic_commit(file, NULL), 0);
    check_holds("\0\0\0\0\0\0\0\0\0\0", 10);
    clean(BERTH_CLEAN_REMOVE, 0);
    cr_assert(n_alive + n_dead + n_unknown == 0);
    cr_assert_eq(berth_clean(folder, 8, 0, count, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean(NULL, 0, 0, count, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean(folder, 0, 0, NULL, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean(path, 0, 0, count, NULL, &error), BERTH_E_SYSTEM);
    free(unknown), free(other);
}
