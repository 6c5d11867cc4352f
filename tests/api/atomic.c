/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of other formats that appear whole or not at all, and what killed ones leave. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
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

/* A save that waits until the test lets it go on: all is written, and nothing is replaced. */
typedef struct held_save {
    sem_t is_there, go_on;
    bool was_there;
    int answer; /* of its progress function */
    berth_job *job;
} held_save;

static int hold(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    held_save *save = context;

    if (done_nbytes < total_nbytes || save->was_there)
        return 0;
    save->was_there = true;
    sem_post(&save->is_there);
    while (sem_wait(&save->go_on) < 0)
        continue;
    return save->answer;
}

static held_save *begin(const char *bytes, size_t nbytes)
{
    held_save *save = calloc(1, sizeof *save);
    const berth_params params = {.progress = hold, .progress_context = save};

    cr_assert(sem_init(&save->is_there, 0, 0) == 0 && sem_init(&save->go_on, 0, 0) == 0);
    assert_ok(
        berth_save_begin(TO_PATH(path), OF_BYTES(bytes, nbytes), 0, &params, &save->job, &error));
    while (sem_wait(&save->is_there) < 0)
        continue;
    return save;
}

/* Returns what the save returns. answer 1: it is cancelled. */
static int end(held_save *save, int answer)
{
    save->answer = answer;
    sem_post(&save->go_on);
    int status = berth_job_wait(save->job, BERTH_JOB_DONE, -1, &error);
    berth_job_free(save->job);
    free(save);
    return status;
}

/* X7: records of any source, one after the other. */
Test(atomic, a_file_appears_whole)
{
    const berth_new_record parts[] = {{.name = "a", .nbytes = 5, .data = "hell\0"},
                                      {.name = "none"},
                                      {.name = ".storage_alignment", .nbytes = 5, .data = "world"}};
    berth_stats stats;
    const berth_params params = {.stats = &stats};

    patch("save.method=buffered");
    assert_ok(
        berth_save_to(TO_PATH(path), OF_RECORDS(parts, 3, BERTH_RECORDS_PLAIN), &params, &error));
    check_holds("hell\0world", 10);
    cr_assert_eq(stats.moved_nbytes, 10);
    cr_assert_eq(stats.n_requests, 1);
    cr_assert_eq(stats.n_records, 3);
    cr_assert_eq(stats.n_storages, 0);
    cr_assert_str_eq(stats.method, "buffered");
    assert_ok(
        berth_save_to(TO_PATH(path), OF_RECORDS(parts + 1, 1, BERTH_RECORDS_PLAIN), NULL, &error));
    check_holds("", 0);
    void *bytes;
    size_t nbytes = 1;
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes),
                            OF_RECORDS(parts + 1, 1, BERTH_RECORDS_PLAIN), NULL, &error));
    cr_assert_eq(nbytes, 0);
    berth_free(bytes);
}

