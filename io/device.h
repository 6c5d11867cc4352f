/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices with memory of their own: CUDA's, through its driver, and those of another driver that
 * was registered (io/device_driver.h). Users of this interface need not know which it is.
 *
 * A device is opened once in a process and kept: its context is the one that the program's other
 * libraries use as well. Any thread may call; one stream or event is one thread's at a time. What
 * context was current on the calling thread is current again after each call.
 *
 * No device survives a fork: in the child of a process that had opened one, all of this fails, and
 * what frees or closes does nothing.
 *
 * Messages begin with the device's name and end in the driver's own text and its name for it.
 * BERTH_E_MEMORY: out of the device's or of pinned memory; BERTH_E_UNAVAILABLE: this build has no
 * part for such devices; else BERTH_E_DEVICE.
 */
#ifndef BTH_IO_DEVICE_H
#define BTH_IO_DEVICE_H

#include "berth.h"

/* Not berth_make_device: that makes a value. */
typedef struct bth_device_handle bth_device_handle;

/*
 * "cuda:0"; without a number the first one. The handle lives as long as the process;
 * the same name gives the same handle.
 */
int bth_device_open(const char *name, bth_device_handle **device, berth_error *error);
/* "cuda:0" */
const char *bth_device_name(const bth_device_handle *device);
/* Whether handles are of the same kind: pinned memory is then pinned for both. */
bool bth_device_is_akin(const bth_device_handle *a, const bth_device_handle *b);
/* False in a process that was forked from the one that opened it; what the error then is. */
bool bth_device_is_usable(const bth_device_handle *device);
int bth_device_check_usable(const bth_device_handle *device, berth_error *error);

/*
 * A context can die: another library resets it, or a kernel goes wrong. Then calls fail, and the
 * next bth_device_open opens it anew, by the same handle (X18). All that was made before, memory,
 * pinned memory, streams and events, is of an earlier life then, and gone: the driver must not be
 * asked about it, as it may have given the same addresses to others. Who keeps such things keeps
 * the number of the life, taken before they were made. Streams and events look after it themselves.
 */
unsigned bth_device_life(const bth_device_handle *device);
/* Also where the context is dead and nobody has opened it anew, and in forked processes. */
bool bth_device_is_gone(const bth_device_handle *device, unsigned life);
int bth_device_check_life(bth_device_handle *device, unsigned life, berth_error *error);

/* ---- memory ---- */

/* Device addresses are numbers here: the host must not follow them. 0 bytes are at address 0. */
int bth_device_allocate(bth_device_handle *device, size_t nbytes, uintptr_t *address,
                        berth_error *error);
/* Nothing may be under way in it. 0: nothing. */
void bth_device_release(bth_device_handle *device, uintptr_t address);

typedef enum bth_memory_kind {
    BTH_MEMORY_PAGEABLE, /* the host's, or none at all: the driver does not know it */
    BTH_MEMORY_PINNED,   /* the host's */
    BTH_MEMORY_DEVICE
} bth_memory_kind;

typedef struct bth_memory_place {
    bth_memory_kind kind;
    unsigned ordinal; /* of the device, if it is one's */
} bth_memory_place;

/* Bytes on a device, and when they are there. */
typedef struct bth_device_memory {
    bth_device_handle *device;
    uintptr_t address;
    unsigned life;
    void *ready; /* an event as the driver knows it, behind which they are; NULL: they are */
} bth_device_memory;

/* Whose memory an address is, among all devices of this one's kind. */
int bth_device_find(bth_device_handle *device, uintptr_t address, bth_memory_place *place,
                    berth_error *error);
/*
 * BERTH_E_ARGUMENT unless the first and the last byte are this device's memory: freed memory, the
 * host's and another device's are told. (Between them nobody looks: one tensor may span several
 * allocations.)
 */
int bth_device_check(bth_device_handle *device, uintptr_t address, size_t nbytes,
                     berth_error *error);

/*
 * Host memory that devices copy from and to by themselves, of any size and by whole pages; for all
 * devices of this one's kind. BERTH_E_UNSUPPORTED: this system cannot pin what is there already.
 */
int bth_pinned_allocate(bth_device_handle *device, size_t nbytes, void **bytes, berth_error *error);
void bth_pinned_release(bth_device_handle *device, void *bytes);
int bth_pinned_register(bth_device_handle *device, void *bytes, size_t nbytes, berth_error *error);
void bth_pinned_unregister(bth_device_handle *device, void *bytes);

/* ---- streams: what is asked of one is done in order; of several, in any ---- */

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

/* Of its own: it waits for no other stream, and none (the default one neither) for it. */
int bth_device_stream_open(bth_device_handle *device, bth_device_stream *stream,
                           berth_error *error);
/* Waits for what was asked of it. Of zeros: nothing. */
void bth_device_stream_close(bth_device_stream *stream);

/*
 * Begin to copy, and come back. Host memory must stay as it is until an event recorded behind the
 * copy has come: to change it, or to look at it, is a race. Unless it is pinned: then the call may
 * do all of the copy itself, slower.
 */
int bth_device_copy_to_host(bth_device_stream *stream, void *to, uintptr_t from, size_t nbytes,
                            berth_error *error);
int bth_device_copy_to_device(bth_device_stream *stream, uintptr_t to, const void *from,
                              size_t nbytes, berth_error *error);
/* Waits, without spinning where the driver can, for all that was asked. Errors of copies come here,
 * or from any later call. */
int bth_device_stream_wait(bth_device_stream *stream, berth_error *error);

/* Copies to the host, behind an event as the driver knows it (NULL: none), and waits: a few bytes,
 * now and then. */
int bth_device_read(bth_device_handle *device, void *to, uintptr_t from, size_t nbytes, void *ready,
                    berth_error *error);

/* ---- events: places in a stream ---- */

int bth_device_event_open(bth_device_handle *device, bth_device_event *event, berth_error *error);
void bth_device_event_close(bth_device_event *event); /* of zeros: nothing */
/* The event is from now on the place behind what has been asked of the stream. */
int bth_device_event_record(bth_device_event *event, bth_device_stream *stream, berth_error *error);
/* The thread waits, sleeping. An event that was never recorded has come. */
int bth_device_event_wait(bth_device_event *event, berth_error *error);
int bth_device_event_query(bth_device_event *event, bool *has_come, berth_error *error);
/*
 * What is asked of the stream from now on waits for an event as the driver knows it: `native` of
 * one of ours, or a program's own (CUevent, cudaEvent_t) behind its kernels.
 */
int bth_device_stream_wait_for(bth_device_stream *stream, void *native_event, berth_error *error);

#endif
