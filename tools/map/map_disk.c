/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a file lies on the disk, and which of its pages are in memory. */
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/map/map.h"

enum { EXTENTS_AT_ONCE = 256, MAX_EXTENTS = 1 << 16, PAGES_AT_ONCE = 1 << 16 };

/* One that goes on where the last one ends, in the file and on the disk, is a part of it. */
static void map_add_extent(map *m, const struct fiemap_extent *extent)
{
    map_part *last = m->extents.n ? &m->extents.parts[m->extents.n - 1] : NULL;
    map_part part = {.offset = extent->fe_logical,
                     .nbytes = extent->fe_length,
                     .kind = PART_EXTENT,
                     .index = m->extents.n,
                     .address = extent->fe_physical};

    if (part.offset >= m->nbytes)
        return;
    if (part.nbytes > m->nbytes - part.offset)
        part.nbytes = m->nbytes - part.offset;
    m->n_extents++;
    if (last && last->offset + last->nbytes == part.offset &&
        last->address + last->nbytes == part.address)
        last->nbytes += part.nbytes;
    else
        map_parts_add(&m->extents, part);
}

/* Some file systems have no FIEMAP: tmpfs, overlays of it, many over a network. */
static void map_read_extents(map *m)
{
    struct fiemap *list = calloc(1, sizeof *list + EXTENTS_AT_ONCE * sizeof(struct fiemap_extent));
    uint64_t at = 0;
    bool is_last = false;

    while (list && !is_last && m->n_extents < MAX_EXTENTS) {
        memset(list, 0, sizeof *list);
        list->fm_start = at;
        list->fm_length = m->nbytes - at;
        list->fm_extent_count = EXTENTS_AT_ONCE;
        if (at >= m->nbytes || ioctl(m->fd, FS_IOC_FIEMAP, list) < 0)
            break;
        m->has_extents = true;
        is_last = list->fm_mapped_extents == 0;
        for (uint32_t i = 0; i < list->fm_mapped_extents; i++) {
            const struct fiemap_extent *extent = &list->fm_extents[i];
            map_add_extent(m, extent);
            is_last |= (extent->fe_flags & FIEMAP_EXTENT_LAST) != 0;
            at = extent->fe_logical + extent->fe_length;
        }
    }
    free(list);
}

/* Since Linux 5.2 mincore is correct only for callers who own the file or may write it. */
static bool mincore_is_true(const map *m)
{
    struct stat status;

    return fstat(m->fd, &status) == 0 &&
           (status.st_uid == geteuid() || faccessat(AT_FDCWD, m->path, W_OK, AT_EACCESS) == 0);
}

/*
 * The pages of one unit. A picture shows no single page of a large file, so it is cut into units.
 */
static void map_add_unit(map *m, uint64_t offset, uint64_t nbytes, uint64_t cached_nbytes)
{
    part_kind kind = cached_nbytes == nbytes ? PART_CACHED : PART_PARTLY_CACHED;
    map_part *last = m->cached.n ? &m->cached.parts[m->cached.n - 1] : NULL;

    m->cached_nbytes += cached_nbytes;
    if (cached_nbytes == 0)
        return;
    if (last && last->kind == kind && last->offset + last->nbytes == offset)
        last->nbytes += nbytes;
    else
        map_parts_add(&m->cached, (map_part){.offset = offset, .nbytes = nbytes, .kind = kind});
}

static uint64_t count_cached(const unsigned char *pages, uint64_t nbytes, uint64_t page_nbytes)
{
    uint64_t cached = 0;

    for (uint64_t at = 0; at < nbytes; at += page_nbytes)
        if (pages[at / page_nbytes] & 1)
            cached += nbytes - at < page_nbytes ? nbytes - at : page_nbytes;
    return cached;
}

static void map_read_page_cache(map *m)
{
    enum { MAX_UNITS = 8192 };
    static unsigned char pages[PAGES_AT_ONCE];
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t unit_nbytes = (m->nbytes / MAX_UNITS / page_nbytes + 1) * page_nbytes;

    if (m->nbytes == 0 || unit_nbytes / page_nbytes > PAGES_AT_ONCE || !mincore_is_true(m))
        return;
    char *bytes = mmap(NULL, (size_t)m->nbytes, PROT_NONE, MAP_SHARED, m->fd, 0);
    if (bytes == MAP_FAILED) // NOLINT(performance-no-int-to-ptr): the system's own constant
        return;
    m->has_cache = true;
    for (uint64_t at = 0; at < m->nbytes && m->has_cache; at += unit_nbytes) {
        uint64_t n = m->nbytes - at < unit_nbytes ? m->nbytes - at : unit_nbytes;
        m->has_cache = mincore(bytes + at, (size_t)n, pages) == 0;
        if (m->has_cache)
            map_add_unit(m, at, n, count_cached(pages, n, page_nbytes));
    }
    (void)munmap(bytes, (size_t)m->nbytes);
}

void map_read_disk(map *m)
{
    map_read_page_cache(m);
    map_read_extents(m);
}
