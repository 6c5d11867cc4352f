/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/target_file.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/syscalls.h"

/* The kernel's own limit. */
#define MAX_LINKS 40
#define UNMAPPED 65534 /* DEFAULT_OVERFLOWUID in linux/highuid.h, of groups, too */

int bth_fail_offering_in_place(berth_error *error)
{
    if (error->code != BERTH_E_SYSTEM)
        return error->code;
    error->code = BERTH_E_REPLACE;
    return bth_error_append(error, "; save to another path, or with save.replace=in_place, which "
                                   "loses the old content if it fails");
}

/* ---- what is there already ---- */

/* True also if it cannot be known whether ids inside differ from those outside. */
bool bth_id_is_unmapped(unsigned id, bool is_group)
{
    char map[64], *at = map;

    if (id != UNMAPPED)
        return false;
    if (!bth_file_read_start_as_text(is_group ? "/proc/self/gid_map" : "/proc/self/uid_map", map,
                                     sizeof map))
        return true;
    unsigned long first = strtoul(at, &at, 10), outside = strtoul(at, &at, 10);
    return first != 0 || outside != 0 || strtoul(at, &at, 10) < UINT32_MAX;
}

/* In a sticky folder only the owner of a file, or of the folder, may replace it, and a process that
 * may act as the owner of any file. */
static bool target_is_protected_by_sticky_folder(const struct statx *folder,
                                                 const struct statx *file)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {0};
    uid_t user = geteuid();

    if (!(folder->stx_mode & S_ISVTX) || file->stx_uid == user || folder->stx_uid == user)
        return false;
    if (bth_id_is_unmapped(file->stx_uid, false) || bth_id_is_unmapped(file->stx_gid, true))
        return true;
    return bth_system.capget(&header, sets) == 0 &&
           !(sets[CAP_TO_INDEX(CAP_FOWNER)].effective & CAP_TO_MASK(CAP_FOWNER));
}

/*
 * X2: refuses what would fail at the rename, when all is written, or would leave the temporary
 * behind. If the file system does not report attributes, the rename decides.
 *
 * X3: a file that is mounted over the name, as containers do with single files, cannot be replaced.
 * st_dev does not show it: on overlayfs, folder and file may be on two devices. Kernels before 5.8
 * do not report mounts; then the rename decides.
 */
static int target_check_rename(const bth_target_file *target, berth_error *error)
{
#ifdef STATX_MNT_ID
    const unsigned mask = STATX_BASIC_STATS | STATX_MNT_ID;
#else
    const unsigned mask = STATX_BASIC_STATS;
#endif
    struct statx folder = {0}, file = {0};
    bool is_mounted_over = false;

    if (bth_system.statx(target->folder, "", AT_EMPTY_PATH, mask, &folder) < 0)
        return 0;
    if (target->exists &&
        bth_system.statx(target->folder, target->name, AT_SYMLINK_NOFOLLOW, mask, &file) < 0)
        return 0;
    /* These three cannot be written in place either. The kernel keeps a program from opening
     * another user's file in a sticky folder as if it had made it (fs.protected_regular): that user
     * could read what is saved. */
    if (file.stx_attributes & STATX_ATTR_APPEND)
        return bth_fail_system(error, EPERM, "cannot be replaced: it is append-only (chattr +a)");
    if (file.stx_attributes & STATX_ATTR_IMMUTABLE)
        return bth_fail_system(error, EPERM, "cannot be replaced: it is immutable (chattr +i)");
    if (target->exists && target_is_protected_by_sticky_folder(&folder, &file))
        return bth_fail_system(error, EPERM,
                               "cannot be replaced: its folder is sticky, and the file "
                               "belongs to another user");
    if (target->in_place)
        return 0;
#ifdef STATX_MNT_ID
    is_mounted_over =
        (folder.stx_mask & file.stx_mask & STATX_MNT_ID) && folder.stx_mnt_id != file.stx_mnt_id;
#endif
    if (folder.stx_attributes & STATX_ATTR_APPEND)
        bth_fail_system(error, EPERM,
                        "its folder is append-only (chattr +a): no file in it can be replaced or "
                        "removed");
    else if (folder.stx_attributes & STATX_ATTR_IMMUTABLE)
        bth_fail_system(error, EPERM, "its folder is immutable (chattr +i)");
    else if (is_mounted_over)
        bth_fail_system(error, EBUSY, "cannot be replaced: it is a mount point");
    else
        return 0;
    return target->exists || (folder.stx_attributes & STATX_ATTR_APPEND)
               ? bth_fail_offering_in_place(error)
               : error->code;
}

/* Devices and pipes can be written in place. */
static int target_check_kind(mode_t mode, bool in_place, berth_error *error)
{
    if (S_ISDIR(mode))
        return bth_fail_system(error, EISDIR, "cannot be replaced");
    if (S_ISREG(mode) || in_place)
        return 0;
    return bth_fail_status(
        error, BERTH_E_REPLACE,
        "is not a regular file and cannot be replaced; a descriptor of it can be "
        "written to, and with save.replace=in_place its path");
}

