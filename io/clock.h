/* SPDX-License-Identifier: BSD-3-Clause */
/* Clocks that never go back, for statistics and for the age of what is known. */
#ifndef BTH_IO_CLOCK_H
#define BTH_IO_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline double bth_seconds(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Changes every 1 to 10 ms (CONFIG_HZ); never 0. Ten times as fast as a system call. */
static inline uint64_t bth_tick(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec + 1;
}

#endif
