/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/layout.h"

#include <stdbool.h>

#include "base/memory.h"

/* Sizes and offsets that are not below the saturated value go into the zip64 extra field. */
static uint32_t layout_zip64_nbytes(uint64_t cursor, uint64_t nbytes)
{
    bool wide_size = nbytes >= BTH_ZIP_SATURATED32;
    bool wide_offset = cursor >= BTH_ZIP_SATURATED32;
    if (!wide_size && !wide_offset)
        return 0;
    return 4u + (wide_size ? 16u : 0u) + (wide_offset ? 8u : 0u);
}

/* An empty record has no descriptor: FORMAT.md section 2. */
static uint32_t layout_descriptor_nbytes(uint32_t zip64, uint64_t nbytes)
{
    if (nbytes == 0)
        return 0;
    return zip64 > 0 ? 24 : 16;
}

int bth_layout_entry_compute(uint64_t cursor, size_t name_nbytes, uint64_t nbytes,
                             uint32_t alignment, bth_layout_entry *entry)
{
    if (alignment == 0 || alignment > BTH_MAX_ALIGNMENT_READ || name_nbytes > UINT16_MAX)
        return -1;
    uint32_t zip64 = layout_zip64_nbytes(cursor, nbytes);
    uint32_t descriptor = layout_descriptor_nbytes(zip64, nbytes);
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
