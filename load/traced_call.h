/* SPDX-License-Identifier: BSD-3-Clause */
/* A call of the public interface as an operation of a trace, with the call's statistics. */
#ifndef BTH_LOAD_TRACED_CALL_H
#define BTH_LOAD_TRACED_CALL_H

#include "io/trace/trace.h"

typedef struct bth_traced_call {
    bth_trace_scope scope;
    double begin_seconds;
    berth_params params;
    berth_stats stats; /* used if the caller wants none */
} bth_traced_call;

/*
 * Begins it at the time from which its total_seconds count. Returns the parameters that it goes on
 * with: the caller's, or if it is traced others, which always have statistics.
 */
const berth_params *bth_traced_call_begin(bth_traced_call *call, int64_t option, const char *name,
                                          const char *path, double begin_seconds,
                                          const berth_params *params);
/* Ends it when its total_seconds end, or at a time. */
void bth_traced_call_end(bth_traced_call *call, const berth_error *error);
void bth_traced_call_end_at(bth_traced_call *call, double end_seconds, const berth_error *error);

#endif
