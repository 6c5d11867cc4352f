/* SPDX-License-Identifier: BSD-3-Clause */
/* Temporaries, when what is known of them changes in the midst of a call. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "save/temporary.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

#define OLD "half a checkpoint" /* leave_temporary's */

static char *leftover, *other;

static void set_up(void)
{
    begin_model_scene();
    other = test_path(folder, "other.pt");
    leftover = temporary_path(folder, "model.pt", 0);
}

static void tear_down(void)
{
    bth_system_restore();
    free(leftover), free(other);
    end_scene();
}

TestSuite(leftovers, .init = set_up, .fini = tear_down);

/* ---- removing on a full disk ---- */

static int full_errno;
static unsigned n_claims;

static bool is_full(const char *name)
{
    if (strncmp(name, "user.berth.claim", 16) != 0)
        return false;
    n_claims++;
    errno = full_errno;
    return true;
}

/* No room for a claim: attributes on ext4 lie in a block of their own. */
static int setxattr_on_full(const char *file, const char *name, const void *value, size_t nbytes,
                            int flags)
{
    return is_full(name) ? -1 : setxattr(file, name, value, nbytes, flags);
}

static int fsetxattr_on_full(int fd, const char *name, const void *value, size_t nbytes, int flags)
{
    return is_full(name) ? -1 : fsetxattr(fd, name, value, nbytes, flags);
}

static void fill_disk(int (*kill)(pid_t process, int number))
{
    n_claims = 0;
    bth_system.setxattr = setxattr_on_full;
    bth_system.fsetxattr = fsetxattr_on_full;
    bth_system.kill = kill;
}

/* The save ends well at the last moment: its temporary gets the target's name, and its process is
 * gone. */
static int kill_too_late(pid_t process, int number)
{
    (void)process, (void)number;
    (void)rename(leftover, path);
    errno = ESRCH;
    return -1;
}

/* The same, and the next save of the target has made its own temporary. */
static int kill_too_late_and_next(pid_t process, int number)
{
    (void)process, (void)number;
    if (access(path, F_OK) < 0 && rename(leftover, path) == 0)
        test_write_file(leftover, "of the next", 11);
    errno = ESRCH;
    return -1;
}

static int kill_gone(pid_t process, int number)
{
    (void)process, (void)number;
    errno = ESRCH;
    return -1;
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return 1;
}

static void ignore(void *context, const berth_temporary *found)
{
    (void)context, (void)found;
}

/* As a save that runs: of this process. */
static void leave_mine(void)
{
    char owner[BTH_TEMPORARY_OWNER_NBYTES];

    (void)unlink(path), (void)unlink(leftover), (void)unlink(other);
    test_write_file(leftover, OLD, strlen(OLD));
    cr_assert(bth_temporary_owner_self(owner));
    cr_assert_eq(setxattr(leftover, BTH_TEMPORARY_OWNER, owner, strlen(owner), 0), 0);
}

/* Looks at the leftover, and removes what is left over. */
static void remove_by(int remover)
{
    const berth_params cancelled = {.progress = cancel};
    berth_error error;

    if (remover == 0) {
        cr_assert_eq(berth_clean_temporaries(folder, BERTH_CLEAN_REMOVE, 0, ignore, NULL, &error),
                     0, "%s", error.message);
        return;
    }
    cr_assert_eq(berth_save_to(TO_PATH(path), OF_BYTES("other", 5), &cancelled, &error),
                 BERTH_E_CANCELLED, "%s", error.message);
}

