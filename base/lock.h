/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Locks that a forked child can acquire, even if a thread of its parent held them at the fork
 * (X11): the child then initializes the lock again. A fork handler that acquires locks would
 * deadlock with a holder that waits for Python's global lock.
 */
#ifndef BTH_BASE_LOCK_H
#define BTH_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "berth.h"

/* Holds the number of this process, or 0 before it has one. NULL: there are no numbers. */
extern _Atomic uint64_t *bth_process_page;
uint64_t bth_process_assign_number(void);

/* A number of this process, never 0. Each forked child has another one. It costs a load. */
static inline uint64_t bth_process_unique_number(void)
{
    uint64_t number = 0;

    if (bth_process_page)
        number = atomic_load_explicit(bth_process_page, memory_order_relaxed);
    return number ? number : bth_process_assign_number();
}

/*
 * How many forks have begun, here and in the parents. A note with the number of the process's own
 * fork was written during that fork. If it is about data that a device wrote, the child may have
 * older data: the kernel copies pinned pages at once, and other pages when they change.
 */
uint64_t bth_fork_count(void);

/*
 * Forks of this process wait from hold to release: for calls of the C library that a fork would
 * tear. Nothing in between may wait for another thread, or for Python's global lock. Signals wait
 * too, in this thread and in those that it starts in between; but not those that a fault raises.
 */
void bth_fork_hold(void);
void bth_fork_release(void);

/* What is known about the data that a lock protects. */
typedef enum bth_lock_state {
    BTH_LOCK_OURS,      /* this process has had the lock before */
    BTH_LOCK_INHERITED, /* its first time in this process; nobody held it at the fork */
    BTH_LOCK_TORN       /* the same, but a thread of the parent held it: during a change */
} bth_lock_state;

/* A lock of zeros, as static ones are, is ready for use. */
typedef struct bth_lock {
    pthread_mutex_t mutex;
    _Atomic uint64_t process; /* where the mutex was initialized; one bit: it is being done */
    bth_lock_state state;     /* of the next bth_lock_acquire */
} bth_lock;

void bth_lock_initialize(bth_lock *lock);
/* If the result is not OURS, the caller first repairs the data that the lock protects. */
bth_lock_state bth_lock_acquire(bth_lock *lock);
void bth_lock_release(bth_lock *lock);
/* Whether this process initialized the lock. False: the object is the parent's. */
bool bth_lock_is_of_this_process(const bth_lock *lock);
/* Whether a parent's lock, which this process has not acquired, was free at the fork. */
bool bth_lock_was_free_at_fork(bth_lock *lock);
/* Does nothing to a lock of the parent's. */
void bth_lock_destroy(bth_lock *lock);

/* BERTH_E_ARGUMENT: a `what` belongs to the parent, whose threads do not exist in this process. */
int bth_fail_forked(berth_error *error, const char *what);

/* For tests: use process ids as numbers, as on kernels before Linux 4.14. */
void bth_process_use_pids_as_numbers(void);

#endif
