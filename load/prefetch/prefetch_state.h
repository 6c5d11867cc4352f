/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of load/prefetch/ share. Private to them. */
#ifndef BTH_LOAD_PREFETCH_PREFETCH_STATE_H
#define BTH_LOAD_PREFETCH_PREFETCH_STATE_H

#include "load/checkpoint.h"
#include "load/prefetch/prefetch_plan.h"

/* One of the threads that load bytes. */
typedef struct bth_prefetch_helper {
    berth_prefetch *prefetch;
    pthread_t thread;
    bth_prefetch_range window; /* under the lock: what it works at; no bytes: nothing */
    bool is_loading;           /* the window is being loaded; else the helper waits for others */
    uint64_t n_requests;       /* the helper's own: made for the window so far */
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
    bool is_short;     /* a pass has no room for what the system reads ahead by itself */
    bool is_announced; /* the device is asked for whole windows before their pages are touched */
    const char *reason;
    bth_prefetch_helper *helpers;
    unsigned n_helpers;

    /* Under the lock: */
    uint64_t begun;   /* position: windows before it have been claimed */
    uint64_t counted; /* position: resident bytes before it have been counted */
    uint64_t done_nbytes;
    uint64_t consumed; /* position: the consumer is done with, or waits for, what lies before it */
    bool is_cancelled; /* nothing new is begun */
    bool is_reported;  /* a caller has got the error */
    atomic_bool has_fallen_back;
    berth_error error;
    berth_prefetch_stats stats;
};

/* ---- prefetch_run.c ---- */

/* Takes the lock. A child begins without prefetches: its parent's have no threads there (X11). */
void bth_prefetches_lock(bth_prefetches *prefetches);
/* Registers it, and starts its threads. After a failure, too, bth_prefetch_stop is called. */
int bth_prefetch_start(berth_prefetch *prefetch, unsigned n_helpers, berth_error *error);
/* Nothing more is begun. */
void bth_prefetch_cancel(berth_prefetch *prefetch);
/* Cancels, waits until the threads have ended, and removes it from the list. */
void bth_prefetch_stop(berth_prefetch *prefetch);
/* Under the lock: all before this position has been loaded. */
uint64_t bth_prefetch_frontier(const berth_prefetch *prefetch);

/* ---- prefetch_begin.c ---- */

/* Where a storage's bytes begin in the file. */
uint64_t bth_prefetch_storage_offset(const berth_storage *storage);
/*
 * The bytes in the file of elements [first, first + n) of a contiguous tensor; of any other tensor,
 * or if n < 0, of all. False: there are none.
 */
bool bth_prefetch_extent(const berth_tensor *tensor, int64_t first, int64_t n, uint64_t *offset,
                         uint64_t *end);
/* A prefetch that runs. NULL: error says why. */
berth_prefetch *bth_prefetch_new(berth_checkpoint *checkpoint, const berth_selection *selection,
                                 uint32_t flags, const struct berth_config *config,
                                 berth_error *error);
/* Ends and frees one of this process. */
void bth_prefetch_end(berth_prefetch *prefetch);
/* Frees the memory alone. NULL: nothing. */
void bth_prefetch_release(berth_prefetch *prefetch);

#endif
