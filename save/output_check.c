/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/output_check.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "format/checksum.h"
#include "format/zip/zip.h"

/* ---- which part ---- */

/* `i`: of a record; the end and the padding belong to none. */
static bth_file_part file_part_of(const berth_plan *plan, bth_file_part_kind kind, size_t i)
{
    bth_file_part part = {kind, i, {0}};

    switch (kind) {
    case BTH_PART_HEADER:
        part.range = bth_plan_header_range(plan, i);
        break;
    case BTH_PART_DATA:
        part.range = bth_plan_data_range(plan, i);
        break;
    case BTH_PART_DESCRIPTOR:
        part.range = bth_plan_descriptor_range(plan, i);
        break;
    case BTH_PART_ENTRY:
        part.range = (bth_range){plan->records[i].central_offset,
                                 bth_layout_central_entry_nbytes(&plan->records[i].layout)};
        break;
    case BTH_PART_END:
        part.range = (bth_range){plan->nbytes - BTH_ZIP_END_NBYTES, BTH_ZIP_END_NBYTES};
        break;
    case BTH_PART_PADDING:
        part.range = (bth_range){plan->nbytes, UINT64_MAX - plan->nbytes};
        break;
    }
    return part;
}

bth_file_part bth_file_part_find(const berth_plan *plan, uint64_t offset)
{
    size_t i = bth_plan_find_record_by_offset(plan, offset);
    bth_file_part_kind kind = BTH_PART_DESCRIPTOR;

    if (offset >= plan->directory_offset + plan->directory_nbytes)
        return file_part_of(plan, offset >= plan->nbytes ? BTH_PART_PADDING : BTH_PART_END,
                            plan->n_records);
    if (i == plan->n_records)
        return file_part_of(plan, BTH_PART_ENTRY, bth_plan_find_directory_entry(plan, offset));
    const bth_layout_entry *layout = &plan->records[i].layout;
    if (offset < layout->data_offset)
        kind = BTH_PART_HEADER;
    else if (offset < layout->data_offset + layout->nbytes)
        kind = BTH_PART_DATA;
    return file_part_of(plan, kind, i);
}

/* ---- its bytes ---- */

/*
 * Compares a part, but no data of records, with what the plan and the record's CRC make of it.
 * BERTH_E_OFFSETS; the error names the first byte that differs.
 */
static int file_part_compare_bytes(const berth_plan *plan, const bth_file_part *part,
                                   uint32_t crc32, const uint8_t *bytes, uint8_t *scratch,
                                   berth_error *error)
{
    size_t record = part->record;
    bool is_of_record = record < plan->n_records;
    const bth_layout_entry *layout = is_of_record ? &plan->records[record].layout : NULL;
    const char *full_name = is_of_record ? bth_plan_record_full_name(plan, record) : NULL;
    const uint8_t *planned = scratch;
    uint64_t i = 0;

    switch (part->kind) {
    case BTH_PART_HEADER:
        bth_zip_write_local(layout, full_name, scratch);
        break;
    case BTH_PART_DESCRIPTOR:
        bth_zip_write_descriptor(layout, crc32, scratch);
        break;
    case BTH_PART_ENTRY:
        bth_zip_write_central(layout, full_name, crc32, scratch);
        break;
    case BTH_PART_END:
        bth_zip_write_end(plan->n_records, plan->directory_offset, plan->directory_nbytes, scratch);
        break;
    case BTH_PART_DATA: /* the plan has only those of a safetensors header */
        planned = plan->header;
        break;
    case BTH_PART_PADDING:
        return 0;
    }
    while (i < part->range.nbytes && bytes[i] == planned[i])
        i++;
    if (i == part->range.nbytes)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, bth_plan_record_name(plan, record),
                    part->range.offset + i, "0x%02x was written, 0x%02x is planned", bytes[i],
                    planned[i]);
}

/* ---- what a reader finds in it ---- */

static int file_part_compare_number(const char *name, const char *what, uint64_t written,
                                    uint64_t planned, berth_error *error)
{
    if (written != planned && error->code == BERTH_OK)
        bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                 "%s is %llu as written, %llu planned", what, (unsigned long long)written,
                 (unsigned long long)planned);
    return error->code;
}

/* Reads a header, a descriptor or an entry as strictly as that of any other file, and compares what
 * the reader finds with the plan. BERTH_E_OFFSETS, or the reader's error. */
