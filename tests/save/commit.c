/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves to paths: what is replaced, what is refused before data is written, what is left behind. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "save/temporary.h"
#include "tests/support/save/records.h"

static char *folder;

static void set_up(void)
{
    folder = test_folder_new();
}

static void tear_down(void)
{
    test_folder_remove(folder);
}

TestSuite(commit, .init = set_up, .fini = tear_down);

static int save(const char *path, size_t nbytes, berth_error *error)
{
    uint8_t *bytes = sample_bytes(nbytes);
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = nbytes, .data = bytes}};
    int status = berth_save_to(TO_PATH(path), OF_RECORDS(records, 2, 0), NAMED("archive"), error);
    free(bytes);
    return status;
}

static void save_well(const char *path, size_t nbytes)
{
    berth_error error;

    cr_assert_eq(save(path, nbytes, &error), 0, "%s", error.message);
}

/* Whether a whole checkpoint lies at a path, whose data begins with these nbytes. Looks once. */
static bool is_checkpoint(const char *path, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(path, &n);
    uint8_t *bytes = sample_bytes(nbytes);
    bool good = n > nbytes + 98 && memcmp(file, "PK\3\4", 4) == 0 &&
                memcmp(file + n - 22, "PK\5\6", 4) == 0 && memmem(file, n, bytes, nbytes);
    free(bytes);
    free(file);
    return good;
}

static mode_t mode_of(const char *path)
{
    struct stat status;

    cr_assert_eq(stat(path, &status), 0);
    return status.st_mode & 07777;
}

/* Refused with this code and sentence (%s: the path), and nothing is left behind. */
static void check_refused(const char *path, int code, const char *message)
{
    size_t n_before = test_folder_count(folder);
    char expected[1024];
    berth_error error;

    cr_assert_eq(save(path, 1000, &error), code, "%s", error.message);
    snprintf(expected, sizeof expected, "%.500s: %s", *path ? path : "''", message);
    cr_assert_str_eq(error.message, expected);
    cr_assert_eq(test_folder_count(folder), n_before);
}

/* F4 */
Test(commit, a_new_file_gets_the_mode_of_any_new_file)
{
    char *path = test_path(folder, "model.pt");
    mode_t before = umask(007);

    save_well(path, 1000);
    umask(before);
    cr_assert_eq(mode_of(path), 0660);
    cr_assert(is_checkpoint(path, 1000));
    cr_assert_eq(test_folder_count(folder), 1);
    free(path);
}

/* F4 */
Test(commit, a_replaced_file_keeps_its_mode)
{
    static const mode_t modes[] = {0600, 0666, 0751, 0644};
    char *path = test_path(folder, "model.pt");

    for (size_t i = 0; i < 4; i++) {
        test_write_file(path, "old", 3);
        cr_assert_eq(chmod(path, modes[i]), 0);
        save_well(path, 1000 + i);
        cr_assert_eq(mode_of(path), modes[i]);
        cr_assert(is_checkpoint(path, 1000 + i));
    }
    free(path);
}

static mode_t mode_before_fchmod;

static int look_and_fchmod(int fd, mode_t mode)
{
    struct stat status;

    mode_before_fchmod = fstat(fd, &status) == 0 ? status.st_mode & 07777 : 07777;
    return fchmod(fd, mode);
}

/* F4 */
Test(commit, a_private_file_is_private_from_its_first_byte)
{
    char *path = test_path(folder, "model.pt");
    mode_t before = umask(0);

    test_write_file(path, "old", 3);
    cr_assert_eq(chmod(path, 0640), 0);
    bth_system.fchmod = look_and_fchmod;
    save_well(path, 1000);
    bth_system_restore();
    umask(before);
    cr_assert_eq(mode_before_fchmod, 0600);
    cr_assert_eq(mode_of(path), 0640);
    free(path);
}

/* What refuses to give a new file the owner, the ACL, the mode of the old one; 0: nothing does. */
static int owner_errno, acl_errno, mode_errno;

static int refuse(int with)
{
    errno = with;
    return -1;
}

static int refused_fchown(int fd, uid_t owner, gid_t group)
{
    return owner_errno ? refuse(owner_errno) : fchown(fd, owner, group);
}

