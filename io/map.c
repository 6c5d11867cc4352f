/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/map.h"

#include <assert.h>
#include <errno.h>

#include "config/error.h"
#include "config/options.h"
#include "io/file.h"
#include "io/syscalls.h"

/* F1, F2: the file may be shorter than at open, and pages past its end raise SIGBUS. */
static int check_range(int fd, uint64_t offset, uint64_t nbytes, berth_error *error)
{
    uint64_t size;

    if (bth_file_size(fd, &size, error) < 0)
        return error->code;
    if (offset > size || nbytes > size - offset)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%llu bytes cannot be mapped, the file is now %llu bytes long",
                        (unsigned long long)nbytes, (unsigned long long)size);
    return 0;
}

/*
 * Not MAP_POPULATE: it writes to a private map, and so copies every page (populate_vma_page_range
 * in the kernel's mm/gup.c). Before Linux 5.14 pages are read when they are touched.
 */
static void map_advise_whole(void *base, size_t nbytes, int flags)
{
    if (flags & BTH_MMAP_HUGE)
        (void)bth_system.madvise(base, nbytes, MADV_HUGEPAGE);
    if (flags & BTH_MMAP_POPULATE)
        (void)bth_system.madvise(base, nbytes, MADV_POPULATE_READ);
}

/*
 * MAP_NORESERVE: without it the kernel's overcommit heuristic refuses a copy-on-write map of a file
 * that is larger than memory, although not all of its pages are written.
 */
static void protection_of(int flags, int *protection, int *map_flags)
{
    bool is_shared = flags & BTH_MMAP_SHARED;

    *protection = is_shared ? PROT_READ : PROT_READ | PROT_WRITE;
    *map_flags = is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
}

int bth_map_file(int fd, uint64_t offset, uint64_t nbytes, int flags, bth_map *map,
                 berth_error *error)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t before = offset % page_nbytes;
    int protection, map_flags;

    if (check_range(fd, offset, nbytes, error) < 0)
        return error->code;
    if (nbytes == 0 || nbytes > (uint64_t)PTRDIFF_MAX - before)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, offset, "%llu bytes cannot be mapped",
                        (unsigned long long)nbytes);
    protection_of(flags, &protection, &map_flags);
    size_t base_nbytes = (size_t)(before + nbytes);
    void *base =
        bth_system.mmap(NULL, base_nbytes, protection, map_flags, fd, (off_t)(offset - before));
    if (base == MAP_FAILED)
        return bth_fail_errno(error, errno, NULL, offset, "%llu bytes cannot be mapped",
                              (unsigned long long)nbytes);
    map_advise_whole(base, base_nbytes, flags);
    *map = (bth_map){.address = (uint8_t *)base + before,
                     .nbytes = nbytes,
                     .base = base,
                     .base_nbytes = base_nbytes};
    return 0;
}

void bth_map_free(bth_map *map)
{
    if (map->base)
        (void)bth_system.munmap(map->base, map->base_nbytes);
    *map = (bth_map){0};
}

bool bth_map_holds(const bth_map *map, const void *address)
{
    return map->base && (uintptr_t)address - (uintptr_t)map->address < map->nbytes;
}

int bth_map_advise(const bth_map *map, uint64_t offset, uint64_t nbytes, int advice)
{
    int result;

    assert(offset % (uint64_t)sysconf(_SC_PAGESIZE) == 0);
    do
        result = bth_system.madvise((uint8_t *)map->base + offset, nbytes, advice);
    while (result < 0 && errno == EINTR);
    return result < 0 ? errno : 0;
}
