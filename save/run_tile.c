/* SPDX-License-Identifier: BSD-3-Clause */
/* One tile: rendered and written, with the deferred blocks whose CRC it completes. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "io/trace/trace.h"
#include "save/run_state.h"
#include "save/save_error.h"

/* A descriptor may begin with the last byte of a block. */
static uint64_t deferred_block_nbytes(uint32_t block_nbytes)
{
    return block_nbytes > 1 ? 2 * (uint64_t)block_nbytes : BTH_MAX_DESCRIPTOR_NBYTES;
}

uint64_t bth_deferred_worker_nbytes(uint32_t block_nbytes)
{
    return BTH_DEFERRED_PER_WORKER * deferred_block_nbytes(block_nbytes);
}

uint64_t bth_deferred_nbytes(unsigned n_workers, uint32_t block_nbytes)
{
    return n_workers * bth_deferred_worker_nbytes(block_nbytes) + block_nbytes;
}

int bth_deferred_begin(bth_deferred *deferred, unsigned n_workers, uint32_t block_nbytes,
                       uint8_t *memory, berth_error *error)
{
    size_t n = (size_t)n_workers * BTH_DEFERRED_PER_WORKER;

    assert(block_nbytes == 1 || block_nbytes >= BTH_MAX_DESCRIPTOR_NBYTES);
    *deferred = (bth_deferred){.n_blocks = n};
    deferred->blocks = bth_allocate_zeroed((n + 1) * sizeof *deferred->blocks);
    if (!deferred->blocks)
        return bth_fail_memory(error, (n + 1) * sizeof *deferred->blocks);
    for (size_t i = 0; i < n; i++) {
        deferred->blocks[i].record = BTH_NO_RECORD;
        deferred->blocks[i].bytes = memory + i * deferred_block_nbytes(block_nbytes);
    }
    deferred->tail.bytes = memory + n * deferred_block_nbytes(block_nbytes);
    pthread_mutex_init(&deferred->lock, NULL);
    return 0;
}

void bth_deferred_free_all(bth_deferred *deferred)
{
    if (!deferred->blocks)
        return;
    pthread_mutex_destroy(&deferred->lock);
    bth_release(deferred->blocks);
    *deferred = (bth_deferred){0};
}

/* Under the lock. */
static bth_deferred_block *deferred_find_block_of_record(const bth_deferred *deferred,
                                                         size_t record)
{
    for (size_t i = 0; i < deferred->n_blocks; i++)
        if (deferred->blocks[i].record == record)
            return &deferred->blocks[i];
    return NULL;
}

static void deferred_block_copy_from_tile(bth_deferred_block *block, const bth_tile *tile,
                                          bth_range range)
{
    block->range = range;
    memcpy(block->bytes, tile->bytes + (range.offset - tile->offset), (size_t)range.nbytes);
}

static void deferred_put_descriptors(const bth_deferred_block *block, const bth_image *image)
{
    bth_tile tile = {.offset = block->range.offset,
                     .nbytes = (size_t)block->range.nbytes,
                     .bytes = block->bytes};

    bth_image_put_descriptors(image, &tile);
}

/*
 * Defers the blocks before `end` with the descriptor of tile->incomplete: *range. Empty, at `end`,
 * if the CRC has become complete: then the descriptor is in the tile.
 */
