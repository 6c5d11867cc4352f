/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How tiles come from devices. A lane is a staging buffer, in which one tile after the other is put
 * together and from which it is written, and a stream on each device of the plan. What a tile has
 * of a device is copied to its place by the device; meanwhile other lanes are summed and written.
 */
#ifndef BTH_SAVE_LANES_H
#define BTH_SAVE_LANES_H

#include "io/staging.h"
#include "save/image.h"
#include "save/run.h"

/* One lane's part of one device. */
typedef struct bth_track {
    bth_device_stream stream;
    bth_device_event copied; /* behind what was asked for; who waits for it sleeps */
    void *waits_for;         /* the last event that the stream was told to wait for */
    bool is_pending;         /* copies are under way */
} bth_track;

/* One thread's at a time. */
typedef struct bth_lane {
    const berth_plan *plan;
    bth_staging_buffer *buffer;
    bth_track *tracks;   /* one a device of the plan */
    uint64_t offset;     /* of the tile that it holds, or is being copied; BERTH_NO_OFFSET: none */
    double wait_seconds; /* for devices, so far */
} bth_lane;

typedef struct bth_lanes {
    bth_staging ring;
    bth_lane *lanes;
    bth_track *tracks; /* of all lanes */
    unsigned n;
    unsigned n_devices;
} bth_lanes;

/*
 * The staging buffers that tiles of settings->tile_nbytes need, in room_nbytes (0: no bound): whole
 * ones, for fewer workers (0: one thread, that has them all), as long as two find room; else
 * smaller ones.
 */
bth_staging_need bth_lanes_need(const bth_run_settings *settings, unsigned n_workers,
                                uint64_t room_nbytes);

/* As many lanes as the ring gets buffers. On failure *lanes is of zeros. */
int bth_lanes_open(bth_lanes *lanes, const berth_plan *plan, const bth_staging_need *need,
                   berth_error *error);
/* Waits for what is under way. Of zeros: nothing. */
void bth_lanes_close(bth_lanes *lanes);

/*
 * Asks for all that the tile has of devices, copied into the lane's buffer. After a failure the
 * lane can only be closed.
 */
int bth_lane_begin(bth_lane *lane, const bth_tile *tile, berth_error *error);
/*
 * Waits until what the tile has of record i's device is there. Bytes that are not copied (elements
 * that the tile's border cuts, to be swapped) are to be fetched.
 */
int bth_lane_wait(bth_lane *lane, size_t i, berth_error *error);
bool bth_lane_copies(const berth_plan *plan, size_t i, uint64_t nbytes, uint64_t at);

#endif
