/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/page_cache.h"

#include <assert.h>
#include <errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/syscalls.h"

#define TEXT_NBYTES 8192
#define PATH_NBYTES 4096

/*
 * The files of one version of control groups. `file` and `slab`: lines of memory.stat about memory
 * that can be reclaimed. The lists of file pages have no pages of tmpfs and no locked ones; dirty
 * ones are free after they are written. v1 does not report slabs, only `kernel`: all memory that
 * the kernel has for the group. Its limit of swap includes the memory.
 */
struct version {
    const char *controller, *mount, *limit, *used, *file[2], *slab, *kernel, *swap_limit,
        *swap_used;
    bool swap_has_memory;
};

static const struct version versions[] = {
    {.controller = "",
     .mount = "/sys/fs/cgroup",
     .limit = "memory.max",
     .used = "memory.current",
     .file = {"\ninactive_file ", "\nactive_file "},
     .slab = "\nslab_reclaimable ",
     .swap_limit = "memory.swap.max",
     .swap_used = "memory.swap.current"},
    {.controller = "memory",
     .mount = "/sys/fs/cgroup/memory",
     .limit = "memory.limit_in_bytes",
     .used = "memory.usage_in_bytes",
     .file = {"\ntotal_inactive_file ", "\ntotal_active_file "},
     .kernel = "memory.kmem.usage_in_bytes",
     .swap_limit = "memory.memsw.limit_in_bytes",
     .swap_used = "memory.memsw.usage_in_bytes",
     .swap_has_memory = true},
};

/* Of the whole system. `slab`: reclaimable memory of the kernel. */
struct totals {
    uint64_t available, swap, slab;
};

/* Reads a short file; nothing if it cannot be read. A newline is added before it, so that each line
 * begins with one. */
static void kernel_file_read_text(const char *folder, const char *name, char *text,
                                  size_t text_nbytes)
{
    char path[PATH_NBYTES + 64];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    text[0] = '\n';
    if (!bth_file_read_start_as_text(path, text + 1, text_nbytes - 1))
        text[1] = '\0';
}

/* The number after a label; `otherwise` if the label is missing, or its value is "max". */
static uint64_t kernel_text_number(const char *text, const char *label, uint64_t otherwise)
{
    const char *at = strstr(text, label);
    char *end;

    if (!at)
        return otherwise;
    at += strlen(label);
    uint64_t number = strtoull(at, &end, 10);
    return end != at ? number : otherwise;
}

/* UINT64_MAX: there is no number. */
static uint64_t kernel_file_number(const char *folder, const char *name)
{
    char text[64];

    kernel_file_read_text(folder, name, text, sizeof text);
    return kernel_text_number(text, "\n", UINT64_MAX);
}

/* The limit minus the used memory that cannot be reclaimed; UINT64_MAX: there is no limit. */
static uint64_t cgroup_nbytes_below_limit(const char *folder, const char *limit_name,
                                          const char *used_name, uint64_t reclaimable)
{
    uint64_t limit = kernel_file_number(folder, limit_name);
    uint64_t used = kernel_file_number(folder, used_name);

    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    used = used > reclaimable ? used - reclaimable : 0;
    return limit > used ? limit - used : 0;
}

/* The memory and swap that one group leaves; UINT64_MAX: it has no limit. */
static uint64_t cgroup_free_nbytes(const char *folder, const struct version *version,
                                   const struct totals *totals)
{
    char text[TEXT_NBYTES];

    /*
     * X15: how much of the group's memory can be reclaimed. In v1 its slabs are at most its kernel
     * memory, and at most all slabs of the system. The larger number is right here: only requests
     * that certainly do not fit may be refused.
     */
    kernel_file_read_text(folder, "memory.stat", text, sizeof text);
    uint64_t slab = version->slab ? kernel_text_number(text, version->slab, 0) : 0;
    uint64_t kernel = version->kernel ? kernel_file_number(folder, version->kernel) : UINT64_MAX;
    if (kernel != UINT64_MAX)
        slab = bth_min(kernel, totals->slab);
    uint64_t reclaimable = kernel_text_number(text, version->file[0], 0) +
                           kernel_text_number(text, version->file[1], 0) + slab;

    uint64_t left = cgroup_nbytes_below_limit(folder, version->limit, version->used, reclaimable);
    if (left == UINT64_MAX || totals->swap == 0)
        return left;
    uint64_t with_swap = cgroup_nbytes_below_limit(folder, version->swap_limit, version->swap_used,
                                                   version->swap_has_memory ? reclaimable : 0);
    if (version->swap_has_memory)
        return bth_min(left + totals->swap, with_swap);
    return left + bth_min(totals->swap, with_swap);
}

/* Finds the path in a line "0::/path" (v2), or "4:memory:/path" or "4:cpu,memory:/path" (v1). */
static bool cgroup_find_path(const char *text, const char *controller, char group[PATH_NBYTES])
{
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        const char *list = strchr(line + 1, ':');
        const char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        const char *found = *controller ? strstr(list, controller) : list;
        if (*controller ? !found || found > path : list + 1 != path)
            continue;
        size_t n = strcspn(path + 1, "\n");
        if (n >= PATH_NBYTES)
            return false;
        memcpy(group, path + 1, n);
        group[n > 1 ? n : 0] = '\0'; /* "/" is the top */
        return true;
    }
    return false;
}