/* X5 */
Test(leftovers, on_a_full_disk_nothing_that_has_a_name_is_emptied)
{
    static const struct {
        const char *what;
        int (*kill)(pid_t process, int number);
    } cases[] = {{"it has become the target", kill_too_late},
                 {"it has become the target, another has its name", kill_too_late_and_next},
                 {"it has another name, too", kill_gone}};
    static const int full[] = {ENOSPC, EDQUOT};

    for (size_t i = 0; i < 12; i++) {
        const char *what = cases[i % 3].what;
        full_errno = full[i / 3 % 2];
        leave_mine();
        if (cases[i % 3].kill == kill_gone) /* somebody keeps it */
            cr_assert_eq(link(leftover, other), 0);
        fill_disk(cases[i % 3].kill);
        remove_by((int)(i / 6));
        bth_system_restore();
        const char *kept = cases[i % 3].kill == kill_gone ? other : path;
        cr_assert(test_file_holds(kept, OLD, strlen(OLD)), "%s, %zu: emptied", what, i);
        if (cases[i % 3].kill == kill_too_late_and_next)
            cr_assert(test_file_holds(leftover, "of the next", 11), "%s, %zu", what, i);
    }
}

/* X5: what is dead is removed there, too: its own room is enough for the claim. */
Test(leftovers, on_a_full_disk_what_is_dead_gives_its_room)
{
    for (int remover = 0; remover < 2; remover++) {
        full_errno = ENOSPC;
        leave_mine();
        fill_disk(kill_gone);
        remove_by(remover);
        bth_system_restore();
        cr_assert_geq(n_claims, 2, "it was claimed once");
        struct stat status;
        if (stat(leftover, &status) == 0) /* nothing can be claimed here */
            cr_assert_eq(status.st_size, 0);
    }
}

/* ---- claims ---- */

static bool is_removed_with_claim(const char *claim, double min_age_seconds)
{
    berth_error error;

    leave_temporary(leftover);
    cr_assert_eq(setxattr(leftover, "user.berth.claim0", claim, strlen(claim), 0), 0);
    cr_assert_eq(
        berth_clean_temporaries(folder, BERTH_CLEAN_REMOVE, min_age_seconds, ignore, NULL, &error),
        0, "%s", error.message);
    return unlink(leftover) < 0;
}

/* X5: one process removes. Who has died claimed nothing; whom nobody knows, only for so long. */
Test(leftovers, what_another_has_claimed_is_left_to_it)
{
    char alive[BTH_TEMPORARY_OWNER_NBYTES], dead[BTH_TEMPORARY_OWNER_NBYTES];

    cr_assert(bth_temporary_owner_self(alive));
    (void)memcpy(dead, alive, sizeof dead);
    strcpy(strrchr(dead, ' '), " 1");
    cr_expect_not(is_removed_with_claim(alive, 0));
    cr_expect(is_removed_with_claim(dead, 3600));
    cr_expect_not(is_removed_with_claim("of another machine 1 1", 3600));
    cr_expect(is_removed_with_claim("of another machine 1 1", 0));
}

static ssize_t getdents_fails(int fd, void *entries, size_t nbytes)
{
    (void)fd, (void)entries, (void)nbytes;
    errno = EIO;
    return -1;
}

Test(leftovers, of_a_folder_that_cannot_be_listed_are_an_error)
{
    berth_error error;

    bth_system.getdents64 = getdents_fails;
    cr_expect_eq(berth_clean_temporaries(folder, 0, 0, ignore, NULL, &error), BERTH_E_SYSTEM);
    cr_expect_eq(error.system_errno, EIO);
    cr_expect(strstr(error.message, "cannot be listed"), "%s", error.message);
}

/* ---- a temporary that goes while it is written ---- */

static bool replace_it;

static int lose_temporary(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    if (done_nbytes == total_nbytes && unlink(leftover) == 0 && replace_it)
        test_write_file(leftover, "theirs", 6);
    return 0;
}

