/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/transfer.h"

#include <errno.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/thread_pool.h"

/* ---- a long range to the caller's memory ---- */

/* A range is long from this many times io.chunk_nbytes on. */
#define LONG_MIN_CHUNKS 2

bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes)
{
    return nbytes / LONG_MIN_CHUNKS >= bth_workers_chunk_nbytes(config);
}

int bth_read_range(bth_reader *reader, const struct berth_config *config, bth_range range,
                   bool through_cache, berth_error *error)
{
    bth_transfer transfer = {
        .config = config,
        .requests = {.ranges = &range, .n_ranges = range.nbytes > 0, .use = BTH_USE_CALLER}};

    return bth_transfer_once(&transfer, reader, through_cache, error);
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

/* ---- checksum scans ---- */

/* The longest descriptor (Z6). */
#define DESCRIPTOR_NBYTES 24

/* One scan. A range is a record with bytes, and its header and descriptor if these are wanted. */
struct scan {
    bth_scan *options;
    atomic_bool has_unread;
    bth_transfer transfer;
};

/* Z5, Z6. Bytes [begin, end) of the source are at `bytes`. A header or descriptor that is cut there
 * is not checked. */
static void scan_check_header_and_descriptor(void *context, const bth_range *range,
                                             const uint8_t *bytes, uint64_t begin, uint64_t end)
{
    bth_scan_record *record = (bth_scan_record *)(uintptr_t)range->owner;
    uint64_t data_end = record->offset + record->nbytes;
    bth_zip_part part = {.bytes = bytes, .offset = begin, .nbytes = end - begin};
    bth_zip_input input = bth_zip_input_over(&part);
    berth_error ignored;

    (void)context;
    if (range->before_nbytes > 0 && range->offset - range->before_nbytes >= begin) {
        bth_zip_entry entry = *record->entry;
        bth_error_clear(&ignored);
        record->header_is_good = bth_zip_check_record_header(&input, 0, &entry, &ignored) == 0 &&
                                 entry.data_offset == record->offset;
    }
    if (record->wants_descriptor && data_end >= begin && data_end + range->after_nbytes <= end) {
        bth_zip_entry entry = *record->entry;
        bth_error_clear(&ignored);
        entry.data_offset = record->offset;
        record->descriptor_is_good =
            bth_zip_check_record_descriptor(&input, 0, &entry, &ignored) == 0;
    }
}

bool bth_error_is_of_bad_disk(const berth_error *error)
{
    int reason = error->system_errno;

    return reason == EIO || reason == ENODATA || reason == EILSEQ;
}

static int scan_add_record_to_error(void *context, const bth_range *range, berth_error *error)
{
    const bth_scan_record *record = range->owner;

    (void)context;
    return bth_error_add_record(error, record->entry ? record->entry->record : "storages");
}

/* 0: after the scan, the records of the request are read again, one by one. */
static int scan_skip_or_fail_request(void *context, const bth_range *range, berth_error *error)
{
    struct scan *scan = context;

    if (scan->options->defers_bad && range->deflated && error->code == BERTH_E_ARCHIVE) {
        bth_error_clear(error);
        return 0;
    }
    if (!scan->options->goes_on || !bth_error_is_of_bad_disk(error))
        return error->code;
    (void)scan_add_record_to_error(context, range, error);
    if (!atomic_exchange(&scan->has_unread, true))
        scan->options->unread = *error;
    bth_error_clear(error);
    return 0;
}

int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *options,
                     bth_scan_record *records, size_t n_records, berth_error *error)
{
    struct scan scan = {.options = options,
                        .transfer = {.config = config,
                                     .params = options->params,
                                     .with_crc32 = true,
                                     .requests.use = BTH_USE_CHECKSUMS}};
    bth_requests *requests = &scan.transfer.requests;
    size_t nbytes = (n_records + 1) * sizeof *requests->ranges;
    bth_choice choice = {0};
    bool fell_back = false;

    scan.transfer.calls = (bth_transfer_calls){.context = &scan,
                                               .name = scan_add_record_to_error,
                                               .look = scan_check_header_and_descriptor,
                                               .failed = scan_skip_or_fail_request};
    requests->ranges = bth_allocate(nbytes);
    if (!requests->ranges)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < n_records; i++) {
        const bth_scan_record *record = &records[i];
        uint64_t end = record->offset + record->nbytes;
        uint64_t next = record->wants_descriptor ? record->entry->next_offset : 0;
        bth_range range = {.owner = record, .offset = record->offset, .nbytes = record->nbytes};
        if (record->is_deflated)
            range.deflated = record->entry;
        if (record->wants_header)
            range.before_nbytes = record->offset - record->entry->header_offset;
        if (next > end)
            range.after_nbytes = (uint32_t)bth_min(next - end, DESCRIPTOR_NBYTES);
        if (bth_range_surroundings_begin(&range) < bth_range_surroundings_end(&range))
            requests->ranges[requests->n_ranges++] = range;
    }
    (void)bth_transfer_once(&scan.transfer, reader, options->through_cache, error);
    for (size_t i = 0; i < requests->n_ranges; i++) {
        const bth_range *range = &requests->ranges[i];
        bth_scan_record *record = (bth_scan_record *)(uintptr_t)range->owner;
        record->crc32 = range->crc32;
        record->is_unread = range->is_unread;
        choice = range->choice;
        fell_back = fell_back || range->fell_back;
    }
    if (choice.reason) {
        options->method = bth_choice_method_name(choice, reader->memory != NULL, fell_back);
        options->reason = fell_back ? "a direct read was refused" : choice.reason;
    }
    bth_release(requests->ranges);
    return error->code;
}
