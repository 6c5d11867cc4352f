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

#define BTH_MAX_STAGING_BUFFERS 1024

/* Fails only if there is not one buffer; then the message names its size, and *ring is of zeros. */
int bth_staging_open(bth_device_handle *device, const bth_staging_need *need, bth_staging *ring,
                     berth_error *error);
/* No copy may be under way. Does nothing to zeros. */
void bth_staging_close(bth_staging *ring);

/* For tests: the size of all kept buffers; frees them. */
uint64_t bth_staging_kept_nbytes(void);
void bth_staging_free_kept(void);

#endif
