/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_system.h"

#include <errno.h>
#include <linux/magic.h>

#include "io/file.h"
#include "io/syscalls.h"

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
    {0x65735546ul, BTH_REMOTE, false}, /* FUSE */
    {0x00C36400ul, BTH_REMOTE, true},  /* CEPH */
    {0x0BD00BD0ul, BTH_REMOTE, true},  /* LUSTRE */
    {0x47504653ul, BTH_REMOTE, true},  /* GPFS */
    {0x19830326ul, BTH_REMOTE, true},  /* BEEGFS */
    {0, BTH_ELSEWHERE, true},          /* all others */
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

/* ---- extended attributes ---- */

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