/* X5, W7: a save of any kind. */
Test(leftovers, a_save_without_its_temporary_fails_and_touches_nothing)
{
    static const char *const options[] = {"save.method=buffered", "save.method=direct",
                                          "save.durability=none"};
    const berth_params call = {.progress = lose_temporary};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    char expected[600];
    berth_error error;

    for (size_t i = 0; i < 6; i++) {
        replace_it = i % 2;
        test_write_file(path, "old", 3);
        if (berth_config_patch(options[i / 2], &error) < 0) {
            cr_assert(strstr(error.message, "not part of this version"), "%s", error.message);
            continue;
        }
        cr_assert_lt(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error), 0,
                     "%s", options[i / 2]);
        berth_config_unpatch(NULL);
        snprintf(expected, sizeof expected, "%.500s: cannot be replaced: its temporary was removed",
                 path);
        cr_assert_eq(strncmp(error.message, expected, strlen(expected)), 0, "%s", error.message);
        cr_assert(test_file_holds(path, "old", 3));
        cr_assert_eq(access(leftover, F_OK) == 0, replace_it);
        cr_assert(!replace_it || (test_file_holds(leftover, "theirs", 6) && unlink(leftover) == 0));
        cr_assert_eq(test_folder_count(folder), 1);
    }
}

static int fstat_without_links(int fd, struct stat *status)
{
    int result = fstat(fd, status);

    status->st_nlink = 0;
    return result;
}

static int fstatat_without_links(int in, const char *name, struct stat *status, int flags)
{
    int result = fstatat(in, name, status, flags);

    status->st_nlink = 0;
    return result;
}

/* X6: some file systems in FUSE tell of no links. */
Test(leftovers, numbers_of_links_are_not_needed)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    berth_error error;

    bth_system.fstat = fstat_without_links;
    bth_system.fstatat = fstatat_without_links;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), NULL, &error), 0, "%s",
                     error.message);
        cr_assert_eq(test_folder_count(folder), 1);
    }
}

static int fstatat_of_another_device(int in, const char *name, struct stat *status, int flags)
{
    int result = fstatat(in, name, status, flags);

    status->st_dev += strncmp(name, ".berth", 6) == 0;
    return result;
}

static void count(void *context, const berth_temporary *found)
{
    (void)found;
    ++*(int *)context;
}

/* X5: what has the name of one and is no file is of somebody else. */
Test(leftovers, a_folder_of_the_name_is_none)
{
    berth_error error;
    int n = 0;

    cr_assert_eq(mkdir(leftover, 0700), 0);
    assert_ok(berth_clean_temporaries(folder, BERTH_CLEAN_REMOVE, 0, count, &n, &error));
    cr_expect_eq(n, 0);
    cr_expect_eq(rmdir(leftover), 0);
}

/* X10: the same number on another file system is another file. */
Test(leftovers, a_file_of_the_same_number_is_another_one)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    berth_error error;

    bth_system.fstatat = fstatat_of_another_device;
    cr_expect_eq(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), NULL, &error),
                 BERTH_E_SYSTEM);
    cr_expect(strstr(error.message, "was replaced"), "%s", error.message);
    leave_temporary(leftover);
    assert_ok(berth_clean_temporaries(folder, BERTH_CLEAN_REMOVE, 0, ignore, NULL, &error));
    cr_expect_eq(access(leftover, F_OK), 0, "it is not what was found");
    bth_system_restore();
}

/* ---- whose it is ---- */

static void note_state(void *context, const berth_temporary *temporary)
{
    *(berth_temporary_state *)context = temporary->state;
}

static berth_temporary_state state_of(const char *owner)
{
    berth_temporary_state state = (berth_temporary_state)-1;
    berth_error error;

    cr_assert_eq(setxattr(leftover, BTH_TEMPORARY_OWNER, owner, strlen(owner), 0), 0);
    assert_ok(berth_clean_temporaries(folder, 0, 0, note_state, &state, &error));
    return state;
}

/* X5: anybody may have written it; what is no process and no start is of nobody. %ld: this process.
 */
