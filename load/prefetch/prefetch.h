/* SPDX-License-Identifier: BSD-3-Clause */
/* Prefetches: what prefetch.c (who asks) and prefetch_run.c (who brings) share. */
#ifndef BTH_LOAD_PREFETCH_PREFETCH_H
#define BTH_LOAD_PREFETCH_PREFETCH_H

#include <pthread.h>

#include "config/lock.h"
#include "io/map.h"
#include "load/prefetch/prefetch_plan.h"

/* All prefetches of one checkpoint. */
typedef struct bth_prefetches {
    bool is_ready;
    bth_lock lock;          /* of all their states; taken by bth_prefetches_lock */
    pthread_cond_t changed; /* any of them */
    berth_prefetch *first;
    berth_prefetch *own; /* load.prefetch: begun by open, ended by close */
} bth_prefetches;

/* One of the threads that bring bytes. */
typedef struct bth_prefetch_helper {
    berth_prefetch *prefetch;
    pthread_t thread;
    bth_prefetch_range window; /* under the lock: what it is at; no bytes: nothing */
    bool is_flying;            /* it is being brought; else others are waited for first */
} bth_prefetch_helper;

struct berth_prefetch {
    berth_checkpoint *checkpoint;
    uint64_t process; /* that has its threads (X11) */
    berth_prefetch *next;
    bth_prefetch_plan plan;
    int kind; /* BTH_PREFETCH_ADVISE … */
    uint32_t flags;
    const bth_map *map; /* NULL: it has none */
    uint64_t readahead_nbytes;
    bool is_short;     /* a pass has no room for what the system reads ahead by itself */
    bool is_announced; /* windows are asked for as a whole before their pages are */
    const char *reason;
    bth_prefetch_helper *helpers;
    unsigned n_helpers;

    /* Under the lock: */
    uint64_t begun;   /* position: windows before it have been claimed */
    uint64_t counted; /* position: how much of what lies before it was in memory is known */
    uint64_t done_nbytes;
    uint64_t consumed; /* position: what lies before it is the consumer's */
    bool is_cancelled; /* nothing new is begun */
    bool is_told;      /* someone has been told of the error */
    bool has_fallen_back;
    berth_error error;
    berth_prefetch_stats stats;
};

/* ---- lock.c ---- */

void bth_prefetches_lock(bth_prefetches *prefetches);

/* ---- prefetch_run.c ---- */

/* Starts the helpers; also when not all could be, bth_prefetch_stop ends those that were. */
int bth_prefetch_start(berth_prefetch *prefetch, unsigned n_helpers, berth_error *error);
/* Cancels, and waits until they have ended. */
void bth_prefetch_stop(berth_prefetch *prefetch);
/* Under the lock: all before this position is there. */
uint64_t bth_prefetch_frontier(const berth_prefetch *prefetch);

/* ---- prefetch_begin.c ---- */

/* Where a tensor's bytes lie in the file; false: it has none there. */
bool bth_prefetch_place(const berth_tensor *tensor, uint64_t *offset, uint64_t *end);
/* Where elements [first, first + n) lie, if they lie together; else the whole tensor. */
bool bth_prefetch_place_part(const berth_tensor *tensor, int64_t first, int64_t n, uint64_t *offset,
                             uint64_t *end);
/* load.prefetch: begins to bring all storages. */
int bth_prefetch_begin_own(berth_checkpoint *checkpoint, berth_error *error);

/* ---- prefetch.c ---- */

/* False: it is the parent's, of a process that was forked. */
bool bth_prefetch_is_ours(const berth_prefetch *prefetch);

void bth_prefetches_begin(bth_prefetches *prefetches);
/* Ends load.prefetch's own. The caller's are his to free, before. */
void bth_prefetches_end(bth_prefetches *prefetches);
/*
 * What ends at this byte of the file is used: lets the checkpoint's own prefetch go on. Waits for
 * nothing. Thread-safe.
 */
void bth_prefetch_pass_by(berth_checkpoint *checkpoint, uint64_t end);

#endif
