/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Aligned memory for reads, in large pages where the system has them. One request to a disk can
 * have a limited number of pieces of memory: with large pages there are fewer and larger requests.
 */
#ifndef BTH_IO_MEMORY_REGION_H
#define BTH_IO_MEMORY_REGION_H

#include "berth.h"

#define BTH_LARGE_PAGE_NBYTES ((size_t)2 * 1024 * 1024)

/* Opens a descriptor for bth_pages_are_large; -1 on failure. Close it with bth_file_close. */
int bth_pagemap_open(void);

/* Whether all of [bytes, bytes + nbytes) is present, in large pages. False also if unknown. */
bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes);

/* Requests large pages for memory that is aligned to them and was not touched yet. */
void bth_pages_make_large(void *bytes, size_t nbytes);

typedef struct bth_region {
    uint8_t *bytes;
    void *base;         /* to be freed */
    size_t base_nbytes; /* of the map; 0: from the allocator */
} bth_region;

/*
 * nbytes > 0; `alignment`: a power of two up to 64 KiB. From the size of a large page on, the
 * memory is a map, zeroed, and each page is near the thread that touches it first; with `spread`,
 * pages are spread over all memory nodes that the process may use. Direct reads into the memory of
 * a far node are slower.
 */
int bth_region_new(uint64_t nbytes, size_t alignment, bool spread, bth_region *region,
                   berth_error *error);
void bth_region_free(bth_region *region); /* does nothing to zeros */

#endif
