/* SPDX-License-Identifier: BSD-3-Clause */
/* Clocks that never go back, for statistics, time limits and the age of cached results. */
#ifndef BTH_BASE_CLOCK_H
#define BTH_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline double bth_seconds(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The time `seconds` from now, which are 0 to 30 years, for a condition of
 * bth_condition_initialize. */
static inline struct timespec bth_time_after(double seconds)
{
    double end = bth_seconds() + (seconds < 0 ? 0 : seconds < 1e9 ? seconds : 1e9);
    time_t whole = (time_t)end;

    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((end - (double)whole) * 1e9)};
}

/* A condition whose time limits are of the monotonic clock. */
static inline void bth_condition_initialize(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Changes every 1 to 10 ms (CONFIG_HZ); never 0. Ten times as fast as a system call. */
static inline uint64_t bth_clock_read_coarse_tick(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec + 1;
}

#endif