static int refused_fsetxattr(int fd, const char *name, const void *value, size_t nbytes, int flags)
{
    return acl_errno && strncmp(name, "system.", 7) == 0
               ? refuse(acl_errno)
               : fsetxattr(fd, name, value, nbytes, flags);
}

static int refused_fchmod(int fd, mode_t mode)
{
    return mode_errno ? refuse(mode_errno) : fchmod(fd, mode);
}

/* F4: as root, who can do all of it but what is refused. */
Test(commit, a_replaced_file_keeps_its_rights_or_loses_some_or_is_refused)
{
    enum { OTHER = 65533 };
    static const struct {
        uid_t owner;
        mode_t mode;
        int owner_errno, acl_errno, mode_errno;
        int code;
        const char *says;
        uid_t new_owner;
        mode_t new_mode;
    } cases[] = {
        {OTHER, 0640, 0, 0, 0, 0, "", OTHER, 0640},
        {OTHER, 0666, EIO, 0, 0, BERTH_E_SYSTEM, "its owner cannot be kept", 0, 0},
        {OTHER, 0644, EPERM, EOPNOTSUPP, 0, BERTH_E_REPLACE, "who could not use the new file", 0,
         0},
        {OTHER, 0664, EPERM, EOPNOTSUPP, 0, BERTH_E_REPLACE, "who could not use the new file", 0,
         0},
        {OTHER, 0646, EPERM, EOPNOTSUPP, 0, BERTH_E_REPLACE, "who could not use the new file", 0,
         0},
        {OTHER, 0666, EPERM, EOPNOTSUPP, 0, 0, "", 0, 0666},
        {OTHER, 0666, EACCES, ENOENT, 0, 0, "", 0, 0666},
        {OTHER, 0644, EPERM, EIO, 0, BERTH_E_SYSTEM, "its ACL cannot be kept", 0, 0},
        {0, 0640, 0, 0, EIO, BERTH_E_SYSTEM, "its mode cannot be kept", 0, 0},
        {0, 0640, 0, 0, EPERM, 0, "", 0, 0600}, /* narrower: nobody can do more */
        {0, 0400, 0, 0, EPERM, BERTH_E_SYSTEM, "its mode cannot be kept", 0, 0},
    };
    char *path = test_path(folder, "model.pt");

    if (geteuid() != 0)
        cr_skip_test("only root can give files away");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stat status;
        berth_error error;
        (void)unlink(path);
        test_write_file(path, "old", 3);
        cr_assert_eq(chmod(path, cases[i].mode), 0);
        cr_assert_eq(chown(path, cases[i].owner, 0), 0);
        owner_errno = cases[i].owner_errno, acl_errno = cases[i].acl_errno;
        mode_errno = cases[i].mode_errno;
        bth_system.fchown = refused_fchown;
        bth_system.fsetxattr = refused_fsetxattr;
        bth_system.fchmod = refused_fchmod;
        cr_expect_eq(save(path, 1000, &error), cases[i].code, "%zu: %s", i, error.message);
        bth_system_restore();
        cr_expect(strstr(error.message, cases[i].says), "%zu: %s", i, error.message);
        cr_assert_eq(stat(path, &status), 0);
        cr_expect_eq(status.st_uid, cases[i].code ? cases[i].owner : cases[i].new_owner, "%zu", i);
        cr_expect_eq(status.st_mode & 07777, cases[i].code ? cases[i].mode : cases[i].new_mode,
                     "%zu: %o", i, status.st_mode);
        cr_expect_eq(test_folder_count(folder), 1, "%zu", i);
    }
    free(path);
}

static int access_and_swap(int in, const char *name, int mode, int flags)
{
    int result = faccessat(in, name, mode, flags);

    cr_assert_eq(unlinkat(in, name, 0), 0);
    cr_assert_eq(symlinkat("elsewhere", in, name), 0);
    return result;
}

