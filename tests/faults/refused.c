/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W10: what cannot become a file is told before data is written: no byte is written, nothing is
 * made, nothing is synced. Some cases need a right: they say so without.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/support/faults/save_scene.h"

static char *flagged;

/* chattr +a, +i, or neither. */
static bool set_flag(int flag)
{
    int flags = 0, fd = open(flagged, O_RDONLY | O_CLOEXEC);
    bool is_set = fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0;

    flags = (flags & ~(FS_APPEND_FL | FS_IMMUTABLE_FL)) | flag;
    is_set = is_set && ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
    close(fd);
    return is_set;
}

static void end_refused(void)
{
    if (flagged)
        (void)set_flag(0); /* else the folder cannot be removed */
    free(flagged);
    end_faults();
}

TestSuite(refused, .init = begin_faults, .fini = end_refused);

/* Refused for this reason, and nothing of it is seen. `to` is below the folder, or absolute. */
static void check_refused(const char *to, int code, int system_errno)
{
    static const char *const options[] = {"save.method=buffered", "save.method=direct io.threads=4",
                                          "save.durability=none"};
    char *whole = *to == '/' ? strdup(to) : test_path(folder, to);
    size_t n_before = test_folder_count(folder);

    for (size_t i = 0; i < 3; i++) {
        size_t n_open = n_open_files();
        berth_error error;
        cr_assert_eq(berth_config_patch(options[i], NULL), 0);
        fault_set(FAULT_openat, 0, 0, false);
        int status = save_records(whole, &error);
        cr_assert_eq(status, code, "%s: %s", to, error.message);
        cr_assert_eq(error.system_errno, system_errno, "%s: %s", to, error.message);
        cr_assert(strlen(whole) > 500 || names_path(&error, whole), "%s", error.message);
        cr_assert_str_empty(fault_trace, "%s: %s", to, fault_trace);
        cr_assert_eq(atomic_load(&fault.n_calls[FAULT_fallocate]), 0);
        fault_clear();
        berth_config_unpatch(NULL);
        cr_assert_eq(test_folder_count(folder), n_before, "%s: something is left behind", to);
        cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", to);
        n_points++;
    }
    free(whole);
}

static char *name_of(size_t nbytes)
{
    char *name = malloc(nbytes + 1);

    memset(name, 'n', nbytes);
    name[nbytes] = '\0';
    return name;
}

/* "d/d/d/…" of so many bytes: each name is short. */
static char *deep_path(size_t nbytes)
{
    char *name = name_of(nbytes);

    for (size_t i = 1; i < nbytes; i += 2)
        name[i] = '/';
    name[nbytes - 1] = 'd';
    return name;
}

static void make_socket(const char *at)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    cr_assert_lt(strlen(at), sizeof address.sun_path);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

/* W10 */
Test(refused, what_is_no_place_for_a_file)
{
    char *file = test_path(folder, "file"), *pipe = test_path(folder, "pipe");
    char *loop = test_path(folder, "loop"), *into = test_path(folder, "into");
    char *below = test_path(folder, "below"), *socket_path = test_path(folder, "socket");
    char *long_name = name_of(256), *deep = deep_path(4500), *longest = name_of(255);

    test_write_file(file, "", 0);
    cr_assert_eq(mkfifo(pipe, 0666), 0);
    cr_assert_eq(mkdir(below, 0777), 0);
    cr_assert_eq(symlink("loop", loop), 0);
    cr_assert_eq(symlink("missing/model.pt", into), 0);
    make_socket(socket_path);
    check_refused("", BERTH_E_SYSTEM, EISDIR); /* the folder and a slash */
    check_refused("missing/model.pt", BERTH_E_NOT_FOUND, ENOENT);
    check_refused("into", BERTH_E_NOT_FOUND, ENOENT);
    check_refused("file/model.pt", BERTH_E_SYSTEM, ENOTDIR);
    check_refused("below", BERTH_E_SYSTEM, EISDIR);
    check_refused("below/", BERTH_E_SYSTEM, EISDIR);
    check_refused("new/", BERTH_E_SYSTEM, EISDIR);
    check_refused("pipe", BERTH_E_REPLACE, 0);
    check_refused("socket", BERTH_E_REPLACE, 0);
    check_refused("/dev/null", BERTH_E_REPLACE, 0);
    check_refused("loop", BERTH_E_SYSTEM, ELOOP);
    check_refused("loop/model.pt", BERTH_E_SYSTEM, ELOOP);
    check_refused(long_name, BERTH_E_SYSTEM, ENAMETOOLONG);
    check_refused(deep, BERTH_E_SYSTEM, ENAMETOOLONG);
    check_points(10, n_points, 42);
    /* And the longest name that there is: a temporary's name does not grow with it. */
    berth_error error;
    char *good = test_path(folder, longest);
    cr_assert_eq(save_records(good, &error), 0, "%s", error.message);
    free(file), free(pipe), free(loop), free(into), free(below), free(socket_path);
    free(long_name), free(deep), free(longest), free(good);
}

