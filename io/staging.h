/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A ring of few equal buffers, where a device is there pinned: between device and file everything
 * goes through them. Buffers are whole large pages where the system gives them, and aligned so in
 * any case; a child of the process does not have them.
 *
 * To pin memory takes long, so what was pinned is kept when a ring is closed, for the next one of
 * this process with buffers of the same size; what was pinned in a context that died since is given
 * up (X18). A ring belongs to one operation, which counts all of
 * its buffers as its own memory: two operations at once never wait for each other.
 */
#ifndef BTH_IO_STAGING_H
#define BTH_IO_STAGING_H

#include <pthread.h>

#include "io/device.h"
#include "io/region.h"

#define BTH_STAGING_MOST_BUFFERS 1024

typedef struct bth_staging_need {
    size_t buffer_nbytes; /* of each; rounded up to BTH_LARGE_PAGE_NBYTES */
    unsigned n_buffers;   /* 1 to BTH_STAGING_MOST_BUFFERS; fewer come where there is no room */
    uint64_t most_nbytes; /* of all together, what io.memory_nbytes leaves; 0: as it comes */
    bool is_pinned;       /* else pageable: copies are slower, and not asynchronous */
} bth_staging_need;

typedef struct bth_staging_buffer {
    uint8_t *bytes;
    size_t nbytes;
    bth_region region;               /* of zeros: the driver made it */
    bth_device_handle *device;       /* by which it was pinned; NULL: it is not */
    unsigned life;                   /* of that device */
    struct bth_staging_buffer *next; /* free ones of a ring */
} bth_staging_buffer;

/* Threads may take and give at the same time. */
typedef struct bth_staging {
    bth_device_handle *device; /* NULL: none, pageable buffers */
    size_t buffer_nbytes;
    unsigned n_buffers; /* as many as came */
    bool is_pinned;
    bth_staging_buffer *buffers;
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t given;
    bth_staging_buffer *free;
    bool is_stopped;
} bth_staging;

/*
 * Fails only if not one buffer can be had; then the message names its bytes. *ring is then of
 * zeros.
 */
int bth_staging_open(bth_device_handle *device, const bth_staging_need *need, bth_staging *ring,
                     berth_error *error);
/* All must have been given back, and no copy be under way. Of zeros: nothing. */
void bth_staging_close(bth_staging *ring);

/*
 * A buffer; waits for one. NULL once the ring is stopped. Who holds one must not wait for another
 * (all might), but ask with bth_staging_try: NULL if none is free now.
 */
bth_staging_buffer *bth_staging_take(bth_staging *ring);
bth_staging_buffer *bth_staging_try(bth_staging *ring);
void bth_staging_give(bth_staging *ring, bth_staging_buffer *buffer);
/* Nobody gets or waits for a buffer any more: something failed (W8). */
void bth_staging_stop(bth_staging *ring);

/* Bytes that are kept pinned for the next ring; and gives them back to the system. */
uint64_t bth_staging_kept_nbytes(void);
void bth_staging_trim(void);

#endif
