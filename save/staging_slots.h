/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How tiles come from devices. A lane is a staging buffer, in which one tile after the other is put
 * together and from which it is written, and a stream on each device of the plan. What a tile has
 * of a device is copied to its place by the device; meanwhile other lanes are summed and written.
 */
#ifndef BTH_SAVE_STAGING_SLOTS_H
#define BTH_SAVE_STAGING_SLOTS_H

#include "io/staging.h"
#include "save/run.h"
#include "save/tile.h"

/* One lane's part of one device. */
typedef struct bth_slot_device {
    bth_device_stream stream;
    bth_device_event copied; /* behind what was asked for; who waits for it sleeps */
    void *waits_for;         /* the last event that the stream was told to wait for */
    bool is_pending;         /* copies are under way */
} bth_slot_device;

/* One thread's at a time. */
typedef struct bth_staging_slot {
    const berth_plan *plan;
    bth_staging_buffer *buffer;
    bth_slot_device *devices; /* one a device of the plan */
    uint64_t offset;     /* of the tile that it holds, or is being copied; BERTH_NO_OFFSET: none */
    double wait_seconds; /* for devices, so far */
} bth_staging_slot;

typedef struct bth_staging_slots {
    bth_staging ring;
    bth_staging_slot *slots;
    bth_slot_device *devices; /* of all slots */
    unsigned n;
    unsigned n_devices;
} bth_staging_slots;

/*
 * The staging buffers that tiles of settings->tile_nbytes need, in room_nbytes (0: no bound): whole
 * ones, for fewer workers (0: one thread, that has them all), as long as two find room; else
 * smaller ones.
 */
bth_staging_need bth_staging_slots_need(const bth_run_settings *settings, unsigned n_workers,
                                        uint64_t room_nbytes);

/* As many lanes as the ring gets buffers. On failure *lanes is of zeros. */
int bth_staging_slots_open(bth_staging_slots *slots, const berth_plan *plan,
                           const bth_staging_need *need, berth_error *error);
/* Waits for what is under way. Of zeros: nothing. */
void bth_staging_slots_close(bth_staging_slots *slots);

/*
 * Asks for all that the tile has of devices, copied into the lane's buffer. After a failure the
 * lane can only be closed.
 */
int bth_staging_slot_begin(bth_staging_slot *slot, const bth_tile *tile, berth_error *error);
/*
 * Waits until what the tile has of record i's device is there. Bytes that are not copied (elements
 * that the tile's border cuts, to be swapped) are to be fetched.
 */
int bth_staging_slot_wait(bth_staging_slot *slot, size_t i, berth_error *error);
bool bth_staging_slot_copies(const berth_plan *plan, size_t i, uint64_t nbytes, uint64_t at);

#endif
