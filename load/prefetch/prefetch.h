/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads bytes before their consumer uses them. */
#ifndef BTH_LOAD_PREFETCH_PREFETCH_H
#define BTH_LOAD_PREFETCH_PREFETCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "berth/prefetch.h"
#include "load/checkpoint.h"

/* The ranges and steps of a prefetch. Pure arithmetic. The bytes of all ranges, one after the
 * other, form a line. Positions on it measure the progress of a prefetch and its consumer. */

typedef struct bth_prefetch_range {
    uint64_t offset; /* in the file */
    uint64_t nbytes;
    uint64_t position; /* of its first byte on the line */
} bth_prefetch_range;

typedef struct bth_prefetch_plan {
    bth_prefetch_range *ranges; /* in the file's order, with gaps */
    size_t n_ranges;
    uint64_t nbytes;        /* the line's length */
    uint64_t pass_nbytes;   /* at most this many lie ahead of the consumer */
    uint64_t n_passes;      /* the last one may be shorter */
    uint64_t window_nbytes; /* of one request */
} bth_prefetch_plan;

typedef struct bth_prefetch_limits {
    uint64_t page_nbytes;
    uint64_t n_passes;        /* 0: as few as fit */
    uint64_t min_pass_nbytes; /* no pass is shorter, if memory allows it */
    uint64_t window_nbytes;   /* 0: natural_window_nbytes, or less if passes are short */
    uint64_t natural_window_nbytes;
    uint64_t memory_nbytes;    /* for bytes ahead; 0: no bound */
    uint64_t available_nbytes; /* of the machine; half of it is used where nothing else is set */
} bth_prefetch_limits;

/* The plan owns the ranges from now on. They may overlap, be empty, and have any order. Extends
 * them to whole pages of the file, joins ranges that touch, and sets their positions. */
void bth_prefetch_take_ranges(bth_prefetch_plan *plan, bth_prefetch_range *ranges, size_t n,
                              uint64_t page_nbytes, uint64_t file_nbytes);

/* Sets passes and windows. False: memory_nbytes is too small for a window by *missing_nbytes. */
bool bth_prefetch_choose_pass_and_window(bth_prefetch_plan *plan, const bth_prefetch_limits *limits,
                                         uint64_t *missing_nbytes);

/* The number of bytes of the plan that lie before this byte of the file. */
uint64_t bth_prefetch_position(const bth_prefetch_plan *plan, uint64_t offset);

/* The next request from a position on: within one range and a window, before the limit. */
bth_prefetch_range bth_prefetch_find_next_window(const bth_prefetch_plan *plan, uint64_t position,
                                                 uint64_t limit);

/* A thread of a prefetch. */
typedef struct bth_prefetch_helper {
    berth_prefetch *prefetch;
    pthread_t thread;
    bth_prefetch_range window; /* under the lock: claimed by it; 0 bytes: none */
    bool is_loading;           /* it loads the window; else it waits for others */
    uint64_t n_requests;       /* that it made for the window so far */
} bth_prefetch_helper;

struct berth_prefetch {
    berth_checkpoint *checkpoint;
    uint64_t process; /* that has its threads (X11) */
    berth_prefetch *next;
    bth_prefetch_plan plan;
    int kind; /* BTH_PREFETCH_ADVISE … */
    uint32_t flags;
    const bth_map *map; /* NULL: none */
    uint64_t readahead_nbytes;
    bool is_short;           /* passes are too short for the system's readahead */
    bool requests_readahead; /* whole windows are requested before their pages are touched */
    const char *reason;
    bth_prefetch_helper *helpers;
    unsigned n_helpers;

    /* Under the lock: */
    uint64_t begun;   /* position: windows before it have been claimed */
    uint64_t counted; /* position: cached bytes before it have been counted */
    uint64_t done_nbytes;
    uint64_t consumed; /* position: the consumer used all bytes before it, or waits for them */
    bool is_stopped;   /* no new window is begun */
    bool is_reported;  /* the error was returned to a caller */
    atomic_bool has_fallen_back;
    berth_error error;
    berth_prefetch_stats stats;
};

/* ---- prefetch_run.c ---- */

/* Locks. A child begins with an empty list: it has no threads for its parent's prefetches (X11). */
void bth_prefetches_lock(bth_prefetches *prefetches);
/* Registers it and starts its threads. The caller calls berth_prefetch_free, after a failure, too.
 */
int bth_prefetch_start(berth_prefetch *prefetch, unsigned n_helpers, berth_error *error);

#endif