/* X7 */
Test(atomic, or_not_at_all)
{
    const berth_new_record nameless = {.nbytes = 1, .data = "x"};
    const berth_new_record huge[] = {{.name = "a", .nbytes = INT64_MAX, .data = "x"},
                                     {.name = "b", .nbytes = 1, .data = "x"}};

    held_save *save = begin("new", 3);
    cr_assert_eq(test_folder_count(folder), 2);
    cr_assert(test_file_holds(path, "old", 3));
    cr_assert_eq(end(save, 1), BERTH_E_CANCELLED);
    check_holds("old", 3);
    cr_assert_eq(
        berth_save_to(TO_PATH(path), OF_RECORDS(&nameless, 1, BERTH_RECORDS_PLAIN), NULL, &error),
        BERTH_E_ARGUMENT);
    FAILS_SAYING(
        berth_save_to(TO_PATH(path), OF_RECORDS(huge, 2, BERTH_RECORDS_PLAIN), NULL, &error),
        BERTH_E_ARGUMENT, "do not fit a file of 2^63 bytes");
    berth_plan *plan = berth_plan_new(NULL, OF_BYTES("new", 3), NULL, NULL, &error);
    char byte;
    cr_assert(plan, "%s", error.message);
    cr_assert_eq(berth_plan_read(plan, &byte, 1, 0, &error), BERTH_E_ARGUMENT);
    berth_plan_free(plan);
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
    held_save *save = begin("mine", 4);
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
    cr_assert_eq(end(save, 0), 0);
    check_holds("mine", 4);
    clean(BERTH_CLEAN_REMOVE, 0);
    cr_assert(n_alive + n_dead + n_unknown == 0);
    cr_assert_eq(berth_clean_temporaries(folder, 8, 0, count, NULL, &error), BERTH_E_ARGUMENT);
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

/* Returns the other save, if there is one. */
static held_save *happen(enum meanwhile what, const char *temporary)
{
    held_save *other = NULL;

    cr_assert_eq(unlink(temporary), 0);
    if (what == ANOTHER_SAVE) {
        other = begin("other", 5);
        cr_assert_eq(access(temporary, F_OK), 0, "it did not get the same name");
    } else if (what == ANOTHER_FILE)
        test_write_file(temporary, "theirs", 6);
    else if (what == A_FOLDER)
        cr_assert_eq(mkdir(temporary, 0700), 0);
    else if (what == A_LINK)
        cr_assert_eq(symlink("model.json", temporary), 0);
    return other;
}

/* What is there now is not this save's: it stays as it is. */
static void check_untouched(enum meanwhile what, const char *temporary, held_save *other)
{
    struct stat status;

    cr_assert(test_file_holds(path, "old", 3), "%s", meanwhile_names[what]);
    cr_assert_eq(lstat(temporary, &status) == 0, what != REMOVED, "%s", meanwhile_names[what]);
    if (what == ANOTHER_SAVE) {
        cr_assert_eq(end(other, 0), 0);
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
    for (enum meanwhile what = REMOVED; what <= A_LINK; what++)
        for (int cancelled = 0; cancelled < 2; cancelled++) {
            test_write_file(path, "old", 3);
            held_save *save = begin("mine", 4);
            char *temporary = find_temporary();
            held_save *other = happen(what, temporary);
            cr_assert_lt(end(save, cancelled), 0, "%s", meanwhile_names[what]);
            if (cancelled)
                cr_assert_eq(error.code, BERTH_E_CANCELLED, "%s", error.message);
            else
                cr_assert(strstr(error.message,
                                 "model.json: cannot be replaced: its temporary was removed"),
                          "%s: %s", meanwhile_names[what], error.message);
            check_untouched(what, temporary, other);
            cr_assert_eq(test_folder_count(folder), 1, "%s, %d", meanwhile_names[what], cancelled);
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
        held_save *save = begin("mine", 4);
        if (cases[i].anew) {
            (void)unlink(path);
            test_write_file(path, "private", 7);
        }
        cr_assert_eq(chown(path, owner, (gid_t)-1), 0);
        cr_assert_eq(chmod(path, cases[i].meanwhile), 0);
        cr_assert_eq(end(save, 0), 0);
        cr_assert_eq(stat(path, &status), 0);
        cr_assert_eq(status.st_mode & 07777, cases[i].meanwhile, "case %zu: mode %03o", i,
                     (unsigned)status.st_mode & 07777);
        cr_assert_eq(status.st_uid, owner, "case %zu: of user %u", i, (unsigned)status.st_uid);
        check_holds("mine", 4);
    }
}

/* X1: an attribute changes nothing but the time, and of that often less than a second. */
Test(atomic, an_attribute_that_is_set_meanwhile_is_kept)
{
    struct stat before, after;
    char value[8];

    do {
        test_write_file(path, "old", 3);
        cr_assert_eq(stat(path, &before), 0);
        held_save *save = begin("mine", 4);
        (void)usleep(20000); /* a tick of the file system's clock */
        bool is_set = setxattr(path, "user.note", "set", 3, 0) == 0;
        cr_assert_eq(stat(path, &after), 0);
        cr_assert_eq(end(save, 0), 0);
        if (!is_set)
            cr_skip_test("no attributes in this file system");
        cr_assert_eq(getxattr(path, "user.note", value, sizeof value), 3);
        cr_assert_eq(removexattr(path, "user.note"), 0);
    } while (before.st_ctim.tv_sec != after.st_ctim.tv_sec);
}

/* X1: clocks of file systems stand still for some ms: nothing is told by a time alone. */
Test(atomic, also_where_all_happens_in_one_tick)
{
    for (int i = 0; i < 200 && geteuid() == 0; i++) {
        struct stat status;
        (void)unlink(path);
        test_write_file(path, "old", 3);
        (void)chmod(path, 0600);
        held_save *save = begin("mine", 4);
        cr_assert_eq(chown(path, 4101, 4200), 0);
        cr_assert_eq(end(save, 0), 0);
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

static int tell_and_wait(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bool *was_there = context;
    char byte = 0;

    if (done_nbytes < total_nbytes || *was_there)
        return 0;
    *was_there = true;
    (void)!write(told[1], "+", 1);
    if (read(keep[0], &byte, 1) != 1) /* the test has ended */
        _exit(3);
    return 0;
}

/* `late`: a bool, whether it begins only when the first thread has ended. */
static void *save_on(void *late)
{
    bool was_there = false;
    const berth_params params = {.progress = tell_and_wait, .progress_context = &was_there};

    if (*(const bool *)late)
        await_end_of_first_thread(getpid());
    _exit(berth_save_to(TO_PATH(path), OF_BYTES("mine", 4), &params, NULL) == 0 ? 0 : 1);
    return NULL;
}

/* X5: a killed save whose parent never asks for its end, as in containers without an init. */
Test(atomic, a_zombie_is_dead)
{
    siginfo_t ended;

    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            (void)begin("mine", 4);
            raise(SIGKILL);
        }
        cr_assert_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
        cr_assert_eq(test_folder_count(folder), 2);
        clean(0, 86400);
        cr_assert(n_dead == 1 && n_alive == 0 && n_unknown == 0, "of %u alive", n_alive);
        if (round == 0)
            clean(BERTH_CLEAN_REMOVE, 86400);
        else
            cr_assert_eq(end(begin("mine", 4), 1), BERTH_E_CANCELLED);
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
    cr_assert_eq(end(begin("mine", 4), 1), BERTH_E_CANCELLED);
    cr_assert_eq(test_folder_count(folder), 2);
    cr_assert_eq(write(keep[1], "+", 1), 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "%x", (unsigned)status);
    check_holds("mine", 4);
}

/* X5: its first thread ended; others go on. */
Test(atomic, a_process_without_its_first_thread_lives)
{
    check_without_first_thread(false);
    check_without_first_thread(true);
}
