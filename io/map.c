/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/map.h"

#include <assert.h>
#include <errno.h>

#include "config/error.h"
#include "config/options.h"
#include "io/syscalls.h"

/*
 * Not MAP_POPULATE: it writes to a private map, and so copies every page (populate_vma_page_range
 * in the kernel's mm/gup.c). Before Linux 5.14 pages are read when they are touched.
 */
static void map_advise_whole(void *address, size_t nbytes, int flags)
{
    if (flags & BTH_MMAP_HUGE)
        (void)bth_system.madvise(address, nbytes, MADV_HUGEPAGE);
    if (flags & BTH_MMAP_POPULATE)
        (void)bth_system.madvise(address, nbytes, MADV_POPULATE_READ);
}

/*
 * MAP_NORESERVE: without it the kernel's overcommit heuristic refuses a copy-on-write map of a file
 * that is larger than memory, although not all of its pages are written.
 */
static void map_choose_protection_and_flags(int flags, int *protection, int *map_flags)
{
    bool is_shared = flags & BTH_MMAP_SHARED;

    *protection = is_shared ? PROT_READ : PROT_READ | PROT_WRITE;
    *map_flags = is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
}

int bth_map_file(int fd, uint64_t nbytes, int flags, bth_map *map, berth_error *error)
{
    int protection, map_flags;

    assert(nbytes > 0);
    if (nbytes > PTRDIFF_MAX) /* of a 32-bit process; the cast below would cut it */
        return bth_fail_errno(error, ENOMEM, NULL, 0, "%llu bytes cannot be mapped",
                              (unsigned long long)nbytes);
    map_choose_protection_and_flags(flags, &protection, &map_flags);
    void *address = bth_system.mmap(NULL, (size_t)nbytes, protection, map_flags, fd, 0);
    if (address == MAP_FAILED)
        return bth_fail_errno(error, errno, NULL, 0, "%llu bytes cannot be mapped",
                              (unsigned long long)nbytes);
    map_advise_whole(address, (size_t)nbytes, flags);
    *map = (bth_map){.address = address, .nbytes = nbytes};
    return 0;
}

void bth_map_free(bth_map *map)
{
    if (map->address)
        (void)bth_system.munmap(map->address, map->nbytes);
    *map = (bth_map){0};
}

bool bth_map_holds(const bth_map *map, const void *address)
{
    return map->address && (uintptr_t)address - (uintptr_t)map->address < map->nbytes;
}
