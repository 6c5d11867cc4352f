/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One save from its call to its end, whoever carries it out: the caller's thread or a job's.
 * begin: everything that is known before a byte is written; transfer: until the last byte is
 * written, then nothing of the caller's is read any more; finish: until it is durable; end.
 */
#ifndef BTH_SAVE_OPERATION_H
#define BTH_SAVE_OPERATION_H

#include <stdatomic.h>

#include "save/commit.h"
#include "save/output_file.h"
#include "save/plan.h"
#include "save/snapshot.h"
#include "save/storage_stats.h"

typedef enum bth_destination {
    BTH_TO_NOTHING, /* only planned */
    BTH_TO_PATH,
    BTH_TO_SINK,
    BTH_TO_FD,
    BTH_TO_MEMORY
} bth_destination;

/* What is saved, where, and how. Borrowed by the operation. */
typedef struct bth_request {
    const berth_value *value;        /* a value, or: */
    const berth_new_record *records; /* of the container level */
    size_t n_records;
    bool is_records;
    uint32_t flags; /* of records */
    bool snapshot;  /* copy at begin: nothing of the caller's is read afterwards */
    bth_destination to;
    const char *path; /* BTH_TO_NOTHING: only its name is looked at */
    const berth_sink *sink;
    int fd;
    bth_output_memory *memory; /* filled; the caller's to free, on failure too */
    const char *archive;       /* top folder; NULL: that of the path */
    const berth_params *call;
} bth_request;

typedef struct bth_operation {
    const bth_request *request;
    struct berth_config config; /* the snapshot of this operation */
    berth_params call;          /* its config is not looked at any more */
    berth_stats stats;
    bth_storage_stats *storage_stats; /* NULL: nobody asks for statistics of storages */
    double begin_seconds;
    char *archive; /* top folder */
    berth_plan *plan;
    bth_snapshot snapshot;
    bth_output output;
    bth_commit commit;    /* BTH_TO_PATH */
    bth_output_file file; /* likewise */
    /* Cancelled or final, whichever comes first: then the other cannot come any more. */
    _Atomic int phase;
    _Atomic bool cancelled; /* no request is begun any more */
    _Atomic uint64_t done_nbytes;
    /* Told when nothing of the caller's is read any more, by any thread, maybe twice. */
    void (*staged)(void *context);
    void *staged_context;
} bth_operation;

/*
 * Resolves the configuration, plans, opens, takes the room, copies if asked to. The operation must
 * not move from now on; the request must live as long as it. After a failure, too,
 * bth_operation_end is due.
 */
int bth_operation_begin(bth_operation *operation, const bth_request *request, berth_error *error);
int bth_operation_transfer(bth_operation *operation, berth_error *error);
int bth_operation_finish(bth_operation *operation, berth_error *error);
/* Tells the statistics, removes the temporary of a save that did not finish, frees. Puts the path
 * before the error's message and returns its code. */
int bth_operation_end(bth_operation *operation, berth_error *error);

/* From any thread, any number of times. True: the target keeps, or kept, what it had. */
bool bth_operation_cancel(bth_operation *operation);

#endif
