/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/temporary.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "io/file.h"
#include "io/syscalls.h"

#define PREFIX ".berth-"
#define SUFFIX ".tmp"
#define N_DIGITS 16
#define MOST_TRIES 100

bool berth_temporary_is_name(const char *name)
{
    size_t prefix_nbytes = strlen(PREFIX);

    if (strncmp(name, PREFIX, prefix_nbytes) != 0)
        return false;
    name += prefix_nbytes;
    return strspn(name, "0123456789abcdef") == N_DIGITS && strcmp(name + N_DIGITS, SUFFIX) == 0;
}

/* ---- creating ---- */

static int make_name(char name[BERTH_TEMPORARY_NAME_NBYTES], berth_error *error)
{
    uint64_t random;
    ssize_t n;

    do
        n = berth_system.getrandom(&random, sizeof random, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof random)
        return berth_fail_errno(error, n < 0 ? errno : EIO, NULL, BERTH_NO_OFFSET,
                                "no random name for a temporary file");
    (void)snprintf(name, BERTH_TEMPORARY_NAME_NBYTES, PREFIX "%016llx" SUFFIX,
                   (unsigned long long)random);
    return 0;
}

static int lock(int fd)
{
    int result;

    do
        result = berth_system.flock(fd, LOCK_EX | LOCK_NB);
    while (result < 0 && errno == EINTR);
    return result;
}

/*
 * Locks a new file. False and errno 0 if another save took it for a leftover between its creation
 * and its lock: then it is gone, or about to be. File systems without locks have no leftovers
 * removed either.
 */
static bool keep(int fd)
{
    struct stat status;

    if (lock(fd) < 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        if (errno == EWOULDBLOCK)
            errno = 0;
        return false;
    }
    if (berth_system.fstat(fd, &status) < 0)
        return false;
    errno = 0;
    return status.st_nlink > 0;
}

static int open_new(int folder, const char *name, mode_t mode)
{
    int fd;

    do
        fd = berth_system.openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                 mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int berth_temporary_create(int folder, mode_t mode, int *fd, char name[BERTH_TEMPORARY_NAME_NBYTES],
                           berth_error *error)
{
    int failure = EEXIST;

    for (int i = 0; i < MOST_TRIES && (failure == EEXIST || failure == 0); i++) {
        if (make_name(name, error) < 0)
            return error->code;
        int created = open_new(folder, name, mode);
        failure = created < 0 ? errno : 0;
        if (created < 0)
            continue;
        if (keep(created)) {
            *fd = created;
            return 0;
        }
        failure = errno;
        (void)berth_system.unlinkat(folder, name, 0);
        berth_file_close(created);
    }
    return berth_fail_errno(error, failure ? failure : EBUSY, NULL, BERTH_NO_OFFSET,
                            "no temporary file can be created in its folder");
}

/* ---- cleaning ---- */

/* Whether the name in the folder still is the open file, a regular one. */
static bool is_same(int folder, const char *name, int fd)
{
    struct stat open, named;

    return berth_system.fstat(fd, &open) == 0 && S_ISREG(open.st_mode) &&
           berth_system.fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

static void remove_leftover(int folder, const char *name)
{
    /* Never hangs on a named pipe, follows no link. For writing: NFS locks no other. */
    int fd = berth_system.openat(folder, name,
                                 O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);

    if (fd < 0)
        return;
    if (is_same(folder, name, fd) && lock(fd) == 0 && is_same(folder, name, fd) &&
        berth_system.unlinkat(folder, name, 0) == 0)
        berth_log("removed %s, left by a save that was killed", name);
    berth_file_close(fd);
}

void berth_temporary_clean(int folder)
{
    /* As getdents64 fills it: entries of their own length, aligned. */
    _Alignas(struct dirent64) char entries[8192];
    int fd = berth_system.openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    ssize_t n;

    if (fd < 0)
        return;
    while ((n = berth_system.getdents64(fd, entries, sizeof entries)) > 0) {
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            if (berth_temporary_is_name(entry->d_name))
                remove_leftover(folder, entry->d_name);
            at += entry->d_reclen;
        }
    }
    berth_file_close(fd);
}
