/* SPDX-License-Identifier: BSD-3-Clause */
/* One tile: rendered and written, with the deferred blocks whose CRC it completes. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "io/trace/trace.h"
#include "save/run_state.h"
#include "save/save_error.h"

/* Adds the record to a failure, and the missing bytes if the disk is full (W1). */
static int tile_fail_write(bth_run_state *run, const berth_error *failed, uint64_t offset,
                           berth_error *error)
{
    const bth_output *output = run->output;
    const berth_plan *plan = run->image.plan;
    uint64_t at = failed->offset != BERTH_NO_OFFSET ? failed->offset : offset;
    size_t i = bth_plan_find_record_by_offset(plan, at);
    const char *name = i < plan->n_records ? bth_plan_record_name(plan, i) : NULL;

    if (failed->record[0] || failed->code == BERTH_E_OFFSETS) {
        *error = *failed; /* debug mode's check names record and byte itself */
        return error->code;
    }
    if (failed->code == BERTH_E_NO_SPACE)
        return bth_fail_no_space(
            error, failed->system_errno, name, at,
            bth_missing_nbytes(output->room ? output->room(output->context) : UINT64_MAX,
                               plan->nbytes, run->present_nbytes + atomic_load(&run->done_nbytes)));
    if (failed->system_errno)
        bth_fail_errno(error, failed->system_errno, name, at, "%s",
                       failed->code == BERTH_E_CALLBACK ? "the sink failed" : "cannot write");
    else
        bth_fail(error, failed->code, name, at, "%s", failed->message);
    error->code = failed->code;
    return error->code;
}

/* Of zeros if the thread is not traced. */
static bth_trace_span tile_begin_request(const bth_run_state *run, uint64_t offset,
                                         uint64_t n_requests)
{
    const berth_plan *plan = run->image.plan;

    if (!bth_trace_is_on())
        return (bth_trace_span){0};
    size_t i = bth_plan_find_record_by_offset(plan, offset);
    bth_trace_span request = {.category = "request,write",
                              .name = "write",
                              .record = i < plan->n_records ? bth_plan_record_name(plan, i) : NULL,
                              .offset = offset,
                              .n_requests = n_requests,
                              .begin_seconds = bth_seconds()};
    bth_trace_begin_request();
    return request;
}

/* nbytes: written; 0: the request failed. */
static void tile_end_request(bth_trace_span *request, uint64_t nbytes)
{
    if (!request->name)
        return;
    request->nbytes = nbytes;
    request->end_seconds = bth_seconds();
    bth_trace_end_request(request, true);
}

/* Writes the tile's bytes [begin, end). Progress does not count padding. */
static int tile_write_range(bth_run_state *run, const bth_tile *tile, uint64_t begin, uint64_t end,
                            berth_error *error)
{
    const bth_output *output = run->output;
    struct iovec pieces[BTH_MAX_PIECES];
    uint64_t total = run->image.plan->nbytes;
    berth_error failed;

    if (begin == end)
        return 0;
    if (run->settings->cancelled && atomic_load(run->settings->cancelled))
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    size_t n_pieces = bth_tile_split_range_into_pieces(tile, begin, end, pieces);
    /* A descriptor at its own position gets each piece by itself. */
    atomic_fetch_add(&run->n_requests, output->in_order ? n_pieces : 1);
    bth_error_clear(&failed);
    bth_trace_span request = tile_begin_request(run, begin, output->in_order ? n_pieces : 1);
    bool is_written = output->write(output->context, pieces, n_pieces, begin, &failed) == 0;
    tile_end_request(&request, is_written ? (end < total ? end : total) - begin : 0);
    if (!is_written)
        return tile_fail_write(run, &failed, begin, error);
    atomic_fetch_add(&run->done_nbytes, (end < total ? end : total) - begin);
    return 0;
}

/* The blocks that waited for the CRC that this tile completed. */
static int tile_write_deferred(bth_run_state *run, size_t record, berth_error *error)
{
    bth_deferred_block *block;

    while ((block = bth_deferred_claim_and_complete_block(&run->deferred, &run->image, record)) !=
           NULL) {
        const bth_tile tile = {.offset = block->range.offset,
                               .nbytes = (size_t)block->range.nbytes,
                               .bytes = block->bytes};
        int status = tile_write_range(run, &tile, tile.offset, tile.offset + tile.nbytes, error);
        bth_deferred_release_block(&run->deferred, block);
        if (status < 0)
            return status;
    }
    return 0;
}

/*
 * Returns the end of the whole blocks, which can be written. The last block of the file is padded
 * with zeros; the last one of the data part is written with the tail.
 */
static uint64_t tile_pad_or_defer_last_block(bth_run_state *run, bth_tile *tile)
{
    uint64_t end = tile->offset + tile->nbytes;
    uint64_t mask = run->block_nbytes - 1;

    if ((end & mask) == 0)
        return end;
    if (!run->is_tail) {
        bth_deferred_add_last_data_block(&run->deferred, tile, end & ~mask);
        return end & ~mask;
    }
    uint64_t padded = (end + mask) & ~mask;
    memset(tile->bytes + tile->nbytes, 0, (size_t)(padded - end));
    return padded;
}

static int tile_write(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    uint64_t end = tile_pad_or_defer_last_block(run, tile);
    bth_range deferred = {.offset = end};

    if (tile->incomplete != BTH_NO_RECORD &&
        bth_deferred_add_descriptor_blocks(&run->deferred, &run->image, tile, end, &deferred,
                                           error) < 0)
        return error->code;
    if (tile_write_range(run, tile, tile->offset, deferred.offset, error) < 0 ||
        tile_write_range(run, tile, deferred.offset + deferred.nbytes, end, error) < 0)
        return error->code;
    return tile->completed == BTH_NO_RECORD ? 0 : tile_write_deferred(run, tile->completed, error);
}

