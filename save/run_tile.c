/* SPDX-License-Identifier: BSD-3-Clause */
/* One tile: rendered and written, with what waits for a CRC, or waited for the one of this tile. */
#include <string.h>

#include "config/error.h"
#include "io/clock.h"
#include "save/run_state.h"
#include "save/shortage.h"

/* Says it again with the record, and with what is missing where room was short (W1). */
static int fail_write(bth_run_state *run, const berth_error *failed, uint64_t offset,
                      berth_error *error)
{
    const bth_output *output = run->output;
    const berth_plan *plan = run->image.plan;
    uint64_t at = failed->offset != BERTH_NO_OFFSET ? failed->offset : offset;
    size_t i = bth_plan_find(plan, at);
    const char *name = i < plan->n_records ? bth_plan_name(plan, i) : NULL;

    if (failed->code == BERTH_E_NO_SPACE)
        return bth_fail_shortage(
            error, failed->system_errno, name, at,
            bth_shortage(output->room ? output->room(output->context) : UINT64_MAX, plan->nbytes,
                         atomic_load(&run->done_nbytes)));
    if (failed->code == BERTH_E_CALLBACK)
        bth_fail_errno(error, failed->system_errno, name, at, "the sink failed");
    else if (failed->system_errno)
        bth_fail_errno(error, failed->system_errno, name, at, "cannot write");
    else
        bth_fail(error, failed->code, name, at, "%s", failed->message);
    error->code = failed->code;
    return error->code;
}

/* In one request where the output takes pieces. */
static int write_pieces(bth_run_state *run, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                        berth_error *error)
{
    const bth_output *output = run->output;
    berth_error failed;

    bth_error_clear(&failed);
    if (n_pieces > 1 && output->write_pieces) {
        atomic_fetch_add(&run->n_requests, 1);
        if (output->write_pieces(output->context, pieces, n_pieces, offset, &failed) < 0)
            return fail_write(run, &failed, offset, error);
        return 0;
    }
    for (size_t i = 0; i < n_pieces; i++) {
        atomic_fetch_add(&run->n_requests, 1);
        if (output->write(output->context, pieces[i].iov_base, pieces[i].iov_len, offset, &failed) <
            0)
            return fail_write(run, &failed, offset, error);
        offset += pieces[i].iov_len;
    }
    return 0;
}

/* The tile's bytes [begin, end). What is padding is not counted. */
static int write_range(bth_run_state *run, const bth_tile *tile, uint64_t begin, uint64_t end,
                       berth_error *error)
{
    struct iovec pieces[BTH_MOST_PIECES];
    uint64_t total = run->image.plan->nbytes;

    if (begin == end)
        return 0;
    if (run->settings->cancelled && atomic_load(run->settings->cancelled))
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    size_t n_pieces = bth_tile_pieces(tile, begin, end, pieces);
    if (write_pieces(run, pieces, n_pieces, begin, error) < 0)
        return error->code;
    atomic_fetch_add(&run->done_nbytes, (end < total ? end : total) - begin);
    return 0;
}

/* All of the tile but its gaps, and then its seam. */
static int write_tile(bth_run_state *run, const bth_tile *tile, berth_error *error)
{
    const bth_seam *seam = &tile->seam;
    uint64_t at = tile->offset;

    for (size_t i = 0; i < tile->n_gaps; i++) {
        const bth_range *gap = &tile->gaps[i];
        if (write_range(run, tile, at, gap->offset, error) < 0)
            return error->code;
        at = gap->offset + gap->nbytes;
    }
    if (write_range(run, tile, at, tile->offset + tile->nbytes, error) < 0 || seam->nbytes == 0)
        return error->code;
    const bth_tile alone = {
        .offset = seam->offset, .nbytes = seam->nbytes, .bytes = (uint8_t *)(uintptr_t)seam->bytes};
    return write_range(run, &alone, seam->offset, seam->offset + seam->nbytes, error);
}

/* ---- whole blocks ---- */

/* What others kept aside for the CRC that this tile completed. */
static int write_held(bth_run_state *run, size_t i, berth_error *error)
{
    bth_held_slot *slot;

    while ((slot = bth_held_take(&run->held, &run->image, i)) != NULL) {
        const bth_tile blocks = {.offset = slot->range.offset,
                                 .nbytes = (size_t)slot->range.nbytes,
                                 .bytes = slot->bytes};
        uint64_t end = blocks.offset + blocks.nbytes;
        int status = write_range(run, &blocks, blocks.offset, end, error);
        bth_held_free(&run->held, slot);
        if (status < 0)
            return status;
    }
    return 0;
}

/* The end of the file is padded with zeros. */
static uint64_t pad(const bth_run_state *run, const bth_tile *tile)
{
    uint64_t end = tile->offset + tile->nbytes;
    uint64_t mask = run->block_nbytes - 1;
    uint64_t padded = (end + mask) & ~mask;

    memset(tile->bytes + tile->nbytes, 0, (size_t)(padded - end));
    return padded;
}

static int write_blocks(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    uint64_t end = pad(run, tile);
    bth_range kept = {.offset = tile->offset};

    if (tile->waits_for != BTH_NO_RECORD &&
        bth_held_keep(&run->held, &run->image, tile, &kept, error) < 0)
        return error->code;
    if (write_range(run, tile, tile->offset, kept.offset, error) < 0 ||
        write_range(run, tile, kept.offset + kept.nbytes, end, error) < 0)
        return error->code;
    if (tile->completed == BTH_NO_RECORD)
        return 0;
    return write_held(run, tile->completed, error);
}

