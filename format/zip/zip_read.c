/* SPDX-License-Identifier: BSD-3-Clause */
/* Local headers and descriptors (FORMAT.md section 2): zip_write.c the other way round. */
#include "format/zip/zip_read.h"

#include <inttypes.h>
#include <string.h>

#include "config/error.h"
#include "format/bytes.h"
#include "format/layout.h"
#include "format/zip/zip_fields.h"
#include "format/zip/zip_inner.h"

static bool has_descriptor(uint16_t flags)
{
    return (flags & BTH_ZIP_FLAG_DESCRIPTOR) != 0;
}

/* ---- the local header by itself ---- */

static int fail_truncated(uint64_t header_offset, size_t nbytes, berth_error *error)
{
    return bth_fail(error, BERTH_E_TRUNCATED, NULL, header_offset,
                    "a local header does not end within %zu bytes", nbytes);
}

/* Up to three values of 8 bytes; PyTorch's holds the header offset alone when only that is large.
 */
static int read_zip64(const bth_zip_extra *extra, uint64_t header_offset, bth_zip_local *local,
                      berth_error *error)
{
    bth_cursor cursor = bth_cursor_over(extra->bytes, extra->nbytes);

    if (local->has_zip64)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "a second ZIP64 extra field in the local header");
    if (extra->nbytes % 8 != 0 || extra->nbytes > sizeof local->zip64)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "a ZIP64 extra field of %d bytes in the local header; it has 8, 16 or 24",
                        extra->nbytes);
    local->has_zip64 = true;
    local->n_zip64 = extra->nbytes / 8u;
    for (size_t i = 0; i < local->n_zip64; i++)
        local->zip64[i] = bth_cursor_u64(&cursor);
    return BERTH_OK;
}

/* The size that the header tells: its field, or the zip64 field's where that one is no number. */
static uint64_t told_size(const bth_zip_local *local, uint32_t field, size_t i)
{
    bool absent = field == BTH_ZIP_SATURATED32 || (field == 0 && has_descriptor(local->flags));
    if (!absent)
        return field;
    return local->n_zip64 >= 2 ? local->zip64[i] : 0;
}

static int read_sizes(bth_cursor extras, uint64_t header_offset, bth_zip_local *local,
                      berth_error *error)
{
    bth_zip_extra extra;
    int more;

    while ((more = bth_zip_next_extra(&extras, &extra, NULL, header_offset, error)) > 0)
        if (extra.id == BTH_ZIP_EXTRA_ZIP64 && read_zip64(&extra, header_offset, local, error) < 0)
            return error->code;
    if (more < 0)
        return more;
    bool saturated = local->field_nbytes == BTH_ZIP_SATURATED32 ||
                     local->field_compressed_nbytes == BTH_ZIP_SATURATED32;
    if (saturated && local->n_zip64 < 2 && !has_descriptor(local->flags))
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "the local header's sizes are in no ZIP64 extra field");
    local->nbytes = told_size(local, local->field_nbytes, 0);
    local->compressed_nbytes = told_size(local, local->field_compressed_nbytes, 1);
    return BERTH_OK;
}

size_t bth_zip_local_nbytes(const uint8_t *bytes)
{
    bth_cursor cursor = bth_cursor_over(bytes + BTH_ZIP_LOCAL_NBYTES - 4, 4);
    size_t name_nbytes = bth_cursor_u16(&cursor);

    return BTH_ZIP_LOCAL_NBYTES + name_nbytes + bth_cursor_u16(&cursor);
}

int bth_zip_read_local(const uint8_t *bytes, size_t nbytes, uint64_t header_offset,
                       bth_zip_local *local, berth_error *error)
{
    bth_cursor cursor = bth_cursor_over(bytes, nbytes);
    bth_zip_local read = {0};
    uint32_t signature = bth_cursor_u32(&cursor);

    if (cursor.good && signature != BTH_ZIP_LOCAL_SIGNATURE)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "a local header begins with 0x%08" PRIx32 ", not 0x%08x", signature,
                        BTH_ZIP_LOCAL_SIGNATURE);
    bth_cursor_u16(&cursor); /* version */
    read.flags = bth_cursor_u16(&cursor);
    read.method = bth_cursor_u16(&cursor);
    bth_cursor_u32(&cursor); /* time and date */
    read.crc32 = bth_cursor_u32(&cursor);
    read.field_compressed_nbytes = bth_cursor_u32(&cursor);
    read.field_nbytes = bth_cursor_u32(&cursor);
    read.name_nbytes = bth_cursor_u16(&cursor);
    uint16_t extra_nbytes = bth_cursor_u16(&cursor);
    read.name = (const char *)bth_cursor_take(&cursor, read.name_nbytes);
    const uint8_t *extras = bth_cursor_take(&cursor, extra_nbytes);
    if (!cursor.good)
        return fail_truncated(header_offset, nbytes, error);
    if (read_sizes(bth_cursor_over(extras, extra_nbytes), header_offset, &read, error) < 0)
        return error->code;
    read.data_offset = header_offset + cursor.at;
    *local = read;
    return BERTH_OK;
}

