/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages on devices. */
#include "base/error.h"
#include "berth/device.h"
#include "format/values/value.h"
#include "io/device/device.h"

/* Reads a few bytes. Saves copy tile by tile (save/staging_slots.h). */
static int device_storage_read(const berth_storage *storage, void *buffer, size_t nbytes,
                               uint64_t offset, berth_error *error)
{
    const bth_device_memory *memory = storage->device;

    if (bth_device_check_life(memory->device, memory->life, error) < 0)
        return error->code;
    return bth_device_copy_to_host_and_wait(
        memory->device, buffer, memory->address + (size_t)(storage->root_offset + offset), nbytes,
        memory->ready, error);
}

berth_storage *berth_device_storage_new(berth_tree *tree, berth_dtype dtype, uintptr_t address,
                                        uint64_t nbytes, const char *location, void *ready)
{
    bth_device_memory found = {.address = address, .ready = ready};
    berth_error error;

    if (!tree)
        return NULL;
    bth_error_clear(&error);
    if (!location)
        bth_fail_argument(&error, "a storage on a device: the device's name is NULL");
    else if (bth_device_open(location, &found.device, &error) == 0) {
        found.life = bth_device_life(found.device);
        bth_device_check_memory(found.device, address, (size_t)nbytes, &error);
    }
    if (error.code != BERTH_OK) {
        bth_tree_fail(tree, error.code, "%s", error.message);
        return NULL;
    }
    bth_device_memory *memory = bth_tree_allocate(tree, sizeof *memory);
    berth_storage *storage =
        bth_storage_new_without_data(tree, dtype, nbytes, bth_device_name(found.device));
    if (!memory || !storage)
        return NULL;
    *memory = found;
    storage->device = memory;
    storage->read = device_storage_read;
    return storage;
}
