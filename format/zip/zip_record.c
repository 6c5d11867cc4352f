/* SPDX-License-Identifier: BSD-3-Clause */
/* One record's local header and descriptor against its directory entry (Z5, Z6, Z7, Z10). */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/bytes.h"
#include "format/layout.h"
#include "format/zip/zip.h"
#include "format/zip/zip_inner.h"

/* ---- the local header against the directory ---- */

static int record_check_field(uint64_t local, uint64_t directory, const char *what,
                              const bth_zip_entry *entry, berth_error *error)
{
    if (local == directory)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's %s is %" PRIu64 ", the directory's %" PRIu64, what, local,
                    directory);
}

/* Z5: with bit 3 the field may be 0, because the descriptor has the value. */
static int record_check_late_field(uint64_t local, uint64_t directory, const char *what,
                                   const bth_zip_entry *entry, berth_error *error)
{
    if (local == 0 && bth_zip_has_descriptor(entry->flags))
        return BERTH_OK;
    return record_check_field(local, directory, what, entry, error);
}

static int record_check_crc_field(const bth_zip_local *local, const bth_zip_entry *entry,
                                  berth_error *error)
{
    if (local->crc32 == entry->crc32 || (local->crc32 == 0 && bth_zip_has_descriptor(entry->flags)))
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's CRC is 0x%08" PRIx32 ", the directory's 0x%08" PRIx32,
                    local->crc32, entry->crc32);
}

/* Z5: a saturated field has no value; the zip64 field has it, or with bit 3 the descriptor. */
static int record_check_size_field(uint32_t field, uint64_t directory, const char *what,
                                   const bth_zip_entry *entry, berth_error *error)
{
    if (field == BTH_ZIP_SATURATED32)
        return BERTH_OK;
    return record_check_late_field(field, directory, what, entry, error);
}

/*
 * Z5: every value of the zip64 field must be true. A single value is the header's offset (PyTorch,
 * for records beyond 4 GiB) or the size.
 */
static int record_check_zip64(const bth_zip_local *local, const bth_zip_entry *entry,
                              berth_error *error)
{
    if (local->n_zip64 == 1) {
        if (local->zip64[0] == entry->header_offset)
            return BERTH_OK;
        return record_check_late_field(local->zip64[0], entry->nbytes, "ZIP64 value", entry, error);
    }
    if (local->n_zip64 >= 2 &&
        (record_check_late_field(local->zip64[0], entry->nbytes, "ZIP64 size", entry, error) < 0 ||
         record_check_late_field(local->zip64[1], entry->compressed_nbytes, "ZIP64 compressed size",
                                 entry, error) < 0))
        return error->code;
    if (local->n_zip64 == 3)
        return record_check_field(local->zip64[2], entry->header_offset, "ZIP64 offset", entry,
                                  error);
    return BERTH_OK;
}

static int record_check_name(const bth_zip_local *local, const bth_zip_entry *entry,
                             berth_error *error)
{
    if (!entry->name || (local->name_nbytes == entry->name_nbytes &&
                         memcmp(local->name, entry->name, entry->name_nbytes) == 0))
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's name is '%.*s', the directory's '%s'",
                    (int)local->name_nbytes, local->name, entry->name);
}

/* Z5; sets entry->data_offset. */
static int record_check_local(const bth_zip_local *local, bth_zip_entry *entry, berth_error *error)
{
    if (record_check_name(local, entry, error) < 0 ||
        record_check_field(local->method, entry->method, "method", entry, error) < 0 ||
        record_check_field(local->flags, entry->flags, "flags", entry, error) < 0 ||
        record_check_crc_field(local, entry, error) < 0 ||
        record_check_size_field(local->field_nbytes, entry->nbytes, "size", entry, error) < 0 ||
        record_check_size_field(local->field_compressed_nbytes, entry->compressed_nbytes,
                                "compressed size", entry, error) < 0 ||
        record_check_zip64(local, entry, error) < 0)
        return error->code;
    entry->data_offset = local->data_offset;
    return BERTH_OK;
}

/* Z7: no record overlaps the next. */
static int record_check_no_overlap(const bth_zip_entry *entry, berth_error *error)
{
    if (entry->data_offset <= entry->next_offset &&
        entry->compressed_nbytes <= entry->next_offset - entry->data_offset)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->data_offset,
                    "its %" PRIu64 " bytes overlap what begins at byte %" PRIu64,
                    entry->compressed_nbytes, entry->next_offset);
}

int bth_zip_fetch_and_parse_local(const bth_zip_input *input, uint64_t header_offset,
                                  uint64_t ahead, bth_zip_local *local, berth_error *error)
{
    const uint8_t *bytes = NULL;
    int code =
        input->get(input->context, header_offset, BTH_ZIP_LOCAL_NBYTES, ahead, &bytes, error);

    if (code < 0)
        return code;
    size_t nbytes = bth_zip_local_nbytes(bytes);
    code = input->get(input->context, header_offset, nbytes, nbytes, &bytes, error);
    return code < 0 ? code : bth_zip_parse_local_header(bytes, nbytes, header_offset, local, error);
}

int bth_zip_check_record_header(const bth_zip_input *input, uint64_t ahead, bth_zip_entry *entry,
                                berth_error *error)
{
    bth_zip_local local;

    if (bth_zip_fetch_and_parse_local(input, entry->header_offset, ahead, &local, error) < 0 ||
        record_check_local(&local, entry, error) < 0)
        return error->code;
    return record_check_no_overlap(entry, error);
}

/* ---- the descriptor ---- */

static uint64_t record_data_end(const bth_zip_entry *entry)
{
    return entry->data_offset + entry->compressed_nbytes;
}

