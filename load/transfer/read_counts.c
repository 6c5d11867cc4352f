/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads of a transfer, counted and timed: for its statistics, and for the trace. */
#include "base/clock.h"
#include "io/trace/trace.h"
#include "load/transfer/transfer.h"

void bth_transfer_add_time(atomic_uint_fast64_t *nanoseconds, double seconds)
{
    atomic_fetch_add_explicit(nanoseconds, (uint64_t)(seconds * 1e9), memory_order_relaxed);
}

double bth_transfer_begin_read(void)
{
    double begin_seconds = bth_seconds();

    bth_trace_begin_request();
    return begin_seconds;
}

void bth_transfer_trace_read_end(const char *name, double begin_seconds, double end_seconds,
                                 uint64_t offset, uint64_t nbytes)
{
    bth_trace_end_request(&(bth_trace_span){.category = "request,read,disk",
                                            .name = name,
                                            .begin_seconds = begin_seconds,
                                            .end_seconds = end_seconds,
                                            .offset = offset,
                                            .nbytes = nbytes},
                          false);
}

void bth_transfer_end_read(bth_transfer *transfer, double begin_seconds, uint64_t offset,
                           uint64_t nbytes)
{
    double end_seconds = bth_seconds();

    bth_transfer_add_time(&transfer->disk_nanoseconds, end_seconds - begin_seconds);
    atomic_fetch_add_explicit(&transfer->moved_nbytes, nbytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&transfer->n_reads, nbytes > 0, memory_order_relaxed);
    bth_transfer_trace_read_end("read", begin_seconds, end_seconds, offset, nbytes);
}

int bth_transfer_fail_read(double begin_seconds, const berth_error *error)
{
    bth_transfer_trace_read_end("read", begin_seconds, bth_trace_seconds(), 0, 0);
    return error->code;
}