/* Renders the tile but what is carried into its beginning. */
static int render(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    const bth_range *carried = &run->carried;

    if (carried->nbytes == 0 || tile->offset != carried->offset)
        return bth_image_render(&run->image, tile, error);
    bth_tile rest = {.offset = tile->offset + carried->nbytes,
                     .nbytes = tile->nbytes - (size_t)carried->nbytes,
                     .bytes = tile->bytes + carried->nbytes,
                     .scratch = tile->scratch};
    memcpy(tile->bytes, run->carry, (size_t)carried->nbytes);
    tile->waits_for = tile->completed = BTH_NO_RECORD; /* every CRC is known */
    return bth_image_render(&run->image, &rest, error);
}

/* ---- a task ---- */

/* Tiles lie at multiples of their size in the file, whatever part of it is being written. */
static void place(const bth_run_state *run, uint64_t task, bth_tile *tile)
{
    uint64_t begin = (run->begin / run->tile_nbytes + task) * run->tile_nbytes;
    uint64_t rest = run->end - begin;
    uint64_t end = begin + (rest < run->tile_nbytes ? rest : run->tile_nbytes);

    if (begin < run->begin)
        begin = run->begin;
    tile->offset = begin;
    tile->nbytes = (size_t)(end - begin);
    tile->n_lent = tile->n_gaps = 0;
    tile->seam.nbytes = 0;
    tile->crc32_seconds = 0;
    tile->n_blocks = 0;
    tile->lane = NULL;
}

/*
 * The lane of a task, begun. A worker among others has one of its own. A single one has them all:
 * it begins as many of the next tiles as there are lanes. The tail has nothing of devices: what
 * lies before it in its block is carried.
 */
static int begin_lane(bth_run_state *run, uint64_t task, unsigned worker, bth_tile *tile,
                      berth_error *error)
{
    uint64_t n_tiles = (run->end - 1) / run->tile_nbytes - run->begin / run->tile_nbytes + 1;
    unsigned n = run->n_workers > 0 ? 1 : run->lanes.n;
    bool is_tail = run->begin == run->carried.offset;
    bth_tile next;

    for (uint64_t i = task; i < task + n && i < n_tiles && !is_tail; i++) {
        bth_lane *lane = &run->lanes.lanes[n == 1 ? worker : i % n];
        place(run, i, &next);
        if (lane->offset != next.offset && bth_lane_begin(lane, &next, error) < 0)
            return error->code;
    }
    bth_lane *lane = &run->lanes.lanes[n == 1 ? worker : task % n];
    tile->lane = is_tail ? NULL : lane;
    tile->bytes = lane->buffer->bytes;
    return 0;
}

/* Adds seconds since `begin`, but for some of them. */
static void add_seconds(_Atomic uint64_t *nanoseconds, double begin, double without)
{
    double seconds = bth_seconds() - begin - without;

    if (seconds > 0)
        atomic_fetch_add(nanoseconds, (uint64_t)(seconds * 1e9));
}

static int render_task(bth_run_state *run, uint64_t task, unsigned worker, bth_tile *tile,
                       berth_error *error)
{
    double begin = bth_seconds(), waited = 0;

    place(run, task, tile);
    tile->bytes = run->buffers + worker * run->tile_nbytes;
    tile->scratch = run->scratch + worker * run->image.plan->most_header_nbytes;
    if (run->lanes.n > 0 && begin_lane(run, task, worker, tile, error) < 0)
        return error->code;
    if (tile->lane)
        waited = tile->lane->wait_seconds;
    if (render(run, tile, error) < 0)
        return error->code;
    if (tile->lane)
        waited = tile->lane->wait_seconds - waited;
    add_seconds(&run->render_nanoseconds, begin, waited);
    atomic_fetch_add(&run->crc32_nanoseconds, (uint64_t)(tile->crc32_seconds * 1e9));
    for (size_t i = 0; i < tile->n_lent; i++)
        atomic_fetch_add(&run->lent_nbytes, tile->lent[i].range.nbytes);
    return 0;
}

/* Nothing of the caller's is read for this tile any more. */
static void end_reading(bth_run_state *run)
{
    const bth_run_settings *settings = run->settings;

    if (atomic_fetch_sub(&run->n_unread, 1) == 1 && run->begin == 0 && settings->staged)
        settings->staged(settings->staged_context);
}

int bth_run_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    bth_run_state *run = context;
    bth_tile tile;

    if (render_task(run, task, worker, &tile, error) < 0)
        return error->code;
    if (tile.n_lent == 0)
        end_reading(run);
    double begin = bth_seconds();
    if (run->block_nbytes > 1)
        write_blocks(run, &tile, error);
    else
        write_tile(run, &tile, error);
    add_seconds(&run->write_nanoseconds, begin, 0);
    if (error->code != BERTH_OK)
        return error->code;
    if (tile.n_lent > 0)
        end_reading(run);
    if (run->settings->tallies)
        bth_tally_tile(run->settings->tallies, run->image.plan, &tile);
    return 0;
}
