/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X13: a thread that is cancelled inside a call of the library goes on to the call's end, whatever
 * it waits for there; so does what the caller gave us to call.
 */
#ifndef BERTH_CONFIG_CANCEL_H
#define BERTH_CONFIG_CANCEL_H

#include <pthread.h>
#include <stdbool.h>

/* What berth_cancel_restore puts back; -1: nothing. */
static inline int berth_cancel_hold(bool is_meant)
{
    int before = -1;

    if (is_meant)
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void berth_cancel_restore(const int *before)
{
    int unasked;

    if (*before >= 0)
        (void)pthread_setcancelstate(*before, &unasked);
}

/* Until the end of the block, if the condition holds. */
#define BERTH_HOLD_CANCEL(condition)                                                               \
    __attribute__((cleanup(berth_cancel_restore), unused)) const int berth_cancel_before =         \
        berth_cancel_hold(condition)

#endif