/* X1: a link's own mode is 0777. */
Test(commit, a_link_that_takes_the_files_place_meanwhile_gives_no_rights)
{
    char *path = test_path(folder, "model.pt"), expected[600];
    berth_error error;

    test_write_file(path, "old", 3);
    cr_assert_eq(chmod(path, 0600), 0);
    bth_system.faccessat = access_and_swap;
    cr_assert_eq(save(path, 1000, &error), BERTH_E_SYSTEM, "%s", error.message);
    bth_system_restore();
    snprintf(expected, sizeof expected,
             "%.500s: cannot be replaced: it is no longer a regular file: %s", path,
             strerror(EBUSY));
    cr_assert_str_eq(error.message, expected);
    cr_assert_eq(test_folder_count(folder), 1);
    free(path);
}

/* F3 */
Test(commit, the_old_file_lives_on_for_who_has_it_open)
{
    char *path = test_path(folder, "model.pt"), old[4] = "";

    test_write_file(path, "old", 3);
    int fd = open(path, O_RDONLY);
    save_well(path, 1000);
    cr_assert_eq(pread(fd, old, 4, 0), 3);
    cr_assert_str_eq(old, "old");
    close(fd);
    free(path);
}

/* F4 */
Test(commit, links_are_followed_and_stay_links)
{
    char *below = test_path(folder, "below"), *file = test_path(folder, "below/model.pt");
    char *link = test_path(folder, "link.pt"), *chain = test_path(folder, "below/chain.pt");
    struct stat status;

    cr_assert_eq(mkdir(below, 0777), 0);
    test_write_file(file, "old", 3);
    cr_assert_eq(symlink("below/chain.pt", link), 0);
    cr_assert_eq(symlink(file, chain), 0);
    save_well(link, 1000);
    cr_assert(is_checkpoint(file, 1000));
    cr_assert(lstat(link, &status) == 0 && S_ISLNK(status.st_mode));
    cr_assert(lstat(chain, &status) == 0 && S_ISLNK(status.st_mode));
    cr_assert(lstat(file, &status) == 0 && S_ISREG(status.st_mode));
    cr_assert_eq(test_folder_count(below), 2);
    cr_assert_eq(test_folder_count(folder), 2);
    free(below), free(file), free(link), free(chain);
}

Test(commit, a_dangling_link_gets_its_target)
{
    char *link = test_path(folder, "link.pt"), *file = test_path(folder, "model.pt");

    cr_assert_eq(symlink("model.pt", link), 0);
    save_well(link, 1000);
    cr_assert(is_checkpoint(file, 1000));
    cr_assert_eq(test_folder_count(folder), 2);
    free(link), free(file);
}

Test(commit, a_relative_path_is_seen_from_the_present_folder)
{
    char *path = test_path(folder, "model.pt");

    cr_assert_eq(chdir(folder), 0);
    save_well("model.pt", 1000);
    cr_assert(is_checkpoint(path, 1000));
    cr_assert_eq(chdir("/"), 0);
    free(path);
}

/* W10 */
Test(commit, what_can_be_told_is_told_before_data_is_written)
{
    char *missing = test_path(folder, "missing/model.pt"), *pipe = test_path(folder, "pipe");
    char *loop = test_path(folder, "loop"), *slash = test_path(folder, "new/");
    char *file = test_path(folder, "file"), *below_file = test_path(folder, "file/model.pt");
    char long_name[300], says[200];

    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    char *too_long = test_path(folder, long_name);
    test_write_file(file, "", 0);
    cr_assert_eq(mkfifo(pipe, 0666), 0);
    cr_assert_eq(symlink("loop", loop), 0);
    check_refused(missing, BERTH_E_NOT_FOUND,
                  "its folder cannot be opened: No such file or directory");
    check_refused(below_file, BERTH_E_SYSTEM, "its folder cannot be opened: Not a directory");
    check_refused(folder, BERTH_E_SYSTEM, "cannot be replaced: Is a directory");
    check_refused(slash, BERTH_E_SYSTEM,
                  "ends in a slash, as only the path of a folder does: Is a directory");
    check_refused(pipe, BERTH_E_REPLACE,
                  "is not a regular file and cannot be replaced; a descriptor of it can be written "
                  "to, and with save.replace=in_place its path");
    check_refused("/dev/null", BERTH_E_REPLACE,
                  "is not a regular file and cannot be replaced; a descriptor of it can be written "
                  "to, and with save.replace=in_place its path");
    snprintf(says, sizeof says, "the link cannot be followed: %s", strerror(ELOOP));
    check_refused(loop, BERTH_E_SYSTEM, says);
    snprintf(says, sizeof says, "cannot be examined: %s", strerror(ENAMETOOLONG));
    check_refused(too_long, BERTH_E_SYSTEM, says);
    check_refused("", BERTH_E_ARGUMENT, "the path is empty");
    free(missing), free(pipe), free(loop), free(slash), free(file), free(below_file),
        free(too_long);
}

