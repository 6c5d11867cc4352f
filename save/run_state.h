/* SPDX-License-Identifier: BSD-3-Clause */
/* A run while it runs: what its workers share. */
#ifndef BTH_SAVE_RUN_STATE_H
#define BTH_SAVE_RUN_STATE_H

#include "save/held.h"
#include "save/lanes.h"
#include "save/output.h"
#include "save/run.h"

typedef struct bth_run_state {
    bth_image image;
    bth_held held;
    const bth_output *output;
    const bth_run_settings *settings;
    uint64_t begin, end; /* of the part of the file that is being written */
    uint64_t tile_nbytes;
    uint32_t block_nbytes; /* 1: any range can be written */
    unsigned n_workers;
    int pages;
    uint8_t *allocated;
    uint8_t *buffers; /* in it, aligned: a tile for each worker, unless there are lanes */
    bth_staging_need staging;
    bth_lanes lanes;  /* where storages lie on devices */
    uint8_t *scratch; /* in it: most_header_nbytes for each worker */
    /*
     * With blocks: the bytes of the block in which the tail begins that lie before the tail. They
     * are rendered before the data, so that nothing of the caller's is read behind it, and written
     * with the tail, when all CRCs are known.
     */
    uint8_t *carry;
    bth_range carried;
    _Atomic uint64_t done_nbytes;
    _Atomic uint64_t n_requests;
    _Atomic uint64_t lent_nbytes;
    _Atomic uint64_t n_unread; /* tiles with what is still to be read of the caller's */
    _Atomic uint64_t render_nanoseconds, crc32_nanoseconds, write_nanoseconds; /* of all workers */
} bth_run_state;

/* A task of the pool. */
int bth_run_tile(void *context, uint64_t task, unsigned worker, berth_error *error);

#endif
