/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A source's bytes, in the file's order, each for a moment: what is looked at once and then not
 * needed any more. From where they lie if they are in memory; past the page cache if they are not,
 * and nobody else will ask for them.
 */
#ifndef BTH_LOAD_TRANSFER_INPUT_H
#define BTH_LOAD_TRANSFER_INPUT_H

#include "config/options.h"
#include "io/direct.h"
#include "io/map.h"
#include "io/region.h"
#include "io/source.h"

typedef struct bth_supply {
    bth_reader *reader;
    const char *method; /* "memory", "map", "read", "direct", "direct, then read" (a request was
                           refused). Static, as the reason */
    const char *reason;
    uint64_t piece_nbytes; /* the most to ask for at once; a multiple of 64 KiB */
    unsigned n_workers;    /* as for bth_pool_run */
    const uint8_t *memory; /* of byte 0: the source's, or the map's */
    bth_map map;
    bth_direct direct;
    atomic_bool is_refused; /* no direct request is made any more */
    bth_region *buffers;    /* one a worker, made when it needs one */
    bool spread;
} bth_supply;

/*
 * For the bytes [begin, end), in tiles of tile_nbytes, a multiple of 64 KiB. through_cache:
 * they are asked for again soon, and had better be in the page cache then.
 */
int bth_supply_begin(bth_supply *supply, bth_reader *reader, const struct berth_config *config,
                     uint64_t begin, uint64_t end, uint64_t tile_nbytes, bool through_cache,
                     berth_error *error);
/* Method and reason stay, and tell then what became of it. */
void bth_supply_end(bth_supply *supply);

/*
 * *bytes: [begin, end) of the source, until this worker's next call. Not empty; within
 * piece_nbytes from a multiple of 64 KiB on. Thread-safe for different workers.
 */
int bth_supply_get(bth_supply *supply, unsigned worker, uint64_t begin, uint64_t end,
                   const uint8_t **bytes, berth_error *error);

#endif
