/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_system.h"

#include <linux/magic.h>

#include "io/syscalls.h"

/* From the kernel's sources: <linux/magic.h> does not have them everywhere. */
#define XFS 0x58465342ul
#define CIFS 0xFF534D42ul
#define SMB2 0xFE534D42ul
#define FUSE 0x65735546ul
#define CEPH 0x00C36400ul
#define LUSTRE 0x0BD00BD0ul
#define GPFS 0x47504653ul
#define BEEGFS 0x19830326ul

bth_file_system bth_file_system_of(int fd)
{
    struct statfs system;

    if (bth_system.fstatfs(fd, &system) < 0)
        return BTH_ELSEWHERE;
    switch ((unsigned long)system.f_type) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case HUGETLBFS_MAGIC:
        return BTH_IN_MEMORY;
    case EXT4_SUPER_MAGIC: /* and ext2, ext3 */
    case XFS:
        return BTH_ON_DISK;
    case NFS_SUPER_MAGIC:
    case AFS_SUPER_MAGIC:
    case CODA_SUPER_MAGIC:
    case V9FS_MAGIC:
    case CIFS:
    case SMB2:
    case FUSE:
    case CEPH:
    case LUSTRE:
    case GPFS:
    case BEEGFS:
        return BTH_REMOTE;
    default:
        return BTH_ELSEWHERE;
    }
}

bool bth_file_system_obeys_acls(int fd)
{
    struct statfs system;

    if (bth_system.fstatfs(fd, &system) < 0)
        return false;
    switch ((unsigned long)system.f_type) {
    case FUSE:
    case CIFS:
    case SMB2:
    case V9FS_MAGIC:
        return false;
    default:
        return true;
    }
}
