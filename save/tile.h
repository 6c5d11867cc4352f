/* SPDX-License-Identifier: BSD-3-Clause */
/* A tile: a range of the file that one worker renders into a buffer and writes. */
#ifndef BTH_SAVE_TILE_H
#define BTH_SAVE_TILE_H

#include <sys/uio.h>

#include "save/plan.h"

#define BTH_MAX_ZERO_COPIES 64 /* ranges of one tile; further ones are copied */

/* A range of the tile that is written from the caller's memory. */
typedef struct bth_zero_copy {
    bth_range range;
    const uint8_t *bytes;
} bth_zero_copy;

typedef struct bth_tile {
    uint64_t offset; /* in the file */
    size_t nbytes;
    uint8_t *bytes;
    uint8_t *scratch;              /* plan->max_header_nbytes bytes */
    struct bth_staging_slot *slot; /* of devices (save/staging_slots.h), begun; NULL: none */
    /* In order. `bytes` holds nothing there. */
    bth_zero_copy zero_copies[BTH_MAX_ZERO_COPIES];
    size_t n_zero_copies;
    uint32_t crc32;       /* of the share that is being rendered */
    double crc32_seconds; /* of rendering the tile */
    unsigned n_blocks;    /* whose CRC was computed so far */
    /*
     * BTH_NO_RECORD: none. `incomplete`: the record whose descriptor, or a share of it, belongs
     * here, but whose CRC is not complete. `completed`: the record whose CRC this tile completed,
     * but whose descriptor, or a share of it, belongs elsewhere.
     */
    size_t incomplete;
    size_t completed;
} bth_tile;

/* The tile's share of a range. False if there is none. */
bool bth_tile_share(const bth_tile *tile, bth_range range, bth_range *share);
/* Copies the tile's share of bytes that lie at `offset` in the file. */
void bth_tile_put(bth_tile *tile, uint64_t offset, const uint8_t *bytes, uint64_t nbytes);
/* [begin, end) of the tile as pieces, its own and the zero-copy ranges. Returns their number. */
#define BTH_MAX_PIECES (2 * BTH_MAX_ZERO_COPIES + 1)
size_t bth_tile_pieces(const bth_tile *tile, uint64_t begin, uint64_t end,
                       struct iovec pieces[BTH_MAX_PIECES]);

#endif
