/* SPDX-License-Identifier: BSD-3-Clause */
/* The kind of file system that a file is on. */
#ifndef BTH_IO_FILE_SYSTEM_H
#define BTH_IO_FILE_SYSTEM_H

#include <stdbool.h>

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
 * Whether it may be the mount of an object store (FUSE): files are written from the beginning to
 * the end, and some cannot rename. The kernel lets only one thread at a time write to a file of
 * FUSE, so little is lost by writing in order.
 */
bool bth_file_system_may_need_order(int fd);

/* Whether a failure says that a file system, or a kind of file, does not have this call. */
bool bth_file_system_has_no_call(int system_errno);

#endif
