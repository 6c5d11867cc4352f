/* SPDX-License-Identifier: BSD-3-Clause */
/* Time since some moment, never set back: of statistics, and how old what is known is. */
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

/*
 * The system clock's own tick, never 0: 1 to 10 ms long (CONFIG_HZ), and asked for in a tenth of
 * the time that any system call takes.
 */
static inline uint64_t bth_tick(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec + 1;
}

#endif
