/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The driver of one kind of device: a table of functions. They return 0 or a number that only
 * `describe` understands; io/device/device.c makes the messages. It calls them only in the process
 * that opened the device, with open handles, and never to copy 0 bytes.
 */
#ifndef BTH_IO_DEVICE_DEVICE_DRIVER_H
#define BTH_IO_DEVICE_DEVICE_DRIVER_H

#include <stdatomic.h>

#include "io/device/device.h"

typedef struct bth_driver_result {
    char text[160]; /* one line: the driver's text and its name for the error */
    berth_status code;
    bool is_sticky; /* the driver works again only in a new process */
} bth_driver_result;

typedef struct bth_device_driver {
    const char *kind; /* "cuda" */
    /* Starts the driver; may be called again. Called under a lock, as is `open`. */
    int (*load)(berth_error *error);
    void (*describe)(int result, bth_driver_result *described);
    int (*count)(unsigned *n);
    /*
     * Adds 1 to `life`, then sets `native`, a context that works; on failure it changes nothing.
     * Because of this order, objects that other threads make now belong to the new life, or fail.
     */
    int (*open)(bth_device_handle *device);
    /* 0: the opened context still exists; `thoroughly`: and works. Any thread may call it. */
    int (*check)(const bth_device_handle *device, bool thoroughly);

    int (*allocate)(bth_device_handle *device, size_t nbytes, uintptr_t *address);
    int (*release)(bth_device_handle *device, uintptr_t address);
    int (*find)(bth_device_handle *device, uintptr_t address, bth_memory_owner *owner);

    int (*pin)(bth_device_handle *device, size_t nbytes, void **bytes);
    int (*unpin)(bth_device_handle *device, void *bytes);
    int (*register_pinned)(bth_device_handle *device, void *bytes, size_t nbytes);
    int (*unregister_pinned)(bth_device_handle *device, void *bytes);

    int (*open_stream)(bth_device_handle *device, void **stream);
    int (*close_stream)(bth_device_handle *device, void *stream); /* waits first */
    int (*copy_to_host)(bth_device_handle *device, void *stream, void *to, uintptr_t from,
                        size_t nbytes);
    int (*copy_to_device)(bth_device_handle *device, void *stream, uintptr_t to, const void *from,
                          size_t nbytes);
    int (*wait_stream)(bth_device_handle *device, void *stream);

    int (*open_event)(bth_device_handle *device, void **event);
    int (*close_event)(bth_device_handle *device, void *event);
    int (*record)(bth_device_handle *device, void *event, void *stream);
    int (*wait_event)(bth_device_handle *device, void *event);
    int (*wait_for)(bth_device_handle *device, void *stream, void *event);
} bth_device_driver;

struct bth_device_handle {
    const bth_device_driver *driver;
    unsigned ordinal;
    char name[32];
    bool is_open;
    /* X18: these change when the device is opened again, during operations of other threads. */
    _Atomic(void *) native; /* the driver's context */
    atomic_ullong native_id;
    atomic_uint life;       /* number of times it was opened */
    atomic_bool is_doubted; /* a call failed: the next open checks it thoroughly */
};

#ifdef BERTH_HAS_CUDA
extern const bth_device_driver bth_cuda_driver;
#endif
/*
 * Adds a kind of device. Call it before any device is opened, from the first thread. Tests and the
 * command add the simulated device, which is no part of the installed library.
 */
void bth_device_register(const bth_device_driver *driver);

#endif
