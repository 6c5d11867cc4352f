/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The staging buffers of one operation: few, of equal size, and pinned where a device copies from
 * or to them. They are aligned to large pages, and consist of them where the system has them.
 * Pinning takes long, so the process keeps pinned buffers for the next operation that needs the
 * same size, unless their context has died (X18). An operation never waits for another one's
 * buffers.
 */
#ifndef BTH_IO_DEVICE_STAGING_BUFFERS_H
#define BTH_IO_DEVICE_STAGING_BUFFERS_H

#include "io/device/device.h"
#include "io/memory_region.h"

#define BTH_MAX_STAGING_BUFFERS 1024

typedef struct bth_staging_need {
    size_t buffer_nbytes; /* of each; rounded up to BTH_LARGE_PAGE_NBYTES */
    unsigned n_buffers;   /* 1 to BTH_MAX_STAGING_BUFFERS; there may be fewer in the end */
    uint64_t max_nbytes;  /* limit of all together, from io.memory_nbytes; 0: none */
    int64_t large_pages;  /* io.large_pages */
    bool is_pinned;       /* false: pageable; copies are slower, and not asynchronous */
} bth_staging_need;

typedef struct bth_staging_buffer {
    uint8_t *bytes;
    size_t nbytes;
    bth_region region;         /* of zeros: the bytes are the driver's memory */
    bth_device_handle *device; /* the device that pinned it; NULL: it is not pinned */
    unsigned life;             /* of that device */
} bth_staging_buffer;

typedef struct bth_staging {
    bth_device_handle *device; /* NULL: none, pageable buffers */
    size_t buffer_nbytes;
    unsigned n_buffers;
    bool is_pinned;
    bth_pages pages;
    bth_staging_buffer *buffers;
} bth_staging;

/* Fails only if there is not one buffer; then the message names its size, and *ring is of zeros. */
int bth_staging_open(bth_device_handle *device, const bth_staging_need *need, bth_staging *ring,
                     berth_error *error);
/* No copy may be under way. Does nothing to zeros. */
void bth_staging_close(bth_staging *ring);

/* memcpy for bytes that a device reads next: it writes past the processor's caches if it can. */
void bth_copy_bypassing_caches(void *to, const void *from, size_t nbytes);

/* For tests: the size of all kept buffers; frees them. */
uint64_t bth_staging_kept_nbytes(void);
void bth_staging_trim(void);

#endif