int bth_target_file_check_and_set_status(bth_target_file *target, const struct stat *status,
                                         berth_error *error)
{
    if (target_check_kind(status->st_mode, target->in_place, error) < 0)
        return error->code;
    target->exists = true;
    target->status = *status;
    if (target_check_rename(target, error) < 0)
        return error->code;
    if (bth_system.faccessat(target->folder, target->name, W_OK, AT_EACCESS) < 0)
        return bth_fail_system(error, errno, "cannot be replaced");
    return 0;
}

/* ---- descriptors as paths ---- */

/*
 * X4: /dev/fd/N, /dev/stdout and the like. A file with a name is replaced by that name. A file
 * without one (memfd_create, O_TMPFILE, removed) can only be written in place; so can one whose
 * name another file has now, and a pipe, if that was asked for.
 */
static int target_follow_descriptor(bth_target_file *target, const char *path, berth_error *error)
{
    struct stat open, named;
    int fd;

    if (bth_system.fstatat(target->folder, target->name, &open, 0) < 0)
        return bth_fail_system(error, errno, "cannot be examined");
    if (target_check_kind(open.st_mode, target->in_place, error) < 0)
        return error->code;
    bool is_file = S_ISREG(open.st_mode);
    if (is_file && path[0] == '/' &&
        bth_system.fstatat(AT_FDCWD, path, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        named.st_dev == open.st_dev && named.st_ino == open.st_ino)
        return 0; /* the path leads to it */
    if (is_file && open.st_nlink > 0 && !target->in_place) {
        /* it has another hard link, or is in another root folder */
        bth_fail_system(error, EBUSY, "is open under a name that another file has now");
        return bth_fail_offering_in_place(error);
    }
    int flags = is_file ? O_RDWR : O_WRONLY | O_NOCTTY;
    BTH_REPEAT(fd, bth_system.openat(target->folder, target->name, flags | O_CLOEXEC, 0));
    if (fd < 0)
        return bth_fail_system(error, errno, "has no name, and cannot be written in place");
    target->nameless = fd;
    target->status = open;
    return 0;
}

/* ---- following the path ---- */

/*
 * One step: opens the folder of `path`, relative to the present one, and keeps the name behind it.
 * *is_link: then `path` is where the link leads. Links in /proc lead to open files; their text is
 * not always a path ("/memfd:x (deleted)").
 */
static int target_follow(bth_target_file *target, char path[PATH_MAX], bool *is_link,
                         berth_error *error)
{
    char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *folder = !slash ? "." : slash == path ? "/" : path;
    int from = target->folder < 0 ? AT_FDCWD : target->folder, flags = O_DIRECTORY | O_CLOEXEC, fd;
    struct stat status;
    struct statfs system;

    *is_link = false;
    if (!*name)
        return bth_fail_system(error, EISDIR, "ends in a slash, as only the path of a folder does");
    char *copy = bth_duplicate_text(name, strlen(name));
    if (!copy)
        return bth_fail_memory(error, strlen(name));
    bth_release(target->name);
    target->name = copy;
    if (slash)
        *slash = '\0';
    BTH_REPEAT(fd, bth_system.openat(from, folder, O_RDONLY | flags, 0));
    target->folder_readable = fd >= 0 || errno != EACCES;
    if (!target->folder_readable) /* a folder may be writable, but not readable */
        fd = bth_system.openat(from, folder, O_PATH | flags, 0);
    int failure = errno;
    bth_file_close(target->folder);
    target->folder = fd;
    if (fd < 0)
        return bth_fail_system(error, failure, "its folder cannot be opened");
    if (bth_system.fstatat(fd, target->name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return target_check_rename(target, error);
        return bth_fail_system(error, errno, "cannot be examined");
    }
    if (!S_ISLNK(status.st_mode))
        return bth_target_file_check_and_set_status(target, &status, error);
    ssize_t n = bth_system.readlinkat(fd, target->name, path, PATH_MAX);
    if (n < 0 || n >= PATH_MAX)
        return bth_fail_system(error, n < 0 ? errno : ENAMETOOLONG, "the link cannot be followed");
    path[n] = '\0';
    *is_link = true;
    if (bth_system.fstatfs(fd, &system) == 0 && system.f_type == PROC_SUPER_MAGIC)
        return target_follow_descriptor(target, path, error);
    return 0;
}
int bth_target_file_find(const char *path, bool in_place, bth_target_file *target,
                         berth_error *error)
{
    size_t nbytes = strlen(path);
    bool is_link = true;

    *target = BTH_NO_TARGET_FILE;
    target->in_place = in_place;
    if (nbytes == 0)
        return bth_fail_argument(error, "the path is empty");
    if (nbytes >= PATH_MAX)
        return bth_fail_system(error, ENAMETOOLONG, "cannot be examined");
    char *text = bth_allocate(PATH_MAX);
    if (!text)
        return bth_fail_memory(error, PATH_MAX);
    memcpy(text, path, nbytes + 1);
    for (int n_links = 0; is_link && target->nameless < 0 && error->code == BERTH_OK; n_links++) {
        if (n_links > MAX_LINKS)
            bth_fail_system(error, ELOOP, "the link cannot be followed");
        else
            target_follow(target, text, &is_link, error);
    }
    if (error->code != BERTH_OK)
        bth_target_file_free(target);
    bth_release(text);
    return error->code;
}

void bth_target_file_free(bth_target_file *target)
{
    bth_file_close(target->folder);
    bth_file_close(target->nameless);
    bth_release(target->name);
    *target = BTH_NO_TARGET_FILE;
}
