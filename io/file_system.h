/* SPDX-License-Identifier: BSD-3-Clause */
/* The kind of file system that a file is on. */
#ifndef BTH_IO_FILE_SYSTEM_H
#define BTH_IO_FILE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bth_file_system {
    BTH_ON_DISK,   /* ext2 to ext4, XFS: direct I/O was measured there */
    BTH_IN_MEMORY, /* tmpfs, ramfs, hugetlbfs */
    BTH_REMOTE,    /* on a network, or in a process (FUSE): others may cut files short */
    BTH_ELSEWHERE  /* all others, or unknown */
} bth_file_system;

typedef struct bth_file_system_facts {
    bth_file_system kind;
    /* An ACL that was set decides who may open the file. FUSE, SMB and 9P may only pass it on to
     * the file system below, and use the mode alone. */
    bool obeys_acls;
    /* It may be the mount of an object store (FUSE): files are written from the beginning to the
     * end, and some cannot rename. The kernel lets only one thread at a time write to a file of
     * FUSE, so little is lost by writing in order. */
    bool may_need_order;
} bth_file_system_facts;

bth_file_system_facts bth_file_system_query(int fd);

/* Whether a failure says that a file system, or a kind of file, does not have this call. */
bool bth_file_system_has_no_call(int system_errno);

/* What the system reports of the disk that a file is on. `root`: the folder that has sys; "" except
 * in tests. */

/* The default of Linux, if the disk does not report its own. */
#define BTH_READAHEAD_NBYTES (UINT64_C(128) * 1024)

/*
 * The readahead size of the disk: whole pages, at least one. Linux ignores the rest of a longer
 * advice.
 */
uint64_t bth_disk_readahead_nbytes(int fd, const char *root);

/*
 * Whether it is one disk that rotates: requests of several workers move its head to and fro. False
 * for what only says so: virtual disks, and controllers that join disks.
 */
bool bth_disk_is_rotating(int fd, const char *root);

#endif
