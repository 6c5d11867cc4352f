/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Deferred blocks: blocks that are rendered but for a descriptor whose CRC is not complete. They
 * are copied from their tile. The worker that completes the CRC fills in the descriptor and writes
 * them. No byte of the file is read back or written twice, so the file needs no lock.
 *
 * Where an output takes any range, a block has one byte: then a descriptor is deferred by itself.
 * The block in which the tail begins waits for all CRCs. It is written with the tail, so that none
 * of the caller's data is read after the data part.
 */
#ifndef BTH_SAVE_DEFERRED_H
#define BTH_SAVE_DEFERRED_H

#include <pthread.h>

#include "save/image.h"

/*
 * Each incomplete record goes on after a tile that a worker has claimed and not finished. Tiles are
 * claimed in order, so no two such records belong to one tile. A descriptor lies in one or two
 * neighbouring tiles.
 */
#define BTH_DEFERRED_PER_WORKER 2

typedef struct bth_deferred_block {
    size_t record; /* BTH_NO_RECORD: free; plan->n_records: claimed, to be written */
    bth_range range;
    uint8_t *bytes;
} bth_deferred_block;

typedef struct bth_deferred {
    pthread_mutex_t lock;
    bth_deferred_block *blocks;
    size_t n_blocks;
    bth_deferred_block tail;
} bth_deferred;

/* Bytes of memory that each worker needs, and that all of them need together. */
uint64_t bth_deferred_worker_nbytes(uint32_t block_nbytes);
uint64_t bth_deferred_nbytes(unsigned n_workers, uint32_t block_nbytes);
/* `memory` has bth_deferred_nbytes bytes and outlives this. */
int bth_deferred_begin(bth_deferred *deferred, unsigned n_workers, uint32_t block_nbytes,
                       uint8_t *memory, berth_error *error);
void bth_deferred_end(bth_deferred *deferred); /* of zeros: nothing */

/*
 * Defers the blocks before `end` with the descriptor of tile->incomplete: *range. Empty, at `end`,
 * if the CRC has become complete: then the descriptor is in the tile.
 */
int bth_deferred_add(bth_deferred *deferred, const bth_image *image, bth_tile *tile, uint64_t end,
                     bth_range *range, berth_error *error);
/*
 * For the worker that completed record i: blocks that wait for it, with the descriptor, to be
 * written and freed. NULL: no more.
 */
bth_deferred_block *bth_deferred_claim(bth_deferred *deferred, const bth_image *image, size_t i);
void bth_deferred_free(bth_deferred *deferred, bth_deferred_block *block);

/* Defers [begin, end of tile) until the tail is rendered. */
void bth_deferred_add_tail(bth_deferred *deferred, const bth_tile *tile, uint64_t begin);
/* When all CRCs are complete: copies those bytes, with their descriptors, into the tile. Returns
 * their number; 0 if the tile does not begin with them. */
size_t bth_deferred_get_tail(const bth_deferred *deferred, const bth_image *image, bth_tile *tile);

#endif
