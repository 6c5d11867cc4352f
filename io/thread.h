/* SPDX-License-Identifier: BSD-3-Clause */
/* The library's own threads. */
#ifndef BTH_IO_THREAD_H
#define BTH_IO_THREAD_H

#include <pthread.h>

/*
 * Starts a thread that blocks all signals but those that it raises itself (SIGSEGV and the like):
 * the program's signals are handled by the program's threads. 0 or an errno value (W6).
 */
int bth_thread_start(pthread_t *thread, void *(*function)(void *), void *argument);

/* The first call in a new thread (X13): functions of the caller's cannot cancel it. */
static inline void bth_thread_begin(void)
{
    int unused;

    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
}

#endif