/* ---- rights ---- */

static void check_as_nobody(void)
{
    char *closed = test_path(folder, "closed"), *read_only = test_path(folder, "read-only.pt");
    char *in_closed = test_path(folder, "closed/model.pt");

    cr_assert_eq(chmod(folder, 0777), 0);
    cr_assert_eq(mkdir(closed, 0777), 0);
    test_write_file(in_closed, OLD, strlen(OLD));
    cr_assert_eq(chmod(in_closed, 0666), 0);
    test_write_file(read_only, OLD, strlen(OLD));
    cr_assert_eq(chmod(read_only, 0444), 0);
    if (geteuid() == 0)
        cr_assert(setegid(65534) == 0 && seteuid(65534) == 0);
    check_refused("read-only.pt", BERTH_E_SYSTEM, EACCES);
    (void)seteuid(0);
    cr_assert_eq(chmod(closed, 0555), 0); /* nothing may be made in it */
    if (geteuid() == 0)
        cr_assert_eq(seteuid(65534), 0);
    check_refused("closed/new.pt", BERTH_E_SYSTEM, EACCES);
    check_refused("closed/model.pt", BERTH_E_REPLACE, EACCES);
    (void)seteuid(0);
    cr_assert_eq(chmod(closed, 0600), 0); /* nothing may be found in it */
    if (geteuid() == 0)
        cr_assert_eq(seteuid(65534), 0);
    check_refused("closed/model.pt", BERTH_E_SYSTEM, EACCES);
    (void)seteuid(0);
    cr_assert_eq(chmod(closed, 0777), 0);
    free(closed), free(read_only), free(in_closed);
}

/* W10: Root may do everything, so this is done as somebody else. */
Test(refused, what_there_is_no_permission_for)
{
    check_as_nobody();
    check_points(10, n_points, 12);
}

static int no_capget(void *header, void *capabilities)
{
    (void)header, (void)capabilities;
    errno = EINVAL;
    return -1;
}

/* W10: by the owners of folder and file, and by who saves. */
Test(refused, what_a_sticky_folder_protects)
{
    enum { NOBODY = 65534, OTHER = 65533 };
    static const struct {
        uid_t of_folder, of_file, saver;
        bool has_no_capget;
        int code;
        const char *says;
    } cases[] = {
        {0, 0, NOBODY, false, BERTH_E_SYSTEM, "its folder is sticky"},
        {0, OTHER, NOBODY, false, BERTH_E_SYSTEM, "its folder is sticky"},
        {NOBODY, 0, NOBODY, false, 0, ""},
        {0, NOBODY, NOBODY, false, 0, ""},
        {0, OTHER, 0, false, 0, ""},
        {0, 0, NOBODY, true, BERTH_E_SYSTEM, "replaced: Operation"}, /* the rename decides */
    };
    char *sticky = test_path(folder, "sticky"), *in_sticky = test_path(folder, "sticky/model.pt");

    if (geteuid() != 0)
        cr_skip_test("only root can give files away");
    cr_assert_eq(chmod(folder, 0777), 0);
    cr_assert_eq(mkdir(sticky, 0777), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_error error;
        (void)unlink(in_sticky);
        test_write_file(in_sticky, OLD, strlen(OLD));
        cr_assert_eq(chmod(in_sticky, 0666), 0);
        cr_assert_eq(chown(in_sticky, cases[i].of_file, 0), 0);
        cr_assert_eq(chown(sticky, cases[i].of_folder, 0), 0);
        cr_assert_eq(chmod(sticky, 01777), 0);
        cr_assert(seteuid(cases[i].saver) == 0);
        if (cases[i].has_no_capget)
            bth_system.capget = no_capget;
        int status = save_records(in_sticky, &error);
        bth_system_restore();
        cr_assert_eq(seteuid(0), 0);
        cr_expect_eq(status, cases[i].code, "%zu: %d: %s", i, status, error.message);
        cr_expect(strstr(error.message, cases[i].says), "%zu: %s", i, error.message);
        cr_expect_eq(test_file_holds(in_sticky, OLD, strlen(OLD)), status != 0, "%zu", i);
    }
    free(sticky), free(in_sticky);
}

