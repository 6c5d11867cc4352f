/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X13: a thread that is cancelled inside a call of the library goes on to the call's end, whatever
 * it waits for there; so does what the caller gave us to call.
 */
#ifndef BTH_CONFIG_CANCEL_H
#define BTH_CONFIG_CANCEL_H

#include <pthread.h>
#include <stdbool.h>

/* What bth_cancel_restore puts back; -1: nothing. */
static inline int bth_cancel_hold(bool is_meant)
{
    int before = -1;

    if (is_meant)
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void bth_cancel_restore(const int *before)
{
    int unasked;

    if (*before >= 0)
        (void)pthread_setcancelstate(*before, &unasked);
}

/* Until the end of the block, if the condition holds. */
#define BTH_HOLD_CANCEL(condition)                                                                 \
    __attribute__((cleanup(bth_cancel_restore), unused)) const int bth_cancel_before =             \
        bth_cancel_hold(condition)

#endif