static int file_part_read_and_compare(const berth_plan *plan, const bth_file_part *part,
                                      uint32_t crc32, const uint8_t *bytes, berth_error *error)
{
    const bth_layout_entry *layout = &plan->records[part->record].layout;
    const char *full_name = bth_plan_record_full_name(plan, part->record);
    const char *name = bth_plan_record_name(plan, part->record);
    unsigned descriptor_flag = layout->descriptor_nbytes > 0 ? BTH_ZIP_FLAG_DESCRIPTOR : 0;
    bth_zip_part held = {bytes, part->range.offset, part->range.nbytes};
    const bth_zip_input input = bth_zip_input_over(&held);

    if (part->kind == BTH_PART_ENTRY) { /* as a directory of its own */
        const bth_zip_end end = {.directory_offset = part->range.offset,
                                 .directory_nbytes = part->range.nbytes,
                                 .n_entries = 1};
        bth_zip_directory directory = {0};
        if (bth_zip_read_directory(bytes, &end, &directory, error) == 0 &&
            file_part_compare_number(name, "its number of records", directory.n_entries, 1,
                                     error) == 0) {
            const bth_zip_entry *found = &directory.entries[0];
            if (strcmp(found->name, full_name) != 0)
                (void)bth_fail(error, BERTH_E_OFFSETS, name, part->range.offset,
                               "its directory entry is that of %s", found->name);
            file_part_compare_number(name, "its header's offset", found->header_offset,
                                     layout->header_offset, error);
            file_part_compare_number(name, "its size", found->nbytes, layout->nbytes, error);
            file_part_compare_number(name, "its CRC", found->crc32, crc32, error);
        }
        bth_zip_free_directory(&directory);
        return error->code;
    }
    /* The record as its directory entry must describe it. */
    bth_zip_entry entry = {.name = full_name,
                           .record = name,
                           .name_nbytes = layout->name_nbytes,
                           .flags = (uint16_t)(BTH_ZIP_FLAG_UTF8 | descriptor_flag),
                           .method = BTH_ZIP_STORED,
                           .crc32 = crc32,
                           .compressed_nbytes = layout->nbytes,
                           .nbytes = layout->nbytes,
                           .header_offset = layout->header_offset,
                           .next_offset = layout->next_offset,
                           .data_offset = layout->data_offset};
    if (part->kind == BTH_PART_DESCRIPTOR)
        return bth_zip_check_record_descriptor(&input, 0, &entry, error);
    if (bth_zip_check_record_header(&input, 0, &entry, error) < 0)
        return error->code;
    file_part_compare_number(name, "the offset of its data", entry.data_offset, layout->data_offset,
                             error);
    return file_part_compare_number(name, "its data's distance from the alignment",
                                    entry.data_offset % plan->alignment, 0, error);
}

/* ---- what is read back ---- */

/* `bytes` has room for the part, twice. */
static int readback_check_part(const bth_image *image, const bth_output *output,
                               bth_file_part_kind kind, size_t i, uint8_t *bytes,
                               berth_error *error)
{
    const bth_file_part part = file_part_of(image->plan, kind, i);
    uint32_t crc32 = i < image->plan->n_records ? bth_image_crc32(image, i) : 0;
    size_t nbytes = (size_t)part.range.nbytes;

    if (nbytes == 0 || output->read(output->context, bytes, nbytes, part.range.offset, error) < 0)
        return error->code;
    return file_part_compare_bytes(image->plan, &part, crc32, bytes, bytes + nbytes, error);
}

int bth_readback_check_headers_and_directory(const bth_image *image, const bth_output *output,
                                             berth_error *error)
{
    const berth_plan *plan = image->plan;
    uint64_t nbytes = plan->header ? plan->records[0].layout.nbytes
                                   : bth_max(plan->max_header_nbytes, BTH_ZIP_END_NBYTES);
    uint8_t *bytes;

    if (!output->read || (plan->is_plain && !plan->header))
        return 0;
    bytes = bth_allocate((size_t)nbytes * 2);
    if (!bytes)
        return bth_fail_memory(error, nbytes * 2);
    if (plan->is_plain)
        (void)readback_check_part(image, output, BTH_PART_DATA, 0, bytes, error);
    for (size_t i = 0; !plan->is_plain && i < plan->n_records && error->code == BERTH_OK; i++)
        if (readback_check_part(image, output, BTH_PART_HEADER, i, bytes, error) == 0 &&
            readback_check_part(image, output, BTH_PART_DESCRIPTOR, i, bytes, error) == 0)
            (void)readback_check_part(image, output, BTH_PART_ENTRY, i, bytes, error);
    if (!plan->is_plain && error->code == BERTH_OK)
        (void)readback_check_part(image, output, BTH_PART_END, plan->n_records, bytes, error);
    bth_release(bytes);
    return error->code;
}

