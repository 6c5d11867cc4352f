/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip_write.h"

#include <string.h>

#include "format/bytes.h"
#include "format/zip_fields.h"

static uint16_t record_flags(const berth_place *place)
{
    unsigned flags = BERTH_ZIP_FLAG_UTF8;
    if (place->descriptor_nbytes > 0)
        flags |= BERTH_ZIP_FLAG_DESCRIPTOR;
    return (uint16_t)flags;
}

static uint64_t saturated32(uint64_t value)
{
    return value < BERTH_ZIP_SATURATED32 ? value : BERTH_ZIP_SATURATED32;
}

static uint64_t saturated16(uint64_t value)
{
    return value < BERTH_ZIP_SATURATED16 ? value : BERTH_ZIP_SATURATED16;
}

/*
 * Nothing for small records. The local header's and the directory's differ in one field: PyTorch
 * renders the former before it knows the compressed size, which is 0 there (FORMAT.md section 2).
 */
static uint8_t *put_zip64_extra(const berth_place *place, uint64_t compressed_nbytes, uint8_t *out)
{
    if (place->zip64_nbytes == 0)
        return out;
    out = berth_put_u16(out, BERTH_ZIP_EXTRA_ZIP64);
    out = berth_put_u16(out, place->zip64_nbytes - 4);
    if (place->nbytes >= BERTH_ZIP_SATURATED32) {
        out = berth_put_u64(out, place->nbytes);
        out = berth_put_u64(out, compressed_nbytes);
    }
    if (place->header_offset >= BERTH_ZIP_SATURATED32)
        out = berth_put_u64(out, place->header_offset);
    return out;
}

static uint8_t *put_padding_extra(const berth_place *place, uint8_t *out)
{
    out = berth_put_u16(out, BERTH_ZIP_EXTRA_PADDING);
    out = berth_put_u16(out, place->padding_nbytes);
    memset(out, 'Z', place->padding_nbytes);
    return out + place->padding_nbytes;
}

static uint8_t *put_name(const berth_place *place, const char *name, uint8_t *out)
{
    if (place->name_nbytes > 0)
        memcpy(out, name, place->name_nbytes);
    return out + place->name_nbytes;
}

void berth_zip_write_local(const berth_place *place, const char *name, uint8_t *out)
{
    out = berth_put_u32(out, BERTH_ZIP_LOCAL_SIGNATURE);
    out = berth_put_u16(out, 0); /* version needed */
    out = berth_put_u16(out, record_flags(place));
    out = berth_put_u16(out, BERTH_ZIP_STORED);
    out = berth_put_u32(out, 0); /* time and date */
    out = berth_put_u32(out, 0); /* CRC: in descriptor and directory only */
    out = berth_put_u64(out, 0); /* both sizes */
    out = berth_put_u16(out, place->name_nbytes);
    out = berth_put_u16(out, place->zip64_nbytes + 4 + place->padding_nbytes);
    out = put_name(place, name, out);
    out = put_zip64_extra(place, 0, out);
    put_padding_extra(place, out);
}

void berth_zip_write_descriptor(const berth_place *place, uint32_t crc32, uint8_t *out)
{
    if (place->descriptor_nbytes == 0)
        return;
    size_t width = place->zip64_nbytes > 0 ? 8 : 4;
    out = berth_put_u32(out, BERTH_ZIP_DESCRIPTOR_SIGNATURE);
    out = berth_put_u32(out, crc32);
    out = berth_put_integer(out, place->nbytes, width);
    berth_put_integer(out, place->nbytes, width);
}

void berth_zip_write_central(const berth_place *place, const char *name, uint32_t crc32,
                             uint8_t *out)
{
    out = berth_put_u32(out, BERTH_ZIP_CENTRAL_SIGNATURE);
    out = berth_put_u32(out, 0); /* versions: made by, needed */
    out = berth_put_u16(out, record_flags(place));
    out = berth_put_u16(out, BERTH_ZIP_STORED);
    out = berth_put_u32(out, 0); /* time and date */
    out = berth_put_u32(out, crc32);
    out = berth_put_u32(out, saturated32(place->nbytes)); /* compressed */
    out = berth_put_u32(out, saturated32(place->nbytes)); /* uncompressed */
    out = berth_put_u16(out, place->name_nbytes);
    out = berth_put_u16(out, place->zip64_nbytes);
    out = berth_put_u16(out, 0); /* comment */
    out = berth_put_u16(out, 0); /* disk */
    out = berth_put_u16(out, 0); /* internal attributes */
    out = berth_put_u32(out, 0); /* external attributes */
    out = berth_put_u32(out, saturated32(place->header_offset));
    out = put_name(place, name, out);
    put_zip64_extra(place, place->nbytes, out);
}

void berth_zip_write_end(uint64_t n_entries, uint64_t directory_offset, uint64_t directory_nbytes,
                         uint8_t *out)
{
    out = berth_put_u32(out, BERTH_ZIP_END64_SIGNATURE);
    out = berth_put_u64(out, BERTH_ZIP_END64_RECORD_NBYTES - 12);
    out = berth_put_u16(out, 0x031e); /* made by */
    out = berth_put_u16(out, 0x002d); /* needed */
    out = berth_put_u64(out, 0);      /* disks */
    out = berth_put_u64(out, n_entries);
    out = berth_put_u64(out, n_entries);
    out = berth_put_u64(out, directory_nbytes);
    out = berth_put_u64(out, directory_offset);

    out = berth_put_u32(out, BERTH_ZIP_LOCATOR_SIGNATURE);
    out = berth_put_u32(out, 0); /* disk */
    out = berth_put_u64(out, directory_offset + directory_nbytes);
    out = berth_put_u32(out, 1); /* disks */

    out = berth_put_u32(out, BERTH_ZIP_END_SIGNATURE);
    out = berth_put_u32(out, 0); /* disks */
    out = berth_put_u16(out, saturated16(n_entries));
    out = berth_put_u16(out, saturated16(n_entries));
    out = berth_put_u32(out, saturated32(directory_nbytes));
    out = berth_put_u32(out, saturated32(directory_offset));
    berth_put_u16(out, 0); /* comment */
}