static int deferred_add_descriptor_blocks(bth_deferred *deferred, const bth_image *image,
                                          bth_tile *tile, uint64_t end, bth_range *range,
                                          berth_error *error)
{
    size_t i = tile->incomplete;
    uint64_t mask = image->constraints.block_nbytes - 1;
    bth_deferred_block *block = NULL;
    bth_range share;

    *range = (bth_range){.offset = end};
    if (!bth_tile_intersect_range(tile, bth_plan_descriptor_range(image->plan, i), &share) ||
        share.offset >= end)
        return 0;
    uint64_t begin = share.offset & ~mask;
    uint64_t last = bth_min((share.offset + share.nbytes + mask) & ~mask, end);
    /* Under the lock: the worker that completes the CRC has done so, or will find the block. */
    pthread_mutex_lock(&deferred->lock);
    bool is_complete = bth_image_crc32_is_complete(image, i);
    if (!is_complete)
        block = deferred_find_block_of_record(deferred, BTH_NO_RECORD);
    if (block) {
        block->record = i;
        *range = (bth_range){.offset = begin, .nbytes = last - begin};
        deferred_block_copy_from_tile(block, tile, *range);
    }
    pthread_mutex_unlock(&deferred->lock);
    if (is_complete)
        bth_image_put_descriptor(image, tile, i);
    else if (!block) /* BTH_DEFERRED_PER_WORKER is wrong */
        return bth_fail(error, BERTH_E_MEMORY, bth_plan_record_name(image->plan, i), tile->offset,
                        "more than %zu deferred blocks", deferred->n_blocks);
    return 0;
}

/* For the worker that completed record i: a block that waits for it, with the descriptor, to be
 * written and freed. NULL: no more. */
static bth_deferred_block *deferred_claim_and_complete_block(bth_deferred *deferred,
                                                             const bth_image *image, size_t i)
{
    pthread_mutex_lock(&deferred->lock);
    bth_deferred_block *block = deferred_find_block_of_record(deferred, i);
    if (block)
        block->record = image->plan->n_records;
    pthread_mutex_unlock(&deferred->lock);
    if (block)
        deferred_put_descriptors(block, image);
    return block;
}

/* ---- writing ---- */

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

/* Writes the tile's bytes [begin, end). Progress does not count padding. */
static int tile_write_range(bth_run_state *run, const bth_tile *tile, uint64_t begin, uint64_t end,
                            berth_error *error)
{
    const bth_output *output = run->output;
    const berth_plan *plan = run->image.plan;
    struct iovec pieces[BTH_MAX_PIECES];
    bth_trace_span request = {0}; /* if the thread is not traced */
    berth_error failed;

    if (begin == end)
        return 0;
    if (run->settings->cancelled && atomic_load(run->settings->cancelled))
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    size_t n_pieces = bth_tile_split_range_into_pieces(tile, begin, end, pieces);
    /* A descriptor at its own position gets each piece by itself. */
    uint64_t n_requests = output->in_order ? n_pieces : 1;
    atomic_fetch_add(&run->n_requests, n_requests);
    bth_error_clear(&failed);
    if (bth_trace_is_on()) {
        size_t i = bth_plan_find_record_by_offset(plan, begin);
        request =
            (bth_trace_span){.category = "request,write",
                             .name = "write",
                             .record = i < plan->n_records ? bth_plan_record_name(plan, i) : NULL,
                             .offset = begin,
                             .n_requests = n_requests,
                             .begin_seconds = bth_seconds()};
        bth_trace_begin_request();
    }
    bool is_written = output->write(output->context, pieces, n_pieces, begin, &failed) == 0;
    uint64_t nbytes = bth_min(end, plan->nbytes) - begin;
    if (request.name) {
        request.nbytes = is_written ? nbytes : 0;
        request.end_seconds = bth_seconds();
        bth_trace_end_request(&request, true);
    }
    if (!is_written)
        return tile_fail_write(run, &failed, begin, error);
    atomic_fetch_add(&run->done_nbytes, nbytes);
    return 0;
}