/* ---- leftovers of killed saves ---- */

Test(commit, names_of_temporaries_are_told_exactly)
{
    cr_assert(bth_temporary_is_name(".berth-0123456789abcdef.tmp"));
    cr_assert(bth_temporary_is_name(".berth-0123456789abcdef-0.tmp"));
    cr_assert(bth_temporary_is_name(".berth-0123456789abcdef-15.tmp"));
    cr_assert(bth_temporary_is_name(".berth-0123456789abcdef-0123456789abcdef.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef-16.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef-01.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef-.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef-0123456789abcdeg.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcde.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef0.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789ABCDEF.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-0123456789abcdef.tmp~"));
    cr_assert_not(bth_temporary_is_name("berth-0123456789abcdef.tmp"));
    cr_assert_not(bth_temporary_is_name(".berth-.tmp"));
}

/* F4, X5 */
Test(commit, what_certainly_is_dead_is_removed_and_only_that)
{
    static const char *const names[] = {".berth-kept.tmp", ".berth-00000000000000bb.tmp",
                                        ".berth-00000000000000bb-0.tmp", "x.tmp"};
    char *paths[4], *path = test_path(folder, "model.pt"), *slots[5],
                    owner[BTH_TEMPORARY_OWNER_NBYTES];

    for (size_t i = 0; i < 4; i++) {
        paths[i] = test_path(folder, names[i]);
        test_write_file(paths[i], "half a checkpoint", 17);
    }
    for (int i = 0; i < 5; i++)
        slots[i] = temporary_path(folder, "model.pt", i);
    leave_temporary(slots[0]);
    leave_temporary(slots[1]); /* of this process, which is there */
    cr_assert(bth_temporary_owner_self(owner));
    cr_assert_eq(setxattr(slots[1], BTH_TEMPORARY_OWNER, owner, strlen(owner), 0), 0);
    leave_temporary(slots[2]); /* of another host: another boot id */
    owner[2] = owner[2] == 'a' ? 'b' : 'a';
    strcpy(strrchr(owner, ' '), " 1");
    cr_assert_eq(setxattr(slots[2], BTH_TEMPORARY_OWNER, owner, strlen(owner), 0), 0);
    test_write_file(slots[3], "of nobody", 9);
    leave_temporary(slots[4]);
    save_well(path, 1000);
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(access(paths[i], F_OK), 0, "%s is none of this target", names[i]);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(access(slots[i], F_OK) == 0, i >= 1 && i <= 3, "slot %d", i);
    cr_assert_eq(test_folder_count(folder), 1 + 4 + 3);
    for (size_t i = 0; i < 4; i++)
        free(paths[i]);
    for (size_t i = 0; i < 5; i++)
        free(slots[i]);
    free(path);
}

static size_t n_listed;

static ssize_t count_listings(int fd, void *entries, size_t nbytes)
{
    n_listed++;
    return getdents64(fd, entries, nbytes);
}

/* X5: where all slots are taken, a random name is. No folder is listed: it may have a million
 * files. */
Test(commit, more_saves_than_slots_find_names_without_a_listing)
{
    char *path = test_path(folder, "model.pt");

    for (int i = 0; i < 16; i++) {
        char *slot = temporary_path(folder, "model.pt", i);
        test_write_file(slot, "of nobody", 9);
        free(slot);
    }
    bth_system.getdents64 = count_listings;
    save_well(path, 1000);
    bth_system_restore();
    cr_assert_eq(n_listed, 0);
    cr_assert(is_checkpoint(path, 1000));
    cr_assert_eq(test_folder_count(folder), 17);
    free(path);
}

