/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/method.h"

#include <linux/magic.h>

#include "io/syscalls.h"

/*
 * Below this, the page cache and one sync are as fast, and leave the file there for who loads it
 * next. Durable on ext4, GB/s, medians of 15 interleaved, buffered and direct: 8 MiB 1.7 and 1.7;
 * 32 MiB 1.1 and 0.9; 64 MiB 1.4 and 1.4; 128 MiB 1.2 and 2.1. Of 1 GiB both can do the same, but
 * the page cache has fallen to a sixth of it where others wrote at the same time.
 */
#define LEAST_DIRECT_NBYTES ((uint64_t)64 * 1024 * 1024)
/* For less, tiles of whole blocks and what waits for a CRC leave nothing to work with. */
#define LEAST_MEMORY_NBYTES ((int64_t)1024 * 1024)

/* <linux/magic.h> has it not; the number is in the kernel's fs/xfs/libxfs/xfs_format.h. */
#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

enum kind { MEMORY, DISK, OTHER };

static enum kind kind_of(int fd)
{
    struct statfs system;

    if (berth_system.fstatfs(fd, &system) < 0)
        return OTHER;
    switch ((unsigned long)system.f_type) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case HUGETLBFS_MAGIC:
        return MEMORY;
    case EXT4_SUPER_MAGIC: /* and ext2, ext3 */
    case XFS_SUPER_MAGIC:
        return DISK;
    default:
        return OTHER;
    }
}

static berth_method choose(const struct berth_config *config, int fd, uint64_t nbytes)
{
    if (config->save_method == BERTH_SAVE_BUFFERED)
        return (berth_method){.reason = "save.method=buffered"};
    if (config->save_method == BERTH_SAVE_AUTO && config->save_durability == BERTH_DURABILITY_NONE)
        return (berth_method){.reason = "save.durability=none asks for no disk"};
    enum kind kind = kind_of(fd);
    if (kind == MEMORY) /* tmpfs takes direct writes since Linux 6.6, and copies as ever */
        return (berth_method){.reason = "the file system is in memory"};
    if (config->io_memory_nbytes > 0 && config->io_memory_nbytes < LEAST_MEMORY_NBYTES)
        return (berth_method){.reason = "io.memory_nbytes is too little for direct writes"};
    if (config->save_method == BERTH_SAVE_DIRECT)
        return (berth_method){.is_direct = true, .reason = "save.method=direct"};
    if (nbytes < LEAST_DIRECT_NBYTES)
        return (berth_method){.reason = "the file is small"};
    if (kind == OTHER)
        return (berth_method){.reason = "direct writes are not measured on this file system"};
    return (berth_method){.is_direct = true, .reason = "the file is to be on a disk"};
}

berth_method berth_method_choose(const struct berth_config *config, int fd, uint64_t nbytes)
{
    berth_method method = choose(config, fd, nbytes);

    method.is_durable = config->save_durability != BERTH_DURABILITY_NONE;
    return method;
}
