/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the core knows of devices, which are a wing: io/device/, save/device/ and load/device/. All
 * begins with `open`: without the wing it fails, and there is no device for the other functions.
 */
#ifndef BTH_IO_DEVICES_H
#define BTH_IO_DEVICES_H

#include "io/memory_region.h"

/* An open device. (berth_make_device makes a value.) */
typedef struct bth_device_handle bth_device_handle;

/* Bytes on a device. */
typedef struct bth_device_memory {
    bth_device_handle *device;
    uintptr_t address;
    unsigned life;
    void *ready; /* the driver's event after which they are complete; NULL: they are */
} bth_device_memory;

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

typedef struct bth_staging_need {
    size_t buffer_nbytes; /* of each; rounded up to BTH_LARGE_PAGE_NBYTES */
    unsigned n_buffers;   /* 1 to BTH_MAX_STAGING_BUFFERS; there may be fewer in the end */
    uint64_t max_nbytes;  /* limit of all together, from io.memory_nbytes; 0: none */
    int64_t large_pages;  /* io.large_pages */
    bool is_pinned;       /* false: pageable; copies are slower, and not asynchronous */
} bth_staging_need;

typedef struct bth_staging_buffer {
    uint8_t *bytes;
    size_t nbytes;
    bth_region region;         /* of zeros: the bytes are the driver's memory */
    bth_device_handle *device; /* the device that pinned it; NULL: it is not pinned */
    unsigned life;             /* of that device */
} bth_staging_buffer;

typedef struct bth_staging {
    bth_device_handle *device; /* NULL: none, pageable buffers */
    size_t buffer_nbytes;
    unsigned n_buffers;
    bool is_pinned;
    bth_pages pages;
    bth_staging_buffer *buffers;
} bth_staging;

/* As in io/device/device.h; their names there begin with bth_device_. */
typedef struct bth_device_functions {
    int (*open)(const char *name, bth_device_handle **device, berth_error *error);
    const char *(*name)(const bth_device_handle *device);
    unsigned (*life)(const bth_device_handle *device);
    int (*check_life)(bth_device_handle *device, unsigned life, berth_error *error);
    int (*check_memory)(bth_device_handle *device, uintptr_t address, size_t nbytes,
                        berth_error *error);
    int (*copy_to_host_and_wait)(bth_device_handle *device, void *to, uintptr_t from, size_t nbytes,
                                 void *ready, berth_error *error);
} bth_device_functions;

extern const bth_device_functions bth_wing_device;

#endif