Test(leftovers, the_owner_is_read_exactly)
{
    static const struct {
        const char *process_and_start;
        berth_temporary_state state;
    } cases[] = {{"%ld 1", BERTH_TEMPORARY_DEAD},
                 {"2147483647 1", BERTH_TEMPORARY_DEAD},
                 {"2147483648 1", BERTH_TEMPORARY_UNKNOWN},
                 {"0 1", BERTH_TEMPORARY_UNKNOWN},
                 {"-%ld 1", BERTH_TEMPORARY_UNKNOWN},
                 {"+%ld 1", BERTH_TEMPORARY_UNKNOWN},
                 {" %ld 1", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld", BERTH_TEMPORARY_UNKNOWN},
                 {"%ldx1", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld 1x", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld 1 ", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld  1", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld +1", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld ", BERTH_TEMPORARY_UNKNOWN},
                 {"%ld 99999999999999999999", BERTH_TEMPORARY_UNKNOWN},
                 {"99999999999999999999 1", BERTH_TEMPORARY_UNKNOWN},
                 {"a 1", BERTH_TEMPORARY_UNKNOWN},
                 {":%ld 1", BERTH_TEMPORARY_UNKNOWN},
                 {"", BERTH_TEMPORARY_UNKNOWN}};
    char own[BTH_TEMPORARY_OWNER_NBYTES], owner[900], form[400];

    leave_temporary(leftover);
    cr_assert(bth_temporary_owner_self(own));
    cr_expect_eq(state_of(own), BERTH_TEMPORARY_ALIVE);
    *strrchr(own, ' ') = '\0';
    *strrchr(own, ' ') = '\0'; /* "1 <boot id> <pid namespace> <time namespace>" */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *process = strstr(cases[i].process_and_start, "%ld");
        int n_before = process ? (int)(process - cases[i].process_and_start)
                               : (int)strlen(cases[i].process_and_start);
        form[0] = '\0';
        if (process)
            snprintf(form, sizeof form, "%ld%s", (long)getpid(), process + 3);
        snprintf(owner, sizeof owner, "%s %.*s%s", own, n_before, cases[i].process_and_start, form);
        cr_expect_eq(state_of(owner), cases[i].state, "\"%s\"", owner);
    }
}

static const char *link_text; /* NULL: there is none */
static const char *hidden;    /* a file of /proc that is not there; NULL: all are */

static ssize_t readlinkat_as_told(int in, const char *name, char *text, size_t nbytes)
{
    if (strncmp(name, "/proc/thread-self/ns/pid", 24) != 0)
        return readlinkat(in, name, text, nbytes);
    if (!link_text) {
        errno = ENOENT;
        return -1;
    }
    size_t n = strlen(link_text) < nbytes ? strlen(link_text) : nbytes;
    memcpy(text, link_text, n);
    return (ssize_t)n;
}

static int open_without(const char *name, int flags, mode_t mode)
{
    if (hidden && strstr(name, "/proc/") == name && strstr(name, hidden)) {
        errno = ENOENT;
        return -1;
    }
    return open(name, flags, mode);
}

/* X5: without what tells processes apart a save works, and its temporary is of nobody. */
Test(leftovers, a_process_that_proc_does_not_tell_apart)
{
    static const struct {
        const char *link, *hidden;
    } cases[] = {{NULL, NULL},         {"pid:17]", NULL},      {"pid:[x]", NULL},
                 {"pid:[17", NULL},    {"pid:[]", NULL},       {"pid:[-1]", NULL},
                 {"pid:[17]", "stat"}, {"pid:[17]", "boot_id"}};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    char owner[BTH_TEMPORARY_OWNER_NBYTES];
    berth_error error;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        link_text = cases[i].link, hidden = cases[i].hidden;
        bth_system.readlinkat = readlinkat_as_told;
        bth_system.open = open_without;
        cr_expect_not(bth_temporary_owner_self(owner), "%zu: %s", i, owner);
        assert_ok(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), NULL, &error));
        bth_system_restore();
        cr_expect_eq(test_folder_count(folder), 1);
    }
    link_text = "pid:[17]", hidden = NULL;
    bth_system.readlinkat = readlinkat_as_told;
    cr_expect(bth_temporary_owner_self(owner));
    cr_expect(strstr(owner, " 17 "), "%s", owner);
}
