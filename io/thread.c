/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/thread.h"

#include <signal.h>

#include "io/syscalls.h"

int bth_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    static const int raised_by_the_thread[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;

    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof raised_by_the_thread / sizeof *raised_by_the_thread; i++)
        sigdelset(&blocked, raised_by_the_thread[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int failure = bth_system.pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}
