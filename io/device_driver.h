/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What stands below io/device.h: one table of functions a kind of device. They return 0 or a number
 * that only `describe` understands; messages are made in io/device.c. Called in the process that
 * opened the device only, with handles that are open, and never to move 0 bytes.
 */
#ifndef BTH_IO_DEVICE_DRIVER_H
#define BTH_IO_DEVICE_DRIVER_H

#include <stdatomic.h>

#include "io/device.h"

typedef struct bth_driver_result {
    const char *name; /* the driver's name for it, or NULL */
    const char *text; /* one line; static */
    berth_status code;
    bool is_final; /* the driver works again in another process only */
} bth_driver_result;

typedef struct bth_device_driver {
    const char *kind; /* "cuda" */
    /* Makes the rest usable; again and again. Messages name no device. Under a lock, as is `open`.
     */
    int (*load)(berth_error *error);
    void (*describe)(int result, bth_driver_result *told);
    int (*count)(unsigned *n);
    /*
     * Counts a life and then sets `native`, whose work is known to go well; else leaves all as it
     * was. (In this order what is made meanwhile is of the new life, or fails in the old context.)
     */
    int (*open)(bth_device_handle *device);
    /* 0: the context that was opened is there still; `closely`: and works. Any thread may ask. */
    int (*look)(const bth_device_handle *device, bool closely);

    int (*allocate)(bth_device_handle *device, size_t nbytes, uintptr_t *address);
    int (*release)(bth_device_handle *device, uintptr_t address);
    int (*find)(bth_device_handle *device, uintptr_t address, bth_memory_place *place);

    int (*pin)(bth_device_handle *device, size_t nbytes, void **bytes);
    int (*unpin)(bth_device_handle *device, void *bytes);
    int (*enlist)(bth_device_handle *device, void *bytes, size_t nbytes);
    int (*delist)(bth_device_handle *device, void *bytes);

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
    int (*query_event)(bth_device_handle *device, void *event, bool *has_come);
    int (*wait_for)(bth_device_handle *device, void *stream, void *event);
} bth_device_driver;

struct bth_device_handle {
    const bth_device_driver *driver;
    unsigned ordinal;
    char name[32];
    bool is_open;
    /* X18: these change when it is opened anew, which operations of other threads may see. */
    _Atomic(void *) native; /* the driver's own */
    atomic_ullong native_id;
    atomic_uint life;       /* how often it was opened */
    atomic_bool is_doubted; /* a call failed: the next opening looks closely */
};

#ifdef BERTH_HAS_CUDA
extern const bth_device_driver bth_cuda_driver;
#endif
/*
 * Adds a kind of device, under the name driver->kind. Call it before any device is opened, from the
 * thread that starts the program. Tests and the command add the simulated device so: it is no part
 * of the library that is installed.
 */
void bth_device_register(const bth_device_driver *driver);

#endif
