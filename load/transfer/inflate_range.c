/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A deflated range (Z12): one request, which one worker inflates from its beginning to its end, in
 * pieces. So a transfer is parallel over such ranges, not inside one of them.
 */
#include "load/transfer/inflate_range.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "format/zip/zip.h"

/* Bytes of input that are read at a time, and of output that is only summed. */
#define BUFFER_NBYTES ((size_t)64 << 10)
#define REPORT_SECONDS 0.1

/* One range that is inflated. */
struct inflated_range {
    bth_transfer *transfer;
    bth_range *range;
    uint8_t *buffers; /* of input, then of output */
    double next_report_seconds;
};

static int inflated_range_read_input(void *context, uint64_t offset, uint64_t nbytes,
                                     uint64_t ahead, const uint8_t **bytes, berth_error *error)
{
    const struct inflated_range *inflated = context;
    double begin_seconds = bth_transfer_begin_read();

    (void)ahead;
    *bytes = inflated->buffers;
    if (bth_reader_read_untraced(inflated->transfer->access->reader, inflated->buffers,
                                 (size_t)nbytes, offset, error) < 0)
        return bth_transfer_fail_read(begin_seconds, error);
    bth_transfer_end_read(inflated->transfer, begin_seconds, offset, nbytes);
    return 0;
}

/* Reports progress where no other thread does: the pool runs the request on the caller's thread. */
static void inflated_range_report_progress(struct inflated_range *inflated)
{
    bth_transfer *transfer = inflated->transfer;

    if ((transfer->n_workers > 1 && transfer->requests.n_requests > 1) ||
        bth_seconds() < inflated->next_report_seconds)
        return;
    (void)bth_transfer_report_progress(transfer);
    inflated->next_report_seconds = bth_seconds() + REPORT_SECONDS;
}

/* After each piece. A caller who has cancelled need not wait for the range's end. */
static int inflated_range_advance(void *context, uint64_t nbytes, berth_error *error)
{
    bth_transfer *transfer = ((struct inflated_range *)context)->transfer;

    atomic_fetch_add_explicit(&transfer->done_nbytes, nbytes, memory_order_relaxed);
    inflated_range_report_progress(context);
    if (!atomic_load_explicit(&transfer->is_cancelled, memory_order_relaxed))
        return 0;
    return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
}

/* Z10, Z12: the sum of what was inflated is compared always. A scan's caller compares it. */
static int inflated_range_check_crc32(const bth_transfer *transfer, const bth_range *range,
                                      berth_error *error)
{
    bool present;

    if (transfer->requests.use == BTH_USE_CHECKSUMS)
        return 0;
    return bth_zip_compare_crc(range->deflated, range->crc32, &present, error);
}

static int inflated_range_run(struct inflated_range *inflated, uint8_t *memory, berth_error *error)
{
    bth_transfer *transfer = inflated->transfer;
    bth_range *range = inflated->range;
    bth_zip_input input = {.get = inflated_range_read_input, .context = inflated};
    bth_inflate_output output = {.memory = memory,
                                 .nbytes = memory ? range->nbytes : 0,
                                 .from = range->inflated_from,
                                 .scratch = inflated->buffers + BUFFER_NBYTES,
                                 .scratch_nbytes = BUFFER_NBYTES,
                                 .advance = inflated_range_advance,
                                 .context = inflated};

    if (bth_inflate_in_pieces(range->deflated, &input, &output, error) < 0)
        return error->code;
    range->crc32 = output.crc32;
    if (inflated_range_check_crc32(transfer, range, error) < 0)
        return error->code;
    if (range->unit > 1 && transfer->requests.use == BTH_USE_MEMORY)
        bth_swap_bytes(memory, memory, (size_t)(range->nbytes - range->nbytes % range->unit),
                       range->unit);
    return 0;
}

int bth_request_inflate_range(bth_transfer *transfer, const bth_request *request,
                              berth_error *error)
{
    struct inflated_range inflated = {.transfer = transfer,
                                      .range = &transfer->requests.ranges[request->first_range],
                                      .next_report_seconds = bth_seconds() + REPORT_SECONDS};
    bool is_for_caller = transfer->requests.use == BTH_USE_CALLER;
    const bth_transfer_calls *calls = &transfer->calls;

    inflated.buffers = bth_allocate(2 * BUFFER_NBYTES);
    if (!inflated.buffers)
        return bth_fail_memory(error, 2 * BUFFER_NBYTES);
    (void)inflated_range_run(&inflated, is_for_caller ? inflated.range->memory : request->memory,
                             error);
    bth_release(inflated.buffers);
    if (error->code < 0 && calls->failed &&
        calls->failed(calls->context, inflated.range, error) == 0)
        inflated.range->is_unread = true;
    return error->code;
}
