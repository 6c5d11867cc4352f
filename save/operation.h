/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One save from its call to its end, whoever carries it out: the caller's thread or a job's.
 * begin: everything that is known before a byte is written; transfer: until the last byte is
 * written, then nothing of the caller's is read any more; finish: until it is durable; end.
 */
#ifndef BERTH_SAVE_OPERATION_H
#define BERTH_SAVE_OPERATION_H

#include <stdatomic.h>

#include "save/commit.h"
#include "save/output_file.h"
#include "save/plan.h"
#include "save/snapshot.h"
#include "save/tally.h"

typedef enum berth_destination {
    BERTH_TO_NOTHING, /* only planned */
    BERTH_TO_PATH,
    BERTH_TO_SINK,
    BERTH_TO_FD,
    BERTH_TO_MEMORY
} berth_destination;

/* What is saved, where, and how. Borrowed by the operation. */
typedef struct berth_request {
    const berth_value *value;        /* a value, or: */
    const berth_new_record *records; /* of the container level */
    size_t n_records;
    bool is_records;
    uint32_t flags; /* of records */
    bool snapshot;  /* copy at begin: nothing of the caller's is read afterwards */
    berth_destination to;
    const char *path; /* BERTH_TO_NOTHING: only its name is looked at */
    const berth_sink *sink;
    int fd;
    berth_output_memory *memory; /* filled; the caller's to free, on failure too */
    const char *archive;         /* top folder; NULL: that of the path */
    const berth_call *call;
} berth_request;

typedef struct berth_operation {
    const berth_request *request;
    struct berth_config config; /* the snapshot of this operation */
    berth_call call;            /* its config is not looked at any more */
    berth_stats stats;
    berth_tally *tallies; /* NULL: nobody asks for statistics of storages */
    double begin_seconds;
    char *archive; /* top folder */
    berth_plan *plan;
    berth_snapshot snapshot;
    berth_output output;
    berth_commit commit;    /* BERTH_TO_PATH */
    berth_output_file file; /* likewise */
    /* Cancelled or final, whichever comes first: then the other cannot come any more. */
    _Atomic int phase;
    _Atomic bool cancelled; /* no request is begun any more */
    _Atomic uint64_t done_nbytes;
    /* Told when nothing of the caller's is read any more, by any thread, maybe twice. */
    void (*staged)(void *context);
    void *staged_context;
} berth_operation;

/*
 * Resolves the configuration, plans, opens, takes the room, copies if asked to. The operation must
 * not move from now on; the request must live as long as it. After a failure, too,
 * berth_operation_end is due.
 */
int berth_operation_begin(berth_operation *operation, const berth_request *request,
                          berth_error *error);
int berth_operation_transfer(berth_operation *operation, berth_error *error);
int berth_operation_finish(berth_operation *operation, berth_error *error);
/* Tells the statistics, removes the temporary of a save that did not finish, frees. Puts the path
 * before the error's message and returns its code. */
int berth_operation_end(berth_operation *operation, berth_error *error);

/* From any thread, any number of times. True: the target keeps, or kept, what it had. */
bool berth_operation_cancel(berth_operation *operation);

#endif
