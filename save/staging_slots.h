/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tiles with bytes from devices. A staging slot has a staging buffer, in which one tile after the
 * other is rendered, and a stream on each device of the plan, which copies the tile's bytes into
 * the buffer. Meanwhile other slots are summed and written.
 */
#ifndef BTH_SAVE_STAGING_SLOTS_H
#define BTH_SAVE_STAGING_SLOTS_H

#include "io/devices.h"
#include "save/run.h"

/* One slot's part of one device. */
typedef struct bth_slot_device {
    bth_device_stream stream;
    bth_device_event copied; /* behind all copies of the tile; waiting for it sleeps */
    void *awaited;           /* the last event of the program's that the stream waits for */
    bool is_pending;         /* copies are under way */
} bth_slot_device;

/* Used by one thread at a time. */
typedef struct bth_staging_slot {
    const berth_plan *plan;
    bth_staging_buffer *buffer;
    bth_slot_device *devices; /* one a device of the plan */
    uint64_t offset;          /* of the tile for which it was begun; BERTH_NO_OFFSET: none */
    double wait_seconds;      /* for devices, so far */
} bth_staging_slot;

typedef struct bth_staging_slots {
    bth_staging ring;
    bth_staging_slot *slots;
    bth_slot_device *devices; /* of all slots */
    unsigned n;
    unsigned n_devices;
} bth_staging_slots;

/*
 * The staging buffers for tiles of settings->tile_nbytes, of max_nbytes in all (0: no limit). If
 * there is little memory: fewer buffers, down to two; then smaller ones.
 */
bth_staging_need bth_staging_slots_compute_need(const bth_run_settings *settings,
                                                unsigned n_workers, uint64_t max_nbytes);

/* Whether a slot copies this share of record i. False if elements are to be swapped and the tile's
 * border cuts one: bth_record_data_read reads them. */
bool bth_staging_slot_can_copy(const berth_plan *plan, size_t i, uint64_t nbytes, uint64_t at);

/* The functions of the wing, save/device/. Of a plan without devices none is called. */
typedef struct bth_slot_functions {
    /* As many slots as the ring gets buffers. On failure *slots is of zeros. */
    int (*open)(bth_staging_slots *slots, const berth_plan *plan, const bth_staging_need *need,
                berth_error *error);
    /* Waits for copies that are under way. Of no slots (n 0) it is not called. */
    void (*close)(bth_staging_slots *slots);
    /* Begins to copy the tile's bytes of all devices. After a failure the slot can only be closed.
     */
    int (*begin)(bth_staging_slot *slot, const bth_tile *tile, berth_error *error);
    /* Waits until the tile's bytes of record i's device are in the buffer. */
    int (*wait_for_record)(bth_staging_slot *slot, size_t i, berth_error *error);
} bth_slot_functions;

extern const bth_slot_functions bth_wing_slots;

#endif
