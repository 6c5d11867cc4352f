/* SPDX-License-Identifier: BSD-3-Clause */
/* One record's local header and descriptor against its directory entry (Z5, Z6, Z7, Z10). */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/checksum.h"
#include "format/zip/zip.h"

/* Whether sizes and CRC follow the data (bit 3). */
static bool zip_has_descriptor(uint16_t flags)
{
    return (flags & BTH_ZIP_FLAG_DESCRIPTOR) != 0;
}

/* ---- the local header (FORMAT.md section 2) ---- */

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
    if (extra->id != BTH_ZIP_EXTRA_UNICODE_PATH)
        return 1;
    /* Z4: a Unicode path gives the entry a second name. Info-ZIP writes one, the same name again,
     * where it replaces a record: a version, the CRC of the header's name, and the name. */
    bth_cursor path = bth_cursor_make(extra->bytes, extra->nbytes);
    const uint8_t *version = bth_cursor_bytes(&path, 1);
    uint32_t crc32 = bth_cursor_u32(&path);
    if (!path.good || *version != 1 || bth_cursor_left(&path) != header->name_nbytes ||
        memcmp(extra->bytes + path.at, header->name, header->name_nbytes) != 0 ||
        crc32 != bth_crc32(0, header->name, header->name_nbytes))
        return bth_fail(error, BERTH_E_ARCHIVE, header->record, header->at,
                        "a Unicode path extra field, which gives the entry a second name");
    return 1;
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
    read.data_offset = header_offset + cursor.at;
    /* The zip64 field has up to three values of 8 bytes. PyTorch writes only the header offset if
     * only that is large. */
    const bth_zip_header header = {(const uint8_t *)read.name, read.name_nbytes, NULL,
                                   header_offset};
    bth_zip_extra extra;
    int more;
    cursor = bth_cursor_make(extras, extra_nbytes);
    while ((more = bth_zip_next_extra(&cursor, &extra, &header, error)) > 0) {
        if (extra.id != BTH_ZIP_EXTRA_ZIP64)
            continue;
        if (read.has_zip64)
            return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                            "a second ZIP64 extra field in the local header");
        if (extra.nbytes % 8 != 0 || extra.nbytes > sizeof read.zip64)
            return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                            "a ZIP64 extra field of %d bytes in the local header; it has 8, 16 or "
                            "24",
                            extra.nbytes);
        bth_cursor values = bth_cursor_make(extra.bytes, extra.nbytes);
        read.has_zip64 = true;
        read.n_zip64 = extra.nbytes / 8u;
        for (size_t i = 0; i < read.n_zip64; i++)
            read.zip64[i] = bth_cursor_u64(&values);
    }
    if (more < 0)
        return more;
    bool saturated = read.field_nbytes == BTH_ZIP_SATURATED32 ||
                     read.field_compressed_nbytes == BTH_ZIP_SATURATED32;
    if (saturated && read.n_zip64 < 2 && !zip_has_descriptor(read.flags))
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, header_offset,
                        "the local header's sizes are in no ZIP64 extra field");
    /* A size is in its own field; if that is saturated or absent, in the zip64 field. */
    const uint32_t fields[] = {read.field_nbytes, read.field_compressed_nbytes};
    uint64_t *sizes[] = {&read.nbytes, &read.compressed_nbytes};
    for (size_t i = 0; i < 2; i++) {
        bool is_absent = fields[i] == 0 && zip_has_descriptor(read.flags);
        *sizes[i] = fields[i] != BTH_ZIP_SATURATED32 && !is_absent ? fields[i]
                    : read.n_zip64 >= 2                            ? read.zip64[i]
                                                                   : 0;
    }
    *local = read;
    return BERTH_OK;
}

bool bth_zip_local_has_name(const bth_zip_local *local, const char *archive, const char *record)
{
    size_t archive_nbytes = strlen(archive), record_nbytes = strlen(record);
    return local->name_nbytes == archive_nbytes + 1 + record_nbytes &&
           memcmp(local->name, archive, archive_nbytes) == 0 &&
           local->name[archive_nbytes] == '/' &&
           memcmp(local->name + archive_nbytes + 1, record, record_nbytes) == 0;
}

/* ---- the local header against the directory (Z5) ---- */

