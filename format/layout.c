/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/layout.h"

#include "base/memory.h"

int bth_layout_entry_compute(uint64_t cursor, size_t name_nbytes, uint64_t nbytes,
                             uint32_t alignment, bth_layout_entry *entry)
{
    if (alignment == 0 || alignment > BTH_MAX_ALIGNMENT_READ || name_nbytes > UINT16_MAX)
        return -1;
    /* Sizes and offsets that are not below the saturated value go into the zip64 extra field. */
    uint32_t values = nbytes >= BTH_ZIP_SATURATED32 ? 16 : 0;
    values += cursor >= BTH_ZIP_SATURATED32 ? 8 : 0;
    uint32_t zip64 = values > 0 ? 4 + values : 0;
    /* An empty record has no descriptor: FORMAT.md section 2. */
    uint32_t descriptor = nbytes == 0 ? 0 : zip64 > 0 ? 24 : 16;
    uint64_t start, data, next;
    if (!bth_try_add(cursor, BTH_ZIP_LOCAL_NBYTES + name_nbytes + zip64 + 4, &start))
        return -1;
    /* An alignment need not be a power of two (FORMAT.md section 2), so no mask will do. */
    uint32_t over = (uint32_t)(start % alignment);
    uint32_t padding = over ? alignment - over : 0;
    if (zip64 + 4 + padding > UINT16_MAX)
        return -1;
    if (!bth_try_add(start, padding, &data) || !bth_try_add(data, nbytes, &next) ||
        !bth_try_add(next, descriptor, &next) || next > INT64_MAX)
        return -1;
    *entry = (bth_layout_entry){
        .header_offset = cursor,
        .data_offset = data,
        .nbytes = nbytes,
        .next_offset = next,
        .name_nbytes = (uint32_t)name_nbytes,
        .zip64_nbytes = zip64,
        .padding_nbytes = padding,
        .descriptor_nbytes = descriptor,
    };
    return 0;
}

uint64_t bth_layout_central_entry_nbytes(const bth_layout_entry *entry)
{
    return BTH_ZIP_CENTRAL_NBYTES + (uint64_t)entry->name_nbytes + entry->zip64_nbytes;
}