/* ---- the local header against the directory ---- */

static int check_fact(uint64_t local, uint64_t directory, const char *what,
                      const bth_zip_entry *entry, berth_error *error)
{
    if (local == directory)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's %s is %" PRIu64 ", the directory's %" PRIu64, what, local,
                    directory);
}

/* Z5: a fact that may be left to the descriptor: with bit 3 it is 0. */
static int check_late_fact(uint64_t local, uint64_t directory, const char *what,
                           const bth_zip_entry *entry, berth_error *error)
{
    if (local == 0 && has_descriptor(entry->flags))
        return BERTH_OK;
    return check_fact(local, directory, what, entry, error);
}

static int check_crc_field(const bth_zip_local *local, const bth_zip_entry *entry,
                           berth_error *error)
{
    if (local->crc32 == entry->crc32 || (local->crc32 == 0 && has_descriptor(entry->flags)))
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's CRC is 0x%08" PRIx32 ", the directory's 0x%08" PRIx32,
                    local->crc32, entry->crc32);
}

/* Z5: saturated is no number: then the zip64 field has it, or with bit 3 the descriptor. */
static int check_size_field(uint32_t field, uint64_t directory, const char *what,
                            const bth_zip_entry *entry, berth_error *error)
{
    if (field == BTH_ZIP_SATURATED32)
        return BERTH_OK;
    return check_late_fact(field, directory, what, entry, error);
}

/*
 * Z5: whatever the zip64 field says is true. A lone value is the header's offset (PyTorch, also
 * of small records past 4 GiB) or the size.
 */
static int check_zip64(const bth_zip_local *local, const bth_zip_entry *entry, berth_error *error)
{
    if (local->n_zip64 == 1) {
        if (local->zip64[0] == entry->header_offset)
            return BERTH_OK;
        return check_late_fact(local->zip64[0], entry->nbytes, "ZIP64 value", entry, error);
    }
    if (local->n_zip64 >= 2 &&
        (check_late_fact(local->zip64[0], entry->nbytes, "ZIP64 size", entry, error) < 0 ||
         check_late_fact(local->zip64[1], entry->compressed_nbytes, "ZIP64 compressed size", entry,
                         error) < 0))
        return error->code;
    if (local->n_zip64 == 3)
        return check_fact(local->zip64[2], entry->header_offset, "ZIP64 offset", entry, error);
    return BERTH_OK;
}

static int check_name(const bth_zip_local *local, const bth_zip_entry *entry, berth_error *error)
{
    if (local->name_nbytes == entry->name_nbytes &&
        memcmp(local->name, entry->name, entry->name_nbytes) == 0)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's name is '%.*s', the directory's '%s'",
                    (int)local->name_nbytes, local->name, entry->name);
}

int bth_zip_check_local(const bth_zip_local *local, bth_zip_entry *entry, berth_error *error)
{
    if (check_name(local, entry, error) < 0 ||
        check_fact(local->method, entry->method, "method", entry, error) < 0 ||
        check_fact(local->flags, entry->flags, "flags", entry, error) < 0 ||
        check_crc_field(local, entry, error) < 0 ||
        check_size_field(local->field_nbytes, entry->nbytes, "size", entry, error) < 0 ||
        check_size_field(local->field_compressed_nbytes, entry->compressed_nbytes,
                         "compressed size", entry, error) < 0 ||
        check_zip64(local, entry, error) < 0)
        return error->code;
    entry->data_offset = local->data_offset;
    return BERTH_OK;
}

/* ---- the descriptor ---- */

