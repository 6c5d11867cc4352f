/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/trace.h"

#include "base/clock.h"

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_trace_functions bth_wing_trace;

atomic_bool bth_trace_is_used;

void bth_trace_enter_outermost(bth_trace_scope *scope, int64_t option, const char *name,
                               const char *path)
{
    if (option != 0 && !bth_trace_current())
        bth_wing_trace.enter(scope, option, name, path, 0);
}

/* ---- calls of the public interface ---- */

const berth_params *bth_traced_call_begin(bth_traced_call *call, int64_t option, const char *name,
                                          const char *path, double begin_seconds,
                                          const berth_params *params)
{
    call->scope = (bth_trace_scope){0};
    bth_trace_enter(&call->scope, option, name, path, begin_seconds);
    if (!call->scope.thread)
        return params;
    call->begin_seconds = begin_seconds;
    call->params = params ? *params : (berth_params){0};
    call->stats = (berth_stats){0};
    if (!call->params.stats)
        call->params.stats = &call->stats;
    return &call->params;
}

void bth_traced_call_end(bth_traced_call *call, double end_seconds, const berth_error *error)
{
    if (!call->scope.thread)
        return;
    double seconds = call->params.stats->total_seconds;
    if (end_seconds == 0)
        end_seconds = seconds > 0 ? call->begin_seconds + seconds : bth_seconds();
    bth_trace_leave(&call->scope, end_seconds, call->params.stats, error);
}