/* Z6: 16 or 24 bytes with a signature, 12 or 20 without: all that lies before the next entry. */
static int record_check_descriptor_size(const bth_zip_entry *entry, berth_error *error)
{
    uint64_t between = entry->next_offset - record_data_end(entry);

    if (record_check_no_overlap(entry, error) < 0)
        return error->code;
    if (between == 12 || between == 16 || between == 20 || between == 24)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, record_data_end(entry),
                    "%" PRIu64 " bytes lie between the data and the next entry, but a "
                    "descriptor has 12, 16, 20 or 24",
                    between);
}

int bth_zip_find_entry_end(const bth_zip_entry *entry, uint64_t *end_offset, berth_error *error)
{
    *end_offset = record_data_end(entry);
    if (!bth_zip_has_descriptor(entry->flags))
        return BERTH_OK;
    *end_offset = entry->next_offset;
    return record_check_descriptor_size(entry, error);
}

bool bth_zip_descriptor_is_unsigned(const bth_zip_entry *entry)
{
    uint64_t between = entry->next_offset - record_data_end(entry);

    return bth_zip_has_descriptor(entry->flags) && (between == 12 || between == 20);
}

static int record_check_descriptor_fields(const uint8_t *bytes, size_t nbytes,
                                          const bth_zip_entry *entry, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(bytes, nbytes);
    size_t width = nbytes >= 20 ? 8 : 4;

    if (nbytes % 8 == 0) {
        uint32_t signature = bth_cursor_u32(&cursor);
        if (signature != BTH_ZIP_DESCRIPTOR_SIGNATURE)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, record_data_end(entry),
                            "the descriptor begins with 0x%08" PRIx32 ", not 0x%08x", signature,
                            BTH_ZIP_DESCRIPTOR_SIGNATURE);
    }
    uint32_t crc32 = bth_cursor_u32(&cursor);
    uint64_t compressed = bth_cursor_integer(&cursor, width);
    uint64_t whole = bth_cursor_integer(&cursor, width);
    if (crc32 == entry->crc32 && compressed == entry->compressed_nbytes && whole == entry->nbytes)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, record_data_end(entry),
                    "the descriptor says CRC 0x%08" PRIx32 " and sizes %" PRIu64 " and %" PRIu64
                    ", the directory 0x%08" PRIx32 ", %" PRIu64 " and %" PRIu64,
                    crc32, compressed, whole, entry->crc32, entry->compressed_nbytes,
                    entry->nbytes);
}

/*
 * Z6: a local header that is 4 bytes too long, by one flipped bit of its extra fields' length,
 * moves the data by 4 bytes; they then end with the descriptor's signature.
 */
static int record_check_signature_not_cut_off(const uint8_t *before, const bth_zip_entry *entry,
                                              berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(before, 4);

    if (bth_cursor_u32(&cursor) != BTH_ZIP_DESCRIPTOR_SIGNATURE)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, record_data_end(entry),
                    "a descriptor without a signature, but the bytes before it are one");
}

int bth_zip_check_record_descriptor(const bth_zip_input *input, uint64_t ahead,
                                    bth_zip_entry *entry, berth_error *error)
{
    uint64_t end, before = bth_zip_descriptor_is_unsigned(entry) ? 4 : 0;
    const uint8_t *bytes;

    if (bth_zip_find_entry_end(entry, &end, error) < 0)
        return error->code;
    if (bth_zip_has_descriptor(entry->flags)) {
        uint64_t begin = record_data_end(entry) - before;
        if (input->get(input->context, begin, end - begin, ahead, &bytes, error) < 0 ||
            (before > 0 && record_check_signature_not_cut_off(bytes, entry, error) < 0) ||
            record_check_descriptor_fields(bytes + before, (size_t)(end - begin - before), entry,
                                           error) < 0)
            return error->code;
    }
    entry->end_offset = end;
    return BERTH_OK;
}

int bth_zip_check_record(const bth_zip_input *input, uint64_t ahead, bth_zip_entry *entry,
                         berth_error *error)
{
    if (bth_zip_check_record_header(input, ahead, entry, error) < 0)
        return error->code;
    return bth_zip_check_record_descriptor(input, 0, entry, error);
}

/* ---- bytes in memory ---- */

static int zip_part_get_bytes(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                              const uint8_t **bytes, berth_error *error)
{
    const bth_zip_part *part = context;

    (void)ahead;
    /* If the offset is before the part, the difference wraps and is too large, too. */
    if (offset - part->offset > part->nbytes || nbytes > part->nbytes - (offset - part->offset))
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%" PRIu64 " bytes needed, but only bytes %" PRIu64 " to %" PRIu64
                        " are here",
                        nbytes, part->offset, part->offset + part->nbytes);
    *bytes = part->bytes + (offset - part->offset);
    return BERTH_OK;
}

bth_zip_input bth_zip_input_over(bth_zip_part *part)
{
    return (bth_zip_input){.get = zip_part_get_bytes, .context = part};
}

/* ---- the CRC ---- */

int bth_zip_compare_crc(const bth_zip_entry *entry, uint32_t computed, bool *present,
                        berth_error *error)
{
    /*
     * Z10: PyTorch writes 0 if it does not compute CRCs. The CRC of no bytes is 0, too.
     */
    *present = entry->crc32 != 0 || entry->nbytes == 0;
    if (computed == entry->crc32 || !*present)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_CHECKSUM, entry->record, entry->data_offset,
                    "its bytes have CRC 0x%08" PRIx32 ", the directory says 0x%08" PRIx32, computed,
                    entry->crc32);
}
