/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages on devices, and the copies of tiles of them, as save/staging_slots.h says. */
#include "save/staging_slots.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "berth/device.h"
#include "format/values/value.h"
#include "io/device/staging_buffers.h"

/* Reads a few bytes. Saves copy tile by tile (below). */
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
    if (error.code != BERTH_OK)
        return bth_tree_fail(tree, error.code, "%s", error.message), NULL;
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

/* ---- tiles ---- */

/* Shares of records are copied into the slot's buffer, after the program's event. */
static int slot_begin(bth_staging_slot *slot, const bth_tile *tile, berth_error *error)
{
    const berth_plan *plan = slot->plan;
    uint64_t end = tile->offset + tile->nbytes;

    slot->offset = tile->offset;
    for (size_t i = bth_plan_find_record_by_offset(plan, tile->offset);
         bth_plan_begins_before(plan, i, end); i++) {
        const bth_plan_record *record = &plan->records[i];
        bth_range data = bth_plan_data_range(plan, i), share;
        if (!record->device || !bth_tile_intersect_range(tile, data, &share))
            continue;
        uint64_t at = share.offset - data.offset;
        if (!bth_staging_slot_can_copy(plan, i, share.nbytes, at))
            continue;
        const berth_storage *storage = bth_storage_resolve_view(record->storage, &at);
        const bth_device_memory *memory = storage->device;
        bth_slot_device *device = &slot->devices[record->device - 1];
        uint8_t *to = slot->buffer->bytes + (share.offset - tile->offset);
        if (memory->ready && memory->ready != device->awaited) {
            if (bth_device_stream_wait_for_event(&device->stream, memory->ready, error) < 0)
                return bth_error_add_record(error, bth_plan_record_name(plan, i));
            device->awaited = memory->ready;
        }
        device->is_pending = true;
        if (bth_device_begin_copy_to_host(&device->stream, to,
                                          memory->address + (uintptr_t)(storage->root_offset + at),
                                          (size_t)share.nbytes, error) < 0)
            return bth_error_add_record(error, bth_plan_record_name(plan, i));
    }
    for (unsigned i = 0; i < plan->n_devices; i++) {
        bth_slot_device *device = &slot->devices[i];
        if (device->is_pending &&
            bth_device_event_record(&device->copied, &device->stream, error) < 0)
            return error->code;
    }
    return 0;
}

static int slot_wait_for_record(bth_staging_slot *slot, size_t i, berth_error *error)
{
    bth_slot_device *device = &slot->devices[slot->plan->records[i].device - 1];

    if (!device->is_pending)
        return 0;
    double begin = bth_seconds();
    if (bth_device_event_wait(&device->copied, error) < 0)
        bth_error_add_record(error, bth_plan_record_name(slot->plan, i));
    double end = bth_seconds();
    slot->wait_seconds += end - begin;
    BTH_TRACE(.category = "wait", .name = "wait for a device", .begin_seconds = begin,
              .end_seconds = end);
    device->is_pending = false;
    return error->code;
}

/* ---- opening and closing ---- */

/*
 * Streams first: closing one waits until nothing is copied into the buffers any more. If another
 * slot failed (W8), this one may have copies under way.
 */
static void slots_close(bth_staging_slots *slots)
{
    for (unsigned i = 0; slots->devices && i < slots->n * slots->n_devices; i++) {
        bth_device_stream_close(&slots->devices[i].stream);
        bth_device_event_close(&slots->devices[i].copied);
    }
    bth_staging_close(&slots->ring);
    bth_release(slots->devices);
    bth_release(slots->slots);
    *slots = (bth_staging_slots){0};
}

static int slots_open(bth_staging_slots *slots, const berth_plan *plan,
                      const bth_staging_need *need, berth_error *error)
{
    *slots = (bth_staging_slots){.n_devices = plan->n_devices};
    if (bth_staging_open(plan->devices[0], need, &slots->ring, error) < 0) {
        *slots = (bth_staging_slots){0};
        return error->code;
    }
    slots->n = slots->ring.n_buffers;
    size_t n_streams = (size_t)slots->n * plan->n_devices;
    slots->slots = bth_allocate_zeroed(slots->n * sizeof *slots->slots);
    slots->devices = bth_allocate_zeroed(n_streams * sizeof *slots->devices);
    if (!slots->slots || !slots->devices)
        bth_fail_memory(error, n_streams * sizeof *slots->devices);
    for (size_t i = 0; i < n_streams && error->code == BERTH_OK; i++) {
        bth_device_handle *device = plan->devices[i % plan->n_devices];
        if (bth_device_stream_open(device, &slots->devices[i].stream, error) == 0)
            bth_device_event_open(device, &slots->devices[i].copied, error);
    }
    if (error->code != BERTH_OK) {
        slots_close(slots);
        return error->code;
    }
    for (unsigned i = 0; i < slots->n; i++)
        slots->slots[i] =
            (bth_staging_slot){.plan = plan,
                               .buffer = &slots->ring.buffers[i],
                               .devices = slots->devices + (size_t)i * plan->n_devices,
                               .offset = BERTH_NO_OFFSET};
    return 0;
}

const bth_slot_functions bth_wing_slots = {
    .open = slots_open,
    .close = slots_close,
    .begin = slot_begin,
    .wait_for_record = slot_wait_for_record,
};
