/* SPDX-License-Identifier: BSD-3-Clause */
/* What kind of file system a file lies on: what may be expected of maps and of direct I/O. */
#ifndef BTH_IO_FILE_SYSTEM_H
#define BTH_IO_FILE_SYSTEM_H

#include <stdbool.h>

typedef enum bth_file_system {
    BTH_ON_DISK,   /* ext2 to ext4, XFS: here direct I/O is measured */
    BTH_IN_MEMORY, /* tmpfs and friends */
    BTH_REMOTE,    /* a network's, or a process's (FUSE): others may cut a file short */
    BTH_ELSEWHERE  /* any other, or nobody tells */
} bth_file_system;

bth_file_system bth_file_system_of(int fd);

/*
 * Whether an ACL that can be set decides who may open the file. FUSE, SMB and 9P may hand it on to
 * what lies below, and go by the mode alone.
 */
bool bth_file_system_obeys_acls(int fd);

#endif
