/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/target.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/file.h"
#include "io/syscalls.h"

/* As many as the kernel follows. */
#define MOST_LINKS 40

static int open_folder(int from, const char *path, bool *readable)
{
    int flags = O_DIRECTORY | O_CLOEXEC;
    int fd;

    *readable = true;
    do
        fd = berth_system.openat(from, path, O_RDONLY | flags, 0);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == EACCES) { /* one may write into a folder that one may not list */
        *readable = false;
        fd = berth_system.openat(from, path, O_PATH | flags, 0);
    }
    return fd;
}

/* Opens the folder part of `path`, seen from the present folder, and keeps the name behind it. */
static int enter(berth_target *target, char *path, berth_error *error)
{
    char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *folder = ".";
    int from = target->folder < 0 ? AT_FDCWD : target->folder;

    if (!*name)
        return berth_fail_errno(error, EISDIR, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    char *copy = berth_duplicate(name, strlen(name));
    if (!copy)
        return berth_fail_memory(error, strlen(name));
    berth_release(target->name);
    target->name = copy;
    if (slash) {
        folder = slash == path ? "/" : path;
        *slash = '\0';
    }
    int fd = open_folder(from, folder, &target->folder_readable);
    int failure = errno;
    berth_file_close(target->folder);
    target->folder = fd;
    if (fd < 0)
        return berth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                                "its folder cannot be opened");
    return 0;
}

/* The text of the link that the name is. */
static int read_link(const berth_target *target, char path[PATH_MAX], berth_error *error)
{
    ssize_t n = berth_system.readlinkat(target->folder, target->name, path, PATH_MAX);

    if (n < 0 || n >= PATH_MAX)
        return berth_fail_errno(error, n < 0 ? errno : ENAMETOOLONG, NULL, BERTH_NO_OFFSET,
                                "the link cannot be followed");
    path[n] = '\0';
    return 0;
}

/*
 * W10: a file of the same file system that is mounted over the name, as containers are given single
 * files. Kernels before 5.8 do not tell, and then the rename does.
 */
static bool is_mounted(const berth_target *target)
{
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx status;

    return berth_system.statx(target->folder, target->name, AT_SYMLINK_NOFOLLOW, 0, &status) == 0 &&
           (status.stx_attributes & STATX_ATTR_MOUNT_ROOT);
#else
    (void)target;
    return false;
#endif
}

/* What is there must be a file of this very folder, and one that could be written in place. */
static int check_replaced(berth_target *target, const struct stat *status, berth_error *error)
{
    struct stat folder;

    if (S_ISDIR(status->st_mode))
        return berth_fail_errno(error, EISDIR, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    if (!S_ISREG(status->st_mode))
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "is not a regular file and cannot be replaced; "
                          "a descriptor of it can be written to");
    if (berth_system.fstat(target->folder, &folder) < 0)
        return berth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET,
                                "its folder cannot be examined");
    if (folder.st_dev != status->st_dev) /* W10: mounted over; a rename would fail in the end */
        return berth_fail_errno(error, EXDEV, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    if (is_mounted(target))
        return berth_fail_errno(error, EBUSY, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    if (berth_system.faccessat(target->folder, target->name, W_OK, AT_EACCESS) < 0)
        return berth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    target->exists = true;
    target->mode = status->st_mode & 0777; /* set-id bits are not for data */
    return 0;
}

/* `path` is used up. */
static int follow(berth_target *target, char path[PATH_MAX], berth_error *error)
{
    for (int n_links = 0; n_links <= MOST_LINKS; n_links++) {
        struct stat status;
        if (enter(target, path, error) < 0)
            return error->code;
        if (berth_system.fstatat(target->folder, target->name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno == ENOENT)
                return 0;
            return berth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
        }
        if (!S_ISLNK(status.st_mode))
            return check_replaced(target, &status, error);
        if (read_link(target, path, error) < 0)
            return error->code;
    }
    return berth_fail_errno(error, ELOOP, NULL, BERTH_NO_OFFSET, "the link cannot be followed");
}

int berth_target_find(const char *path, berth_target *target, berth_error *error)
{
    size_t nbytes = strlen(path);

    *target = (berth_target){.folder = -1};
    if (nbytes == 0)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the path is empty");
    if (nbytes >= PATH_MAX)
        return berth_fail_errno(error, ENAMETOOLONG, NULL, BERTH_NO_OFFSET, "cannot be examined");
    char *text = berth_allocate(PATH_MAX);
    if (!text)
        return berth_fail_memory(error, PATH_MAX);
    memcpy(text, path, nbytes + 1);
    if (follow(target, text, error) < 0)
        berth_target_free(target);
    berth_release(text);
    return error->code;
}

void berth_target_free(berth_target *target)
{
    berth_file_close(target->folder);
    berth_release(target->name);
    *target = (berth_target){.folder = -1};
}
