/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/lanes.h"

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/clock.h"
#include "io/pages.h"

/* Staging buffers of one thread: while it has one, the next ones are copied. */
#define LANES_IN_ORDER 3

bool bth_lane_copies(const berth_plan *plan, size_t i, uint64_t nbytes, uint64_t at)
{
    const bth_planned *record = &plan->records[i];
    uint64_t unit = record->swap_nbytes > 1 ? record->swap_nbytes : 1;

    return record->device && at % unit == 0 && nbytes % unit == 0;
}

static int wait_for_event(bth_track *track, void *event, berth_error *error)
{
    if (!event || event == track->waits_for)
        return 0;
    if (bth_device_stream_wait_for(&track->stream, event, error) < 0)
        return error->code;
    track->waits_for = event;
    return 0;
}

/* Asks for a share of record i. */
static int ask(bth_lane *lane, const bth_tile *tile, size_t i, const bth_range *share,
               berth_error *error)
{
    const bth_planned *record = &lane->plan->records[i];
    uint64_t at = share->offset - record->place.data_offset;
    const berth_storage *storage = bth_storage_bottom(record->storage, &at);
    const bth_device_memory *memory = storage->device;
    bth_track *track = &lane->tracks[record->device - 1];

    if (wait_for_event(track, memory->ready, error) < 0)
        return error->code;
    track->is_pending = true;
    return bth_device_copy_to_host(
        &track->stream, lane->buffer->bytes + (share->offset - tile->offset),
        memory->address + (uintptr_t)(storage->root_offset + at), (size_t)share->nbytes, error);
}

static int ask_for_all(bth_lane *lane, const bth_tile *tile, berth_error *error)
{
    const berth_plan *plan = lane->plan;
    uint64_t end = tile->offset + tile->nbytes;
    bth_range share;

    for (size_t i = bth_plan_find(plan, tile->offset);
         i < plan->n_records && plan->records[i].place.header_offset < end; i++) {
        const bth_place *place = &plan->records[i].place;
        if (plan->records[i].device &&
            bth_tile_share(tile, place->data_offset, place->data_offset + place->nbytes, &share) &&
            bth_lane_copies(plan, i, share.nbytes, share.offset - place->data_offset) &&
            ask(lane, tile, i, &share, error) < 0)
            return bth_error_in(error, bth_plan_name(plan, i));
    }
    return 0;
}

int bth_lane_begin(bth_lane *lane, const bth_tile *tile, berth_error *error)
{
    lane->offset = tile->offset;
    if (ask_for_all(lane, tile, error) < 0)
        return error->code;
    for (unsigned i = 0; i < lane->plan->n_devices; i++) {
        bth_track *track = &lane->tracks[i];
        if (track->is_pending && bth_device_event_record(&track->copied, &track->stream, error) < 0)
            return error->code;
    }
    return 0;
}

int bth_lane_wait(bth_lane *lane, size_t i, berth_error *error)
{
    bth_track *track = &lane->tracks[lane->plan->records[i].device - 1];

    if (!track->is_pending)
        return 0;
    double begin = bth_seconds();
    if (bth_device_event_wait(&track->copied, error) < 0)
        bth_error_in(error, bth_plan_name(lane->plan, i));
    lane->wait_seconds += bth_seconds() - begin;
    track->is_pending = false;
    return error->code;
}

/* ---- opening and closing ---- */

bth_staging_need bth_lanes_need(const bth_run_settings *settings, unsigned n_workers,
                                uint64_t room_nbytes)
{
    const uint64_t page = BTH_LARGE_PAGE_NBYTES;
    uint64_t room = room_nbytes > 0 ? room_nbytes : UINT64_MAX;
    uint64_t buffer_nbytes = (settings->tile_nbytes + page - 1) & ~(page - 1);
    uint64_t n = n_workers > 0 ? n_workers : LANES_IN_ORDER;

    if (settings->n_staging > 0 && (n_workers == 0 || settings->n_staging < n))
        n = settings->n_staging;
    if (room / buffer_nbytes < 2)
        buffer_nbytes = room / 2 >= page ? room / 2 & ~(page - 1) : page;
    if (n > room / buffer_nbytes)
        n = room / buffer_nbytes > 0 ? room / buffer_nbytes : 1;
    return (bth_staging_need){.buffer_nbytes = (size_t)buffer_nbytes,
                              .n_buffers = (unsigned)n,
                              .most_nbytes = room_nbytes,
                              .is_pinned = settings->is_pinned};
}

static int open_tracks(bth_lanes *lanes, const berth_plan *plan, berth_error *error)
{
    size_t n_tracks = (size_t)lanes->n * plan->n_devices;

    lanes->n_devices = plan->n_devices;
    lanes->lanes = bth_allocate_zeroed(lanes->n * sizeof *lanes->lanes);
    lanes->tracks = bth_allocate_zeroed(n_tracks * sizeof *lanes->tracks);
    if (!lanes->lanes || !lanes->tracks)
        return bth_fail_memory(error, n_tracks * sizeof *lanes->tracks);
    for (unsigned i = 0; i < lanes->n; i++) {
        bth_lane *lane = &lanes->lanes[i];
        *lane = (bth_lane){.plan = plan,
                           .buffer = &lanes->ring.buffers[i],
                           .tracks = lanes->tracks + (size_t)i * plan->n_devices,
                           .offset = BERTH_NO_OFFSET};
        for (unsigned j = 0; j < plan->n_devices; j++)
            if (bth_device_stream_open(plan->devices[j], &lane->tracks[j].stream, error) < 0 ||
                bth_device_event_open(plan->devices[j], &lane->tracks[j].copied, error) < 0)
                return error->code;
    }
    return 0;
}

int bth_lanes_open(bth_lanes *lanes, const berth_plan *plan, const bth_staging_need *need,
                   berth_error *error)
{
    *lanes = (bth_lanes){0};
    if (bth_staging_open(plan->devices[0], need, &lanes->ring, error) < 0)
        return error->code;
    lanes->n = lanes->ring.n_buffers;
    if (open_tracks(lanes, plan, error) < 0)
        bth_lanes_close(lanes);
    return error->code;
}

/*
 * Streams first: closing them waits until nothing is copied into the buffers any more. Where
 * another lane failed (W8), copies of this one may be under way.
 */
void bth_lanes_close(bth_lanes *lanes)
{
    for (unsigned i = 0; lanes->tracks && i < lanes->n * lanes->n_devices; i++) {
        bth_device_stream_close(&lanes->tracks[i].stream);
        bth_device_event_close(&lanes->tracks[i].copied);
    }
    bth_staging_close(&lanes->ring);
    bth_release(lanes->tracks);
    bth_release(lanes->lanes);
    *lanes = (bth_lanes){0};
}
