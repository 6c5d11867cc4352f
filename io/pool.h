/* SPDX-License-Identifier: BSD-3-Clause */
/* Workers for independent tasks. One worker, or one task: the caller's own thread. */
#ifndef BTH_IO_POOL_H
#define BTH_IO_POOL_H

#include "berth.h"

/* Does task `task` as worker `worker` (0 <= worker < max(n_workers, 1)): 0 or a status. */
typedef int (*bth_pool_function)(void *context, uint64_t task, unsigned worker, berth_error *error);

/* Called on the caller's thread about ten times a second while tasks run; not 0 cancels. */
typedef int (*bth_pool_watch)(void *context);

/*
 * Runs tasks 0 … n_tasks - 1, claimed in order. The first error (or a cancel) stops the others
 * after their current task and is the one told (W8). Returns when all have stopped. If threads
 * cannot be started, those that were are stopped and it fails.
 */
int bth_pool_run(unsigned n_workers, uint64_t n_tasks, bth_pool_function function,
                 bth_pool_watch watch, void *context, berth_error *error);

#endif