/* Where the CRC lies in a descriptor and in a directory entry (FORMAT.md 2, 3). */
#define DESCRIPTOR_CRC_AT 4
#define ENTRY_CRC_AT 16
/* How much is read at a time of what another process wrote. */
#define PRESENT_NBYTES ((uint64_t)1 << 20)

/* What has been written of one record. */
typedef struct written_record {
    uint64_t missing_nbytes; /* of its data */
    uint32_t crc32;          /* of its data so far, each share shifted to its position */
    uint32_t told_crc32;     /* what its descriptor or its directory entry says */
    bool is_told;
    bool has[BTH_PART_END]; /* header, descriptor, entry: written as a whole */
} written_record;

/* A part of which a share is written, and the rest is not. */
typedef struct begun_part {
    struct begun_part *next;
    bth_file_part part;
    uint64_t missing_nbytes;
    uint8_t bytes[];
} begun_part;

struct bth_output_check {
    const berth_plan *plan;
    bth_output inner;
    pthread_mutex_t lock; /* of all that follows */
    written_record *records;
    begun_part *begun;
    bool has_end;
    uint64_t next_offset; /* if the output takes writes in order */
    uint8_t *scratch;     /* for one part */
};

static bool check_has_crc32(const bth_output_check *check, size_t i)
{
    return check->plan->compute_crc32 && !check->plan->records[i].no_crc32;
}

#define TWICE "written a second time"

/* `i`: the record; n_records: none. */
static int check_fail(const bth_output_check *check, size_t i, uint64_t offset, const char *what,
                      berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, bth_plan_record_name(check->plan, i), offset, "%s",
                    what);
}

/* When all data and a CRC are written: are they the same? */
static int check_compare_crc32(const bth_output_check *check, size_t i, berth_error *error)
{
    const written_record *record = &check->records[i];

    if (!check_has_crc32(check, i) || !record->is_told || record->missing_nbytes > 0 ||
        record->crc32 == record->told_crc32)
        return 0;
    return bth_fail(error, BERTH_E_CHECKSUM, bth_plan_record_name(check->plan, i),
                    check->plan->records[i].layout.data_offset,
                    "the bytes that were written have CRC 0x%08" PRIx32
                    ", what is written behind them says 0x%08" PRIx32
                    "; was the tensor changed while it was saved?",
                    record->crc32, record->told_crc32);
}

/* Of a whole part, under the lock. */
static int check_whole_part(bth_output_check *check, const bth_file_part *part,
                            const uint8_t *bytes, berth_error *error)
{
    uint32_t crc32 = 0;

    if (part->kind == BTH_PART_END) {
        check->has_end = true;
        return file_part_compare_bytes(check->plan, part, 0, bytes, check->scratch, error);
    }
    written_record *record = &check->records[part->record];
    record->has[part->kind] = true;
    if (part->kind != BTH_PART_HEADER && check_has_crc32(check, part->record)) {
        /* A descriptor and an entry must tell the same CRC. */
        uint64_t at = part->kind == BTH_PART_DESCRIPTOR ? DESCRIPTOR_CRC_AT : ENTRY_CRC_AT;
        bth_cursor cursor = bth_cursor_make(bytes + at, 4);
        crc32 = bth_cursor_u32(&cursor);
        if (record->is_told && crc32 != record->told_crc32)
            return bth_fail(error, BERTH_E_CHECKSUM,
                            bth_plan_record_name(check->plan, part->record),
                            part->range.offset + at,
                            "CRC 0x%08" PRIx32 " was written, and 0x%08" PRIx32 " elsewhere", crc32,
                            record->told_crc32);
        record->is_told = true;
        record->told_crc32 = crc32;
    }
    if (file_part_compare_bytes(check->plan, part, crc32, bytes, check->scratch, error) < 0 ||
        file_part_read_and_compare(check->plan, part, crc32, bytes, error) < 0)
        return error->code;
    return check_compare_crc32(check, part->record, error);
}

