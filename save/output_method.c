/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/output_method.h"

#include "io/file_system.h"
#include "io/free_memory.h"

/*
 * Smaller files go through the page cache: with one sync it is as fast, and the next load finds the
 * file there. Durable on ext4, GB/s, medians of 15 interleaved, buffered and direct: 8 MiB 1.7 and
 * 1.7; 32 MiB 1.1 and 0.9; 64 MiB 1.4 and 1.4; 128 MiB 1.2 and 2.1. With 1 GiB both are as fast,
 * but the page cache fell to a sixth of that while other programs wrote.
 */
#define MIN_DIRECT_NBYTES ((uint64_t)64 * 1024 * 1024)
/* Whole blocks and deferred blocks need this much. */
#define MIN_MEMORY_NBYTES ((int64_t)1024 * 1024)

/*
 * The kernel writes a file that is larger than free memory to the disk before its save ends, and
 * drops other files from the page cache. Smaller files with save.durability=none are buffered:
 * above vm.dirty_ratio the kernel makes a writer wait for the disk, but only for the part beyond
 * it, and direct writes wait for all.
 */
static bool fits_memory(uint64_t nbytes)
{
    return nbytes <= bth_free_memory("");
}

/* save.method=auto. */
static bth_output_method method_measure(const struct berth_config *config, bth_file_system system,
                                        uint64_t nbytes)
{
    if (nbytes < MIN_DIRECT_NBYTES)
        return (bth_output_method){.reason = "the file is small"};
    if (!fits_memory(nbytes))
        return (bth_output_method){.is_direct = true,
                                   .reason = "the file is larger than the memory that is free"};
    if (config->save_durability == BTH_DURABILITY_NONE)
        return (bth_output_method){.reason = "save.durability=none asks for no disk"};
    if (system != BTH_ON_DISK)
        return (bth_output_method){.reason = "direct writes are not measured on this file system"};
    return (bth_output_method){.is_direct = true, .reason = "the file is to be on a disk"};
}

static bth_output_method method_choose(const struct berth_config *config, int fd, uint64_t nbytes)
{
    if (config->save_method == BTH_SAVE_BUFFERED)
        return (bth_output_method){.reason = "save.method=buffered"};
    bth_file_system system = bth_file_system_of(fd);
    if (system == BTH_IN_MEMORY) /* tmpfs takes direct writes since Linux 6.6, and copies */
        return (bth_output_method){.reason = "the file system is in memory"};
    if (config->io_memory_nbytes > 0 && config->io_memory_nbytes < MIN_MEMORY_NBYTES)
        return (bth_output_method){.reason = "io.memory_nbytes is too little for direct writes"};
    if (config->save_method == BTH_SAVE_DIRECT)
        return (bth_output_method){.is_direct = true, .reason = "save.method=direct"};
    return method_measure(config, system, nbytes);
}

bth_output_method bth_output_method_choose(const struct berth_config *config, int fd,
                                           uint64_t nbytes)
{
    bth_output_method method = method_choose(config, fd, nbytes);

    method.is_durable = config->save_durability != BTH_DURABILITY_NONE;
    return method;
}