/* Writes the whole blocks of the tile, and those that waited for the CRC that it completed. */
static int tile_write(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    bth_deferred *deferred = &run->deferred;
    uint64_t mask = run->block_nbytes - 1;
    uint64_t tile_end = tile->offset + tile->nbytes, end = tile_end & ~mask;
    bth_range waiting = {0};
    bth_deferred_block *block;

    if (end != tile_end && run->is_tail) { /* the last block of the file is padded with zeros */
        end += run->block_nbytes;
        memset(tile->bytes + tile->nbytes, 0, (size_t)(end - tile_end));
    } else if (end != tile_end) /* the last one of the data part is written with the tail */
        deferred_block_copy_from_tile(&deferred->tail, tile, (bth_range){end, tile_end - end});
    waiting.offset = end;
    if (tile->incomplete != BTH_NO_RECORD &&
        deferred_add_descriptor_blocks(deferred, &run->image, tile, end, &waiting, error) < 0)
        return error->code;
    if (tile_write_range(run, tile, tile->offset, waiting.offset, error) < 0 ||
        tile_write_range(run, tile, waiting.offset + waiting.nbytes, end, error) < 0)
        return error->code;
    if (tile->completed == BTH_NO_RECORD)
        return 0;
    while ((block = deferred_claim_and_complete_block(deferred, &run->image, tile->completed)) !=
           NULL) {
        const bth_tile held = {.offset = block->range.offset,
                               .nbytes = (size_t)block->range.nbytes,
                               .bytes = block->bytes};
        tile_write_range(run, &held, held.offset, held.offset + held.nbytes, error);
        pthread_mutex_lock(&deferred->lock);
        block->record = BTH_NO_RECORD;
        pthread_mutex_unlock(&deferred->lock);
        if (error->code != BERTH_OK)
            return error->code;
    }
    return 0;
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
static int tile_begin_slots(bth_run_state *run, uint64_t task, unsigned worker, bth_tile *tile,
                            berth_error *error)
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

/* The first tile of the tail begins with bytes of the data part that waited for it. */
static int tile_render(bth_run_state *run, bth_tile *tile, berth_error *error)
{
    const bth_deferred_block *tail = &run->deferred.tail;
    size_t nbytes = (size_t)tail->range.nbytes;

    if (!run->is_tail || nbytes == 0 || tail->range.offset != tile->offset)
        return bth_image_render(&run->image, tile, error);
    /* All CRCs are complete. */
    assert(nbytes <= tile->nbytes); /* equal: a safetensors file has no tail */
    deferred_put_descriptors(tail, &run->image);
    memcpy(tile->bytes, tail->bytes, nbytes);
    tile->incomplete = tile->completed = BTH_NO_RECORD;
    bth_tile rest = {.offset = tile->offset + nbytes,
                     .nbytes = tile->nbytes - nbytes,
                     .bytes = tile->bytes + nbytes,
                     .scratch = tile->scratch};
    return rest.nbytes > 0 ? bth_image_render(&run->image, &rest, error) : 0;
}

static int tile_prepare_and_render(bth_run_state *run, uint64_t task, unsigned worker,
                                   bth_tile *tile, berth_error *error)
{
    double begin = bth_seconds(), waited = 0;

    tile_set_range(run, task, tile);
    tile->bytes = run->buffers + worker * run->tile_nbytes;
    tile->scratch = run->scratch + worker * run->image.plan->max_header_nbytes;
    if (run->slots.n > 0 && tile_begin_slots(run, task, worker, tile, error) < 0)
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

/* Adds a tile that is written to the storage statistics. */
static void tile_add_to_storage_stats(bth_storage_stats *stats, const berth_plan *plan,
                                      const bth_tile *tile)
{
    uint64_t end = tile->offset + tile->nbytes;
    bth_range share;

    for (size_t i = bth_plan_find_record_by_offset(plan, tile->offset);
         bth_plan_begins_before(plan, i, end); i++)
        if (bth_tile_intersect_range(tile, bth_plan_data_range(plan, i), &share))
            atomic_fetch_add(&stats[i].moved_nbytes, share.nbytes);
    for (size_t i = 0; i < tile->n_zero_copies; i++) {
        const bth_range *range = &tile->zero_copies[i].range;
        atomic_fetch_add(
            &stats[bth_plan_find_record_by_offset(plan, range->offset)].zero_copy_nbytes,
            range->nbytes);
    }
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
        tile_add_to_storage_stats(run->settings->storage_stats, run->image.plan, &tile);
    return 0;
}