/* Keeps `nbytes` bytes of a part, under the lock. When the part is whole, checks it. */
static int check_add_share(bth_output_check *check, const bth_file_part *part, uint64_t offset,
                           uint64_t nbytes, const uint8_t *bytes, berth_error *error)
{
    const bth_range *range = &part->range;
    begun_part **link = &check->begun;

    while (*link && (*link)->part.range.offset != range->offset)
        link = &(*link)->next;
    begun_part *begun = *link;
    if (!begun) { /* no share of the part came before */
        size_t all_nbytes = sizeof *begun + (size_t)range->nbytes;
        begun = bth_allocate_zeroed(all_nbytes);
        if (!begun)
            return bth_fail_memory(error, all_nbytes);
        begun->part = *part;
        begun->missing_nbytes = range->nbytes;
        *link = begun;
    }
    if (nbytes > begun->missing_nbytes)
        return check_fail(check, part->record, offset, TWICE, error);
    memcpy(begun->bytes + (offset - range->offset), bytes, (size_t)nbytes);
    begun->missing_nbytes -= nbytes;
    if (begun->missing_nbytes > 0)
        return 0;
    *link = begun->next;
    check_whole_part(check, &begun->part, begun->bytes, error);
    bth_release(begun);
    return error->code;
}

/* ---- a write ---- */

static int check_piece(bth_output_check *check, const uint8_t *bytes, uint64_t nbytes,
                       uint64_t offset, berth_error *error)
{
    while (nbytes > 0) {
        const bth_file_part part = bth_file_part_find(check->plan, offset);
        uint64_t n = bth_min(nbytes, part.range.offset + part.range.nbytes - offset);
        if (part.kind == BTH_PART_PADDING) {
            for (uint64_t i = 0; i < n; i++)
                if (bytes[i] != 0)
                    return bth_fail(error, BERTH_E_OFFSETS, NULL, offset + i,
                                    "0x%02x was written behind the file, where only zeros may be",
                                    bytes[i]);
        } else if (part.kind == BTH_PART_DATA) {
            written_record *record = &check->records[part.record];
            uint64_t behind = part.range.offset + part.range.nbytes - offset - n;
            uint32_t crc32 = 0;
            if (check_has_crc32(check, part.record)) {
                crc32 = bth_crc32(0, bytes, (size_t)n);
                if (behind > 0)
                    crc32 = bth_crc32_combine(crc32, 0, behind);
            }
            pthread_mutex_lock(&check->lock);
            if (n > record->missing_nbytes)
                check_fail(check, part.record, offset, TWICE, error);
            else {
                record->missing_nbytes -= n;
                record->crc32 ^= crc32;
                check_compare_crc32(check, part.record, error);
            }
            pthread_mutex_unlock(&check->lock);
        } else {
            pthread_mutex_lock(&check->lock);
            if (part.kind == BTH_PART_END ? check->has_end
                                          : check->records[part.record].has[part.kind])
                check_fail(check, part.record, offset, TWICE, error);
            else if (n == part.range.nbytes)
                check_whole_part(check, &part, bytes, error);
            else
                check_add_share(check, &part, offset, n, bytes, error);
            pthread_mutex_unlock(&check->lock);
        }
        if (error->code != BERTH_OK)
            return error->code;
        bytes += n;
        offset += n;
        nbytes -= n;
    }
    return 0;
}

static int check_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                       berth_error *error)
{
    bth_output_check *check = context;
    uint64_t at = offset;

    for (size_t i = 0; i < n_pieces; at += pieces[i++].iov_len) {
        if (check->inner.in_order) {
            uint64_t next = check->next_offset;
            check->next_offset = at + pieces[i].iov_len;
            if (at != next)
                return bth_fail(error, BERTH_E_OFFSETS, NULL, at,
                                "written where byte %" PRIu64 " is the next in order", next);
        }
        if (check_piece(check, pieces[i].iov_base, pieces[i].iov_len, at, error) < 0)
            return error->code;
    }
    return check->inner.write(check->inner.context, pieces, n_pieces, offset, error);
}

