/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_system.h"

#include <errno.h>
#include <linux/magic.h>

#include "io/syscalls.h"

#define FUSE_MAGIC 0x65735546ul

typedef struct file_system_row {
    unsigned long magic;
    bth_file_system kind;
    bool obeys_acls;
} file_system_row;

/* The numbers are from the kernel's sources: not every <linux/magic.h> has them. */
static const file_system_row rows[] = {
    {TMPFS_MAGIC, BTH_IN_MEMORY, true},
    {RAMFS_MAGIC, BTH_IN_MEMORY, true},
    {HUGETLBFS_MAGIC, BTH_IN_MEMORY, true},
    {EXT4_SUPER_MAGIC, BTH_ON_DISK, true}, /* and ext2, ext3 */
    {0x58465342ul, BTH_ON_DISK, true},     /* XFS */
    {NFS_SUPER_MAGIC, BTH_REMOTE, true},
    {AFS_SUPER_MAGIC, BTH_REMOTE, true},
    {CODA_SUPER_MAGIC, BTH_REMOTE, true},
    {V9FS_MAGIC, BTH_REMOTE, false},
    {0xFF534D42ul, BTH_REMOTE, false}, /* CIFS */
    {0xFE534D42ul, BTH_REMOTE, false}, /* SMB2 */
    {FUSE_MAGIC, BTH_REMOTE, false},
    {0x00C36400ul, BTH_REMOTE, true}, /* CEPH */
    {0x0BD00BD0ul, BTH_REMOTE, true}, /* LUSTRE */
    {0x47504653ul, BTH_REMOTE, true}, /* GPFS */
    {0x19830326ul, BTH_REMOTE, true}, /* BEEGFS */
    {0, BTH_ELSEWHERE, true},         /* all others */
};

static file_system_row file_system_find_row(int fd)
{
    struct statfs system;
    const file_system_row *row = rows;

    if (bth_system.fstatfs(fd, &system) < 0)
        return (file_system_row){.kind = BTH_ELSEWHERE};
    while (row->magic != 0 && row->magic != (unsigned long)system.f_type)
        row++;
    return *row;
}

bth_file_system bth_file_system_query_kind(int fd)
{
    return file_system_find_row(fd).kind;
}

bool bth_file_system_obeys_acls(int fd)
{
    return file_system_find_row(fd).obeys_acls;
}

bool bth_file_system_may_need_order(int fd)
{
    return file_system_find_row(fd).magic == FUSE_MAGIC;
}

bool bth_file_system_has_no_call(int system_errno)
{
    return system_errno == EOPNOTSUPP || system_errno == ENOSYS || system_errno == EINVAL ||
           system_errno == EPERM;
}
