/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices with memory of their own, through CUDA's driver or a registered one (device_driver.h).
 *
 * A process opens a device once and never closes it. All libraries of the process share its
 * context. Any thread may call these functions; a stream or event belongs to one thread at a time.
 * Each call restores the current context of the calling thread. After a fork, a child cannot use
 * the devices of its parent: all calls fail, and functions that free or close do nothing.
 *
 * Messages begin with the device's name, and end with the driver's text. BERTH_E_MEMORY: out of
 * device memory, or of memory that can be pinned; BERTH_E_UNAVAILABLE: this library was built
 * without support for such devices; all else is BERTH_E_DEVICE.
 */
#ifndef BTH_IO_DEVICE_DEVICE_H
#define BTH_IO_DEVICE_DEVICE_H

#include "io/devices.h"

/* "cuda:0", or "cuda" for the first one. The same name always gives the same handle. */
int bth_device_open(const char *name, bth_device_handle **device, berth_error *error);
const char *bth_device_name(const bth_device_handle *device); /* "cuda:0" */
/* If true, memory that is pinned for one is pinned for both. */
bool bth_device_is_same_kind(const bth_device_handle *a, const bth_device_handle *b);
/* False in a child of the process that opened it. bth_device_check_process also sets an error. */
bool bth_device_is_of_this_process(const bth_device_handle *device);
int bth_device_check_process(const bth_device_handle *device, berth_error *error);

/*
 * A context can die: another library resets it, or a kernel fails. Then calls fail until
 * bth_device_open opens it again, with the same handle (X18). Memory, pinned memory, streams and
 * events of an earlier life are gone, and the driver must not get them: their addresses may belong
 * to others. So an owner notes the number of the life before it makes them; streams and events
 * check it themselves.
 */
unsigned bth_device_life(const bth_device_handle *device);
/* True also in forked processes, and if the context is dead and was not opened again. */
bool bth_device_life_is_over(const bth_device_handle *device, unsigned life);
int bth_device_check_life(bth_device_handle *device, unsigned life, berth_error *error);

/* ---- memory ---- */

/* 0 bytes are at address 0. */
int bth_device_allocate_memory(bth_device_handle *device, size_t nbytes, uintptr_t *address,
                               berth_error *error);
/* No copy may be under way there. Does nothing to address 0. */
void bth_device_release_memory(bth_device_handle *device, uintptr_t address);

typedef enum bth_memory_kind {
    BTH_MEMORY_PAGEABLE, /* the host's, or none: unknown to the driver */
    BTH_MEMORY_PINNED,   /* the host's */
    BTH_MEMORY_DEVICE
} bth_memory_kind;

typedef struct bth_memory_owner {
    bth_memory_kind kind;
    unsigned ordinal; /* of the device, for BTH_MEMORY_DEVICE */
} bth_memory_owner;

/* Finds the owner of an address among all devices of this kind. */
int bth_device_find_memory_owner(bth_device_handle *device, uintptr_t address,
                                 bth_memory_owner *owner, berth_error *error);
/* BERTH_E_ARGUMENT unless the first and the last byte are memory of this device. The bytes between
 * them are not checked: one tensor may cover several allocations. */
int bth_device_check_memory(bth_device_handle *device, uintptr_t address, size_t nbytes,
                            berth_error *error);

/* Host memory, in whole pages, that all devices of this kind can access without the processor.
 * BERTH_E_UNSUPPORTED: this system cannot pin existing memory. */
int bth_pinned_allocate(bth_device_handle *device, size_t nbytes, void **bytes, berth_error *error);
void bth_pinned_release(bth_device_handle *device, void *bytes);
int bth_pinned_register(bth_device_handle *device, void *bytes, size_t nbytes, berth_error *error);
void bth_pinned_unregister(bth_device_handle *device, void *bytes);

/* ---- streams: each does its work in order ---- */

/* The stream and others, such as the default one, do not wait for each other. */
int bth_device_stream_open(bth_device_handle *device, bth_device_stream *stream,
                           berth_error *error);
/* Waits for its work. Does nothing to zeros. */
void bth_device_stream_close(bth_device_stream *stream);

/*
 * Starts a copy and returns. Until an event that was recorded after the copy is complete, nobody
 * may change the host memory or read the target. With memory that is not pinned, the call may do
 * the whole copy itself, which is slower.
 */
int bth_device_begin_copy_to_host(bth_device_stream *stream, void *to, uintptr_t from,
                                  size_t nbytes, berth_error *error);
int bth_device_begin_copy_to_device(bth_device_stream *stream, uintptr_t to, const void *from,
                                    size_t nbytes, berth_error *error);
/* Waits for all work of the stream. Reports errors of earlier copies; any later call may, too. */
int bth_device_stream_wait(bth_device_stream *stream, berth_error *error);

/* Copies to the host, after the driver's event `ready` (NULL: none), and waits. For few bytes. */
int bth_device_copy_to_host_and_wait(bth_device_handle *device, void *to, uintptr_t from,
                                     size_t nbytes, void *ready, berth_error *error);

/* ---- events: points in the work of a stream ---- */

int bth_device_event_open(bth_device_handle *device, bth_device_event *event, berth_error *error);
void bth_device_event_close(bth_device_event *event); /* does nothing to zeros */
/* The event now represents all work that the stream has so far. */
int bth_device_event_record(bth_device_event *event, bth_device_stream *stream, berth_error *error);
/* Sleeps until that work is done; returns at once if the event was never recorded. */
int bth_device_event_wait(bth_device_event *event, berth_error *error);
/* Later work of the stream waits for an event: `native` of one of ours, or the program's own
 * (CUevent, cudaEvent_t). */
int bth_device_stream_wait_for_event(bth_device_stream *stream, void *native_event,
                                     berth_error *error);

#endif
