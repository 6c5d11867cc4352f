/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Extended attributes of open files. The system calls refuse O_PATH descriptors with EBADF: then
 * these functions use the descriptor's path in /proc, and fail with ENOENT if there is none.
 */
#ifndef BTH_IO_XATTR_H
#define BTH_IO_XATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The kernel's limit for one value, and for all names together (XATTR_SIZE_MAX). */
#define BTH_MAX_XATTR_NBYTES 65536

/* The size of the value, or -1 and errno; ENODATA: the attribute does not exist. */
ssize_t bth_xattr_get(int fd, const char *name, void *value, size_t nbytes);
/* Each name ends with a NUL. */
ssize_t bth_xattr_list(int fd, char *names, size_t nbytes);
/* `flags`: 0, or XATTR_CREATE: fail with EEXIST if the attribute exists. */
int bth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags);
int bth_xattr_remove(int fd, const char *name); /* not for O_PATH */

/* Whether errno means: no such attribute, or no attributes on this file system. */
bool bth_xattr_is_absent(int system_errno);

#endif
