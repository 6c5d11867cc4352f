/* SPDX-License-Identifier: BSD-3-Clause */
/* The library's own threads, and workers for independent tasks. */
#ifndef BTH_IO_THREAD_POOL_H
#define BTH_IO_THREAD_POOL_H

#include <pthread.h>

#include "berth.h"

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

#endif
