/* SPDX-License-Identifier: BSD-3-Clause */
/* A long range of a source to the caller's memory. */
#include "io/worker_counts.h"
#include "load/transfer/transfer.h"

/* A range is long from this many times io.chunk_nbytes on. */
#define LONG_MIN_CHUNKS 2

bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes)
{
    return nbytes / LONG_MIN_CHUNKS >= bth_workers_chunk_nbytes(config);
}

int bth_read_range(bth_reader *reader, const struct berth_config *config, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error)
{
    bth_range range = {.offset = offset, .nbytes = nbytes, .memory = buffer};
    bth_transfer transfer = {
        .config = config,
        .requests = {.ranges = &range, .n_ranges = nbytes > 0, .use = BTH_USE_CALLER}};

    return bth_transfer_once(&transfer, reader, through_cache, error);
}

int bth_read_inflated_range(bth_reader *reader, const struct berth_config *config,
                            const bth_zip_entry *entry, uint8_t *buffer, uint64_t nbytes,
                            uint64_t from, berth_error *error)
{
    bth_range range = {.offset = entry->data_offset,
                       .nbytes = nbytes,
                       .deflated = entry,
                       .inflated_from = from,
                       .memory = buffer};
    bth_transfer transfer = {
        .config = config,
        .requests = {.ranges = &range, .n_ranges = nbytes > 0, .use = BTH_USE_CALLER}};

    return bth_transfer_once(&transfer, reader, false, error);
}

int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error)
{
    bth_range range = {.offset = offset, .nbytes = nbytes, .memory = buffer};
    bth_transfer transfer = {.config = config,
                             .is_in_memory = !is_mapped,
                             .memory = (const uint8_t *)((uintptr_t)memory - offset),
                             .requests = {.ranges = &range, .n_ranges = 1, .use = BTH_USE_CALLER}};

    return bth_transfer_once(&transfer, reader, false, error);
}
