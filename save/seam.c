/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Seams: descriptors whose CRC is not complete where they are rendered. The CRC of a whole is the
 * XOR of its parts' CRCs, each shifted over the bytes that follow the part (zlib's combine with
 * 0), so parts may come in any order. Exactly one tile completes a record; only that one writes
 * the descriptor, in its own buffer if it lies there whole, else alone. All others leave it out:
 * no byte of the file is ever written twice, so nothing needs a lock.
 */
#include <string.h>

#include "format/checksum.h"
#include "format/zip_write.h"
#include "save/image.h"

bool berth_seam_sum(berth_image *image, size_t i, const uint8_t *bytes, size_t nbytes, uint64_t at)
{
    berth_sum *sum = &image->sums[i];
    const berth_planned *record = &image->plan->records[i];
    uint64_t after_nbytes = record->place.nbytes - at - nbytes;

    if (!record->no_crc32) {
        uint32_t crc32 = berth_crc32(0, bytes, nbytes);
        atomic_fetch_xor(&sum->crc32, berth_crc32_combine(crc32, 0, after_nbytes));
    }
    return atomic_fetch_sub(&sum->missing_nbytes, nbytes) == nbytes;
}

bool berth_tile_share(const berth_tile *tile, uint64_t begin, uint64_t end, berth_range *share)
{
    uint64_t tile_end = tile->offset + tile->nbytes;

    if (begin < tile->offset)
        begin = tile->offset;
    if (end > tile_end)
        end = tile_end;
    if (begin >= end)
        return false;
    *share = (berth_range){.offset = begin, .nbytes = end - begin};
    return true;
}

void berth_tile_put(berth_tile *tile, uint64_t offset, const uint8_t *bytes, uint64_t nbytes)
{
    berth_range share;

    if (berth_tile_share(tile, offset, offset + nbytes, &share))
        memcpy(tile->bytes + (share.offset - tile->offset), bytes + (share.offset - offset),
               (size_t)share.nbytes);
}

void berth_seam_descriptor(berth_image *image, berth_tile *tile, size_t i, bool completed)
{
    const berth_place *place = &image->plan->records[i].place;
    berth_seam seam = {.offset = place->data_offset + place->nbytes,
                       .nbytes = place->descriptor_nbytes};
    berth_range share;

    if (seam.nbytes == 0)
        return;
    bool here = berth_tile_share(tile, seam.offset, seam.offset + seam.nbytes, &share);
    bool whole = here && share.nbytes == seam.nbytes;
    bool known = image->in_order || !image->sums;
    if (known ? here : completed)
        berth_zip_write_descriptor(place, berth_image_crc32(image, i), seam.bytes);
    if (known || (completed && whole)) {
        berth_tile_put(tile, seam.offset, seam.bytes, seam.nbytes);
        return;
    }
    if (completed)
        tile->seam = seam;
    if (here)
        tile->gaps[tile->n_gaps++] = share;
}