static int check_descriptor_fields(const uint8_t *bytes, size_t nbytes, const bth_zip_entry *entry,
                                   berth_error *error)
{
    uint64_t at = entry->data_offset + entry->compressed_nbytes;
    bth_cursor cursor = bth_cursor_over(bytes, nbytes);
    size_t width = nbytes >= 20 ? 8 : 4;

    if (nbytes % 8 == 0) {
        uint32_t signature = bth_cursor_u32(&cursor);
        if (signature != BTH_ZIP_DESCRIPTOR_SIGNATURE)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, at,
                            "the descriptor begins with 0x%08" PRIx32 ", not 0x%08x", signature,
                            BTH_ZIP_DESCRIPTOR_SIGNATURE);
    }
    uint32_t crc32 = bth_cursor_u32(&cursor);
    uint64_t compressed = bth_cursor_integer(&cursor, width);
    uint64_t whole = bth_cursor_integer(&cursor, width);
    if (crc32 != entry->crc32 || compressed != entry->compressed_nbytes || whole != entry->nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, at,
                        "the descriptor says CRC 0x%08" PRIx32 " and sizes %" PRIu64 " and %" PRIu64
                        ", the directory 0x%08" PRIx32 ", %" PRIu64 " and %" PRIu64,
                        crc32, compressed, whole, entry->crc32, entry->compressed_nbytes,
                        entry->nbytes);
    return BERTH_OK;
}

/* Z6: 16 or 24 bytes with a signature, 12 or 20 without; what lies between data and the next. */
static int check_descriptor_size(uint64_t data_end, uint64_t next_offset,
                                 const bth_zip_entry *entry, berth_error *error)
{
    uint64_t between = next_offset - data_end;

    if (data_end > next_offset)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                        "the data ends here, but the next entry begins at byte %" PRIu64,
                        next_offset);
    if (between != 12 && between != 16 && between != 20 && between != 24)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                        "%" PRIu64 " bytes lie between the data and the next entry, where a "
                        "descriptor has 12, 16, 20 or 24",
                        between);
    return BERTH_OK;
}

int bth_zip_find_entry_end(const bth_zip_entry *entry, uint64_t *end_offset, berth_error *error)
{
    uint64_t data_end = entry->data_offset + entry->compressed_nbytes;

    *end_offset = has_descriptor(entry->flags) ? entry->next_offset : data_end;
    return has_descriptor(entry->flags)
               ? check_descriptor_size(data_end, entry->next_offset, entry, error)
               : BERTH_OK;
}

int bth_zip_check_descriptor(const uint8_t *bytes, size_t room, uint64_t next_offset,
                             bth_zip_entry *entry, berth_error *error)
{
    uint64_t data_end = entry->data_offset + entry->compressed_nbytes;

    if (!has_descriptor(entry->flags)) {
        entry->end_offset = data_end;
        return BERTH_OK;
    }
    if (check_descriptor_size(data_end, next_offset, entry, error) < 0)
        return error->code;
    size_t nbytes = (size_t)(next_offset - data_end);
    if (room < nbytes)
        return bth_fail(error, BERTH_E_TRUNCATED, entry->record, data_end,
                        "a descriptor of %zu bytes does not end within %zu bytes", nbytes, room);
    if (check_descriptor_fields(bytes, nbytes, entry, error) < 0)
        return error->code;
    entry->end_offset = next_offset;
    return BERTH_OK;
}

size_t bth_zip_before_descriptor(const bth_zip_entry *entry)
{
    uint64_t between = entry->next_offset - entry->data_offset - entry->compressed_nbytes;

    return has_descriptor(entry->flags) && (between == 12 || between == 20) ? 4 : 0;
}

/*
 * Z6: a local header that is 4 bytes too long, by one flipped bit of its extra fields' length,
 * takes them of the data, which then end with the signature.
 */
int bth_zip_check_before_descriptor(const uint8_t *before, const bth_zip_entry *entry,
                                    berth_error *error)
{
    bth_cursor cursor = bth_cursor_over(before, 4);

    if (bth_cursor_u32(&cursor) != BTH_ZIP_DESCRIPTOR_SIGNATURE)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record,
                    entry->data_offset + entry->compressed_nbytes,
                    "a descriptor without a signature, but the bytes before it are one");
}

/* ---- the CRC ---- */

int bth_zip_check_crc(const bth_zip_entry *entry, uint32_t computed, bool *present,
                      berth_error *error)
{
    /* Z10: PyTorch leaves 0 where it was told not to compute. The CRC of nothing is 0, too. */
    *present = entry->crc32 != 0 || entry->nbytes == 0;
    if (computed == entry->crc32 || !*present)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_CHECKSUM, entry->record, entry->data_offset,
                    "its bytes have CRC 0x%08" PRIx32 ", the directory says 0x%08" PRIx32, computed,
                    entry->crc32);
}
