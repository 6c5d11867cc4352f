/* SPDX-License-Identifier: BSD-3-Clause */
/* The middles of a writer's parts, with what lies between chained ones: together they are whole
 * blocks, written in place. */
#ifndef BTH_SAVE_JOINT_MIDDLES_H
#define BTH_SAVE_JOINT_MIDDLES_H

#include "save/joint/joint_slices.h"
#include "save/output.h"
#include "save/run.h"

/* The new file, as one writer writes to it. */
typedef struct bth_middles_file {
    const bth_ticket *ticket;
    struct berth_config config;
    int fd;
    bth_output_file file;
    bth_output output;
} bth_middles_file;

/* ticket and config are set; fd and those of `file` are -1. The caller then calls
 * bth_middles_file_close, after a failure too. */
int bth_middles_file_open(bth_middles_file *file, berth_error *error);
void bth_middles_file_close(bth_middles_file *file);

typedef struct bth_middles_limits {
    uint64_t memory_nbytes;           /* of buffers; 0: as usual */
    berth_progress_function progress; /* of the bytes of these middles; may be NULL */
    void *progress_context;
} bth_middles_limits;

/* What `progress` is told of n parts in the end. */
uint64_t bth_middles_count_nbytes(const bth_ticket *ticket, const bth_slice_part *parts, size_t n);
/* Writes the middles of n parts, and puts their CRCs and first bytes into the parts, whose CRCs
 * are 0. Adds to *stats. */
int bth_middles_write(bth_middles_file *file, bth_slice_part *parts, size_t n,
                      const bth_middles_limits *limits, berth_stats *stats, berth_error *error);

#endif