/* W10, X2: Root has the right to set these, and to nothing more than others afterwards. */
Test(refused, what_has_a_flag_of_its_file_system)
{
    static const struct {
        const char *of, *to;
        int flag, code;
    } cases[] = {{"kept", "kept/model.pt", FS_APPEND_FL, BERTH_E_REPLACE},
                 {"kept", "kept/new.pt", FS_APPEND_FL, BERTH_E_REPLACE},
                 {"kept", "kept/model.pt", FS_IMMUTABLE_FL, BERTH_E_REPLACE},
                 {"kept", "kept/new.pt", FS_IMMUTABLE_FL, BERTH_E_SYSTEM},
                 {"kept/model.pt", "kept/model.pt", FS_APPEND_FL, BERTH_E_SYSTEM},
                 {"kept/model.pt", "kept/model.pt", FS_IMMUTABLE_FL, BERTH_E_SYSTEM}};
    char *kept = test_path(folder, "kept"), *in_kept = test_path(folder, "kept/model.pt");

    cr_assert_eq(mkdir(kept, 0777), 0);
    test_write_file(in_kept, OLD, strlen(OLD));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flagged = test_path(folder, cases[i].of);
        if (!set_flag(cases[i].flag))
            cr_skip_test("chattr is not possible here");
        check_refused(cases[i].to, cases[i].code, EPERM);
        cr_assert(set_flag(0));
        free(flagged), flagged = NULL;
        cr_assert_eq(test_folder_count(kept), 1);
    }
    check_points(10, n_points, 18);
    free(kept), free(in_kept);
}

/* ---- file systems ---- */

/* W10, X3: A rename would fail when all is written. */
Test(refused, what_another_file_system_lies_over)
{
    char *other = test_path(folder, "other.pt"), *disk = test_path(folder, "disk");

    test_write_file(path, OLD, strlen(OLD));
    cr_assert_eq(mkdir(disk, 0777), 0);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", disk, "tmpfs", 0, "size=1m") < 0)
        cr_skip_test("mounting is not permitted here");
    char *in_disk = test_path(folder, "disk/model.pt");
    test_write_file(in_disk, OLD, strlen(OLD));
    cr_assert_eq(mount(in_disk, path, NULL, MS_BIND, NULL), 0);
    check_refused("model.pt", BERTH_E_REPLACE, EBUSY);
    check_refused("link.pt", BERTH_E_REPLACE, EBUSY);
    cr_assert_eq(umount(path), 0);
    test_write_file(other, OLD, strlen(OLD));
    cr_assert_eq(mount(other, path, NULL, MS_BIND, NULL), 0); /* a mount, but of this system */
    check_refused("model.pt", BERTH_E_REPLACE, EBUSY);
    cr_assert_eq(umount(path), 0);
    cr_assert_eq(mount("none", disk, NULL, MS_REMOUNT | MS_RDONLY, "size=1m"), 0);
    check_refused("disk/model.pt", BERTH_E_SYSTEM, EROFS);
    check_refused("disk/new.pt", BERTH_E_SYSTEM, EROFS);
    cr_assert_eq(umount(disk), 0);
    check_points(10, n_points, 15);
    free(other), free(disk), free(in_disk);
}
