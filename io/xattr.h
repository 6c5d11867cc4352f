/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Extended attributes of what a descriptor is open on. The calls that take a descriptor refuse
 * O_PATH (EBADF): then these go by its path in /proc, and fail with ENOENT where there is none.
 */
#ifndef BTH_IO_XATTR_H
#define BTH_IO_XATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* As much as the kernel lets one value, and all names, be (XATTR_SIZE_MAX). */
#define BTH_MAX_XATTR_NBYTES 65536

/* The bytes of the value; -1 and errno: ENODATA if there is no such attribute. */
ssize_t bth_xattr_get(int fd, const char *name, void *value, size_t nbytes);
/* The names, each with a NUL behind it. */
ssize_t bth_xattr_list(int fd, char *names, size_t nbytes);
/* `flags`: 0, or XATTR_CREATE: fails with EEXIST where there is one. */
int bth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags);
int bth_xattr_remove(int fd, const char *name); /* not with O_PATH */

/* Whether errno says that there is no such attribute, or no attributes at all. */
bool bth_xattr_is_absent(int system_errno);

#endif
