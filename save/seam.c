/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Seams: descriptors whose CRC is not complete where they are rendered. The CRC of a whole is the
 * XOR of its parts' CRCs, each shifted over the bytes that follow the part (zlib's combine with
 * 0), so parts may come in any order. Exactly one tile completes a record; only that one writes
 * the descriptor, in its own buffer if it lies there whole, else alone. All others leave it out:
 * no byte of the file is ever written twice, so nothing needs a lock. Where only whole blocks can
 * be written, those that wait are kept aside (save/held.h).
 */
#include <string.h>

#include "format/checksum.h"
#include "format/zip/zip_write.h"
#include "save/image.h"

bool bth_seam_add(bth_image *image, size_t i, uint32_t crc32, uint64_t nbytes, uint64_t at)
{
    bth_sum *sum = &image->sums[i];
    const bth_planned *record = &image->plan->records[i];
    uint64_t after_nbytes = record->place.nbytes - at - nbytes;

    if (!record->no_crc32) {
        if (after_nbytes > 0)
            crc32 = bth_crc32_combine(crc32, 0, after_nbytes);
        atomic_fetch_xor(&sum->crc32, crc32);
    }
    return atomic_fetch_sub(&sum->missing_nbytes, nbytes) == nbytes;
}

bool bth_tile_share(const bth_tile *tile, uint64_t begin, uint64_t end, bth_range *share)
{
    uint64_t tile_end = tile->offset + tile->nbytes;

    if (begin < tile->offset)
        begin = tile->offset;
    if (end > tile_end)
        end = tile_end;
    if (begin >= end)
        return false;
    *share = (bth_range){.offset = begin, .nbytes = end - begin};
    return true;
}

void bth_tile_put(bth_tile *tile, uint64_t offset, const uint8_t *bytes, uint64_t nbytes)
{
    bth_range share;

    if (bth_tile_share(tile, offset, offset + nbytes, &share))
        memcpy(tile->bytes + (share.offset - tile->offset), bytes + (share.offset - offset),
               (size_t)share.nbytes);
}

bth_range bth_seam_range(const berth_plan *plan, size_t i)
{
    const bth_place *place = &plan->records[i].place;

    return (bth_range){.offset = place->data_offset + place->nbytes,
                       .nbytes = place->descriptor_nbytes};
}

void bth_seam_put(const bth_image *image, bth_tile *tile, size_t i)
{
    uint8_t bytes[BTH_MOST_DESCRIPTOR_NBYTES];
    bth_range range = bth_seam_range(image->plan, i);

    bth_zip_write_descriptor(&image->plan->records[i].place, bth_image_crc32(image, i), bytes);
    bth_tile_put(tile, range.offset, bytes, range.nbytes);
}

/* Blocks: a known share goes into its tile, whoever completed it; an unknown one waits. */
static void put_or_wait(const bth_image *image, bth_tile *tile, size_t i, bool completed, bool here,
                        bool whole)
{
    if (here && bth_image_is_complete(image, i))
        bth_seam_put(image, tile, i);
    else if (here)
        tile->waits_for = i;
    if (completed && !whole)
        tile->completed = i;
}

void bth_seam_descriptor(bth_image *image, bth_tile *tile, size_t i, bool completed)
{
    bth_range range = bth_seam_range(image->plan, i);
    bth_range share;

    if (range.nbytes == 0)
        return;
    bool here = bth_tile_share(tile, range.offset, range.offset + range.nbytes, &share);
    bool whole = here && share.nbytes == range.nbytes;
    if (image->in_order || !image->sums || (completed && whole)) {
        if (here)
            bth_seam_put(image, tile, i);
        return;
    }
    if (image->demand.block_nbytes > 1) {
        put_or_wait(image, tile, i, completed, here, whole);
        return;
    }
    if (completed) {
        tile->seam = (bth_seam){.offset = range.offset, .nbytes = range.nbytes};
        bth_zip_write_descriptor(&image->plan->records[i].place, bth_image_crc32(image, i),
                                 tile->seam.bytes);
    }
    if (here)
        tile->gaps[tile->n_gaps++] = share;
}

size_t bth_tile_pieces(const bth_tile *tile, uint64_t begin, uint64_t end,
                       struct iovec pieces[BTH_MOST_PIECES])
{
    uint64_t at = begin;
    size_t n = 0;

    for (size_t i = 0; i < tile->n_lent; i++) {
        const bth_lent *lent = &tile->lent[i];
        if (lent->range.offset < at || lent->range.offset >= end)
            continue;
        if (lent->range.offset > at)
            pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                         .iov_len = (size_t)(lent->range.offset - at)};
        pieces[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)lent->bytes,
                                     .iov_len = (size_t)lent->range.nbytes};
        at = lent->range.offset + lent->range.nbytes;
    }
    if (at < end)
        pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                     .iov_len = (size_t)(end - at)};
    return n;
}
