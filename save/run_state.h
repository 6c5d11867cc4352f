/* SPDX-License-Identifier: BSD-3-Clause */
/* What the workers of a run share. */
#ifndef BTH_SAVE_RUN_STATE_H
#define BTH_SAVE_RUN_STATE_H

#include "save/deferred.h"
#include "save/output.h"
#include "save/run.h"
#include "save/staging_slots.h"

typedef struct bth_run_state {
    bth_image image;
    bth_deferred deferred;
    const bth_output *output;
    const bth_run_settings *settings;
    berth_stats *stats;  /* filled by the thread that called bth_run */
    uint64_t begin, end; /* of the part of the file that is being written */
    bool is_tail;        /* that part: it depends on all CRCs, and reads nothing of the caller's */
    uint64_t tile_nbytes;
    uint32_t block_nbytes; /* 1: any range can be written */
    unsigned n_workers;
    uint8_t *allocated;
    uint8_t *buffers; /* in it, aligned: a tile for each worker, unless there are staging slots */
    uint8_t *scratch; /* in it: max_header_nbytes for each worker */
    bth_staging_need staging;
    bth_staging_slots slots; /* where storages lie on devices */
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
int bth_readback(bth_image *image, const bth_output *output, berth_error *error);

#endif
