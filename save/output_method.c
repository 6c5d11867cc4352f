/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_system.h"
#include "io/free_memory.h"
#include "save/output_file.h"

/*
 * Smaller files go through the page cache: it is as fast, and the next load finds the file there.
 * Durable on ext4, GB/s, medians of 15 interleaved, buffered and direct: 8 MiB 1.7 and 1.7; 32 MiB
 * 1.1 and 0.9; 64 MiB 1.4 and 1.4; 128 MiB 1.2 and 2.1. With 1 GiB both are as fast, but while
 * other programs wrote, buffered fell to a sixth.
 */
#define MIN_DIRECT_NBYTES ((uint64_t)64 * 1024 * 1024)
/* Whole blocks and deferred blocks need this much. */
#define MIN_MEMORY_NBYTES ((int64_t)1024 * 1024)

const char *bth_output_method_choose(const struct berth_config *config, int fd, uint64_t nbytes,
                                     bool *is_direct)
{
    *is_direct = false;
    if (config->save_method == BTH_SAVE_BUFFERED)
        return "save.method=buffered";
    bth_file_system system = bth_file_system_query_kind(fd);
    if (system == BTH_IN_MEMORY) /* tmpfs takes direct writes since Linux 6.6, and copies */
        return "the file system is in memory";
    if (config->io_memory_nbytes > 0 && config->io_memory_nbytes < MIN_MEMORY_NBYTES)
        return "io.memory_nbytes is too little for direct writes";
    *is_direct = config->save_method == BTH_SAVE_DIRECT;
    if (*is_direct)
        return "save.method=direct";
    if (nbytes < MIN_DIRECT_NBYTES)
        return "the file is small";
    /*
     * The kernel would write such a file to the disk before the save ends, and drop other files
     * from the page cache. With save.durability=none smaller files are buffered: the kernel makes
     * the writer wait only for the part above vm.dirty_ratio, direct writes wait for all.
     */
    *is_direct = nbytes > bth_free_memory_nbytes("");
    if (*is_direct)
        return "the file is larger than the memory that is free";
    if (config->save_durability == BTH_DURABILITY_NONE)
        return "save.durability=none does not wait for a disk";
    if (system != BTH_ON_DISK)
        return "direct writes are not measured on this file system";
    *is_direct = true;
    return "the file goes to a disk";
}
