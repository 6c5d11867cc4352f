/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file_limit.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

static sigset_t signal_set(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

static bool is_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

bth_file_limit bth_file_limit_hold(void)
{
    sigset_t set = signal_set();
    bth_file_limit held = {.was_pending = false};

    (void)pthread_sigmask(SIG_BLOCK, &set, &held.before);
    held.was_pending = is_pending();
    return held;
}

void bth_file_limit_restore(const bth_file_limit *held)
{
    static const struct timespec at_once = {0};
    sigset_t set = signal_set();
    int failure = errno;

    if (!held->was_pending && is_pending())
        while (sigtimedwait(&set, NULL, &at_once) < 0 && errno == EINTR)
            ;
    (void)pthread_sigmask(SIG_SETMASK, &held->before, NULL);
    errno = failure;
}
