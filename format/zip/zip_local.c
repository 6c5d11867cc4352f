/* SPDX-License-Identifier: BSD-3-Clause */
/* Parses local headers (FORMAT.md section 2); zip_record.c compares them with the directory. */
#include "format/zip/zip.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/bytes.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/zip/zip_inner.h"

/*
 * Z4: a Unicode path gives the entry a second name. Info-ZIP writes one, the same name again, where
 * it replaces a record: a version, the CRC of the header's name, and the name.
 */
static bool unicode_path_is_same_name(const bth_zip_extra *extra, const bth_zip_header *header)
{
    bth_cursor cursor = bth_cursor_make(extra->bytes, extra->nbytes);
    const uint8_t *version = bth_cursor_bytes(&cursor, 1);
    uint32_t crc32 = bth_cursor_u32(&cursor);

    return cursor.good && *version == 1 && bth_cursor_left(&cursor) == header->name_nbytes &&
           memcmp(extra->bytes + cursor.at, header->name, header->name_nbytes) == 0 &&
           crc32 == bth_crc32(0, header->name, header->name_nbytes);
}

int bth_zip_next_extra(bth_cursor *cursor, bth_zip_extra *extra, const bth_zip_header *header,
                       berth_error *error)
{
    size_t begin = cursor->at;

    if (bth_cursor_left(cursor) == 0)
        return 0;
    extra->id = bth_cursor_u16(cursor);
    extra->nbytes = bth_cursor_u16(cursor);
    extra->bytes = bth_cursor_bytes(cursor, extra->nbytes);
    if (!cursor->good)
        return bth_fail(error, BERTH_E_ARCHIVE, header->record, header->at,
                        "a malformed extra field, %zu bytes before the end of the extra fields",
                        cursor->nbytes - begin);
    if (extra->id == BTH_ZIP_EXTRA_UNICODE_PATH && !unicode_path_is_same_name(extra, header))
        return bth_fail(error, BERTH_E_ARCHIVE, header->record, header->at,
                        "a Unicode path extra field, which gives the entry a second name");
    return 1;
}

/* Up to three values of 8 bytes. PyTorch writes only the header offset if only that is large. */
static int local_read_zip64(const bth_zip_extra *extra, uint64_t header_offset,
                            bth_zip_local *local, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(extra->bytes, extra->nbytes);

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

/*
 * A size of the header: its own field, or the value of the zip64 field if that is saturated or
 * absent.
 */
static uint64_t local_get_size_field_or_zip64(const bth_zip_local *local, uint32_t field, size_t i)
{
    bool absent =
        field == BTH_ZIP_SATURATED32 || (field == 0 && bth_zip_has_descriptor(local->flags));
    if (!absent)
        return field;
    return local->n_zip64 >= 2 ? local->zip64[i] : 0;
}

static int local_read_sizes(bth_cursor extras, uint64_t header_offset, bth_zip_local *local,
                            berth_error *error)
{
    const bth_zip_header header = {(const uint8_t *)local->name, local->name_nbytes, NULL,
                                   header_offset};
    bth_zip_extra extra;
    int more;

    while ((more = bth_zip_next_extra(&extras, &extra, &header, error)) > 0)
        if (extra.id == BTH_ZIP_EXTRA_ZIP64 &&
            local_read_zip64(&extra, header_offset, local, error) < 0)
            return error->code;
    if (more < 0)
        return more;
    bool saturated = local->field_nbytes == BTH_ZIP_SATURATED32 ||
                     local->field_compressed_nbytes == BTH_ZIP_SATURATED32;
    if (saturated && local->n_zip64 < 2 && !bth_zip_has_descriptor(local->flags))
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "the local header's sizes are in no ZIP64 extra field");
    local->nbytes = local_get_size_field_or_zip64(local, local->field_nbytes, 0);
    local->compressed_nbytes =
        local_get_size_field_or_zip64(local, local->field_compressed_nbytes, 1);
    return BERTH_OK;
}

size_t bth_zip_local_nbytes(const uint8_t *bytes)
{
    bth_cursor cursor = bth_cursor_make(bytes + BTH_ZIP_LOCAL_NBYTES - 4, 4);
    size_t name_nbytes = bth_cursor_u16(&cursor);

    return BTH_ZIP_LOCAL_NBYTES + name_nbytes + bth_cursor_u16(&cursor);
}

int bth_zip_parse_local_header(const uint8_t *bytes, size_t nbytes, uint64_t header_offset,
                               bth_zip_local *local, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(bytes, nbytes);
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
    read.name = (const char *)bth_cursor_bytes(&cursor, read.name_nbytes);
    const uint8_t *extras = bth_cursor_bytes(&cursor, extra_nbytes);
    if (!cursor.good)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, header_offset,
                        "a local header does not end within %zu bytes", nbytes);
    if (local_read_sizes(bth_cursor_make(extras, extra_nbytes), header_offset, &read, error) < 0)
        return error->code;
    read.data_offset = header_offset + cursor.at;
    *local = read;
    return BERTH_OK;
}
