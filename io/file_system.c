/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_system.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "io/file.h"
#include "io/syscalls.h"

#define KIB_MAX (UINT64_C(1) << 20)
#define TEXT_NBYTES 40

/* A disk has its folder, a partition is in that of its disk. */
#define DISK_PATHS(name)                                                                           \
    {                                                                                              \
        "%s/sys/dev/block/%u:%u/" name, "%s/sys/dev/block/%u:%u/../" name, NULL                    \
    }

/* Reads the first of the paths that is there. They have places for root and the disk's numbers. */
static bool disk_read_text(int fd, const char *root, const char *const *paths,
                           char text[TEXT_NBYTES])
{
    struct stat status;
    char path[4096];

    if (bth_system.fstat(fd, &status) != 0)
        return false;
    for (; *paths; paths++) {
        int n =
            snprintf(path, sizeof path, *paths, root, major(status.st_dev), minor(status.st_dev));
        if (n > 0 && (size_t)n < sizeof path &&
            bth_file_read_start_as_text(path, text, TEXT_NBYTES) && *text)
            return true;
    }
    return false;
}

uint64_t bth_disk_readahead_nbytes(int fd, const char *root)
{
    /* The last one: file systems without a disk of their own (btrfs, NFS). */
    static const char *const paths[] = {"%s/sys/dev/block/%u:%u/queue/read_ahead_kb",
                                        "%s/sys/dev/block/%u:%u/../queue/read_ahead_kb",
                                        "%s/sys/class/bdi/%u:%u/read_ahead_kb", NULL};
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n_kib = BTH_READAHEAD_NBYTES / 1024;
    char text[TEXT_NBYTES];

    if (disk_read_text(fd, root, paths, text) && *text >= '0' && *text <= '9')
        n_kib = strtoull(text, NULL, 10);
    uint64_t nbytes = (n_kib < KIB_MAX ? n_kib : KIB_MAX) * 1024;
    return nbytes < page_nbytes ? page_nbytes : nbytes - nbytes % page_nbytes;
}

static bool text_begins_with_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strncmp(text, *words, strlen(*words)) == 0)
            return true;
    return false;
}

bool bth_disk_is_rotating(int fd, const char *root)
{
    static const char *const rotational[] = DISK_PATHS("queue/rotational");
    static const char *const vendor[] = DISK_PATHS("device/vendor");
    static const char *const model[] = DISK_PATHS("device/model");
    /* SATA disks have the vendor ATA, SAS disks their maker. Virtual SATA disks have a model. */
    static const char *const makers[] = {"ATA",     "HGST", "HITACHI", "SEAGATE",
                                         "TOSHIBA", "WD",   NULL};
    static const char *const virtual_models[] = {"QEMU", "VBOX", "VMware", "Virtual", NULL};
    char text[TEXT_NBYTES];

    return disk_read_text(fd, root, rotational, text) && *text == '1' &&
           disk_read_text(fd, root, vendor, text) && text_begins_with_any(text, makers) &&
           disk_read_text(fd, root, model, text) && !text_begins_with_any(text, virtual_models);
}

#define FUSE_MAGIC 0x65735546ul

bth_file_system_facts bth_file_system_query(int fd)
{
    /* The numbers are from the kernel's sources: not every <linux/magic.h> has them. */
    static const struct {
        unsigned long magic;
        bth_file_system kind;
        bool obeys_acls;
    } rows[] = {
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
    struct statfs system;
    size_t i = 0;

    if (bth_system.fstatfs(fd, &system) < 0)
        return (bth_file_system_facts){.kind = BTH_ELSEWHERE};
    while (rows[i].magic != 0 && rows[i].magic != (unsigned long)system.f_type)
        i++;
    return (bth_file_system_facts){.kind = rows[i].kind,
                                   .obeys_acls = rows[i].obeys_acls,
                                   .may_need_order = rows[i].magic == FUSE_MAGIC};
}

bool bth_file_system_has_no_call(int system_errno)
{
    return system_errno == EOPNOTSUPP || system_errno == ENOSYS || system_errno == EINVAL ||
           system_errno == EPERM;
}
