/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for what is read: aligned, in large pages where the system gives them. */
#ifndef BTH_IO_REGION_H
#define BTH_IO_REGION_H

#include "berth.h"

typedef struct bth_region {
    uint8_t *bytes;
    void *base;         /* what is given back */
    size_t base_nbytes; /* mapped; 0: from the allocator */
} bth_region;

/*
 * nbytes > 0, at a multiple of `alignment`, a power of two up to 64 KiB. From one large page on it
 * is mapped: its pages come, zeroed, to the thread that touches them first, and near it; with
 * `spread` they go round all memory nodes that this process may use. Where a device writes to the
 * far node's memory itself (direct reads), that is slower than to the near one's.
 */
int bth_region_new(uint64_t nbytes, size_t alignment, bool spread, bth_region *region,
                   berth_error *error);
void bth_region_free(bth_region *region); /* of zeros: nothing */

#endif
