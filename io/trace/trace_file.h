/* SPDX-License-Identifier: BSD-3-Clause */
/* The file of a trace: JSON that is whole after each write. */
#ifndef BTH_IO_TRACE_TRACE_FILE_H
#define BTH_IO_TRACE_TRACE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/lock.h"

#define BTH_TRACE_MAX_LANES 1024

typedef struct bth_trace_file bth_trace_file;
struct bth_trace_file {
    bth_trace_file *next;
    int64_t option;   /* the value of the option `trace` */
    uint64_t process; /* bth_process_unique_number */
    atomic_uint_fast64_t n_operations;
    bth_lock counters_lock; /* a counter and its time change together */
    int64_t n_in_flight, read_nbytes, written_nbytes;
    /* Under the lock: */
    char *path;             /* absolute */
    uint64_t device, inode; /* of the file that this process made */
    uint64_t nbytes;        /* of it, without its end */
    char *pending;          /* events that are not in it */
    size_t n_pending;
    double write_seconds; /* when it was last written */
    bool has_ended, is_logged;
    berth_error error;               /* why it has ended */
    bool lanes[BTH_TRACE_MAX_LANES]; /* in use, each by one worker */
};

/* The file that a value of the option names; `make`: it is made at first use. NULL: there is none,
 * or it has ended. */
bth_trace_file *bth_trace_file_find(int64_t option, bool make);
/* Adds events, each beginning with ",\n"; at_once: they are in the file then. */
void bth_trace_file_append(bth_trace_file *file, const char *events, size_t n, bool at_once);
/* A number for the track of a worker, the lowest that is free. */
size_t bth_trace_file_claim_lane(bth_trace_file *file);
void bth_trace_file_release_lane(bth_trace_file *file, size_t lane);

/*
 * Writes a text as the inside of a JSON string, cut to fit; what is not UTF-8 becomes U+FFFD, and
 * control characters are escaped. Returns `out`.
 */
const char *bth_trace_escape(const char *text, char *out, size_t out_nbytes);

#endif