/* The first tile of the tail may begin with bytes of the data part. */
static int tile_render(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    size_t nbytes =
        run->is_tail ? bth_deferred_copy_last_data_block_to_tile(&run->deferred, &run->image, tile)
                     : 0;

    if (nbytes == 0)
        return bth_image_render(&run->image, tile, error);
    bth_tile rest = {.offset = tile->offset + nbytes,
                     .nbytes = tile->nbytes - nbytes,
                     .bytes = tile->bytes + nbytes,
                     .scratch = tile->scratch};
    tile->incomplete = tile->completed = BTH_NO_RECORD; /* all CRCs are complete */
    if (rest.nbytes == 0)
        return 0;
    return bth_image_render(&run->image, &rest, error);
}

/* ---- a task ---- */

/* Tiles lie at multiples of their size in the file, whatever part of it is being written. */
static void tile_set_range(const bth_run_state *run, uint64_t task, bth_tile *tile)
{
    if (run->tiles && !run->is_tail) {
        tile->offset = run->tiles[task].offset;
        tile->nbytes = (size_t)run->tiles[task].nbytes;
        return;
    }
    uint64_t begin = (run->begin / run->tile_nbytes + task) * run->tile_nbytes;
    uint64_t end = run->end - begin < run->tile_nbytes ? run->end : begin + run->tile_nbytes;

    if (begin < run->begin)
        begin = run->begin;
    tile->offset = begin;
    tile->nbytes = (size_t)(end - begin);
}

/* Begins the staging slot of a task. A single worker has all slots, and also begins the next tiles.
 * The tail reads nothing of devices. */
static int tile_begin_own_and_next_slots(bth_run_state *run, uint64_t task, unsigned worker,
                                         bth_tile *tile, berth_error *error)
{
    unsigned n = run->n_workers > 1 ? 1 : run->slots.n;
    bth_tile next;

    for (uint64_t i = task; i < task + n && i < run->n_tiles && !run->is_tail; i++) {
        bth_staging_slot *slot = &run->slots.slots[n == 1 ? worker : i % n];
        tile_set_range(run, i, &next);
        if (slot->offset != next.offset && bth_staging_slot_begin(slot, &next, error) < 0)
            return error->code;
    }
    bth_staging_slot *slot = &run->slots.slots[n == 1 ? worker : task % n];
    tile->slot = run->is_tail ? NULL : slot;
    tile->bytes = slot->buffer->bytes;
    return 0;
}

static void run_add_seconds(_Atomic uint64_t *nanoseconds, double seconds)
{
    if (seconds > 0)
        atomic_fetch_add(nanoseconds, (uint64_t)(seconds * 1e9));
}

static int tile_prepare_and_render(bth_run_state *run, uint64_t task, unsigned worker,
                                   bth_tile *tile, berth_error *error)
{
    double begin = bth_seconds(), waited = 0;

    tile_set_range(run, task, tile);
    tile->bytes = run->buffers + worker * run->tile_nbytes;
    tile->scratch = run->scratch + worker * run->image.plan->max_header_nbytes;
    if (run->slots.n > 0 && tile_begin_own_and_next_slots(run, task, worker, tile, error) < 0)
        return error->code;
    if (tile->slot)
        waited = tile->slot->wait_seconds;
    if (tile_render(run, tile, error) < 0)
        return error->code;
    if (tile->slot)
        waited = tile->slot->wait_seconds - waited;
    double end = bth_seconds(), seconds = end - begin - waited;
    /* Estimated from a sample, so it can exceed the time of the whole tile. */
    double crc32_seconds = tile->crc32_seconds < seconds ? tile->crc32_seconds : seconds;
    run_add_seconds(&run->render_nanoseconds, seconds);
    run_add_seconds(&run->crc32_nanoseconds, crc32_seconds);
    BTH_TRACE(.category = "work", .name = "render", .begin_seconds = begin, .end_seconds = end,
              .offset = tile->offset, .nbytes = tile->nbytes, .crc32_seconds = crc32_seconds);
    return 0;
}

/* Nothing of the caller's is read for this tile any more. */
static void tile_end_reading(bth_run_state *run)
{
    const bth_run_settings *settings = run->settings;

    if (atomic_fetch_sub(&run->n_unread, 1) == 1 && !run->is_tail && settings->staged)
        settings->staged(settings->staged_context);
}

int bth_run_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    bth_run_state *run = context;
    bth_tile tile = {.slot = NULL};

    if (tile_prepare_and_render(run, task, worker, &tile, error) < 0)
        return error->code;
    if (tile.n_zero_copies == 0)
        tile_end_reading(run);
    double begin = bth_seconds();
    tile_write(run, &tile, error);
    double end = bth_seconds();
    run_add_seconds(&run->write_nanoseconds, end - begin);
    BTH_TRACE(.category = "disk", .name = "write tile", .begin_seconds = begin, .end_seconds = end,
              .offset = tile.offset, .nbytes = tile.nbytes);
    if (error->code != BERTH_OK)
        return error->code;
    if (tile.n_zero_copies > 0)
        tile_end_reading(run);
    if (run->settings->storage_stats && !run->is_tail)
        bth_storage_stats_add_tile(run->settings->storage_stats, run->image.plan, &tile);
    return 0;
}
