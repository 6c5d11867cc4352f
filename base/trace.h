/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Traces of operations, in the Trace Event Format that Perfetto opens; docs/trace.md says what is
 * in one. Tracing never fails an operation: a trace that cannot be written is logged once, and
 * ends. Where nothing is traced, an event costs one load.
 *
 * A thread records events between bth_trace_enter and bth_trace_leave, in a buffer of its own.
 * Times are those that the statistics are made of, so that the sums agree.
 */
#ifndef BTH_BASE_TRACE_H
#define BTH_BASE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "berth.h"
#include "berth/more.h"

/* The events of one thread for one operation that are not in the file yet. */
typedef struct bth_trace_thread bth_trace_thread;

/* One operation on one thread. Of zeros: nothing is traced. */
typedef struct bth_trace_scope {
    bth_trace_thread *thread;
    uint64_t number;  /* of the operation; kept for another thread that goes on with it */
    const char *name; /* static; NULL: of a worker */
} bth_trace_scope;

/* Something that took time. */
typedef struct bth_trace_span {
    const char *category; /* these two are static */
    const char *name;
    double begin_seconds, end_seconds;
    const char *record;      /* NULL: none */
    uint64_t offset, nbytes; /* nbytes 0: neither is shown */
    uint64_t n_requests;     /* 0: not shown */
    double crc32_seconds;    /* part of it; 0: not shown */
} bth_trace_span;

/*
 * The functions below, of the wing io/trace/; seconds 0: now. Without it they are NULL, and an
 * operation with the option fails (bth_config_copy_for_operation).
 */
typedef struct bth_trace_functions {
    bth_trace_thread *(*current)(void);
    void (*enter)(bth_trace_scope *scope, int64_t option, const char *name, const char *path,
                  double begin_seconds);
    void (*enter_worker)(bth_trace_scope *scope, const bth_trace_thread *parent);
    void (*leave)(bth_trace_scope *scope, double end_seconds, const berth_stats *stats,
                  const berth_error *error, bool at_once);
    void (*flush)(int64_t option);
    void (*add_span)(const bth_trace_span *span);
    void (*begin_request)(void);
    void (*end_request)(const bth_trace_span *request, bool is_write);
} bth_trace_functions;

extern const bth_trace_functions bth_wing_trace;
extern atomic_bool bth_trace_is_used; /* some operation of this process was traced */

/* NULL: this thread traces nothing now. */
static inline bth_trace_thread *bth_trace_current(void)
{
    return atomic_load_explicit(&bth_trace_is_used, memory_order_relaxed) ? bth_wing_trace.current()
                                                                          : NULL;
}

/* ---- operations ---- */

/*
 * Begins an operation, as the value of the option says. Inside another operation of this thread it
 * gets that one's number. `path`: as messages show it, or NULL. Every scope must be left on its own
 * thread, the last one first.
 */
static inline void bth_trace_enter(bth_trace_scope *scope, int64_t option, const char *name,
                                   const char *path, double begin_seconds)
{
    if (option != 0)
        bth_wing_trace.enter(scope, option, name, path, begin_seconds);
}
/* The same from now on, unless this thread is in an operation already. */
void bth_trace_enter_outermost(bth_trace_scope *scope, int64_t option, const char *name,
                               const char *path);
/*
 * Ends it, and writes the file. stats, error: as the caller gets them, or NULL. Of zeros, or left
 * already: does nothing.
 */
static inline void bth_trace_leave(bth_trace_scope *scope, double end_seconds,
                                   const berth_stats *stats, const berth_error *error)
{
    if (scope->thread)
        bth_wing_trace.leave(scope, end_seconds, stats, error, true);
}
/* The same, but events may stay in memory until more come: for what happens for each tensor. */
static inline void bth_trace_leave_lazily(bth_trace_scope *scope)
{
    if (scope->thread)
        bth_wing_trace.leave(scope, 0, NULL, NULL, false);
}
/* Writes such events. */
static inline void bth_trace_flush(int64_t option)
{
    if (option != 0 && atomic_load_explicit(&bth_trace_is_used, memory_order_relaxed))
        bth_wing_trace.flush(option);
}

/* A call of the public interface as an operation, with the call's statistics. */
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
/* Ends it at a time; 0: when its total_seconds end. */
void bth_traced_call_end(bth_traced_call *call, double end_seconds, const berth_error *error);

/* ---- workers ---- */

/*
 * Events of a new thread, for the operation of `parent`, whose thread waits. NULL: nothing. It is
 * left lazily.
 */
static inline void bth_trace_enter_worker(bth_trace_scope *scope, const bth_trace_thread *parent)
{
    if (parent)
        bth_wing_trace.enter_worker(scope, parent);
}

/* ---- events ---- */

/* Records a span: BTH_TRACE(.category = "work", .name = "copy", ...). */
#define BTH_TRACE(...)                                                                             \
    do                                                                                             \
        if (bth_trace_current())                                                                   \
            bth_wing_trace.add_span(&(bth_trace_span){__VA_ARGS__});                               \
    while (0)

/* The clock, if this thread is traced, for the beginning of a span that no statistics have. */
static inline double bth_trace_seconds(void)
{
    return bth_trace_current() ? bth_seconds() : 0;
}

/*
 * Requests are counted: how many are in flight, how many bytes are done. The sums of all requests
 * are n_requests and moved_nbytes of the statistics. One that has begun is also ended; nbytes 0:
 * it failed, or did nothing.
 */
static inline void bth_trace_begin_request(void)
{
    if (bth_trace_current())
        bth_wing_trace.begin_request();
}
static inline void bth_trace_end_request(const bth_trace_span *request, bool is_write)
{
    if (bth_trace_current())
        bth_wing_trace.end_request(request, is_write);
}

#endif
