/* SPDX-License-Identifier: BSD-3-Clause */
/* Carries out a plan: workers claim tiles of the image in order, render them, write them. */
#ifndef BTH_SAVE_RUN_H
#define BTH_SAVE_RUN_H

#include "save/image.h"
#include "save/output.h"
#include "save/plan.h"

/*
 * What of the data part is written, if not all of it: whole blocks of the output, in order; may be
 * no range. The last one may end with the data part instead. Zeros: all of it. What is present,
 * because other processes have written it or the base has it, is in no range; bth_image_begin
 * counts its data.
 */
typedef struct bth_run_parts {
    const bth_range *ranges;
    size_t n_ranges;
    const bth_present *present;
    size_t n_present;
} bth_run_parts;

typedef struct bth_run_settings {
    unsigned n_workers;               /* 0 or 1: the caller's thread */
    uint64_t tile_nbytes;             /* > 0; cut down to whole blocks where the output has them */
    uint64_t memory_nbytes;           /* limit of all buffers; 0: none */
    bth_storage_stats *storage_stats; /* one a record, to be filled; NULL: not wanted */
    unsigned n_staging;               /* staging buffers for devices; 0: one a worker */
    bool is_pinned;                   /* they are */
    int64_t large_pages;              /* io.large_pages */
    bth_run_parts parts;
    uint32_t *crc32s; /* one a record, to be filled; NULL: not wanted */
    bool read_back;   /* debug: check what was written, where it can be read */
    berth_progress_function progress;
    void *progress_context;
    void (*staged)(void *context); /* called when nothing of the caller's is read any more */
    void *staged_context;
    const _Atomic bool *cancelled; /* once it is true no request is begun; NULL: never */
} bth_run_settings;

/* From the options; 0s are chosen for the output (NULL: memory). */
bth_run_settings bth_run_settings_of(const struct berth_config *config, const berth_plan *plan,
                                     const bth_output *output);

/*
 * Writes the whole image; where the output has blocks the last one is padded. The last call of
 * progress has done = total, and may still cancel. An error names the record and the byte. Fills
 * its part of *stats, which must be zeros, on failure too.
 */
int bth_run(const berth_plan *plan, const bth_output *output, const bth_run_settings *settings,
            berth_stats *stats, berth_error *error);

/* Fills *reports for the first n storages of the file. `stats` NULL: nothing was written. */
void bth_storage_stats_fill_reports(const bth_storage_stats *stats, const berth_plan *plan,
                                    const berth_stats *save, berth_storage_stats *reports,
                                    size_t n);

#endif
