/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One save (X7), on the caller's thread or a job's. begin: everything that can fail before a byte
 * is written. transfer: writes all bytes; after it nothing of the caller's is read. finish: makes
 * the file durable. end: frees.
 */
#ifndef BTH_SAVE_SAVE_OPERATION_H
#define BTH_SAVE_SAVE_OPERATION_H

#include <stdatomic.h>

#include "base/trace.h"
#include "io/memory_region.h"
#include "save/base_file.h"
#include "save/commit.h"
#include "save/image.h"
#include "save/output.h"
#include "save/plan.h"
#include "save/run.h"

/*
 * A copy of all of the caller's data that a plan reads. It has the layout of the file, so that
 * direct writes find it aligned, and is already swapped to the byte order of the file.
 */
typedef struct bth_snapshot {
    void *memory;
    uint8_t *bytes;      /* of the file's range: */
    uint64_t begin, end; /* first and last byte of the records that are copied */
    bth_pages pages;     /* of the memory */
    bth_pages_front front;
} bth_snapshot;

typedef struct bth_operation {
    berth_target target; /* path and sink are copies; kind 0: a plan alone */
    char *path;
    berth_sink sink;
    bool has_begun_sink;        /* it is told how the save ends */
    struct berth_config config; /* the snapshot of this operation */
    berth_params params;        /* config and archive_name are not read after begin */
    berth_stats stats;
    bth_storage_stats *storage_stats; /* NULL: not wanted */
    double begin_seconds;
    bth_trace_scope traced; /* on one thread at a time */
    berth_plan *plan;
    uint64_t nbytes;     /* of the file */
    bth_run_parts parts; /* other processes have written the rest; zeros: nothing */
    bth_snapshot snapshot;
    bth_output output;
    void *memory;           /* of a target in memory */
    bool is_shared;         /* other processes write its file, too */
    bth_commit commit;      /* of a path */
    bth_output_file file;   /* likewise */
    bth_base base;          /* likewise */
    _Atomic int phase;      /* open, then cancelled or final */
    _Atomic bool cancelled; /* no request begins any more */
    _Atomic uint64_t done_nbytes;
    /* Called, maybe twice, when nothing of the caller's is read any more. */
    void (*staged)(void *context);
    void *staged_context;
} bth_operation;

enum {
    BTH_OPERATION_SNAPSHOT = 1, /* of copies of the tensors */
    BTH_OPERATION_SHARED = 2,   /* other processes write the file, too */
};

/*
 * Resolves the configuration, plans, opens, reserves the disk space, copies the tensors for a
 * snapshot. Then the operation must not move. Call bth_operation_end, after a failure, too.
 */
int bth_operation_begin(bth_operation *operation, const berth_target *target,
                        const berth_content *content, unsigned flags, const berth_params *params,
                        berth_error *error);
/* After bth_trace_leave between calls of the caller, or before another thread goes on: its trace
 * does not wait. */
void bth_operation_resume_trace(bth_operation *operation);
/* A stage that ends now, on the thread of the operation. Returns its seconds. */
double bth_operation_trace_stage(const char *name, double begin_seconds);
int bth_operation_transfer(bth_operation *operation, berth_error *error);
int bth_operation_finish(bth_operation *operation, berth_error *error);
/* Reports the statistics, removes the temporary of an unfinished save, frees. Adds the path to the
 * error's message and returns the code. */
int bth_operation_end(bth_operation *operation, berth_error *error);

/* "disk", "device" or "processor"; NULL: nothing was moved. */
const char *bth_stats_find_slowest_stage(const berth_stats *stats);

#endif