/* ---- cancelling ---- */

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)total_nbytes;
    *(uint64_t *)context = done_nbytes;
    return 1;
}

Test(commit, a_cancelled_save_leaves_the_old_file)
{
    char *path = test_path(folder, "model.pt");
    uint64_t done = 0;
    const berth_params call = {.progress = cancel, .progress_context = &done};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    char expected[600];
    berth_error error;

    save_well(path, 1000);
    cr_assert_eq(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error),
                 BERTH_E_CANCELLED);
    snprintf(expected, sizeof expected, "%s: cancelled", path);
    cr_assert_str_eq(error.message, expected);
    cr_assert(is_checkpoint(path, 1000));
    cr_assert_eq(test_folder_count(folder), 1);
    free(path);
}

/* Of the reports that all is written, the nth is answered by a cancel; it comes before the rename.
 */
static int n_whole, n_until_stop;

static int stop_when_all_is_written(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    n_whole += done_nbytes == total_nbytes;
    return n_whole >= n_until_stop;
}

Test(commit, a_save_can_be_cancelled_until_its_rename)
{
    char *path = test_path(folder, "model.pt");
    const berth_params call = {.progress = stop_when_all_is_written};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    berth_error error;
    int status = BERTH_E_CANCELLED;

    save_well(path, 1000);
    for (n_until_stop = 1; status < 0; n_until_stop++) {
        n_whole = 0;
        status = berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error);
        cr_assert_eq(status, n_whole >= n_until_stop ? BERTH_E_CANCELLED : 0, "report %d: %d",
                     n_until_stop, status);
        cr_assert(status == 0 || is_checkpoint(path, 1000));
    }
    cr_expect_gt(n_until_stop, 2);
    free(path);
}

static int put_pipe_there(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)done_nbytes, (void)total_nbytes;
    (void)unlink(context);
    (void)mkfifo(context, 0600);
    return 0;
}

/* X1: what is there when the save ends is looked at again. */
Test(commit, a_pipe_that_takes_the_files_place_meanwhile_is_not_replaced)
{
    char *path = test_path(folder, "model.pt");
    const berth_params call = {.progress = put_pipe_there, .progress_context = path};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    struct stat status;
    berth_error error;

    save_well(path, 1000);
    cr_expect_lt(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error), 0);
    cr_expect(strstr(error.message, "not a regular file") || strstr(error.message, "pipe"), "%s",
              error.message);
    cr_assert_eq(lstat(path, &status), 0);
    cr_expect(S_ISFIFO(status.st_mode));
    cr_expect_eq(test_folder_count(folder), 1);
    free(path);
}

static int give_away(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)done_nbytes, (void)total_nbytes;
    return chown(context, 65533, 0) == 0 && chmod(context, 0644) == 0 ? 0 : 1;
}

/* X1: so are its rights: they may be others than those that the new file got when the save began.
 */
Test(commit, rights_that_cannot_be_kept_any_more)
{
    char *path = test_path(folder, "model.pt");
    const berth_params call = {.progress = give_away, .progress_context = path};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    berth_error error;

    if (geteuid() != 0)
        cr_skip_test("only root can give files away");
    test_write_file(path, "old", 3);
    owner_errno = EPERM, acl_errno = EOPNOTSUPP;
    bth_system.fchown = refused_fchown;
    bth_system.fsetxattr = refused_fsetxattr;
    cr_expect_eq(berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error),
                 BERTH_E_REPLACE, "%s", error.message);
    bth_system_restore();
    cr_expect(test_file_holds(path, "old", 3));
    cr_expect_eq(test_folder_count(folder), 1);
    free(path);
}

static int capget_of_nothing(void *header, void *sets)
{
    (void)header;
    memset(sets, 0, _LINUX_CAPABILITY_U32S_3 * sizeof(struct __user_cap_data_struct));
    return 0;
}

