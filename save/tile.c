/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/image.h"

#include <assert.h>
#include <string.h>

bool bth_tile_share(const bth_tile *tile, bth_range range, bth_range *share)
{
    uint64_t begin = range.offset, end = range.offset + range.nbytes;
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

    if (bth_tile_share(tile, (bth_range){.offset = offset, .nbytes = nbytes}, &share))
        memcpy(tile->bytes + (share.offset - tile->offset), bytes + (share.offset - offset),
               (size_t)share.nbytes);
}

size_t bth_tile_pieces(const bth_tile *tile, uint64_t begin, uint64_t end,
                       struct iovec pieces[BTH_MAX_PIECES])
{
    uint64_t at = begin;
    size_t n = 0;

    assert(begin >= tile->offset);
    for (size_t i = 0; i < tile->n_zero_copies; i++) {
        const bth_zero_copy *zero_copy = &tile->zero_copies[i];
        if (zero_copy->range.offset < at || zero_copy->range.offset >= end)
            continue;
        if (zero_copy->range.offset > at)
            pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                         .iov_len = (size_t)(zero_copy->range.offset - at)};
        pieces[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)zero_copy->bytes,
                                     .iov_len = (size_t)zero_copy->range.nbytes};
        at = zero_copy->range.offset + zero_copy->range.nbytes;
    }
    if (at < end)
        pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                     .iov_len = (size_t)(end - at)};
    return n;
}
