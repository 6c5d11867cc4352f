/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/to_device.h"

#include "base/memory.h"
#include "io/direct.h"
#include "io/large_pages.h"
#include "io/worker_counts.h"

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_to_device_functions bth_wing_to_device;

uint64_t bth_to_device_request_nbytes(const struct berth_config *config)
{
    uint64_t chunk_nbytes = bth_workers_chunk_nbytes(config);
    uint64_t staging_nbytes = (uint64_t)config->device_staging_nbytes;
    uint64_t memory_nbytes = (uint64_t)config->io_memory_nbytes;

    if (staging_nbytes && (staging_nbytes < chunk_nbytes || !config->io_chunk_nbytes))
        chunk_nbytes = staging_nbytes < UINT32_MAX / 2 ? staging_nbytes : UINT32_MAX / 2;
    if (memory_nbytes && memory_nbytes < chunk_nbytes && chunk_nbytes > BTH_LARGE_PAGE_NBYTES)
        chunk_nbytes = BTH_LARGE_PAGE_NBYTES; /* the minimum size of a buffer */
    if (chunk_nbytes < BTH_MAX_DIRECT_BLOCK_NBYTES)
        return BTH_MAX_DIRECT_BLOCK_NBYTES;
    return chunk_nbytes - chunk_nbytes % BTH_MAX_DIRECT_BLOCK_NBYTES;
}
