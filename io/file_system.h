/* SPDX-License-Identifier: BSD-3-Clause */
/* The kind of file system that a file is on, and extended attributes. */
#ifndef BTH_IO_FILE_SYSTEM_H
#define BTH_IO_FILE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef enum bth_file_system {
    BTH_ON_DISK,   /* ext2 to ext4, XFS: direct I/O was measured there */
    BTH_IN_MEMORY, /* tmpfs, ramfs, hugetlbfs */
    BTH_REMOTE,    /* on a network, or in a process (FUSE): others may cut files short */
    BTH_ELSEWHERE  /* all others, or unknown */
} bth_file_system;

bth_file_system bth_file_system_query_kind(int fd);

/*
 * Whether an ACL that was set decides who may open the file. FUSE, SMB and 9P may only pass it on
 * to the file system below, and use the mode alone.
 */
bool bth_file_system_obeys_acls(int fd);

/*
 * Extended attributes of open files. The system calls refuse O_PATH descriptors with EBADF: then
 * these functions use the descriptor's path in /proc, and fail with ENOENT if there is none.
 */

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