/* X2: another's file in another's sticky folder is root's to replace, by a capability. */
Test(commit, a_sticky_folder_keeps_anothers_file)
{
    char *path = test_path(folder, "model.pt");
    berth_error error;

    if (geteuid() != 0)
        cr_skip_test("only root can give files away");
    test_write_file(path, "old", 3);
    cr_assert(chown(path, 65533, 0) == 0 && chown(folder, 65532, 0) == 0 &&
              chmod(folder, 01777) == 0);
    bth_system.capget = capget_of_nothing;
    FAILS_SAYING(save(path, 1000, &error), BERTH_E_SYSTEM, "its folder is sticky");
    bth_system_restore();
    cr_expect(test_file_holds(path, "old", 3));
    save_well(path, 1000);
    free(path);
}

/* ---- calls that fail ---- */

static int failing_close(int fd)
{
    (void)close(fd);
    errno = EIO;
    return -1;
}

static int unreadable_folder(int in, const char *name, int flags, mode_t mode)
{
    errno = EACCES;
    return flags & O_DIRECTORY && !(flags & O_PATH) ? -1 : openat(in, name, flags, mode);
}

static int failing_open(const char *name, int flags, mode_t mode)
{
    errno = EIO;
    return flags & O_TRUNC ? -1 : open(name, flags, mode);
}

static int failing_fstatat(int in, const char *name, struct stat *status, int flags)
{
    (void)in, (void)name, (void)status, (void)flags;
    errno = EIO;
    return -1;
}

static int examine_nothing_more(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    bth_system.fstatat = failing_fstatat;
    return 0;
}

/* W2, W10: the old file stays, alone, and the error says which step failed. */
Test(commit, a_call_that_fails_is_told)
{
    static const struct {
        int (*close)(int fd);
        int (*openat)(int in, const char *name, int flags, mode_t mode);
        int (*open)(const char *name, int flags, mode_t mode);
        berth_progress_function progress;
        const char *options, *says;
    } cases[] = {
        {.close = failing_close, .options = "", .says = "cannot be closed"},
        {.openat = unreadable_folder,
         .options = "save.durability=full",
         .says = "its folder cannot be read, so it cannot be synced"},
        {.openat = unreadable_folder, .options = "save.durability=file", .says = NULL},
        {.open = failing_open,
         .options = "save.replace=in_place",
         .says = "cannot be written in place: "},
        {.progress = examine_nothing_more, .options = "", .says = "cannot be examined"},
    };
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = test_path(folder, "model.pt");
        const berth_params call = {.progress = cases[i].progress};
        berth_error error;
        test_write_file(path, "old", 3);
        cr_assert_eq(berth_config_patch(cases[i].options, NULL), 0);
        if (cases[i].close)
            bth_system.close = cases[i].close;
        if (cases[i].openat)
            bth_system.openat = cases[i].openat;
        if (cases[i].open)
            bth_system.open = cases[i].open;
        int code = berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), &call, &error);
        bth_system_restore();
        (void)berth_config_unpatch(NULL);
        cr_expect_eq(code, cases[i].says ? BERTH_E_SYSTEM : 0, "%zu: %s", i, error.message);
        cr_expect(!cases[i].says || strstr(error.message, cases[i].says), "%zu: %s", i,
                  error.message);
        cr_expect_eq(test_file_holds(path, "old", 3), code < 0, "%zu", i);
        cr_expect_eq(test_folder_count(folder), 1, "%zu", i);
        free(path);
    }
}

static int no_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = EOPNOTSUPP;
    return -1;
}

static int nothing_free(int fd, struct statvfs *system)
{
    int result = fstatvfs(fd, system);

    system->f_bavail = 0;
    return result;
}

/* W1: where no room can be reserved, what is free is compared, before a byte is written. */
Test(commit, without_a_reservation_too_little_room_is_told)
{
    char *path = test_path(folder, "model.pt");
    berth_error error;

    bth_system.fallocate = no_fallocate;
    save_well(path, 100000);
    bth_system.fstatvfs = nothing_free;
    cr_expect_eq(save(path, 200000, &error), BERTH_E_NO_SPACE, "%s", error.message);
    bth_system_restore();
    cr_expect(is_checkpoint(path, 100000));
    cr_expect_eq(test_folder_count(folder), 1);
    free(path);
}
