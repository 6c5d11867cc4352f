/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices with memory of their own: CUDA's, through its driver, and those of another driver that
 * was registered (io/device_driver.h). Users of this interface need not know which it is.
 *
 * A device is opened once in a process and stays open, in the context that the program's other
 * libraries use as well. Any thread may call these functions, but a stream or event belongs to one
 * thread at a time. Each call leaves the current context of the calling thread as it was.
 *
 * Devices do not survive a fork: in the child of a process that had opened one, all calls fail, and
 * functions that free or close do nothing.
 *
 * Messages begin with the device's name, and end with the driver's text and its name for the error.
 * BERTH_E_MEMORY: out of device memory, or of memory that can be pinned; BERTH_E_UNAVAILABLE: this
 * library was built without support for such devices; all else is BERTH_E_DEVICE.
 */
#ifndef BTH_IO_DEVICE_H
#define BTH_IO_DEVICE_H

#include "berth.h"

/* An open device. (berth_make_device makes a value.) */
typedef struct bth_device_handle bth_device_handle;

/*
 * "cuda:0"; without a number the first one. The handle is valid until the process ends; the same
 * name gives the same handle.
 */
int bth_device_open(const char *name, bth_device_handle **device, berth_error *error);
/* "cuda:0" */
const char *bth_device_name(const bth_device_handle *device);
/* Whether both are of the same kind: then memory that is pinned for one is pinned for both. */
bool bth_device_is_same_kind(const bth_device_handle *a, const bth_device_handle *b);
/* False in a process that was forked from the one that opened it; the second one also sets an
 * error. */
bool bth_device_is_usable(const bth_device_handle *device);
int bth_device_check_usable(const bth_device_handle *device, berth_error *error);

/*
 * A context can die: another library resets it, or a kernel fails. Then calls fail, until
 * bth_device_open opens it again, with the same handle (X18). Memory, pinned memory, streams and
 * events of an earlier life are gone. They must not be passed to the driver, which may have given
 * their addresses to others. So their owner keeps the number of the life, from before they were
 * made; streams and events check it themselves.
 */
unsigned bth_device_life(const bth_device_handle *device);
/* True also if the context is dead and was not opened again, and in forked processes. */
bool bth_device_is_gone(const bth_device_handle *device, unsigned life);
int bth_device_check_life(bth_device_handle *device, unsigned life, berth_error *error);

/* ---- memory ---- */

/* A device address is only a number for the host. 0 bytes are at address 0. */
int bth_device_allocate(bth_device_handle *device, size_t nbytes, uintptr_t *address,
                        berth_error *error);
/* No copy may be under way there. Does nothing to address 0. */
void bth_device_release(bth_device_handle *device, uintptr_t address);

typedef enum bth_memory_kind {
    BTH_MEMORY_PAGEABLE, /* the host's, or none: unknown to the driver */
    BTH_MEMORY_PINNED,   /* the host's */
    BTH_MEMORY_DEVICE
} bth_memory_kind;

typedef struct bth_memory_owner {
    bth_memory_kind kind;
    unsigned ordinal; /* of the device, for BTH_MEMORY_DEVICE */
} bth_memory_owner;

/* Bytes on a device. */
typedef struct bth_device_memory {
    bth_device_handle *device;
    uintptr_t address;
    unsigned life;
    void *ready; /* the driver's event after which they are complete; NULL: they are */
} bth_device_memory;

/* Finds the owner of an address among all devices of this kind. */
int bth_device_find(bth_device_handle *device, uintptr_t address, bth_memory_owner *owner,
                    berth_error *error);
/*
 * BERTH_E_ARGUMENT unless the first and the last byte are memory of this device. (Bytes between
 * them are not checked: one tensor may span several allocations.)
 */
int bth_device_check(bth_device_handle *device, uintptr_t address, size_t nbytes,
                     berth_error *error);

/*
 * Host memory that all devices of this kind can copy from and to without the processor, in whole
 * pages. BERTH_E_UNSUPPORTED: this system cannot pin existing memory.
 */
int bth_pinned_allocate(bth_device_handle *device, size_t nbytes, void **bytes, berth_error *error);
void bth_pinned_release(bth_device_handle *device, void *bytes);
int bth_pinned_register(bth_device_handle *device, void *bytes, size_t nbytes, berth_error *error);
void bth_pinned_unregister(bth_device_handle *device, void *bytes);

/* ---- streams: the work of one is done in order ---- */

typedef struct bth_device_stream {
    bth_device_handle *device;
    void *native; /* NULL: not open */
    unsigned life;
} bth_device_stream;

typedef struct bth_device_event {
    bth_device_handle *device;
    void *native;
    unsigned life;
} bth_device_event;

/* A stream that does not wait for others, nor others, such as the default one, for it. */
int bth_device_stream_open(bth_device_handle *device, bth_device_stream *stream,
                           berth_error *error);
/* Waits for its work. Does nothing to zeros. */
void bth_device_stream_close(bth_device_stream *stream);

/*
 * Start a copy and return. Until an event recorded after the copy has completed, the program must
 * not change the host memory, nor read the target. For memory that is not pinned, the call may do
 * the whole copy itself, which is slower.
 */
int bth_device_copy_to_host(bth_device_stream *stream, void *to, uintptr_t from, size_t nbytes,
                            berth_error *error);
int bth_device_copy_to_device(bth_device_stream *stream, uintptr_t to, const void *from,
                              size_t nbytes, berth_error *error);
/* Waits for all work of the stream, sleeping if the driver can. Reports errors of copies; any later
 * call may report them, too. */
int bth_device_stream_wait(bth_device_stream *stream, berth_error *error);

/* Copies to the host, after the driver's event `ready` (NULL: none), and waits. For few bytes. */
int bth_device_read(bth_device_handle *device, void *to, uintptr_t from, size_t nbytes, void *ready,
                    berth_error *error);

/* ---- events: points in the work of a stream ---- */

int bth_device_event_open(bth_device_handle *device, bth_device_event *event, berth_error *error);
void bth_device_event_close(bth_device_event *event); /* does nothing to zeros */
/* The event now stands for all work that the stream has so far. */
int bth_device_event_record(bth_device_event *event, bth_device_stream *stream, berth_error *error);
/* Sleeps until that work is done. An event that was never recorded is done. */
int bth_device_event_wait(bth_device_event *event, berth_error *error);
/*
 * Later work of the stream waits for an event of the driver: `native` of one of ours, or the
 * program's own (CUevent, cudaEvent_t) after its kernels.
 */
int bth_device_stream_wait_for(bth_device_stream *stream, void *native_event, berth_error *error);

#endif
