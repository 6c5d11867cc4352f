/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads of the library's own. */
#ifndef BTH_IO_THREAD_H
#define BTH_IO_THREAD_H

#include <pthread.h>

/*
 * Starts one. Signals meant for the process are the program's own business, on its own threads: all
 * are blocked in the new one, but those that a thread raises by what it does. 0 or an errno value
 * (W6).
 */
int bth_thread_start(pthread_t *thread, void *(*function)(void *), void *argument);

/* First of all in the new one (X13): nobody cancels it, by what it calls of the caller's. */
static inline void bth_thread_begin(void)
{
    int unasked;

    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unasked);
}

#endif