/* `is_late`: with bit 3 the field may be 0, because the descriptor has the value. */
static int record_check_field(uint64_t local, uint64_t directory, bool is_late, const char *what,
                              const bth_zip_entry *entry, berth_error *error)
{
    if (local == directory || (is_late && local == 0 && zip_has_descriptor(entry->flags)))
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                    "the local header's %s is %" PRIu64 ", the directory's %" PRIu64, what, local,
                    directory);
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
    if (bth_zip_fetch_and_parse_local(input, entry->header_offset, ahead, &local, error) < 0)
        return error->code;
    if (entry->name && (local.name_nbytes != entry->name_nbytes ||
                        memcmp(local.name, entry->name, entry->name_nbytes) != 0))
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                        "the local header's name is '%.*s', the directory's '%s'",
                        (int)local.name_nbytes, local.name, entry->name);
    if (record_check_field(local.method, entry->method, false, "method", entry, error) < 0 ||
        record_check_field(local.flags, entry->flags, false, "flags", entry, error) < 0)
        return error->code;
    if (local.crc32 != entry->crc32 && (local.crc32 != 0 || !zip_has_descriptor(entry->flags)))
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                        "the local header's CRC is 0x%08" PRIx32 ", the directory's 0x%08" PRIx32,
                        local.crc32, entry->crc32);
    /* A saturated size has no value; the zip64 field has it, or with bit 3 the descriptor. Every
     * value of the zip64 field must be true: a single one is the header's offset (PyTorch, for
     * records beyond 4 GiB) or the size. */
    const uint64_t *zip64 = local.zip64;
    const struct {
        bool is_there;
        uint64_t local, directory;
        bool is_late;
        const char *what;
    } sizes[] = {
        {local.field_nbytes != BTH_ZIP_SATURATED32, local.field_nbytes, entry->nbytes, true,
         "size"},
        {local.field_compressed_nbytes != BTH_ZIP_SATURATED32, local.field_compressed_nbytes,
         entry->compressed_nbytes, true, "compressed size"},
        {local.n_zip64 == 1 && zip64[0] != entry->header_offset, zip64[0], entry->nbytes, true,
         "ZIP64 value"},
        {local.n_zip64 >= 2, zip64[0], entry->nbytes, true, "ZIP64 size"},
        {local.n_zip64 >= 2, zip64[1], entry->compressed_nbytes, true, "ZIP64 compressed size"},
        {local.n_zip64 == 3, zip64[2], entry->header_offset, false, "ZIP64 offset"},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].is_there &&
            record_check_field(sizes[i].local, sizes[i].directory, sizes[i].is_late, sizes[i].what,
                               entry, error) < 0)
            return error->code;
    entry->data_offset = local.data_offset;
    return record_check_no_overlap(entry, error);
}

/* ---- the descriptor ---- */

/* Z6: 16 or 24 bytes with a signature, 12 or 20 without: all that lies before the next entry. */
int bth_zip_find_entry_end(const bth_zip_entry *entry, uint64_t *end_offset, berth_error *error)
{
    uint64_t data_end = entry->data_offset + entry->compressed_nbytes;
    uint64_t between = entry->next_offset - data_end;
    *end_offset = data_end;
    if (!zip_has_descriptor(entry->flags))
        return BERTH_OK;
    *end_offset = entry->next_offset;
    if (record_check_no_overlap(entry, error) < 0)
        return error->code;
    if (between == 12 || between == 16 || between == 20 || between == 24)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                    "%" PRIu64 " bytes lie between the data and the next entry, but a "
                    "descriptor has 12, 16, 20 or 24",
                    between);
}

bool bth_zip_descriptor_is_unsigned(const bth_zip_entry *entry)
{
    uint64_t between = entry->next_offset - (entry->data_offset + entry->compressed_nbytes);
    return zip_has_descriptor(entry->flags) && (between == 12 || between == 20);
}

int bth_zip_check_record_descriptor(const bth_zip_input *input, uint64_t ahead,
                                    bth_zip_entry *entry, berth_error *error)
{
    uint64_t end, data_end = entry->data_offset + entry->compressed_nbytes;
    uint64_t before = bth_zip_descriptor_is_unsigned(entry) ? 4 : 0;
    const uint8_t *bytes;
    if (bth_zip_find_entry_end(entry, &end, error) < 0)
        return error->code;
    if (!zip_has_descriptor(entry->flags)) {
        entry->end_offset = end;
        return BERTH_OK;
    }
    size_t nbytes = (size_t)(end - data_end), width = nbytes >= 20 ? 8 : 4;
    if (input->get(input->context, data_end - before, nbytes + before, ahead, &bytes, error) < 0)
        return error->code;
    bth_cursor cursor = bth_cursor_make(bytes, nbytes + (size_t)before);
    uint32_t first = bth_cursor_u32(&cursor);
    /* Z6: a local header that is 4 bytes too long, by one flipped bit of its extra fields' length,
     * moves the data by 4 bytes; they then end with the descriptor's signature. */
    if (before > 0 && first == BTH_ZIP_DESCRIPTOR_SIGNATURE)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                        "a descriptor without a signature, but the bytes before it are one");
    if (before == 0 && first != BTH_ZIP_DESCRIPTOR_SIGNATURE)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                        "the descriptor begins with 0x%08" PRIx32 ", not 0x%08x", first,
                        BTH_ZIP_DESCRIPTOR_SIGNATURE);
    uint32_t crc32 = bth_cursor_u32(&cursor);
    uint64_t compressed = bth_cursor_integer(&cursor, width);
    uint64_t whole = bth_cursor_integer(&cursor, width);
    if (crc32 != entry->crc32 || compressed != entry->compressed_nbytes || whole != entry->nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, data_end,
                        "the descriptor says CRC 0x%08" PRIx32 " and sizes %" PRIu64 " and %" PRIu64
                        ", the directory 0x%08" PRIx32 ", %" PRIu64 " and %" PRIu64,
                        crc32, compressed, whole, entry->crc32, entry->compressed_nbytes,
                        entry->nbytes);
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
    /* Z10: PyTorch writes 0 if it does not compute CRCs. The CRC of no bytes is 0, too. */
    *present = entry->crc32 != 0 || entry->nbytes == 0;
    if (computed == entry->crc32 || !*present)
        return BERTH_OK;
    return bth_fail(error, BERTH_E_CHECKSUM, entry->record, entry->data_offset,
                    "its bytes have CRC 0x%08" PRIx32 ", the directory says 0x%08" PRIx32, computed,
                    entry->crc32);
}
