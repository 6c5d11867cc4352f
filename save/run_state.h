/* SPDX-License-Identifier: BSD-3-Clause */
/* What the workers of a run share. */
#ifndef BTH_SAVE_RUN_STATE_H
#define BTH_SAVE_RUN_STATE_H

#include <pthread.h>

#include "save/output.h"
#include "save/run.h"
#include "save/staging_slots.h"

/* ---- run_tile.c ---- */

/*
 * Deferred blocks: blocks that are rendered but for a descriptor whose CRC is not complete. They
 * are copied from their tile. The worker that completes the CRC fills in the descriptor and writes
 * them. No byte of the file is read back or written twice, so the file needs no lock.
 *
 * If an output accepts any range, a block is one byte: then only the descriptor is deferred. The
 * block in which the tail begins waits for all CRCs. It is written with the tail, so that no data
 * of the caller are read after the data part.
 *
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
void bth_deferred_free_all(bth_deferred *deferred); /* of zeros: nothing */

/* ---- run.c ---- */

typedef struct bth_run_state {
    bth_image image;
    bth_deferred deferred;
    const bth_output *output;
    const bth_run_settings *settings;
    berth_stats *stats;  /* filled by the thread that called bth_run */
    uint64_t begin, end; /* of the part of the file that is being written */
    uint64_t n_tiles;    /* of that part */
    bool is_tail;        /* that part: it depends on all CRCs, and reads nothing of the caller's */
    uint64_t tile_nbytes;
    bth_range *tiles; /* of the data part, if only ranges of it are written; NULL: all of it */
    uint64_t n_range_tiles; /* of those */
    uint32_t block_nbytes;  /* 1: any range can be written */
    unsigned n_workers;
    uint8_t *allocated;
    uint8_t *buffers; /* in it, aligned: a tile for each worker, unless there are staging slots */
    uint8_t *scratch; /* in it: max_header_nbytes for each worker */
    bth_staging_need staging;
    bth_staging_slots slots; /* where storages lie on devices */
    uint64_t present_nbytes; /* that other processes have written */
    _Atomic uint64_t done_nbytes;
    _Atomic uint64_t n_requests;
    _Atomic uint64_t n_unread; /* tiles that still read of the caller's memory */
    _Atomic uint64_t render_nanoseconds, crc32_nanoseconds, write_nanoseconds; /* of all workers */
} bth_run_state;

/* A task of the pool. */
int bth_run_tile(void *context, uint64_t task, unsigned worker, berth_error *error);
/*
 * Debug mode: reads the directory, headers and descriptors of what was written as strictly as those
 * of any other file. Compares them with the plan, and with the image, whose CRCs are complete. A
 * difference is BERTH_E_OFFSETS, or the reader's error.
 */
int bth_readback_check_headers_and_directory(bth_image *image, const bth_output *output,
                                             berth_error *error);

#endif
