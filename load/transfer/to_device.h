/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Storages go to devices: chunks are read into pinned buffers, summed and swapped there, and copied
 * by the device while the next ones are read. Each worker has some buffers of the ring, and a
 * stream on each device; what it brought is copied from one buffer while it fills another.
 */
#ifndef BTH_LOAD_TRANSFER_TO_DEVICE_H
#define BTH_LOAD_TRANSFER_TO_DEVICE_H

#include "load/transfer/chunks.h"

/* Where memory of ours on a device is divided: as allocators there do, for any kind of element. But
 * small storages lie there as in the file. */
#define BTH_DEVICE_ALIGNMENT 512

typedef struct bth_to_device {
    bth_chunks work; /* of items that have devices; its spans say no more than which, and sizes */
    /* Results; also on failure: */
    bth_device_memory_list *memory; /* that was made; where no item has an address of its own */
    uint64_t memory_nbytes;         /* of it */
    uint64_t staging_nbytes;
    double device_seconds; /* that workers waited for copies */
} bth_to_device;

/* Bytes of a chunk: what one staging buffer holds. */
uint64_t bth_staged_nbytes(const struct berth_config *config);

/*
 * All copies have been made when it returns, or nothing is copied any more. An error of reading
 * names the record and the byte, one of a device the device.
 */
int bth_to_device_run(bth_to_device *to, berth_error *error);
void bth_device_memory_list_free(bth_device_memory_list *list); /* NULL: nothing */

#endif
