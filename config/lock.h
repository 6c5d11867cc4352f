/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Locks that a forked child can take, whoever held them in its parent (X11). The child makes them
 * anew when it first takes them. Nothing is done at the moment of the fork: a handler that waits
 * for a lock there waits for ever where the holder waits for Python's.
 */
#ifndef BTH_CONFIG_LOCK_H
#define BTH_CONFIG_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "berth.h"

/* Has the number of this process, 0 before it has one; NULL: nobody has. */
extern _Atomic uint64_t *bth_process_page;
uint64_t bth_process_number(void);

/* A number of this process, never 0: each child that is forked gets another one. Costs a load. */
static inline uint64_t bth_process(void)
{
    uint64_t number = 0;

    if (bth_process_page)
        number = atomic_load_explicit(bth_process_page, memory_order_relaxed);
    return number ? number : bth_process_number();
}

/*
 * How many forks have begun, here and in the parents: of what a child finds, it came to be during
 * the fork if it was noted with this number. Then it may be older than what says that it is there,
 * if a device wrote it: the kernel copies pages that are written past the processor at once, and
 * the others some time later, when they are changed next.
 */
uint64_t bth_forks(void);

/* What is known of the state that a lock protects. */
typedef enum bth_lock_state {
    BTH_LOCK_OURS,      /* this process has had it before */
    BTH_LOCK_INHERITED, /* this process has it for the first time; nobody held it when it forked
                         */
    BTH_LOCK_TORN       /* likewise, but a thread of the parent held it: it may be half changed */
} bth_lock_state;

/* All zeros with a mutex of zeros, as static ones are, will do, too. */
typedef struct bth_lock {
    pthread_mutex_t mutex;
    _Atomic uint64_t process; /* that the mutex was made in; with a bit: it is being made */
    bth_lock_state state;     /* what the next one to take it is told */
} bth_lock;

void bth_lock_begin(bth_lock *lock);
/* Takes it. Who is not told OURS makes good what it protects, before anything else. */
bth_lock_state bth_lock_take(bth_lock *lock);
void bth_lock_give(bth_lock *lock);
/* For what does not survive a fork: whether this process made the lock, or made it anew. */
bool bth_lock_is_ours(const bth_lock *lock);
/* Of one that is not ours and that this process has not taken: whether nobody held it. */
bool bth_lock_was_free(bth_lock *lock);
/* Of one that is not ours: nothing. */
void bth_lock_end(bth_lock *lock);

/* BERTH_E_ARGUMENT: a `what` of the parent's, whose threads did not come along. */
int bth_fail_forked(berth_error *error, const char *what);

/* Of tests: processes are told apart by their ids, as where the kernel is older than Linux 4.14. */
void bth_process_by_id(void);

#endif
