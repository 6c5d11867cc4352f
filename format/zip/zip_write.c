/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip/zip.h"

#include <string.h>

static uint8_t *zip_put_saturated(uint8_t *out, uint64_t value, size_t nbytes)
{
    uint64_t most = nbytes == 2 ? BTH_ZIP_SATURATED16 : BTH_ZIP_SATURATED32;
    return bth_put_integer(out, value < most ? value : most, nbytes);
}

/* The zip64 extra field is empty for small records. In the local header the compressed size is 0,
 * because PyTorch writes it before it knows the size (FORMAT.md section 2); in the directory it is
 * the size. */
static uint8_t *zip_put_name_and_zip64_extra(const bth_layout_entry *entry, const char *name,
                                             uint64_t compressed_nbytes, uint8_t *out)
{
    if (entry->name_nbytes > 0)
        memcpy(out, name, entry->name_nbytes);
    out += entry->name_nbytes;
    if (entry->zip64_nbytes == 0)
        return out;
    out = bth_put_u16(out, BTH_ZIP_EXTRA_ZIP64);
    out = bth_put_u16(out, entry->zip64_nbytes - 4);
    if (entry->nbytes >= BTH_ZIP_SATURATED32) {
        out = bth_put_u64(out, entry->nbytes);
        out = bth_put_u64(out, compressed_nbytes);
    }
    if (entry->header_offset >= BTH_ZIP_SATURATED32)
        out = bth_put_u64(out, entry->header_offset);
    return out;
}

/* The fields that local header and directory share, from the flags on. */
static uint8_t *zip_put_fields_of_both_headers(const bth_layout_entry *entry, uint32_t crc32,
                                               uint64_t nbytes, uint32_t extra_nbytes, uint8_t *out)
{
    unsigned descriptor_flag = entry->descriptor_nbytes > 0 ? BTH_ZIP_FLAG_DESCRIPTOR : 0;
    out = bth_put_u16(out, BTH_ZIP_FLAG_UTF8 | descriptor_flag);
    out = bth_put_u16(out, BTH_ZIP_STORED);
    out = bth_put_u32(out, 0); /* time and date */
    out = bth_put_u32(out, crc32);
    out = zip_put_saturated(out, nbytes, 4); /* compressed */
    out = zip_put_saturated(out, nbytes, 4); /* uncompressed */
    out = bth_put_u16(out, entry->name_nbytes);
    return bth_put_u16(out, extra_nbytes);
}

/* The descriptor and the directory have the CRC and the sizes. */
void bth_zip_write_local(const bth_layout_entry *entry, const char *name, uint8_t *out)
{
    out = bth_put_u32(out, BTH_ZIP_LOCAL_SIGNATURE);
    out = bth_put_u16(out, 0); /* version needed */
    out = zip_put_fields_of_both_headers(entry, 0, 0,
                                         entry->zip64_nbytes + 4 + entry->padding_nbytes, out);
    out = zip_put_name_and_zip64_extra(entry, name, 0, out);
    out = bth_put_u16(out, BTH_ZIP_EXTRA_PADDING);
    out = bth_put_u16(out, entry->padding_nbytes);
    memset(out, 'Z', entry->padding_nbytes);
}

void bth_zip_write_descriptor(const bth_layout_entry *entry, uint32_t crc32, uint8_t *out)
{
    if (entry->descriptor_nbytes == 0)
        return;
    size_t width = entry->zip64_nbytes > 0 ? 8 : 4;
    out = bth_put_u32(out, BTH_ZIP_DESCRIPTOR_SIGNATURE);
    out = bth_put_u32(out, crc32);
    out = bth_put_integer(out, entry->nbytes, width);
    bth_put_integer(out, entry->nbytes, width);
}

void bth_zip_write_central(const bth_layout_entry *entry, const char *name, uint32_t crc32,
                           uint8_t *out)
{
    out = bth_put_u32(out, BTH_ZIP_CENTRAL_SIGNATURE);
    out = bth_put_u32(out, 0); /* versions: made by, needed */
    out = zip_put_fields_of_both_headers(entry, crc32, entry->nbytes, entry->zip64_nbytes, out);
    out = bth_put_u16(out, 0); /* comment */
    out = bth_put_u16(out, 0); /* disk */
    out = bth_put_u16(out, 0); /* internal attributes */
    out = bth_put_u32(out, 0); /* external attributes */
    out = zip_put_saturated(out, entry->header_offset, 4);
    zip_put_name_and_zip64_extra(entry, name, entry->nbytes, out);
}

void bth_zip_write_end(uint64_t n_entries, uint64_t directory_offset, uint64_t directory_nbytes,
                       uint8_t *out)
{
    out = bth_put_u32(out, BTH_ZIP_END64_SIGNATURE);
    out = bth_put_u64(out, BTH_ZIP_END64_RECORD_NBYTES - 12);
    out = bth_put_u16(out, 0x031e); /* made by */
    out = bth_put_u16(out, 0x002d); /* needed */
    out = bth_put_u64(out, 0);      /* disks */
    out = bth_put_u64(out, n_entries);
    out = bth_put_u64(out, n_entries);
    out = bth_put_u64(out, directory_nbytes);
    out = bth_put_u64(out, directory_offset);
    out = bth_put_u32(out, BTH_ZIP_LOCATOR_SIGNATURE);
    out = bth_put_u32(out, 0); /* disk */
    out = bth_put_u64(out, directory_offset + directory_nbytes);
    out = bth_put_u32(out, 1); /* disks */

    out = bth_put_u32(out, BTH_ZIP_END_SIGNATURE);
    out = bth_put_u32(out, 0); /* disks */
    out = zip_put_saturated(out, n_entries, 2);
    out = zip_put_saturated(out, n_entries, 2);
    out = zip_put_saturated(out, directory_nbytes, 4);
    out = zip_put_saturated(out, directory_offset, 4);
    bth_put_u16(out, 0); /* comment */
}
