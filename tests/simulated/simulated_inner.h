/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the parts of the simulated device only. */
#ifndef BTH_IO_SIMULATED_INNER_H
#define BTH_IO_SIMULATED_INNER_H

#include <pthread.h>

#include "base/lock.h"
#include "io/device/device_driver.h"
#include "tests/simulated/simulated.h"

#define SIMULATED_MAX_DEVICES 8

enum { /* what calls come back with; texts in tests/simulated/simulated.c */
       SIMULATED_OK,
       SIMULATED_OUT_OF_MEMORY,
       SIMULATED_INVALID_VALUE,
       SIMULATED_NOT_SUPPORTED,
       SIMULATED_NO_THREAD,
       SIMULATED_FAILED,
       SIMULATED_ILLEGAL_ADDRESS, /* the device is lost */
       SIMULATED_CONTEXT_IS_DESTROYED,
       SIMULATED_N_RESULTS
};

/* Memory that the driver knows: a device's, or pinned. */
struct simulated_range {
    uintptr_t address;
    size_t nbytes;
    uint8_t *bytes;     /* where the host can touch them */
    unsigned ordinal;   /* of the device, or of the one by which it was pinned */
    bool is_pinned;     /* else a device's */
    bool is_registered; /* pinned, and not ours */
    unsigned n_copies;  /* that move bytes in it right now */
};

extern struct simulated_state {
    bth_lock lock;          /* of all below */
    pthread_cond_t changed; /* anything below did */
    bth_simulated_machine machine;
    bth_simulated_fault fault;
    bth_simulated_call failing;
    uint64_t fail_at; /* of n_calls; 0: never */
    uint64_t n_calls[BTH_SIMULATED_N_CALLS];
    uint64_t n_random;
    uint64_t used_nbytes[SIMULATED_MAX_DEVICES];
    bool is_lost[SIMULATED_MAX_DEVICES];
    bool is_destroyed[SIMULATED_MAX_DEVICES]; /* until it is opened */
    bth_simulated_live live;
    struct simulated_range *ranges; /* by address, apart; they move in the table */
    size_t n_ranges;
} bth_simulated;

/* With the lock held: counts a call, and what it comes back with: 0, or the failure that is due. */
int bth_simulated_begin(bth_simulated_call call, unsigned ordinal);
/* With the lock held: what calls of the device come back with now. */
int bth_simulated_state_of(unsigned ordinal);
/* With the lock held: how late the next work is, in nanoseconds. */
uint64_t bth_simulated_lateness(void);

/* ---- tests/simulated/simulated_memory.c; all with the lock held ---- */

/* The range that holds all of [address, address + nbytes), or NULL. */
struct simulated_range *bth_simulated_range_at(uintptr_t address, size_t nbytes);
int bth_simulated_allocate(unsigned ordinal, size_t nbytes, uintptr_t *address);
int bth_simulated_pin(unsigned ordinal, size_t nbytes, void **bytes);
int bth_simulated_register(unsigned ordinal, void *bytes, size_t nbytes);
/* The range that begins there; waits for copies that are under way in it. */
int bth_simulated_free(uintptr_t address, bool is_pinned, bool is_registered);
/* All ranges of the device. */
void bth_simulated_forget(unsigned ordinal);

/* ---- tests/simulated/simulated_stream.c; these take the lock ---- */

int bth_simulated_open_stream(bth_device_handle *device, void **stream);
int bth_simulated_close_stream(bth_device_handle *device, void *stream);
int bth_simulated_copy_to_host(bth_device_handle *device, void *stream, void *to, uintptr_t from,
                               size_t nbytes);
int bth_simulated_copy_to_device(bth_device_handle *device, void *stream, uintptr_t to,
                                 const void *from, size_t nbytes);
int bth_simulated_wait_stream(bth_device_handle *device, void *stream);
int bth_simulated_open_event(bth_device_handle *device, void **event);
int bth_simulated_close_event(bth_device_handle *device, void *event);
int bth_simulated_record(bth_device_handle *device, void *event, void *stream);
int bth_simulated_wait_event(bth_device_handle *device, void *event);
int bth_simulated_wait_for(bth_device_handle *device, void *stream, void *event);

#endif
