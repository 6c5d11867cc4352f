/* SPDX-License-Identifier: BSD-3-Clause */
/* The clock of statistics: seconds since some moment, never set back. */
#ifndef BERTH_IO_CLOCK_H
#define BERTH_IO_CLOCK_H

#include <time.h>

static inline double berth_seconds(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#endif
