/* SPDX-License-Identifier: BSD-3-Clause */
/* The library's own threads, and workers for independent tasks: how many, and how many bytes one of
 * them moves at a time. */
#ifndef BTH_IO_THREAD_POOL_H
#define BTH_IO_THREAD_POOL_H

#include <pthread.h>

#include "config/options.h"

/*
 * Starts a thread that blocks all signals but those that it raises itself (SIGSEGV and the like):
 * the program's signals are handled by the program's threads. 0 or an errno value (W6).
 */
int bth_thread_start(pthread_t *thread, void *(*function)(void *), void *argument);

/* The first call in a new thread (X13): the caller's functions cannot cancel it. */
static inline void bth_thread_disable_cancel(void)
{
    int unused;

    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
}

/* Does one task as worker number 0 <= worker < n_workers (0 if n_workers is 0). 0 or a status. */
typedef int (*bth_pool_function)(void *context, uint64_t task, unsigned worker, berth_error *error);

/* Called on the caller's thread, ten times a second while tasks run; not 0: cancel. */
typedef int (*bth_pool_watch)(void *context);

/*
 * Runs tasks 0 to n_tasks - 1; workers claim them in order. After the first error, or a cancel, no
 * further task begins, and that error is reported (W8). Returns when all workers have stopped;
 * fails also if a thread cannot be started.
 */
int bth_pool_run(unsigned n_workers, uint64_t n_tasks, bth_pool_function function,
                 bth_pool_watch watch, void *context, berth_error *error);

/* io.chunk_nbytes = 0. */
#define BTH_WORKERS_CHUNK_NBYTES (UINT64_C(4) << 20)

/* The main work of the workers. It decides their number if io.threads is 0. */
typedef enum bth_workers_kind {
    BTH_WORKERS_COMPUTE,  /* copy and sum: as many as there are processors */
    BTH_WORKERS_WAIT,     /* wait for a disk or a device: 8 */
    BTH_WORKERS_PREFETCH, /* wait for pages, beside the program's own work: at most 4 */
    BTH_WORKERS_ROWS,     /* wait for single rows: 16 */
    BTH_WORKERS_ROTATING, /* wait for a disk that rotates: 1, so that its head need not move */
} bth_workers_kind;

/*
 * At least 1, at most n_tasks. worker_nbytes: the memory of one worker, so that io.memory_nbytes
 * limits their number; 0: no limit. Apart from the arguments, only the number of processors
 * matters.
 */
unsigned bth_workers_choose_count(const struct berth_config *config, bth_workers_kind kind,
                                  uint64_t n_tasks, uint64_t worker_nbytes);

/* io.chunk_nbytes for a load: at least 64 KiB, and a multiple of 8, the widest element. */
uint64_t bth_workers_chunk_nbytes(const struct berth_config *config);

/* The processors that this process may run on, at most 8. */
unsigned bth_processors_count_capped(void);

#endif