uint64_t bth_free_memory_nbytes(const char *root)
{
    struct totals totals = {.available = UINT64_MAX, .slab = UINT64_MAX};
    char text[TEXT_NBYTES], group[PATH_NBYTES], folder[PATH_NBYTES];

    kernel_file_read_text(root, "proc/meminfo", text, sizeof text);
    uint64_t available = kernel_text_number(text, "\nMemAvailable:", UINT64_MAX);
    uint64_t slab = kernel_text_number(text, "\nSReclaimable:", 0);
    totals.swap = kernel_text_number(text, "\nSwapFree:", 0) * 1024;
    if (available != UINT64_MAX)
        totals.available = available * 1024 + totals.swap;
    if (slab > 0) /* in containers, lxcfs shows 0 for unknown */
        totals.slab = slab * 1024;
    uint64_t min = totals.available;
    kernel_file_read_text(root, "proc/self/cgroup", text, sizeof text);
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        if (!cgroup_find_path(text, versions[i].controller, group))
            continue;
        /* The group and its parents. In a container the path may be that of the host and not exist:
         * then only the limits of the mounted top count. */
        int top = snprintf(folder, sizeof folder, "%s%s", root, versions[i].mount);
        int n = snprintf(folder, sizeof folder, "%s%s%s", root, versions[i].mount, group);
        if (n < 0 || (size_t)n >= sizeof folder)
            continue;
        for (char *end = folder + n; end >= folder + top; end--) {
            if (*end != '/' && *end != '\0')
                continue;
            *end = '\0';
            min = bth_min(min, cgroup_free_nbytes(folder, &versions[i], &totals));
        }
    }
    return min;
}

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
    /* Since Linux 5.10 such reads start readahead, unless their open file description is set
       otherwise. If fd cannot be opened again, it is used itself. */
    int again = bth_file_open_again(fd, O_RDONLY);

    if (again >= 0)
        (void)bth_system.posix_fadvise(again, 0, 0, POSIX_FADV_RANDOM);

    for (uint64_t i = 0, n_missing = 0; i < n_samples && result == BTH_PAGE_CACHE_WARM; i++) {
        /* Another page at each call: those that an earlier probe loaded are not sampled again. */
        struct timespec time = {0};
        (void)clock_gettime(CLOCK_MONOTONIC, &time);
        uint64_t number = i + (uint64_t)time.tv_nsec * UINT64_C(0x9E3779B97F4A7C15);
        uint64_t page = first + i * stride + (number ^ number >> 29) % stride;
        /*
         * A read may start to bring a page that is not there, and a fast disk is done with it at
         * once: the page would count as there. So the system is asked first, if it tells; it also
         * counts pages that are still being read.
         */
        int from = again < 0 ? fd : again;
        uint64_t n_cached;
        bool is_missing =
            page_cache_count_by_cachestat(from, page * page_nbytes, 1, &n_cached) && n_cached == 0;
        if (!is_missing) {
            uint8_t byte;
            struct iovec piece = {.iov_base = &byte, .iov_len = 1};
            ssize_t n;
            BTH_REPEAT(
                n, bth_system.preadv2(from, &piece, 1, (off_t)(page * page_nbytes), RWF_NOWAIT));
            is_missing = n < 0 && errno == EAGAIN;
            if (n != 1 && !is_missing)
                result = BTH_PAGE_CACHE_UNKNOWN;
        }
        if (is_missing && ++n_missing > missing_max)
            result = BTH_PAGE_CACHE_COLD;
    }
    bth_file_close(again);
    return result;
}

/* ---- counting ---- */

#define PAGES_AT_ONCE 4096

bool bth_page_cache_nbytes(int fd, const bth_map *map, uint64_t offset, uint64_t nbytes,
                           uint64_t *cached_nbytes)
{
    const uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char pages[PAGES_AT_ONCE];
    char path[BTH_FILE_PATH_NBYTES];
    struct stat status;
    uint64_t n = 0;

    assert(offset % page_nbytes == 0);
    /* mincore counts pages that can be used at once, not those that are still being read. Since
     * Linux 5.2 it is correct only for callers who own the file or may write it. */
    bool is_counted = map && ((bth_system.fstat(fd, &status) == 0 && status.st_uid == geteuid()) ||
                              bth_system.faccessat(AT_FDCWD, bth_file_proc_path(fd, path), W_OK,
                                                   AT_EACCESS) == 0);
    for (uint64_t at = 0; is_counted && at < nbytes; at += PAGES_AT_ONCE * page_nbytes) {
        uint64_t part = bth_min(nbytes - at, PAGES_AT_ONCE * page_nbytes);
        is_counted = bth_system.mincore((uint8_t *)map->address + offset + at, part, pages) == 0;
        for (uint64_t i = 0; is_counted && i < (part + page_nbytes - 1) / page_nbytes; i++)
            n += pages[i] & 1;
    }
    if (!is_counted && !page_cache_count_by_cachestat(fd, offset, nbytes, &n))
        return false;
    *cached_nbytes = n * page_nbytes < nbytes ? n * page_nbytes : nbytes;
    return true;
}
