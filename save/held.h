/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where only whole blocks can be written: the blocks that hold a descriptor whose CRC is not known
 * yet are kept aside, rendered but for it. Whoever completes the CRC fills it in and writes them.
 * No block is read back and none is written twice.
 */
#ifndef BTH_SAVE_HELD_H
#define BTH_SAVE_HELD_H

#include <pthread.h>

#include "save/image.h"

/*
 * Every record that waits goes on after a tile which a worker has claimed and not finished; tiles
 * are claimed in order, so no two such records belong to one tile. A descriptor lies in one slot of
 * one or two blocks, or in two slots of neighbouring tiles.
 */
#define BTH_HELD_SLOTS_PER_WORKER 2
#define BTH_HELD_BLOCKS_PER_SLOT 2

typedef struct bth_held_slot {
    size_t record; /* BTH_NO_RECORD: free */
    bth_range range;
    uint8_t *bytes;
    bool taken; /* by who completed the CRC: being written */
} bth_held_slot;

typedef struct bth_held {
    pthread_mutex_t lock;
    bth_held_slot *slots;
    size_t n_slots;
    size_t n_used, n_used_most; /* now, and at most at one time */
    uint64_t n_kept;            /* in all */
} bth_held;

/* The bytes that `memory` of bth_held_begin has. */
uint64_t bth_held_nbytes(unsigned n_workers, uint32_t block_nbytes);
int bth_held_begin(bth_held *held, unsigned n_workers, uint32_t block_nbytes, uint8_t *memory,
                   berth_error *error);
void bth_held_end(bth_held *held); /* of zeros: nothing */

/*
 * Keeps the tile's blocks with record i's descriptor: *kept is their range. Empty if its CRC became
 * known meanwhile: then the descriptor is in the tile.
 */
int bth_held_keep(bth_held *held, const bth_image *image, bth_tile *tile, bth_range *kept,
                  berth_error *error);
/*
 * For who completed record i: a slot of it, filled in, to be written and freed; NULL: none (any
 * more).
 */
bth_held_slot *bth_held_take(bth_held *held, const bth_image *image, size_t i);
void bth_held_free(bth_held *held, bth_held_slot *slot);

#endif
