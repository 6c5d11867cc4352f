/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/read_into.h"

#include "io/workers.h"

/* Chunks of io.chunk_nbytes from which on a range is long. */
#define LONG_MIN_CHUNKS 2
/* The least buffer. With less memory everything is read straight to the caller's. */
#define BUFFER_MIN_NBYTES 65536

bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes)
{
    return nbytes / LONG_MIN_CHUNKS >= bth_workers_chunk_nbytes(config);
}

static int transfer_to_caller(bth_transfer *transfer, const uint8_t *mapped, berth_error *error)
{
    if (bth_transfer_prepare(transfer, error) == 0 &&
        bth_transfer_cut(transfer, NULL, mapped, error) == 0)
        (void)bth_transfer_run(transfer, error);
    bth_transfer_end(transfer);
    return error->code;
}

static bth_choice read_choose(bth_transfer *transfer, bool through_cache)
{
    const bth_requests *requests = &transfer->requests;
    const struct berth_config *config = transfer->config;
    const bth_range *last = &requests->ranges[requests->n_ranges - 1];
    bth_conditions conditions = {.use = BTH_USE_CALLER, .through_cache = through_cache};
    berth_load_method asked = (berth_load_method)config->load_method;
    uint64_t nbytes = 0;

    if (config->io_memory_nbytes > 0 && config->io_memory_nbytes < BUFFER_MIN_NBYTES)
        asked = BERTH_LOAD_READ;
    for (size_t i = 0; i < requests->n_ranges; i++)
        nbytes += requests->ranges[i].nbytes;
    bth_access_describe(transfer->access, &conditions);
    if (asked == BERTH_LOAD_AUTO || asked == BERTH_LOAD_MAP)
        bth_access_measure(transfer->access, &conditions, requests->ranges[0].offset,
                           last->offset + last->nbytes, nbytes);
    return bth_access_choose(transfer->access, config, &conditions, asked, NULL);
}

int bth_read_into(bth_transfer *transfer, bth_reader *reader, bool through_cache,
                  berth_error *error)
{
    const struct berth_config *config = transfer->config;
    bth_access access;

    if (transfer->requests.n_ranges == 0)
        return 0;
    bth_access_begin(&access, reader);
    transfer->access = &access;
    transfer->requests.use = BTH_USE_CALLER;
    transfer->requests.is_separate =
        config->io_memory_nbytes > 0 && config->io_memory_nbytes < BUFFER_MIN_NBYTES;
    bth_choice choice = read_choose(transfer, through_cache);
    for (size_t i = 0; i < transfer->requests.n_ranges; i++)
        transfer->requests.ranges[i].choice = choice;
    (void)transfer_to_caller(transfer, NULL, error);
    bth_access_end(&access);
    transfer->access = NULL;
    return error->code;
}

int bth_read_range(bth_reader *reader, const struct berth_config *config, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error)
{
    bth_range range = {.offset = offset, .nbytes = nbytes, .memory = buffer};
    bth_transfer transfer = {.config = config, .requests = {.ranges = &range, .n_ranges = 1}};

    return bth_read_into(&transfer, reader, through_cache, error);
}

int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error)
{
    bth_range range = {
        .offset = offset, .nbytes = nbytes, .memory = buffer, .choice.method = BERTH_LOAD_MAP};
    bth_access access;
    bth_transfer transfer = {.access = &access,
                             .config = config,
                             .is_in_memory = !is_mapped,
                             .requests = {.ranges = &range, .n_ranges = 1, .use = BTH_USE_CALLER}};

    bth_access_begin(&access, reader);
    return transfer_to_caller(&transfer, (const uint8_t *)((uintptr_t)memory - offset), error);
}
