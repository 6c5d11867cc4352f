/* SPDX-License-Identifier: BSD-3-Clause */
/* How much of a file is in the page cache. */
#ifndef BTH_IO_PAGE_CACHE_H
#define BTH_IO_PAGE_CACHE_H

#include "io/map.h"
#include <stdint.h>

typedef enum bth_page_cache {
    BTH_PAGE_CACHE_COLD, /* more than a tenth of it is missing */
    BTH_PAGE_CACHE_WARM, /* nine tenths or more are there */
    BTH_PAGE_CACHE_UNKNOWN
} bth_page_cache;

/*
 * Estimates the state of [offset, offset + nbytes), nbytes > 0, from up to 64 pages, others at each
 * call, by reads that may not wait. (mincore reports every page as present to callers who may not
 * write the file.) The kernel then loads the missing pages among these, but no others.
 */
bth_page_cache bth_page_cache_probe(int fd, uint64_t offset, uint64_t nbytes);

/*
 * Counts the cached bytes of [offset, offset + nbytes), which begins with a page; reads none.
 * `map`: of the file from its beginning, or NULL. False: the system does not report the number.
 */
bool bth_page_cache_nbytes(int fd, const bth_map *map, uint64_t offset, uint64_t nbytes,
                           uint64_t *cached_nbytes);

/* The amount of memory that can be used now. */

/*
 * The smallest of: the system's available memory and free swap, and what each control group of this
 * process (v1, v2, and those around them) leaves. X15: file pages and reclaimable slabs count as
 * free. Refuse larger requests: Linux allows them, and kills the process that uses the memory.
 * UINT64_MAX: unknown. `root`: the folder that has proc and sys; "" except in tests.
 */
uint64_t bth_free_memory_nbytes(const char *root);

#endif