/* The data follow the bytes before them. */
int bth_output_check_read_present(bth_output_check *check, const bth_present *present,
                                  berth_error *error)
{
    uint64_t data = present->range.offset, end = data + present->range.nbytes;
    uint64_t at = data - present->before_nbytes;
    size_t most = (size_t)bth_min(end - at, PRESENT_NBYTES);
    size_t start_nbytes = (size_t)bth_min(present->range.nbytes, sizeof present->start);
    uint8_t *bytes = bth_allocate(most);

    if (!bytes)
        return bth_fail_memory(error, most);
    for (size_t n; at < end && error->code == BERTH_OK; at += n) {
        n = (size_t)bth_min(most, (at < data ? data : end) - at);
        if (check->inner.read(check->inner.context, bytes, n, at, error) < 0)
            break;
        /* J7: the first bytes are a part of the id, and in no checksum of their own. */
        if (at == data && memcmp(bytes, present->start, start_nbytes) != 0)
            bth_fail(error, BERTH_E_CHECKSUM, bth_plan_record_name(check->plan, present->record),
                     data, "the first bytes are not those that its writer reported");
        else
            check_piece(check, bytes, n, at, error);
    }
    bth_release(bytes);
    return error->code;
}

static int check_read(void *context, void *buffer, size_t nbytes, uint64_t offset,
                      berth_error *error)
{
    const bth_output *inner = &((const bth_output_check *)context)->inner;

    return inner->read(inner->context, buffer, nbytes, offset, error);
}

/* ---- begin and end ---- */

bth_output_check *bth_output_check_new(const berth_plan *plan, const bth_output *output,
                                       berth_error *error)
{
    size_t records_nbytes = bth_array_nbytes(plan->n_records, sizeof(written_record));
    size_t scratch_nbytes = (size_t)bth_max(plan->max_header_nbytes, BTH_ZIP_END_NBYTES);
    bth_output_check *check = bth_allocate_zeroed(sizeof *check);

    if (!check)
        return bth_fail_memory(error, sizeof *check), NULL;
    *check = (bth_output_check){.plan = plan, .inner = *output, .has_end = plan->is_plain};
    pthread_mutex_init(&check->lock, NULL);
    check->records = bth_allocate_zeroed(records_nbytes);
    check->scratch = bth_allocate(scratch_nbytes);
    if (!check->records || !check->scratch) {
        bth_fail_memory(error, (uint64_t)records_nbytes + scratch_nbytes);
        bth_output_check_free(check);
        return NULL;
    }
    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_layout_entry *layout = &plan->records[i].layout;
        check->records[i].missing_nbytes = layout->nbytes;
        check->records[i].has[BTH_PART_HEADER] = layout->data_offset == layout->header_offset;
        check->records[i].has[BTH_PART_DESCRIPTOR] = layout->descriptor_nbytes == 0;
        check->records[i].has[BTH_PART_ENTRY] = plan->is_plain;
    }
    return check;
}

void bth_output_check_free(bth_output_check *check)
{
    if (!check)
        return;
    while (check->begun) {
        begun_part *next = check->begun->next;
        bth_release(check->begun);
        check->begun = next;
    }
    pthread_mutex_destroy(&check->lock);
    bth_release(check->records);
    bth_release(check->scratch);
    bth_release(check);
}

bth_output bth_output_check_get_output(bth_output_check *check)
{
    bth_output output = check->inner;

    output.write = check_write;
    output.read = output.read ? check_read : NULL;
    output.context = check;
    return output;
}

int bth_output_check_finish(const bth_output_check *check, berth_error *error)
{
    static const char *const never[] = {
        "its header was never written", "a part of its data was never written",
        "its descriptor was never written", "its directory entry was never written"};
    const berth_plan *plan = check->plan;

    for (size_t i = 0; i < plan->n_records; i++)
        for (bth_file_part_kind kind = BTH_PART_HEADER; kind < BTH_PART_END; kind++)
            if (kind == BTH_PART_DATA ? check->records[i].missing_nbytes > 0
                                      : !check->records[i].has[kind])
                return check_fail(check, i, file_part_of(plan, kind, i).range.offset, never[kind],
                                  error);
    return check->has_end ? 0
                          : check_fail(check, plan->n_records, plan->nbytes - BTH_ZIP_END_NBYTES,
                                       "the end was never written", error);
}
