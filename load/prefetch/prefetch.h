/* SPDX-License-Identifier: BSD-3-Clause */
/* The interface of load/prefetch/, which loads bytes before their consumer uses them. */
#ifndef BTH_LOAD_PREFETCH_PREFETCH_H
#define BTH_LOAD_PREFETCH_PREFETCH_H

#include <pthread.h>

#include "base/lock.h"
#include "berth/prefetch.h"

/* All prefetches of one checkpoint. */
typedef struct bth_prefetches {
    bth_lock lock;          /* protects all prefetches */
    pthread_cond_t changed; /* the state of any of them */
    berth_prefetch *first;
    berth_prefetch *own; /* load.prefetch: opening begins it, closing ends it */
} bth_prefetches;

void bth_prefetches_initialize(bth_prefetches *prefetches);
/* Ends the checkpoint's own prefetch. The caller has freed all others. */
void bth_prefetches_end_own_and_destroy(bth_prefetches *prefetches);

/* load.prefetch: starts the checkpoint's own prefetch, of all storages. */
int bth_prefetch_begin_own(berth_checkpoint *checkpoint, berth_error *error);
/*
 * Elements [first, first + n) of a tensor, or a whole storage, are used now: the checkpoint's own
 * prefetch may load more bytes after them. Does not wait. Thread-safe.
 */
void bth_prefetch_consume_tensor(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                 int64_t first, int64_t n);
void bth_prefetch_consume_storage(berth_checkpoint *checkpoint, const berth_storage *storage);

#endif
