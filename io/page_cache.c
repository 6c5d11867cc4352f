/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/page_cache.h"

#include <assert.h>
#include <errno.h>
#include <linux/types.h>
#include <time.h>

#include "io/file.h"
#include "io/syscalls.h"

/* ---- what the system tells ---- */

/* From <linux/mman.h>; older headers do not have them. */
struct count_range {
    __u64 offset, nbytes;
};
struct counts {
    __u64 n_cached, n_dirty, n_writeback, n_evicted, n_recently_evicted;
};

/* Needs Linux 6.5, but no map. */
static bool page_cache_count_by_cachestat(int fd, uint64_t offset, uint64_t nbytes,
                                          uint64_t *n_cached)
{
    struct count_range range = {.offset = offset, .nbytes = nbytes};
    struct counts counts = {0};

    if (bth_system.cachestat(fd, &range, &counts, 0) < 0)
        return false;
    *n_cached = counts.n_cached;
    return true;
}

/* ---- probing ---- */

#define SAMPLES_MAX 64
/* Up to this many of 64 samples may be missing. */
#define MISSING_MAX 6

/*
 * A read may start to bring a page that is not there, and a fast disk is done with it at once: the
 * page would count as there. So the system is asked first, if it tells; it also counts pages that
 * are still being read.
 */
static bth_page_cache page_cache_probe_page(int fd, uint64_t offset)
{
    uint64_t n_cached;
    if (page_cache_count_by_cachestat(fd, offset, 1, &n_cached) && n_cached == 0)
        return BTH_PAGE_CACHE_COLD;
    uint8_t byte;
    struct iovec piece = {.iov_base = &byte, .iov_len = 1};
    ssize_t n;

    BTH_REPEAT(n, bth_system.preadv2(fd, &piece, 1, (off_t)offset, RWF_NOWAIT));
    if (n == 1)
        return BTH_PAGE_CACHE_WARM;
    return n < 0 && errno == EAGAIN ? BTH_PAGE_CACHE_COLD : BTH_PAGE_CACHE_UNKNOWN;
}

/* Since Linux 5.10 such reads start readahead, unless their open file description is set otherwise.
 * If fd cannot be opened again, it is used itself. */
static int file_reopen_without_readahead(int fd)
{
    int again = bth_file_open_again(fd, O_RDONLY);

    if (again < 0)
        return fd;
    (void)bth_system.posix_fadvise(again, 0, 0, POSIX_FADV_RANDOM);
    return again;
}

/* Another number at each call: pages that an earlier probe loaded are not sampled again. */
static uint64_t number_mix_with_time(uint64_t number)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    number += (uint64_t)time.tv_nsec * UINT64_C(0x9E3779B97F4A7C15);
    return number ^ number >> 29;
}

bth_page_cache bth_page_cache_probe(int fd, uint64_t offset, uint64_t nbytes)
{
    assert(nbytes > 0);
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = offset / page_nbytes;
    uint64_t n_pages = (offset + nbytes - 1) / page_nbytes - first + 1;
    uint64_t n_samples = n_pages < SAMPLES_MAX ? n_pages : SAMPLES_MAX;
    uint64_t stride = n_pages / n_samples;
    uint64_t missing_max = n_samples * MISSING_MAX / SAMPLES_MAX;
    bth_page_cache result = BTH_PAGE_CACHE_WARM;
    int probed = file_reopen_without_readahead(fd);

    for (uint64_t i = 0, n_missing = 0; i < n_samples && result == BTH_PAGE_CACHE_WARM; i++) {
        uint64_t page = first + i * stride + number_mix_with_time(i) % stride;
        bth_page_cache sample = page_cache_probe_page(probed, page * page_nbytes);
        if (sample == BTH_PAGE_CACHE_UNKNOWN ||
            (sample == BTH_PAGE_CACHE_COLD && ++n_missing > missing_max))
            result = sample;
    }
    if (probed != fd)
        bth_file_close(probed);
    return result;
}

/* ---- counting ---- */

#define PAGES_AT_ONCE 4096

/* Since Linux 5.2 mincore is correct only for callers who own the file or may write it. */
static bool mincore_is_true(int fd)
{
    char path[BTH_FILE_PATH_NBYTES];
    struct stat status;

    if (bth_system.fstat(fd, &status) == 0 && status.st_uid == geteuid())
        return true;
    return bth_system.faccessat(AT_FDCWD, bth_file_proc_path(fd, path), W_OK, AT_EACCESS) == 0;
}

/* Counts pages that can be used at once, not those that are still being read. */
static bool page_cache_count_by_mincore(const bth_map *map, uint64_t offset, uint64_t nbytes,
                                        uint64_t page_nbytes, uint64_t *n_cached)
{
    unsigned char pages[PAGES_AT_ONCE];

    *n_cached = 0;
    for (uint64_t at = 0; at < nbytes; at += PAGES_AT_ONCE * page_nbytes) {
        uint64_t n = nbytes - at;
        if (n > PAGES_AT_ONCE * page_nbytes)
            n = PAGES_AT_ONCE * page_nbytes;
        if (bth_system.mincore((uint8_t *)map->address + offset + at, n, pages) < 0)
            return false;
        for (uint64_t i = 0; i < (n + page_nbytes - 1) / page_nbytes; i++)
            *n_cached += pages[i] & 1;
    }
    return true;
}

bool bth_page_cache_nbytes(int fd, const bth_map *map, uint64_t offset, uint64_t nbytes,
                           uint64_t *cached_nbytes)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n;

    assert(offset % page_nbytes == 0);
    if (!(map && mincore_is_true(fd) &&
          page_cache_count_by_mincore(map, offset, nbytes, page_nbytes, &n)) &&
        !page_cache_count_by_cachestat(fd, offset, nbytes, &n))
        return false;
    *cached_nbytes = n * page_nbytes < nbytes ? n * page_nbytes : nbytes;
    return true;
}
