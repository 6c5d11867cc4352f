/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/xattr.h"

#include <errno.h>

#include "io/file.h"
#include "io/syscalls.h"

ssize_t bth_xattr_get(int fd, const char *name, void *value, size_t nbytes)
{
    char path[BTH_FILE_PATH_NBYTES];
    ssize_t n = bth_system.fgetxattr(fd, name, value, nbytes);

    if (n < 0 && errno == EBADF)
        n = bth_system.getxattr(bth_file_proc_path(fd, path), name, value, nbytes);
    return n;
}

ssize_t bth_xattr_list(int fd, char *names, size_t nbytes)
{
    char path[BTH_FILE_PATH_NBYTES];
    ssize_t n = bth_system.flistxattr(fd, names, nbytes);

    if (n < 0 && errno == EBADF)
        n = bth_system.listxattr(bth_file_proc_path(fd, path), names, nbytes);
    return n;
}

int bth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags)
{
    char path[BTH_FILE_PATH_NBYTES];
    int result = bth_system.fsetxattr(fd, name, value, nbytes, flags);

    if (result < 0 && errno == EBADF)
        result = bth_system.setxattr(bth_file_proc_path(fd, path), name, value, nbytes, flags);
    return result;
}

int bth_xattr_remove(int fd, const char *name)
{
    return bth_system.fremovexattr(fd, name);
}

bool bth_xattr_is_absent(int system_errno)
{
    return system_errno == ENODATA || system_errno == EOPNOTSUPP || system_errno == ENOSYS;
}
