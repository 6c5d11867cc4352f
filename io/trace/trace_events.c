/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "io/trace/trace_file.h"

/* The largest event is below 4 KiB: texts are cut to MAX_TEXT_NBYTES. */
#define BUFFER_NBYTES ((size_t)16 << 10)
#define MAX_EVENT_NBYTES ((size_t)4 << 10)
#define MAX_TEXT_NBYTES 1024
/* Tracks of workers; the numbers of threads end at 4194304 (PID_MAX_LIMIT). */
#define FIRST_LANE_TID 10000000

struct bth_trace_thread {
    bth_trace_file *file;
    bth_trace_thread *outer; /* of the same thread; its operation is around this one */
    uint64_t operation;
    unsigned long long began; /* when its operation began, in nanoseconds */
    unsigned long tid;
    size_t lane; /* of a worker; else BTH_TRACE_MAX_LANES */
    size_t n;
    char bytes[BUFFER_NBYTES];
};

static _Thread_local bth_trace_thread *current;
static _Thread_local const bth_trace_file *named; /* where the thread's track has a name */

static bth_trace_thread *thread_current(void)
{
    return current;
}

/* ---- events as text ---- */

static void thread_append(bth_trace_thread *thread, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void thread_append(bth_trace_thread *thread, const char *format, ...)
{
    size_t room = sizeof thread->bytes - thread->n;
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(thread->bytes + thread->n, room, format, arguments);
    va_end(arguments);
    if (n > 0)
        thread->n += bth_min((size_t)n, room - 1);
}

static unsigned long long seconds_to_nanoseconds(double seconds)
{
    return seconds > 0 ? (unsigned long long)(seconds * 1e9 + 0.5) : 0;
}

/* A name and microseconds; not by %f, which follows the locale. */
static void thread_append_time(bth_trace_thread *thread, const char *name,
                               unsigned long long nanoseconds)
{
    thread_append(thread, ",\"%s\":%llu.%03llu", name, nanoseconds / 1000, nanoseconds % 1000);
}

static void thread_append_text(bth_trace_thread *thread, const char *name, const char *text)
{
    char escaped[MAX_TEXT_NBYTES];

    thread_append(thread, ",\"%s\":\"%s\"", name, bth_trace_escape(text, escaped, sizeof escaped));
}

static void thread_append_number(bth_trace_thread *thread, const char *name, uint64_t count)
{
    thread_append(thread, ",\"%s\":%llu", name, (unsigned long long)count);
}

/* Begins an event that says `{... "args":{"operation":n`; what follows ends with "}}". */
static void thread_begin_event(bth_trace_thread *thread, char phase, const char *category,
                               const char *name, unsigned long long nanoseconds)
{
    if (sizeof thread->bytes - thread->n < MAX_EVENT_NBYTES) {
        bth_trace_file_append(thread->file, thread->bytes, thread->n, false);
        thread->n = 0;
    }
    thread_append(thread,
                  ",\n{\"ph\":\"%c\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%lu", phase,
                  category, name, (long)getpid(), thread->tid);
    thread_append_time(thread, "ts", nanoseconds);
}

static void thread_begin_arguments(bth_trace_thread *thread)
{
    thread_append(thread, ",\"args\":{\"operation\":%llu", (unsigned long long)thread->operation);
}

/* Perfetto takes the time of any event for a part of the trace. */
static void thread_name_track(bth_trace_thread *thread, double seconds)
{
    char name[48] = "", escaped[sizeof name * 6];

    if (thread->lane < BTH_TRACE_MAX_LANES)
        (void)snprintf(name, sizeof name, "berth worker %zu", thread->lane);
    else
        (void)prctl(PR_GET_NAME, name); /* 16 bytes */
    thread_begin_event(thread, 'M', "", "thread_name", seconds_to_nanoseconds(seconds));
    thread_append(thread, ",\"args\":{\"name\":\"%s\"}}",
                  bth_trace_escape(name, escaped, sizeof escaped));
}

/* ---- operations ---- */

/* NULL: no memory; then these events are missing. */
static bth_trace_thread *thread_push(bth_trace_file *file, uint64_t operation, size_t lane)
{
    bth_trace_thread *thread = bth_allocate(sizeof *thread);

    if (!thread)
        return NULL;
    thread->file = file;
    thread->outer = current;
    thread->operation = operation;
    thread->lane = lane;
    thread->began = 0;
    thread->n = 0;
    thread->tid =
        lane < BTH_TRACE_MAX_LANES ? FIRST_LANE_TID + lane : (unsigned long)syscall(SYS_gettid);
    current = thread;
    return thread;
}

static void trace_enter(bth_trace_scope *scope, int64_t option, const char *name, const char *path,
                        double begin_seconds)
{
    BTH_HOLD_CANCEL(true);
    bth_trace_file *file = bth_trace_file_find(option, true);
    if (!file)
        return;
    if (begin_seconds <= 0)
        begin_seconds = bth_seconds();
    atomic_store(&bth_trace_is_used, true);
    if (current && current->file == file)
        scope->number = current->operation;
    else if (scope->number == 0)
        scope->number = atomic_fetch_add(&file->n_operations, 1) + 1;
    scope->name = name;
    bth_trace_thread *outer = current;
    scope->thread = thread_push(file, scope->number, BTH_TRACE_MAX_LANES);
    if (!scope->thread)
        return;
    if (outer && outer->file == file) { /* its events come first, and its track has a name */
        scope->thread->tid = outer->tid;
        bth_trace_file_append(file, outer->bytes, outer->n, false);
        outer->n = 0;
    } else if (named != file) {
        thread_name_track(scope->thread, begin_seconds);
        named = file;
    }
    scope->thread->began = seconds_to_nanoseconds(begin_seconds);
    thread_begin_event(scope->thread, 'B', "operation", name, scope->thread->began);
    thread_begin_arguments(scope->thread);
    if (path)
        thread_append_text(scope->thread, "path", path);
    thread_append(scope->thread, "}}");
}

static void trace_leave(bth_trace_scope *scope, double end_seconds, const berth_stats *stats,
                        const berth_error *error, bool at_once)
{
    static const struct {
        const char *name;
        size_t at;
    } times[] = {
#define TIME(stage) {#stage "_us", offsetof(berth_stats, stage##_seconds)}
        TIME(total),  TIME(plan),   TIME(copy), TIME(transfer), TIME(sync),
        TIME(device), TIME(render), TIME(disk), TIME(crc32),
#undef TIME
    };
    bth_trace_thread *thread = scope->thread;

    BTH_HOLD_CANCEL(true);
    if (scope->name) {
        end_seconds = end_seconds > 0 ? end_seconds : bth_seconds();
        thread_begin_event(thread, 'E', "operation", scope->name,
                           seconds_to_nanoseconds(end_seconds));
        thread_begin_arguments(thread);
        for (size_t i = 0; stats && i < sizeof times / sizeof *times; i++) {
            const void *seconds = (const char *)stats + times[i].at;
            thread_append_time(thread, times[i].name,
                               seconds_to_nanoseconds(*(const double *)seconds));
        }
        if (stats) {
            thread_append_number(thread, "requested_nbytes", stats->requested_nbytes);
            thread_append_number(thread, "moved_nbytes", stats->moved_nbytes);
            thread_append_number(thread, "n_requests", stats->n_requests);
            thread_append_number(thread, "n_records", stats->n_records);
        }
        if (stats && stats->method)
            thread_append_text(thread, "method", stats->method);
        if (stats && stats->reason)
            thread_append_text(thread, "reason", stats->reason);
        if (stats && stats->limited_by)
            thread_append_text(thread, "limited_by", stats->limited_by);
        if (error)
            thread_append_text(thread, "result", berth_status_name(error->code));
        if (error && error->code != BERTH_OK)
            thread_append_text(thread, "error", error->message);
        thread_append(thread, "}}");
    }
    bth_trace_file_append(thread->file, thread->bytes, thread->n, at_once);
    if (!scope->name)
        bth_trace_file_release_lane(thread->file, thread->lane);
    current = thread->outer;
    scope->thread = NULL;
    bth_release(thread);
}

static void trace_flush(int64_t option)
{
    BTH_HOLD_CANCEL(true);
    bth_trace_file *file = bth_trace_file_find(option, false);
    if (file)
        bth_trace_file_append(file, "", 0, true);
}

/* ---- workers ---- */

static void trace_enter_worker(bth_trace_scope *scope, const bth_trace_thread *parent)
{
    size_t lane = bth_trace_file_claim_lane(parent->file);
    scope->thread = thread_push(parent->file, parent->operation, lane);
    if (scope->thread)
        thread_name_track(scope->thread, bth_seconds());
    else
        bth_trace_file_release_lane(parent->file, lane);
}

/* ---- spans ---- */

static void trace_add_span(const bth_trace_span *span)
{
    unsigned long long begin = seconds_to_nanoseconds(span->begin_seconds);
    unsigned long long end = seconds_to_nanoseconds(span->end_seconds);

    /* Of slices that begin at once, Perfetto takes one with a duration for the outer one. */
    if (begin == current->began && end > begin)
        begin++;
    thread_begin_event(current, 'X', span->category, span->name, begin);
    thread_append_time(current, "dur", end > begin ? end - begin : 0);
    thread_begin_arguments(current);
    if (span->record)
        thread_append_text(current, "record", span->record);
    if (span->nbytes > 0) {
        thread_append_number(current, "offset", span->offset);
        thread_append_number(current, "nbytes", span->nbytes);
    }
    if (span->n_requests > 0)
        thread_append_number(current, "n_requests", span->n_requests);
    if (span->crc32_seconds > 0)
        thread_append_time(current, "crc32_us", seconds_to_nanoseconds(span->crc32_seconds));
    thread_append(current, "}}");
}

/* A later time never has an earlier count. */
static void thread_add_to_counter(bth_trace_thread *thread, const char *counter, const char *unit,
                                  int64_t *count, int64_t more)
{
    (void)bth_lock_acquire(&thread->file->counters_lock);
    int64_t sum = *count += more;
    double seconds = bth_seconds();
    bth_lock_release(&thread->file->counters_lock);
    thread_begin_event(thread, 'C', "request", counter, seconds_to_nanoseconds(seconds));
    thread_append(thread, ",\"args\":{\"%s\":%lld}}", unit, (long long)sum);
}

static void trace_begin_request(void)
{
    thread_add_to_counter(current, "requests in flight", "requests", &current->file->n_in_flight,
                          1);
}

static void trace_end_request(const bth_trace_span *request, bool is_write)
{
    bth_trace_file *file = current->file;

    if (request->nbytes > 0) {
        trace_add_span(request);
        thread_add_to_counter(current, is_write ? "bytes written" : "bytes read", "bytes",
                              is_write ? &file->written_nbytes : &file->read_nbytes,
                              (int64_t)request->nbytes);
    }
    thread_add_to_counter(current, "requests in flight", "requests", &file->n_in_flight, -1);
}

/* ---- for the core ---- */

const bth_trace_functions bth_wing_trace = {
    .current = thread_current,
    .enter = trace_enter,
    .enter_worker = trace_enter_worker,
    .leave = trace_leave,
    .flush = trace_flush,
    .add_span = trace_add_span,
    .begin_request = trace_begin_request,
    .end_request = trace_end_request,
};
