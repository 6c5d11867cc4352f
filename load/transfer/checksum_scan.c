/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/checksum_scan.h"

#include <errno.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/layout.h"
#include "load/transfer/transfer.h"

/* The longest descriptor (Z6). */
#define DESCRIPTOR_NBYTES 24

/* One scan. Ranges are records that have bytes, with headers and descriptors that are wanted. */
struct scan {
    bth_scan *asked;
    atomic_bool has_unread;
    bth_transfer transfer;
};

/* ---- records as ranges ---- */

static uint64_t record_end(const bth_scan_record *record)
{
    return record->offset + record->nbytes;
}

static bth_range record_range(const bth_scan_record *record)
{
    bth_range range = {.owner = record, .offset = record->offset, .nbytes = record->nbytes};
    uint64_t next = record->wants_descriptor ? record->entry->next_offset : 0;

    if (record->wants_header)
        range.before_nbytes = record->offset - record->entry->header_offset;
    if (next > record_end(record))
        range.after_nbytes = next - record_end(record) < DESCRIPTOR_NBYTES
                                 ? (uint32_t)(next - record_end(record))
                                 : DESCRIPTOR_NBYTES;
    return range;
}

/* ---- headers and descriptors ---- */

/* Z5, Z6. Bytes [begin, end) of the source are at `bytes`. A header or descriptor that is not whole
 * there is not seen. */
static void scan_look(void *context, const bth_range *range, const uint8_t *bytes, uint64_t begin,
                      uint64_t end)
{
    bth_scan_record *record = (bth_scan_record *)(uintptr_t)range->owner;
    uint64_t data_end = record_end(record);
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

/* ---- failures ---- */

bool bth_scan_goes_on(const bth_scan *scan, const berth_error *error)
{
    int reason = error->system_errno;

    return scan->goes_on && (reason == EIO || reason == ENODATA || reason == EILSEQ);
}

static int scan_name(void *context, const bth_range *range, berth_error *error)
{
    const bth_scan_record *record = range->owner;

    (void)context;
    return bth_error_add_record(error, record->entry ? record->entry->record : "storages");
}

/* 0: the records of the request are read again, one by one, when all others are summed. */
static int scan_failed(void *context, const bth_range *range, berth_error *error)
{
    struct scan *scan = context;

    if (!bth_scan_goes_on(scan->asked, error))
        return error->code;
    (void)scan_name(context, range, error);
    if (!atomic_exchange(&scan->has_unread, true))
        scan->asked->unread = *error;
    bth_error_clear(error);
    return 0;
}

/* ---- the whole ---- */

static const char *scan_method(const struct scan *scan, bth_choice choice)
{
    static const char *const texts[] = {"", "map", "read", "direct"};

    return scan->transfer.access->reader->memory ? "memory" : texts[choice.method];
}

/* One choice for all; *mapped where it is a map. */
static int scan_choose(const struct scan *scan, bth_choice *choice, const uint8_t **mapped,
                       berth_error *error)
{
    const bth_requests *requests = &scan->transfer.requests;
    const struct berth_config *config = scan->transfer.config;
    bth_access *access = scan->transfer.access;
    const bth_range *last = &requests->ranges[requests->n_ranges - 1];
    berth_load_method asked = (berth_load_method)config->load_method;
    bth_conditions conditions = {.use = BTH_USE_CHECKSUMS,
                                 .through_cache = scan->asked->through_cache};
    uint64_t begin = requests->ranges[0].offset - requests->ranges[0].before_nbytes;
    uint64_t end = last->offset + last->nbytes + last->after_nbytes;

    bth_access_describe(access, &conditions);
    if (asked == BERTH_LOAD_AUTO || asked == BERTH_LOAD_MAP)
        bth_access_measure(access, &conditions, begin, end, end - begin);
    *choice = bth_access_choose(access, config, &conditions, asked, NULL);
    if (choice->method != BERTH_LOAD_MAP ||
        bth_access_map(access, BTH_MMAP_SHARED, begin, mapped, error) < 0 || *mapped)
        return error->code;
    conditions.cannot_map = true;
    *choice = bth_access_choose(access, config, &conditions, asked, NULL);
    return 0;
}

static int scan_run(struct scan *scan, berth_error *error)
{
    bth_transfer *transfer = &scan->transfer;
    const uint8_t *mapped = NULL;
    bth_choice choice;

    if (scan_choose(scan, &choice, &mapped, error) < 0)
        return error->code;
    for (size_t i = 0; i < transfer->requests.n_ranges; i++)
        transfer->requests.ranges[i].choice = choice;
    scan->asked->method = scan_method(scan, choice);
    scan->asked->reason = choice.reason;
    if (bth_transfer_prepare(transfer, error) == 0 &&
        bth_transfer_cut(transfer, NULL, mapped, error) == 0)
        (void)bth_transfer_run(transfer, error);
    bth_transfer_end(transfer);
    if (choice.method == BERTH_LOAD_DIRECT && atomic_load(&transfer->access->direct_is_refused)) {
        scan->asked->method = "direct, then read";
        scan->asked->reason = "a direct read was refused";
    }
    return error->code;
}

int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *asked,
                     bth_scan_record *records, size_t n_records, berth_error *error)
{
    bth_access access;
    struct scan scan = {.asked = asked,
                        .transfer = {.access = &access,
                                     .config = config,
                                     .params = asked->params,
                                     .with_crc32 = true,
                                     .requests.use = BTH_USE_CHECKSUMS}};
    bth_requests *requests = &scan.transfer.requests;

    scan.transfer.calls = (bth_transfer_calls){
        .context = &scan, .name = scan_name, .look = scan_look, .failed = scan_failed};
    requests->ranges = bth_allocate((n_records + 1) * sizeof *requests->ranges);
    if (!requests->ranges)
        return bth_fail_memory(error, (n_records + 1) * sizeof *requests->ranges);
    for (size_t i = 0; i < n_records; i++) {
        bth_range range = record_range(&records[i]);
        if (range.before_nbytes + range.nbytes + range.after_nbytes > 0)
            requests->ranges[requests->n_ranges++] = range;
    }
    bth_access_begin(&access, reader);
    if (requests->n_ranges > 0)
        (void)scan_run(&scan, error);
    bth_access_end(&access);
    for (size_t i = 0; i < requests->n_ranges; i++) {
        bth_scan_record *record = (bth_scan_record *)(uintptr_t)requests->ranges[i].owner;
        record->crc32 = requests->ranges[i].crc32;
        record->is_unread = requests->ranges[i].is_unread;
    }
    bth_release(requests->ranges);
    return error->code;
}
