/* SPDX-License-Identifier: BSD-3-Clause */
/* Carries out a plan: workers claim tiles of the image in order, render and write them. */
#ifndef BTH_SAVE_RUN_H
#define BTH_SAVE_RUN_H

#include "save/image.h"
#include "save/output.h"
#include "save/plan.h"

typedef struct bth_run_settings {
    unsigned n_workers;               /* 0 or 1: the caller's thread */
    uint64_t tile_nbytes;             /* > 0; cut down to whole blocks where the output has them */
    uint64_t memory_nbytes;           /* bound of all buffers; 0: none */
    bth_storage_stats *storage_stats; /* one a record, to be filled; NULL: not wanted */
    unsigned n_staging;               /* staging buffers for devices; 0: one a worker */
    bool is_pinned;                   /* they are */
    bool read_back;                   /* debug: check what was written, where it can be read */
    berth_progress_function progress;
    void *progress_context;
    void (*staged)(void *context); /* called when nothing of the caller's is read any more */
    void *staged_context;
    const _Atomic bool *cancelled; /* once it is true no request is begun; NULL: never */
} bth_run_settings;

/* io.threads, io.chunk_nbytes and io.memory_nbytes; 0s are measured for the output (NULL: memory).
 */
bth_run_settings bth_run_settings_of(const struct berth_config *config, const berth_plan *plan,
                                     const bth_output *output);

/*
 * Writes the whole image to the output, the last block padded where the output has blocks. Ends
 * with a call of progress with done = total, which may still cancel. An error names the record and
 * the byte. Fills its part of *stats, which is of zeros, on failure too.
 */
int bth_run(const berth_plan *plan, const bth_output *output, const bth_run_settings *settings,
            berth_stats *stats, berth_error *error);

#endif
