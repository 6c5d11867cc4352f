/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of other formats that appear whole or not at all, and what killed ones leave. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scene.h"

static berth_error error;

static void set_up(void)
{
    begin_scene("model.json");
    test_write_file(path, "old", 3);
}

TestSuite(atomic, .init = set_up, .fini = end_scene);

static void check_holds(const char *expected, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(path, &n);

    cr_assert(n == nbytes && memcmp(file, expected, n) == 0);
    free(file);
    cr_assert_eq(test_folder_count(folder), 1);
}

static berth_atomic_file *begin(uint64_t nbytes, const berth_params *call)
{
    berth_atomic_file *file;

    assert_ok(berth_atomic_begin(path, nbytes, call, &file, &error));
    return file;
}

/* X7 */
Test(atomic, a_file_appears_whole)
{
    berth_stats stats;
    const berth_params call = {.stats = &stats};
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
    const berth_params call = {.progress = cancel};

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
    int status;
    pid_t child = fork();

    if (child == 0) {
        bool refused = berth_atomic_write(file, "child", 5, 0, &error) == BERTH_E_ARGUMENT &&
                       strstr(error.message, "belongs to the parent process");
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
        berth_atomic_file *file = begin(100000, NULL);
        if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
            _exit(2);
        limit.rlim_cur = 50000; /* after the room was taken */
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
            _exit(3);
        if (berth_atomic_write(file, "beyond", 6, 60000, &error) != BERTH_E_NO_SPACE ||
            error.offset != 60000)
            _exit(4);
        /* What was not written is not there, whoever overlooks it. */
        if (berth_atomic_commit(file, &error) != BERTH_E_NO_SPACE || error.system_errno != EFBIG)
            _exit(5);
        _exit(0);
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
    cr_assert_eq(berth_clean_temporaries(folder, flags, min_age_seconds, count, NULL, NULL), 0);
}

/* X5 */
Test(atomic, temporaries_are_listed_and_no_live_one_is_removed)
{
    berth_atomic_file *file = begin(10, NULL);
    char *unknown = test_path(folder, ".berth-0123456789abcdef.tmp");
    char *other = test_path(folder, ".berth-others.tmp");

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
    cr_assert_eq(berth_clean_temporaries(folder, 8, 0, count, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean_temporaries(NULL, 0, 0, count, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean_temporaries(folder, 0, 0, NULL, NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_clean_temporaries(path, 0, 0, count, NULL, &error), BERTH_E_SYSTEM);
    free(unknown), free(other);
}

/* The path of the temporary in the folder. Allocated; NULL: there is none. */
static char *find_temporary(void)
{
    DIR *listing = opendir(folder);
    char *found = NULL;

    cr_assert(listing);
    for (const struct dirent *entry; (entry = readdir(listing));)
        if (strncmp(entry->d_name, ".berth-", 7) == 0 && !found)
            found = test_path(folder, entry->d_name);
    closedir(listing);
    return found;
}

/* ---- what happens to the temporary meanwhile ---- */

enum meanwhile { REMOVED, ANOTHER_SAVE, ANOTHER_FILE, A_FOLDER, A_LINK };

static const char *const meanwhile_names[] = {"it is removed", "another save got its name",
                                              "another file has its name", "a folder has its name",
                                              "a link to the old file has its name"};

/* Returns the other save, if there is one, which has written a part. */
static berth_atomic_file *happen(enum meanwhile what, const char *temporary)
{
    berth_atomic_file *other = NULL;

    cr_assert_eq(unlink(temporary), 0);
    if (what == ANOTHER_SAVE) {
        other = begin(5, NULL);
        cr_assert_eq(access(temporary, F_OK), 0, "it did not get the same name");
        cr_assert_eq(berth_atomic_write(other, "oth", 3, 0, NULL), 0);
    } else if (what == ANOTHER_FILE)
        test_write_file(temporary, "theirs", 6);
    else if (what == A_FOLDER)
        cr_assert_eq(mkdir(temporary, 0700), 0);
    else if (what == A_LINK)
        cr_assert_eq(symlink("model.json", temporary), 0);
    return other;
}

/* What is there now is not this save's: it stays as it is. */
static void check_untouched(enum meanwhile what, const char *temporary, berth_atomic_file *other)
{
    struct stat status;

    cr_assert(test_file_holds(path, "old", 3), "%s", meanwhile_names[what]);
    cr_assert_eq(lstat(temporary, &status) == 0, what != REMOVED, "%s", meanwhile_names[what]);
    if (what == ANOTHER_SAVE) {
        cr_assert_eq(berth_atomic_write(other, "er", 2, 3, NULL), 0);
        cr_assert_eq(berth_atomic_commit(other, NULL), 0);
        check_holds("other", 5);
    } else if (what == ANOTHER_FILE)
        cr_assert(test_file_holds(temporary, "theirs", 6) && unlink(temporary) == 0);
    else if (what == A_FOLDER)
        cr_assert(S_ISDIR(status.st_mode) && rmdir(temporary) == 0);
    else if (what == A_LINK)
        cr_assert(S_ISLNK(status.st_mode) && unlink(temporary) == 0);
}

/* X5, W7: removed by hand, or by `berth clean --older-than 0` of another host. */
Test(atomic, without_its_temporary_it_fails_and_touches_nothing_of_others)
{
    static const char *const ends[] = {"commit", "abort", "cancel"};
    const berth_params cancelled = {.progress = cancel};

    for (enum meanwhile what = REMOVED; what <= A_LINK; what++)
        for (int end = 0; end < 3; end++) {
            test_write_file(path, "old", 3);
            berth_atomic_file *file = begin(4, end == 2 ? &cancelled : NULL);
            char *temporary = find_temporary();
            cr_assert_eq(berth_atomic_write(file, "mine", 4, 0, NULL), 0);
            berth_atomic_file *other = happen(what, temporary);
            if (end == 1)
                berth_atomic_abort(file);
            else
                cr_assert_lt(berth_atomic_commit(file, &error), 0, "%s", meanwhile_names[what]);
            if (end == 0)
                cr_assert(strstr(error.message,
                                 "model.json: cannot be replaced: its temporary was removed"),
                          "%s: %s", meanwhile_names[what], error.message);
            else if (end == 2)
                cr_assert_eq(error.code, BERTH_E_CANCELLED, "%s", error.message);
            check_untouched(what, temporary, other);
            cr_assert_eq(test_folder_count(folder), 1, "%s, %s", meanwhile_names[what], ends[end]);
            free(temporary);
        }
}

/* X1: what may be read of the new file is decided by the old one as it is when it goes. */
Test(atomic, a_file_that_becomes_private_meanwhile_stays_private)
{
    static const struct {
        mode_t before, meanwhile; /* 0: there is no file */
        bool anew;                /* another file takes its name */
        uid_t owner;              /* that it gets, by root */
    } cases[] = {{0644, 0600, false, 0}, {0666, 0640, false, 0},    {0664, 0604, false, 0},
                 {0644, 0600, true, 0},  {0, 0600, true, 0},        {0, 0640, true, 0},
                 {0644, 0644, true, 0},  {0600, 0600, false, 4101}, {0640, 0640, true, 4101},
                 {0, 0600, true, 4101}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stat status;
        uid_t owner = geteuid() == 0 ? cases[i].owner : geteuid();
        (void)unlink(path);
        if (cases[i].before) {
            test_write_file(path, "old", 3);
            cr_assert_eq(chmod(path, cases[i].before), 0);
        }
        berth_atomic_file *file = begin(4, NULL);
        cr_assert_eq(berth_atomic_write(file, "mine", 4, 0, NULL), 0);
        if (cases[i].anew) {
            (void)unlink(path);
            test_write_file(path, "private", 7);
        }
        cr_assert_eq(chown(path, owner, (gid_t)-1), 0);
        cr_assert_eq(chmod(path, cases[i].meanwhile), 0);
        cr_assert_eq(berth_atomic_commit(file, NULL), 0);
        cr_assert_eq(stat(path, &status), 0);
        cr_assert_eq(status.st_mode & 07777, cases[i].meanwhile, "case %zu: mode %03o", i,
                     (unsigned)status.st_mode & 07777);
        cr_assert_eq(status.st_uid, owner, "case %zu: of user %u", i, (unsigned)status.st_uid);
        check_holds("mine", 4);
    }
}

/* X1: clocks of file systems stand still for some ms: nothing is told by a time alone. */
Test(atomic, also_where_all_happens_in_one_tick)
{
    for (int i = 0; i < 200 && geteuid() == 0; i++) {
        struct stat status;
        (void)unlink(path);
        test_write_file(path, "old", 3);
        (void)chmod(path, 0600);
        berth_atomic_file *file = begin(4, NULL);
        cr_assert_eq(chown(path, 4101, 4200), 0);
        cr_assert_eq(berth_atomic_commit(file, NULL), 0);
        cr_assert_eq(stat(path, &status), 0);
        cr_assert(status.st_uid == 4101 && status.st_gid == 4200, "of user %u, group %u",
                  (unsigned)status.st_uid, (unsigned)status.st_gid);
    }
}

/* ---- who is gone ---- */

static int told[2], keep[2];

/* Until the first thread of a process has ended, which /proc shows as a zombie. */
static void await_end_of_first_thread(pid_t process)
{
    char name[64], text[512];

    /* By the thread: qemu has a text of its own for /proc/PID/stat. */
    snprintf(name, sizeof name, "/proc/%ld/task/%ld/stat", (long)process, (long)process);
    for (char state = 0; state != 'Z';) {
        FILE *file = fopen(name, "r");
        cr_assert(file && fgets(text, sizeof text, file) && strrchr(text, ')'));
        fclose(file);
        state = strrchr(text, ')')[2];
    }
}

/* `late`: a bool, whether it begins only when the first thread has ended. */
static void *save_on(void *late)
{
    char byte = 0;

    if (*(const bool *)late)
        await_end_of_first_thread(getpid());
    berth_atomic_file *file = begin(10, NULL);
    (void)!write(told[1], "+", 1);
    if (read(keep[0], &byte, 1) != 1) /* the test has ended */
        _exit(3);
    _exit(berth_atomic_commit(file, NULL) == 0 ? 0 : 1);
    return NULL;
}

/* X5: a killed save whose parent never asks for its end, as in containers without an init. */
Test(atomic, a_zombie_is_dead)
{
    siginfo_t ended;

    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            (void)begin(10, NULL);
            raise(SIGKILL);
        }
        cr_assert_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
        cr_assert_eq(test_folder_count(folder), 2);
        clean(0, 86400);
        cr_assert(n_dead == 1 && n_alive == 0 && n_unknown == 0, "of %u alive", n_alive);
        if (round == 0)
            clean(BERTH_CLEAN_REMOVE, 86400);
        else
            berth_atomic_abort(begin(10, NULL));
        check_holds("old", 3);
        cr_assert_eq(waitpid(child, NULL, 0), child);
    }
}

static void check_without_first_thread(bool late)
{
    char byte;
    int status = -1;

    cr_assert(pipe(told) == 0 && pipe(keep) == 0);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        close(keep[1]);
        if (pthread_create(&thread, NULL, save_on, &late) != 0 ||
            (!late && read(told[0], &byte, 1) != 1))
            _exit(2);
        pthread_exit(NULL);
    }
    await_end_of_first_thread(child);
    if (late)
        cr_assert_eq(read(told[0], &byte, 1), 1);
    clean(BERTH_CLEAN_REMOVE, 0);
    cr_assert(n_alive == 1 && n_removed == 0, "late %d: %u dead, %u unknown", late, n_dead,
              n_unknown);
    berth_atomic_abort(begin(10, NULL));
    cr_assert_eq(test_folder_count(folder), 2);
    cr_assert_eq(write(keep[1], "+", 1), 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "%x", (unsigned)status);
    check_holds("\0\0\0\0\0\0\0\0\0\0", 10);
}

/* X5: its first thread ended; others go on. */
Test(atomic, a_process_without_its_first_thread_lives)
{
    check_without_first_thread(false);
    check_without_first_thread(true);
}
