/* SPDX-License-Identifier: BSD-3-Clause */
/* The progress bar, and the signals that cancel. */
#ifndef BERTH_TOOLS_PROGRESS_H
#define BERTH_TOOLS_PROGRESS_H

#include <berth/more.h>

#include "tools/common/options.h"

/* A bar on stderr, when that is a terminal and the work takes longer than a moment. */
typedef struct progress {
    const char *what;
    bool visible;
    bool drawn;
    double begin; /* seconds, monotonic */
    double last;
} progress;

/*
 * Sets the params: progress bar, cancelling on SIGHUP, SIGINT and SIGTERM, statistics. `p` and
 * `stats` must outlive the call. progress_finish clears the bar.
 */
void progress_begin(progress *p, const char *what, const common *options, berth_params *params,
                    berth_stats *stats);
void progress_finish(progress *p);
/* Like progress_begin, for work that writes no file: signals end the process as usual. */
void progress_begin_without_signals(progress *p, const char *what, const common *options,
                                    berth_params *params, berth_stats *stats);
/* Reports progress of the command's own work. Not 0: cancelled. */
int progress_report(void *p, uint64_t done_nbytes, uint64_t total_nbytes);
/* The exit code after a signal: 129, 130 or 143; `otherwise` if none came. */
int caught_signal_code_or(int otherwise);
/* Not 0: one came. `cancelled` of what waits for a server; context: NULL. */
int signal_came(void *context);
/* Prints that the command's own work was cancelled. Returns that exit code. */
int print_cancelled(const char *path);
/* Seconds since a fixed moment, monotonic. */
double seconds_now(void);
/* Seconds since progress_begin. */
double progress_elapsed_seconds(const progress *p);

#endif
