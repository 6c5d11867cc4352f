/* SPDX-License-Identifier: BSD-3-Clause */
/* Tiles of a run that writes only ranges of the file (J1: the tiles of others are theirs). */
#include "base/error.h"
#include "base/memory.h"
#include "save/run_state.h"

/* The tile that begins at `begin`, in a range that ends at `end`. */
static bth_range range_cut_tile(uint64_t begin, uint64_t end, uint64_t tile_nbytes)
{
    uint64_t nbytes = tile_nbytes - begin % tile_nbytes;

    return (bth_range){begin, bth_min(nbytes, end - begin)};
}

uint64_t bth_run_ranges_count_tiles(const bth_run_parts *parts, uint64_t tile_nbytes)
{
    uint64_t n = 0;

    for (size_t i = 0; i < parts->n_ranges; i++) {
        uint64_t begin = parts->ranges[i].offset, end = begin + parts->ranges[i].nbytes;
        n += (end - 1) / tile_nbytes - begin / tile_nbytes + 1;
    }
    return n;
}

bth_range *bth_run_ranges_make_tiles(const bth_run_parts *parts, uint64_t tile_nbytes,
                                     berth_error *error)
{
    size_t nbytes =
        bth_array_nbytes((size_t)bth_run_ranges_count_tiles(parts, tile_nbytes), sizeof(bth_range));
    bth_range *tiles = bth_allocate(nbytes), *next = tiles;

    if (!tiles) {
        bth_fail_memory(error, nbytes);
        return NULL;
    }
    for (size_t i = 0; i < parts->n_ranges; i++) {
        uint64_t begin = parts->ranges[i].offset, end = begin + parts->ranges[i].nbytes;
        for (; begin < end; begin = next->offset + next->nbytes, next++)
            *next = range_cut_tile(begin, end, tile_nbytes);
    }
    return tiles;
}
