/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Aligned memory for reads, in large pages where the system has them. One request to a disk can
 * have a limited number of pieces of memory: with large pages there are fewer and larger requests.
 */
#ifndef BTH_IO_MEMORY_REGION_H
#define BTH_IO_MEMORY_REGION_H

#include "io/large_pages.h"

typedef struct bth_region {
    uint8_t *bytes;
    void *base;         /* to be freed */
    size_t base_nbytes; /* of the map; 0: from the allocator */
} bth_region;

/*
 * nbytes > 0; `alignment`: a power of two up to 64 KiB. From the size of a large page on, the
 * memory is a map, zeroed, and each page is near the thread that touches it first; with `spread`,
 * pages are spread over all memory nodes that the process may use. Direct reads into the memory of
 * a far node are slower. `pages`: chooses the pages of a map; NULL: the caller does.
 */
int bth_region_new(uint64_t nbytes, size_t alignment, bool spread, bth_pages *pages,
                   bth_region *region, berth_error *error);
void bth_region_free(bth_region *region); /* does nothing to zeros */

#endif
