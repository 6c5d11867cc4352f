/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For tests only: what the simulated machine is like, and what goes wrong on it. Its devices are
 * used through io/device/device.h, as "simulated:0" and so on.
 *
 * Device memory lies at addresses that the host cannot touch. Streams are threads: each does its
 * work in order, when it gets to it, so that those of several streams come in any order; work of
 * one can be held back, or all begins late. What code above does too early, or after it freed what
 * is still copied, shows.
 */
#ifndef BTH_IO_SIMULATED_H
#define BTH_IO_SIMULATED_H

#include "io/device/device.h"

typedef struct bth_simulated_machine {
    unsigned n_devices;
    uint64_t memory_nbytes;      /* of each device */
    uint64_t pinned_nbytes;      /* how much of the host's memory can be pinned */
    uint64_t latest_nanoseconds; /* each work begins up to so much later than it could */
    uint64_t seed;               /* how much each time */
    bool cannot_register;        /* pinned memory comes from the driver only */
} bth_simulated_machine;

/*
 * Sets up the machine anew: devices that were lost are there again, no fault is due, counts are 0.
 * NULL: as it is unasked, two devices without bounds that are never late. Not while copies
 * are under way.
 */
void bth_simulated_set(const bth_simulated_machine *machine);

/*
 * As another library's cuDevicePrimaryCtxReset does: what the device has, and was pinned by it, is
 * gone; all calls fail until somebody opens it anew. While streams or events exist, it must not be
 * called.
 */
void bth_simulated_reset(unsigned ordinal);

/* Calls into the driver that can be made to fail. */
typedef enum bth_simulated_call {
    BTH_SIMULATED_OPEN,
    BTH_SIMULATED_ALLOCATE,
    BTH_SIMULATED_FIND,
    BTH_SIMULATED_PIN, /* and registering */
    BTH_SIMULATED_OPEN_STREAM,
    BTH_SIMULATED_OPEN_EVENT,
    BTH_SIMULATED_COPY,   /* asking for one */
    BTH_SIMULATED_RECORD, /* and waiting for an event in a stream */
    BTH_SIMULATED_WAIT,   /* of the host, for streams and events */
    BTH_SIMULATED_WORK,   /* no call: a copy, when its stream gets to it. Loses the device */
    BTH_SIMULATED_N_CALLS
} bth_simulated_call;

typedef enum bth_simulated_fault {
    BTH_SIMULATED_ONCE,
    BTH_SIMULATED_FOR_EVER,
    BTH_SIMULATED_LOST /* from then on all calls of that device fail, as after a bad kernel */
} bth_simulated_fault;

/* The nth call from now on fails (1: the next). 0: none does. */
void bth_simulated_fail(bth_simulated_call call, uint64_t nth, bth_simulated_fault fault);
/* How many there were since bth_simulated_set. */
uint64_t bth_simulated_n_calls(bth_simulated_call call);

/* A stream that is held begins no work. Closing one lets it go on. */
void bth_simulated_hold(bth_device_stream *stream, bool is_held);

/* Whether all that was recorded for an event is done. */
bool bth_simulated_has_come(const bth_device_event *event);

/* What exists now: zeros when nothing leaks. */
typedef struct bth_simulated_live {
    uint64_t memory_nbytes, pinned_nbytes;
    unsigned n_streams, n_events;
} bth_simulated_live;
bth_simulated_live bth_simulated_seen(void);

#endif
