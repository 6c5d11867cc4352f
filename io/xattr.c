/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/xattr.h"

#include <errno.h>
#include <stdio.h>

#include "io/syscalls.h"

#define PATH_NBYTES 32

static const char *path_of(int fd, char path[PATH_NBYTES])
{
    (void)snprintf(path, PATH_NBYTES, "/proc/self/fd/%d", fd);
    return path;
}

ssize_t berth_xattr_get(int fd, const char *name, void *value, size_t nbytes)
{
    char path[PATH_NBYTES];

    return berth_system.getxattr(path_of(fd, path), name, value, nbytes);
}

ssize_t berth_xattr_list(int fd, char *names, size_t nbytes)
{
    char path[PATH_NBYTES];

    return berth_system.listxattr(path_of(fd, path), names, nbytes);
}

int berth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags)
{
    char path[PATH_NBYTES];

    return berth_system.setxattr(path_of(fd, path), name, value, nbytes, flags);
}

int berth_xattr_remove(int fd, const char *name)
{
    char path[PATH_NBYTES];

    return berth_system.removexattr(path_of(fd, path), name);
}

bool berth_xattr_is_absent(int system_errno)
{
    return system_errno == ENODATA || system_errno == EOPNOTSUPP || system_errno == ENOSYS;
}
