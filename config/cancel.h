/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X13: a call of the library that is cancelled (pthread_cancel) goes on to its end, wherever it
 * waits; so do the caller's own functions that it calls.
 */
#ifndef BTH_CONFIG_CANCEL_H
#define BTH_CONFIG_CANCEL_H

#include <pthread.h>
#include <stdbool.h>

/* Returns the state for bth_cancel_restore; -1: nothing was changed. */
static inline int bth_cancel_hold(bool condition)
{
    int before = -1;

    if (condition)
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void bth_cancel_restore(const int *before)
{
    int unused;

    if (*before >= 0)
        (void)pthread_setcancelstate(*before, &unused);
}

/* Holds off cancellation until the end of the block, if the condition is true. */
#define BTH_HOLD_CANCEL(condition)                                                                 \
    __attribute__((cleanup(bth_cancel_restore), unused)) const int bth_cancel_before =             \
        bth_cancel_hold(condition)

#endif
