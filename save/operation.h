/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One save from its call to its end, on the caller's thread or a job's.
 * begin: all that is known before a byte is written; transfer: until the last byte is written,
 * then nothing of the caller's is read any more; finish: until it is durable; end.
 */
#ifndef BTH_SAVE_OPERATION_H
#define BTH_SAVE_OPERATION_H

#include <stdatomic.h>

#include "save/commit.h"
#include "save/image.h"
#include "save/output_file.h"
#include "save/plan.h"
#include "save/snapshot.h"

typedef struct bth_operation {
    berth_target target; /* path and sink are copies; kind 0: a plan alone */
    char *path;
    berth_sink sink;
    struct berth_config config; /* the snapshot of this operation */
    berth_params params;        /* config and archive_name are not read after begin */
    berth_stats stats;
    bth_storage_stats *storage_stats; /* NULL: not wanted */
    double begin_seconds;
    berth_plan *plan; /* NULL: a file of another format */
    uint64_t nbytes;  /* of the file */
    bth_snapshot snapshot;
    bth_output output;
    void *memory;         /* of a target in memory */
    bth_commit commit;    /* of a path */
    bth_output_file file; /* likewise */
    /* Cancelled or final, whichever comes first: then the other cannot come any more. */
    _Atomic int phase;
    _Atomic bool cancelled; /* no request is begun any more */
    _Atomic uint64_t done_nbytes;
    /* Called, maybe twice, when no thread reads anything of the caller's any more. */
    void (*staged)(void *context);
    void *staged_context;
} bth_operation;

/* Plans alone: `target` only names the archive. bth_operation_end is due, after a failure, too. */
int bth_operation_plan(bth_operation *operation, const berth_target *target,
                       const berth_content *content, const berth_params *params,
                       berth_error *error);
/*
 * Resolves the configuration, plans, opens, takes the room, copies the tensors for a snapshot. From
 * now on the operation must not move. bth_operation_end is due, after a failure, too.
 */
int bth_operation_begin(bth_operation *operation, const berth_target *target,
                        const berth_content *content, bool snapshot, const berth_params *params,
                        berth_error *error);
/* The same for a file of nbytes bytes of any format, which the caller writes to operation->output.
 * Then finish. */
int bth_operation_begin_file(bth_operation *operation, const char *path, uint64_t nbytes,
                             const berth_params *params, berth_error *error);
int bth_operation_transfer(bth_operation *operation, berth_error *error);
int bth_operation_finish(bth_operation *operation, berth_error *error);
/* Reports the statistics, removes the temporary of a save that did not finish, frees. Puts the path
 * before the error's message and returns its code. */
int bth_operation_end(bth_operation *operation, berth_error *error);

/* From any thread, any number of times. True: the target keeps, or kept, what it had. */
bool bth_operation_cancel(bth_operation *operation);

#endif
