/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/cached.h"

#include <linux/types.h>
#include <stdio.h>

#include "io/syscalls.h"

#define PAGES_AT_ONCE 4096

/* Of <linux/mman.h>, which older headers have not. */
struct count_range {
    __u64 offset, nbytes;
};
struct counts {
    __u64 n_cached, n_dirty, n_writeback, n_evicted, n_recently_evicted;
};

/*
 * Linux 5.2: the page cache of a file is the secret of its owner and of those who may write it. To
 * others mincore says that all is there.
 */
static bool may_know(int fd)
{
    char path[32];
    struct stat status;

    if (bth_system.fstat(fd, &status) == 0 && status.st_uid == geteuid())
        return true;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return bth_system.faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* Pages that can be used at once; those that are still being read do not count. */
static bool count_mapped(const bth_map *map, uint64_t offset, uint64_t nbytes, uint64_t page_nbytes,
                         uint64_t *n_there)
{
    unsigned char pages[PAGES_AT_ONCE];

    *n_there = 0;
    for (uint64_t at = 0; at < nbytes; at += PAGES_AT_ONCE * page_nbytes) {
        uint64_t n = nbytes - at;
        if (n > PAGES_AT_ONCE * page_nbytes)
            n = PAGES_AT_ONCE * page_nbytes;
        if (bth_system.mincore((uint8_t *)map->base + offset + at, n, pages) < 0)
            return false;
        for (uint64_t i = 0; i < (n + page_nbytes - 1) / page_nbytes; i++)
            *n_there += pages[i] & 1;
    }
    return true;
}

/* Since Linux 6.5, also of files that are not mapped. */
static bool count_cached(int fd, uint64_t offset, uint64_t nbytes, uint64_t *n_there)
{
    struct count_range range = {.offset = offset, .nbytes = nbytes};
    struct counts counts = {0};

    if (bth_system.cachestat(fd, &range, &counts, 0) < 0)
        return false;
    *n_there = counts.n_cached;
    return true;
}

bool bth_cached_nbytes(int fd, const bth_map *map, uint64_t offset, uint64_t nbytes,
                       uint64_t *cached_nbytes)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n_there;

    if (!(map && may_know(fd) && count_mapped(map, offset, nbytes, page_nbytes, &n_there)) &&
        !count_cached(fd, offset, nbytes, &n_there))
        return false;
    *cached_nbytes = n_there * page_nbytes < nbytes ? n_there * page_nbytes : nbytes;
    return true;
}
