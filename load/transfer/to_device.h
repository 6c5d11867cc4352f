/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Loads ranges to devices. Requests are read into pinned buffers, and summed and swapped there. The
 * device copies them while the next ones are read. Each worker has some staging slots, and a stream
 * on each device; the device copies from one slot while the worker fills another.
 */
#ifndef BTH_LOAD_TRANSFER_TO_DEVICE_H
#define BTH_LOAD_TRANSFER_TO_DEVICE_H

#include "load/transfer/transfer.h"

/* The alignment of ranges in memory that is made on a device, as device allocators have it. But
 * small ranges have the same distances as in the file. */
#define BTH_DEVICE_ALIGNMENT 512

/* Memory of the library on devices. */
typedef struct bth_device_memory_list {
    bth_device_handle *device;
    unsigned life; /* of the device, in which it was made */
    uintptr_t address;
    struct bth_device_memory_list *next;
} bth_device_memory_list;

typedef struct bth_to_device {
    bth_transfer transfer; /* of ranges that have devices; prepared and cut */
    /* Results; also on failure: */
    bth_device_memory_list *memory; /* that was made, where a range has no address of its own */
    uint64_t staging_nbytes;
    double device_seconds; /* that workers waited for copies */
} bth_to_device;

/* The functions of the wing, load/device/. Without devices none is called. */
typedef struct bth_to_device_functions {
    /*
     * When it returns, all copies are complete; after a failure none is running. An error of a read
     * names the record and the byte, an error of a device the device.
     */
    int (*run)(bth_to_device *to, berth_error *error);
    void (*free_memory)(bth_device_memory_list *list);
} bth_to_device_functions;

extern const bth_to_device_functions bth_wing_to_device;

#endif
