/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/run.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/thread_pool.h"
#include "save/image.h"
#include "save/output_check.h"
#include "save/staging_slots.h"

/*
 * Deferred blocks: blocks that are rendered but for a descriptor whose CRC is not complete. They
 * are copied from their tile. The worker that completes the CRC fills in the descriptor and writes
 * them. No byte of the file is read back or written twice, so the file needs no lock.
 *
 * If an output accepts any range, a block is one byte: then only the descriptor is deferred. The
 * block in which the tail begins waits for all CRCs. It is written with the tail, so that no data
 * of the caller are read after the data part.
 *
 * Each incomplete record goes on after a tile that a worker has claimed and not finished. Tiles are
 * claimed in order, so no two such records belong to one tile. A descriptor lies in one or two
 * neighbouring tiles.
 */
#define DEFERRED_PER_WORKER 2

typedef struct deferred_block {
    size_t record; /* BTH_NO_RECORD: free; plan->n_records: claimed, to be written */
    bth_range range;
    uint8_t *bytes;
} deferred_block;

typedef struct deferred_blocks {
    pthread_mutex_t lock;
    deferred_block *blocks;
    size_t n_blocks;
    deferred_block tail;
} deferred_blocks;

/* What the workers of a run share. */
typedef struct run_state {
    bth_image image;
    deferred_blocks deferred;
    const bth_output *output;
    const bth_run_settings *settings;
    berth_stats *stats;  /* filled by the thread that called bth_run */
    uint64_t begin, end; /* of the part of the file that is being written */
    uint64_t n_tiles;    /* of that part */
    bool is_tail;        /* that part: it depends on all CRCs, and reads nothing of the caller's */
    uint64_t tile_nbytes;
    bth_range *tiles; /* of the data part, if only ranges of it are written; NULL: all of it */
    size_t n_range_tiles, range_tiles_room; /* of those */
    uint32_t block_nbytes;                  /* 1: any range can be written */
    uint64_t deferred_block_nbytes; /* a descriptor may begin with the last byte of a block */
    unsigned n_workers;
    uint8_t *allocated;
    uint8_t
        *buffers; /* in it, aligned: a tile for each worker, unless there are staging slots, or: */
    const berth_sink *placing; /* gives memory for tiles; NULL: none */
    uint8_t *scratch;          /* in it: max_header_nbytes for each worker */
    bth_staging_need staging;
    bth_staging_slots slots; /* where storages lie on devices */
    uint64_t present_nbytes; /* that other processes have written */
    _Atomic uint64_t done_nbytes;
    _Atomic uint64_t n_requests;
    _Atomic uint64_t n_unread; /* tiles that still read of the caller's memory */
    _Atomic uint64_t render_nanoseconds, crc32_nanoseconds, write_nanoseconds; /* of all workers */
} run_state;

/* ---- deferred blocks ---- */

/* Under the lock. */
static deferred_block *deferred_find_block_of_record(const run_state *run, size_t record)
{
    for (size_t i = 0; i < run->deferred.n_blocks; i++)
        if (run->deferred.blocks[i].record == record)
            return &run->deferred.blocks[i];
    return NULL;
}

static void deferred_block_copy_from_tile(deferred_block *block, const bth_tile *tile,
                                          bth_range range)
{
    block->range = range;
    memcpy(block->bytes, tile->bytes + (range.offset - tile->offset), (size_t)range.nbytes);
}

static void deferred_put_descriptors(const run_state *run, const deferred_block *block)
{
    const berth_plan *plan = run->image.plan;
    bth_tile tile = {.offset = block->range.offset,
                     .nbytes = (size_t)block->range.nbytes,
                     .bytes = block->bytes};
    bth_range share;

    for (size_t i = bth_plan_find_record_by_offset(plan, tile.offset);
         bth_plan_begins_before(plan, i, tile.offset + tile.nbytes); i++)
        if (bth_tile_intersect_range(&tile, bth_plan_descriptor_range(plan, i), &share))
            bth_image_put_descriptor(&run->image, &tile, i);
}

/*
 * Defers the blocks before `end` with the descriptor of tile->incomplete: *range. Empty, at `end`,
 * if the CRC has become complete: then the descriptor is in the tile.
 */
static int deferred_add_descriptor_blocks(run_state *run, bth_tile *tile, uint64_t end,
                                          bth_range *range, berth_error *error)
{
    const berth_plan *plan = run->image.plan;
    uint64_t mask = run->block_nbytes - 1;
    size_t i = tile->incomplete;
    deferred_block *block = NULL;
    bth_range share;

    *range = (bth_range){.offset = end};
    if (!bth_tile_intersect_range(tile, bth_plan_descriptor_range(plan, i), &share) ||
        share.offset >= end)
        return 0;
    uint64_t begin = share.offset & ~mask;
    uint64_t last = bth_min((share.offset + share.nbytes + mask) & ~mask, end);
    /* Under the lock: the worker that completes the CRC has done so, or will find the block. */
    pthread_mutex_lock(&run->deferred.lock);
    bool is_complete = bth_image_crc32_is_complete(&run->image, i);
    if (!is_complete)
        block = deferred_find_block_of_record(run, BTH_NO_RECORD);
    if (block) {
        block->record = i;
        *range = (bth_range){.offset = begin, .nbytes = last - begin};
        deferred_block_copy_from_tile(block, tile, *range);
    }
    pthread_mutex_unlock(&run->deferred.lock);
    if (is_complete)
        bth_image_put_descriptor(&run->image, tile, i);
    else if (!block) /* DEFERRED_PER_WORKER is wrong */
        return bth_fail(error, BERTH_E_MEMORY, bth_plan_record_name(plan, i), tile->offset,
                        "more than %zu deferred blocks", run->deferred.n_blocks);
    return 0;
}

/* Copies at the ends of a record do not count if most of it was zero-copy. */
void bth_storage_stats_fill_reports(const bth_storage_stats *stats, const berth_plan *plan,
                                    const berth_stats *save, berth_storage_stats *reports, size_t n)
{
    static const char *const methods[][3] = {
        {"direct", "direct, from device", "direct, copied"},
        {"buffered", "buffered, from device", "buffered, copied"}};
    size_t at = 0;

    for (size_t i = 0; i < plan->n_records && at < n; i++) {
        const bth_plan_record *record = &plan->records[i];
        if (!bth_plan_record_is_storage(plan, i))
            continue;
        berth_storage_stats *out = &reports[at++];
        uint64_t moved_nbytes = stats ? atomic_load(&stats[i].moved_nbytes) : 0;
        bool is_shared = stats && stats[i].shared_nbytes > 0;
        *out = (berth_storage_stats){.method = "none",
                                     .reason = record->layout.nbytes == 0 ? "it is empty"
                                                                          : "nothing was written",
                                     .nbytes = record->layout.nbytes,
                                     .moved_nbytes = moved_nbytes};
        if (moved_nbytes == 0 && !is_shared)
            continue;
        const char *why_copied = atomic_load(&stats[i].why_copied), *method = NULL;
        bool is_copied = why_copied && atomic_load(&stats[i].zero_copy_nbytes) < moved_nbytes / 2;
        for (size_t j = 0; (record->device || is_copied) && j < 2; j++)
            if (strcmp(save->method, methods[j][0]) == 0)
                method = methods[j][record->device ? 1 : 2];
        out->crc32 = plan->compute_crc32 && !record->no_crc32 ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
        out->method = is_shared ? "shared" : method ? method : save->method;
        out->reason = is_shared                   ? "the base has these bytes"
                      : method && !record->device ? why_copied
                                                  : save->reason;
    }
}

/* ---- writing ---- */

/* Adds the record to a failure, and the missing bytes if the disk is full (W1). */
static int tile_fail_write(run_state *run, const berth_error *failed, uint64_t offset,
                           berth_error *error)
{
    const bth_output *output = run->output;
    const berth_plan *plan = run->image.plan;
    uint64_t at = failed->offset != BERTH_NO_OFFSET ? failed->offset : offset;
    size_t i = bth_plan_find_record_by_offset(plan, at);
    const char *name = bth_plan_record_name(plan, i);

    if (failed->record[0] || failed->code == BERTH_E_OFFSETS) {
        *error = *failed; /* debug mode's check names record and byte itself */
        return error->code;
    }
    if (failed->code == BERTH_E_NO_SPACE)
        return bth_fail_no_space(
            error, failed->system_errno, name, at,
            output->file ? bth_output_file_own_and_free_room(output->file->fd) : UINT64_MAX,
            plan->nbytes, run->present_nbytes + atomic_load(&run->done_nbytes));
    if (failed->system_errno)
        bth_fail_errno(error, failed->system_errno, name, at, "%s",
                       failed->code == BERTH_E_CALLBACK ? "the sink failed" : "cannot write");
    else
        bth_fail(error, failed->code, name, at, "%s", failed->message);
    error->code = failed->code;
    return error->code;
}

/* [begin, end) of the tile as pieces, its own and the zero-copy ranges. Returns their number. */
static size_t tile_split_range_into_pieces(const bth_tile *tile, uint64_t begin, uint64_t end,
                                           struct iovec pieces[BTH_MAX_PIECES])
{
    uint64_t at = begin;
    size_t n = 0;

    assert(begin >= tile->offset);
    for (size_t i = 0; i < tile->n_zero_copies; i++) {
        const bth_zero_copy *zero_copy = &tile->zero_copies[i];
        if (zero_copy->range.offset < at || zero_copy->range.offset >= end)
            continue;
        if (zero_copy->range.offset > at)
            pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                         .iov_len = (size_t)(zero_copy->range.offset - at)};
        pieces[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)zero_copy->bytes,
                                     .iov_len = (size_t)zero_copy->range.nbytes};
        at = zero_copy->range.offset + zero_copy->range.nbytes;
    }
    if (at < end)
        pieces[n++] = (struct iovec){.iov_base = tile->bytes + (at - tile->offset),
                                     .iov_len = (size_t)(end - at)};
    return n;
}

/* Writes the tile's bytes [begin, end). Progress does not count padding. */
static int tile_write_range(run_state *run, const bth_tile *tile, uint64_t begin, uint64_t end,
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
    size_t n_pieces = tile_split_range_into_pieces(tile, begin, end, pieces);
    /* A descriptor at its own position gets each piece by itself. */
    uint64_t n_requests = output->in_order ? n_pieces : 1;
    atomic_fetch_add(&run->n_requests, n_requests);
    bth_error_clear(&failed);
    if (bth_trace_current()) {
        const size_t i = bth_plan_find_record_by_offset(plan, begin);
        request = (bth_trace_span){.category = "request,write",
                                   .name = "write",
                                   .record = bth_plan_record_name(plan, i),
                                   .offset = begin,
                                   .n_requests = n_requests,
                                   .begin_seconds = bth_seconds()};
        bth_trace_begin_request();
    }
    if (run->placing && run->placing->steps->sum)
        run->placing->steps->sum(run->placing->context, begin, (size_t)(end - begin),
                                 bth_tile_sum_range(tile, begin, end));
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
static int tile_write(run_state *run, bth_tile *tile, berth_error *error)
{
    uint64_t mask = run->block_nbytes - 1;
    uint64_t tile_end = tile->offset + tile->nbytes, end = tile_end & ~mask;

    if (end != tile_end && run->is_tail) { /* the last block of the file is padded with zeros */
        end += run->block_nbytes;
        memset(tile->bytes + tile->nbytes, 0, (size_t)(end - tile_end));
    } else if (end != tile_end) /* the last one of the data part is written with the tail */
        deferred_block_copy_from_tile(&run->deferred.tail, tile, (bth_range){end, tile_end - end});
    bth_range waiting = {.offset = end};
    if (tile->incomplete != BTH_NO_RECORD &&
        deferred_add_descriptor_blocks(run, tile, end, &waiting, error) < 0)
        return error->code;
    if (tile_write_range(run, tile, tile->offset, waiting.offset, error) < 0 ||
        tile_write_range(run, tile, waiting.offset + waiting.nbytes, end, error) < 0)
        return error->code;
    while (tile->completed != BTH_NO_RECORD) { /* each block that waits for it */
        pthread_mutex_lock(&run->deferred.lock);
        deferred_block *block = deferred_find_block_of_record(run, tile->completed);
        if (block)
            block->record = run->image.plan->n_records;
        pthread_mutex_unlock(&run->deferred.lock);
        if (!block)
            break;
        deferred_put_descriptors(run, block);
        const bth_tile held = {.offset = block->range.offset,
                               .nbytes = (size_t)block->range.nbytes,
                               .bytes = block->bytes};
        tile_write_range(run, &held, held.offset, held.offset + held.nbytes, error);
        pthread_mutex_lock(&run->deferred.lock);
        block->record = BTH_NO_RECORD;
        pthread_mutex_unlock(&run->deferred.lock);
        if (error->code != BERTH_OK)
            return error->code;
    }
    return 0;
}

/* ---- a task ---- */

/* Tiles lie at multiples of their size in the file, whatever part of it is being written. */
static void tile_set_range(const run_state *run, uint64_t task, bth_tile *tile)
{
    if (run->tiles && !run->is_tail) {
        tile->offset = run->tiles[task].offset;
        tile->nbytes = (size_t)run->tiles[task].nbytes;
        return;
    }
    uint64_t begin = (run->begin / run->tile_nbytes + task) * run->tile_nbytes;
    uint64_t end = run->end - begin < run->tile_nbytes ? run->end : begin + run->tile_nbytes;

    tile->offset = bth_max(begin, run->begin);
    tile->nbytes = (size_t)(end - tile->offset);
}

/* Begins the staging slot of a task. A single worker has all slots, and also begins the next tiles.
 * The tail reads nothing of devices. */
static int tile_begin_slots(run_state *run, uint64_t task, unsigned worker, bth_tile *tile,
                            berth_error *error)
{
    unsigned n = run->n_workers > 1 ? 1 : run->slots.n;
    bth_tile next;

    for (uint64_t i = task; i < task + n && i < run->n_tiles && !run->is_tail; i++) {
        bth_staging_slot *slot = &run->slots.slots[n == 1 ? worker : i % n];
        tile_set_range(run, i, &next);
        if (slot->offset != next.offset && bth_wing_slots.begin(slot, &next, error) < 0)
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
static int tile_render(run_state *run, bth_tile *tile, berth_error *error)
{
    const deferred_block *tail = &run->deferred.tail;

    /* A worker sets it while others render tiles of the data part. */
    if (!run->is_tail || tail->range.nbytes == 0 || tail->range.offset != tile->offset)
        return bth_image_render(&run->image, tile, error);
    size_t nbytes = (size_t)tail->range.nbytes;
    assert(nbytes <= tile->nbytes); /* equal: a safetensors file has no tail */
    deferred_put_descriptors(run, tail);
    memcpy(tile->bytes, tail->bytes, nbytes);
    tile->incomplete = tile->completed = BTH_NO_RECORD; /* all CRCs are complete */
    bth_tile rest = {.offset = tile->offset + nbytes,
                     .nbytes = tile->nbytes - nbytes,
                     .bytes = tile->bytes + nbytes,
                     .scratch = tile->scratch};
    return rest.nbytes > 0 ? bth_image_render(&run->image, &rest, error) : 0;
}

/* Nothing of the caller's is read for this tile any more. */
static void tile_end_reading(run_state *run)
{
    const bth_run_settings *settings = run->settings;

    if (atomic_fetch_sub(&run->n_unread, 1) == 1 && !run->is_tail && settings->staged)
        settings->staged(settings->staged_context);
}

/* A task of the pool. */
static int run_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    run_state *run = context;
    const berth_plan *plan = run->image.plan;
    bth_tile tile = {.slot = NULL};
    bth_range share;
    double begin = bth_seconds(), waited = 0;

    tile_set_range(run, task, &tile);
    if (run->placing) {
        tile.bytes = run->placing->steps->place(run->placing->context, tile.offset, tile.nbytes);
        if (!tile.bytes)
            return bth_sink_fail(error, ENOMEM, tile.offset);
    } else
        tile.bytes = run->buffers + worker * run->tile_nbytes;
    tile.scratch = run->scratch + worker * plan->max_header_nbytes;
    if (run->slots.n > 0 && tile_begin_slots(run, task, worker, &tile, error) < 0)
        return error->code;
    if (tile.slot)
        waited = tile.slot->wait_seconds;
    if (tile_render(run, &tile, error) < 0)
        return error->code;
    if (tile.slot)
        waited = tile.slot->wait_seconds - waited;
    double end = bth_seconds(), seconds = end - begin - waited;
    /* Estimated from a sample, so it can exceed the time of the whole tile. */
    double crc32_seconds = tile.crc32_seconds < seconds ? tile.crc32_seconds : seconds;
    run_add_seconds(&run->render_nanoseconds, seconds);
    run_add_seconds(&run->crc32_nanoseconds, crc32_seconds);
    BTH_TRACE(.category = "work", .name = "render", .begin_seconds = begin, .end_seconds = end,
              .offset = tile.offset, .nbytes = tile.nbytes, .crc32_seconds = crc32_seconds);
    if (tile.n_zero_copies == 0)
        tile_end_reading(run);
    begin = bth_seconds();
    tile_write(run, &tile, error);
    end = bth_seconds();
    run_add_seconds(&run->write_nanoseconds, end - begin);
    BTH_TRACE(.category = "disk", .name = "write tile", .begin_seconds = begin, .end_seconds = end,
              .offset = tile.offset, .nbytes = tile.nbytes);
    if (error->code != BERTH_OK)
        return error->code;
    if (tile.n_zero_copies > 0)
        tile_end_reading(run);
    bth_storage_stats *stats = run->is_tail ? NULL : run->settings->storage_stats;
    for (size_t i = bth_plan_find_record_by_offset(plan, tile.offset);
         stats && bth_plan_begins_before(plan, i, tile.offset + tile.nbytes); i++)
        if (bth_tile_intersect_range(&tile, bth_plan_data_range(plan, i), &share))
            atomic_fetch_add(&stats[i].moved_nbytes, share.nbytes);
    for (size_t i = 0; stats && i < tile.n_zero_copies; i++) {
        const bth_range *range = &tile.zero_copies[i].range;
        size_t record = bth_plan_find_record_by_offset(plan, range->offset);
        atomic_fetch_add(&stats[record].zero_copy_nbytes, range->nbytes);
    }
    return 0;
}

/* ---- settings ---- */

/*
 * Direct, four workers, 1, 2, 4 and 8 MiB: 2.0, 2.0, 2.3 and 2.0 GB/s. Into the page cache, two
 * workers, 256 KiB, 1 and 4 MiB: 7.3, 7.9 and 8.2.
 */
#define TILE_NBYTES BTH_WORKERS_CHUNK_NBYTES
/* Tiles do not get smaller than this to allow more workers. */
#define MIN_TILE_NBYTES ((uint64_t)256 * 1024)
#define TILE_UNIT_NBYTES ((uint64_t)64 * 1024)
/*
 * Memory for buffers, the plan and its pickle, if io.memory_nbytes is 0. Buffers get the minimum
 * however large the plan is. A save of 100,000 tensors stays below 64 MiB, with what the allocator
 * keeps.
 */
#define MEMORY_NBYTES ((uint64_t)56 * 1024 * 1024)
#define MIN_MEMORY_NBYTES ((uint64_t)20 * 1024 * 1024)
/* This many workers with whole tiles in large pages are faster than more workers without. */
#define MIN_DIRECT_WORKERS 2
/* Buffers that are filled so often get large pages, even if these come slowly: the disk's larger
 * requests are worth 0.3 ms for each filling of 2 MiB, and a slow large page takes 5 to 8 ms. */
#define LARGE_MIN_FILLS 24

bth_run_settings bth_run_settings_of(const struct berth_config *config, const berth_plan *plan,
                                     const bth_output *output)
{
    bool waits = plan->n_devices > 0 || (output && output->constraints.block_nbytes > 1);
    bth_workers_kind kind = waits ? BTH_WORKERS_WAIT : BTH_WORKERS_COMPUTE;
    bth_run_settings settings = {.n_workers = bth_workers_choose_count(config, kind, UINT64_MAX, 0),
                                 .tile_nbytes = (uint64_t)config->io_chunk_nbytes,
                                 .memory_nbytes = (uint64_t)config->io_memory_nbytes,
                                 .large_pages = config->io_large_pages,
                                 .read_back = config->debug};
    uint64_t plan_nbytes = plan->n_records * (sizeof *plan->records + sizeof(bth_sum)) +
                           plan->names_nbytes + plan->pickled.nbytes;

    if (settings.memory_nbytes == 0)
        settings.memory_nbytes =
            MEMORY_NBYTES - bth_min(plan_nbytes, MEMORY_NBYTES - MIN_MEMORY_NBYTES);
    if (output && output->n_threads > 0 && config->io_threads == 0)
        settings.n_workers = output->n_threads;
    /* Staging buffers of devices are larger. */
    bool is_placed = output && output->placing && plan->n_devices == 0;
    if (is_placed)
        settings.memory_nbytes = (uint64_t)config->io_memory_nbytes;
    if (is_placed || (settings.tile_nbytes == 0 && output && plan->n_devices == 0))
        settings.tile_nbytes = output->constraints.tile_nbytes;
    if (settings.tile_nbytes == 0)
        settings.tile_nbytes = TILE_NBYTES;
    if (plan->n_devices == 0)
        return settings;
    /* A tile from devices fits into one staging buffer, and each worker has one. If the
     * configuration sets their number or size, MEMORY_NBYTES does not limit them. */
    uint64_t nbytes = bth_round_up((uint64_t)config->device_staging_nbytes, BTH_LARGE_PAGE_NBYTES);
    unsigned n_staging = (unsigned)config->device_staging_buffers;
    settings.n_staging = n_staging;
    settings.is_pinned = config->save_use_pinned_memory_for_d2h;
    if (config->io_threads == 0 && n_staging > 0)
        settings.n_workers = n_staging;
    if (nbytes > 0 && (config->io_chunk_nbytes == 0 || settings.tile_nbytes > nbytes))
        settings.tile_nbytes = nbytes;
    uint64_t n = settings.n_workers > n_staging ? settings.n_workers : n_staging;
    if (config->io_memory_nbytes == 0 && (nbytes > 0 || n_staging > 0))
        settings.memory_nbytes += n * bth_round_up(settings.tile_nbytes, BTH_LARGE_PAGE_NBYTES);
    return settings;
}

/* ---- how many workers, how large tiles ---- */

/* Keeps the buffers of all workers within the limit: smaller tiles first, then fewer workers. With
 * blocks: fewer workers, if some can have whole tiles in large pages. `overhead`: what a
 * worker needs beside its tile. */
static void run_limit_buffer_memory(run_state *run, uint64_t memory_nbytes, uint64_t overhead)
{
    uint64_t fixed = 2 * (uint64_t)run->block_nbytes, n = 0;

    if (memory_nbytes == 0)
        return;
    if (run->block_nbytes > 1 && memory_nbytes >= fixed + BTH_LARGE_PAGE_NBYTES)
        n = (memory_nbytes - fixed - BTH_LARGE_PAGE_NBYTES) / (run->tile_nbytes + overhead);
    if (n >= MIN_DIRECT_WORKERS) {
        run->n_workers = (unsigned)bth_min(run->n_workers, n);
        return;
    }
    memory_nbytes = memory_nbytes > fixed ? memory_nbytes - fixed : 1;
    uint64_t worker_nbytes = memory_nbytes / run->n_workers;
    if (worker_nbytes >= run->tile_nbytes + overhead)
        return;
    if (run->tile_nbytes >= MIN_TILE_NBYTES && worker_nbytes >= MIN_TILE_NBYTES + overhead) {
        run->tile_nbytes = (worker_nbytes - overhead) & ~(TILE_UNIT_NBYTES - 1);
        return;
    }
    run->tile_nbytes = bth_min(run->tile_nbytes, MIN_TILE_NBYTES);
    n = memory_nbytes / (run->tile_nbytes + overhead);
    if (n == 0)
        run->tile_nbytes = memory_nbytes > overhead ? memory_nbytes - overhead : 1;
    run->n_workers = n > 1 ? (unsigned)n : 1;
}

static int run_choose_sizes(run_state *run, berth_error *error)
{
    const bth_run_settings *settings = run->settings;
    const bth_run_parts *parts = &settings->parts;
    uint64_t nbytes = bth_round_up(run->image.plan->nbytes, run->block_nbytes);
    /* No descriptor in more than two tiles: DEFERRED_PER_WORKER. */
    uint64_t min_nbytes = run->block_nbytes > 1 ? run->block_nbytes : BTH_MAX_DESCRIPTOR_NBYTES;
    uint64_t overhead =
        run->image.plan->max_header_nbytes + DEFERRED_PER_WORKER * run->deferred_block_nbytes;

    run->n_workers = run->output->in_order || settings->n_workers == 0 ? 1 : settings->n_workers;
    run->tile_nbytes = bth_min(settings->tile_nbytes, nbytes);
    if (run->placing) {
        uint64_t each = run->output->n_placed * run->tile_nbytes + overhead;
        if (settings->memory_nbytes > 0)
            run->n_workers =
                (unsigned)bth_max(bth_min(run->n_workers, settings->memory_nbytes / each), 1);
    } else if (run->image.plan->n_devices > 0) { /* a tile fits into a staging buffer */
        uint64_t limit = settings->memory_nbytes;
        uint64_t others = 2 * (uint64_t)run->block_nbytes + run->n_workers * overhead;
        if (limit > 0)
            limit = limit > others ? limit - others : 1;
        run->staging = bth_staging_slots_compute_need(settings, run->n_workers, limit);
        run->tile_nbytes = bth_min(run->tile_nbytes, run->staging.buffer_nbytes);
    } else
        run_limit_buffer_memory(run, settings->memory_nbytes, overhead);
    run->tile_nbytes &= ~(uint64_t)(run->block_nbytes - 1);
    if (!run->placing)
        run->tile_nbytes = bth_max(run->tile_nbytes, min_nbytes);
    uint64_t n_tiles = (nbytes - 1) / run->tile_nbytes + 1;
    if (parts->ranges) { /* a tile crosses no multiple of tile_nbytes */
        for (size_t i = 0; i < parts->n_ranges; i++) {
            uint64_t begin = parts->ranges[i].offset, end = begin + parts->ranges[i].nbytes;
            while (begin < end) { /* J1: the tiles of others are theirs */
                bth_range *tiles = bth_items_grow(run->tiles, run->n_range_tiles, 1,
                                                  &run->range_tiles_room, sizeof *tiles, error);
                if (!tiles)
                    return error->code;
                run->tiles = tiles;
                uint64_t tile_end = (begin / run->tile_nbytes + 1) * run->tile_nbytes;
                tiles[run->n_range_tiles++] = (bth_range){begin, bth_min(tile_end, end) - begin};
                begin = tile_end;
            }
        }
        n_tiles = run->n_range_tiles;
    }
    run->n_workers = (unsigned)bth_min(run->n_workers, n_tiles);
    if (run->placing)
        run->stats->memory_nbytes +=
            bth_min((uint64_t)run->n_workers * run->output->n_placed, n_tiles) * run->tile_nbytes;
    run->staging.n_buffers = (unsigned)bth_min(run->staging.n_buffers, n_tiles);
    return 0;
}

/* ---- begin ---- */

/* One block of memory: the workers' tiles, deferred blocks, the workers' scratch. */
static int run_allocate_buffers(run_state *run, berth_error *error)
{
    deferred_blocks *deferred = &run->deferred;
    size_t n = (size_t)run->n_workers * DEFERRED_PER_WORKER;
    uint64_t each = run->deferred_block_nbytes;
    uint64_t deferred_nbytes = n * each + run->block_nbytes; /* one for the tail */
    uint64_t n_tiles = run->slots.n > 0 || run->placing ? 0 : run->n_workers;
    uint64_t limit = run->settings->memory_nbytes;
    uint64_t alignment = run->block_nbytes, tiles, scratch, nbytes, all;
    bth_pages pages = {.wanted = run->settings->large_pages};

    assert(run->block_nbytes == 1 || run->block_nbytes >= BTH_MAX_DESCRIPTOR_NBYTES);
    if (!bth_try_multiply(run->tile_nbytes, n_tiles, &tiles) ||
        !bth_try_multiply(run->image.plan->max_header_nbytes, run->n_workers, &scratch) ||
        !bth_try_add(tiles, scratch, &nbytes) || !bth_try_add(nbytes, deferred_nbytes, &nbytes))
        return bth_fail_memory(error, UINT64_MAX);
    /* From large pages a disk gets fewer and larger requests (measured on virtio: 2.4 GB/s from
     * pages of 4 KiB, 3.9 from 2 MiB). Only where the limit of memory leaves room to align them. */
    if (n_tiles > 0 && run->block_nbytes > 1 && run->tile_nbytes >= BTH_LARGE_PAGE_NBYTES &&
        (limit == 0 || nbytes + BTH_LARGE_PAGE_NBYTES <= limit))
        alignment = BTH_LARGE_PAGE_NBYTES;
    if (bth_try_add(nbytes, alignment - 1, &all) && all <= SIZE_MAX)
        run->allocated = bth_allocate((size_t)all);
    if (!run->allocated)
        return bth_fail_memory(error, nbytes);
    run->stats->memory_nbytes += all;
    uintptr_t begin = (uintptr_t)run->allocated;
    run->buffers = run->allocated + (bth_round_up(begin, alignment) - begin);
    if (alignment >= BTH_LARGE_PAGE_NBYTES) {
        if (run->settings->large_pages == BTH_LARGE_PAGES_AUTO &&
            run->image.plan->nbytes / LARGE_MIN_FILLS >= nbytes)
            pages.wanted = BTH_LARGE_PAGES_ON;
        bth_pages_choose(&pages, run->buffers, (size_t)nbytes);
        if (!run->stats->pages) { /* else those of a snapshot, which are more */
            bth_pages_describe(&pages, run->stats);
            if (pages.wanted != run->settings->large_pages)
                run->stats->pages_reason = "the buffers are filled many times";
        }
    }
    run->scratch = run->buffers + tiles + deferred_nbytes;
    deferred->blocks = bth_allocate_zeroed((n + 1) * sizeof *deferred->blocks);
    if (!deferred->blocks)
        return bth_fail_memory(error, (n + 1) * sizeof *deferred->blocks);
    deferred->n_blocks = n;
    for (size_t i = 0; i < n; i++) {
        deferred->blocks[i].record = BTH_NO_RECORD;
        deferred->blocks[i].bytes = run->buffers + tiles + i * each;
    }
    deferred->tail.bytes = run->buffers + tiles + n * each;
    pthread_mutex_init(&deferred->lock, NULL);
    return 0;
}

static int run_prepare(run_state *run, berth_error *error)
{
    bth_output_constraints *constraints = &run->image.constraints;
    const bth_run_parts *parts = &run->settings->parts;
    const berth_plan *plan = run->image.plan;

    if (constraints->block_nbytes <= 1)
        constraints->block_nbytes = constraints->memory_alignment = 1;
    run->block_nbytes = constraints->block_nbytes;
    run->placing = plan->n_devices == 0 ? run->output->placing : NULL;
    run->deferred_block_nbytes =
        run->block_nbytes > 1 ? 2 * (uint64_t)run->block_nbytes : BTH_MAX_DESCRIPTOR_NBYTES;
    if (constraints->large_pages_only)
        run->image.pages = bth_pagemap_open();
    if (run_choose_sizes(run, error) < 0)
        return error->code;
    if (plan->n_devices > 0) { /* each worker has one slot; a single worker has them all */
        if (bth_wing_slots.open(&run->slots, plan, &run->staging, error) < 0)
            return error->code;
        run->n_workers = (unsigned)bth_min(run->n_workers, run->slots.n);
        run->stats->memory_nbytes += run->slots.n * (uint64_t)run->slots.ring.buffer_nbytes;
    }
    for (size_t i = 0; i < parts->n_present; i++)
        run->present_nbytes += parts->present[i].before_nbytes + parts->present[i].range.nbytes;
    if (bth_image_begin(&run->image, parts->present, parts->n_present, error) < 0)
        return error->code;
    return run_allocate_buffers(run, error);
}

/* ---- run ---- */

static void run_close_slots(run_state *run)
{
    for (unsigned i = 0; i < run->slots.n; i++)
        run->stats->device_seconds += run->slots.slots[i].wait_seconds;
    if (run->slots.n > 0)
        bth_wing_slots.close(&run->slots);
}

static int run_report_progress(void *context)
{
    run_state *run = context;
    const bth_run_settings *settings = run->settings;

    if (!settings->progress)
        return 0;
    return settings->progress(settings->progress_context,
                              run->present_nbytes + atomic_load(&run->done_nbytes),
                              run->image.plan->nbytes);
}

static int run_write_range(run_state *run, uint64_t begin, uint64_t end, berth_error *error)
{
    assert(begin < end);
    run->begin = begin;
    run->end = end;
    run->n_tiles = run->settings->parts.ranges && !run->is_tail
                       ? run->n_range_tiles
                       : (end - 1) / run->tile_nbytes - begin / run->tile_nbytes + 1;
    atomic_store(&run->n_unread, run->n_tiles);
    return bth_pool_run(run->n_workers, run->n_tiles, run_tile, run_report_progress, run, error);
}

/* Data first, then the tail, which depends on every CRC: the id, the directory, the end. */
static int run_write_all(run_state *run, berth_error *error)
{
    const berth_plan *plan = run->image.plan;
    uint64_t tail = plan->tail_offset & ~(uint64_t)(run->block_nbytes - 1);

    if (plan->tail_offset > 0 && run_write_range(run, 0, plan->tail_offset, error) < 0)
        return error->code;
    bth_image_compute_id(&run->image);
    run->is_tail = true;
    /* A safetensors file has no tail, but the last block of its data may wait for one. */
    if (tail < plan->nbytes && run_write_range(run, tail, plan->nbytes, error) < 0)
        return error->code;
    if (run->settings->read_back) {
        /* Frees the tiles' buffers first: io.memory_nbytes also limits debug mode. */
        bth_release(run->allocated);
        run->allocated = run->buffers = NULL;
        run_close_slots(run);
        if (bth_readback_check_headers_and_directory(&run->image, run->output, error) < 0)
            return error->code;
    }
    if (run_report_progress(run) != 0)
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    return 0;
}

int bth_run(const berth_plan *plan, const bth_output *output, const bth_run_settings *settings,
            berth_stats *stats, berth_error *error)
{
    run_state run = {.output = output,
                     .settings = settings,
                     .stats = stats,
                     .image = {.plan = plan,
                               .constraints = output->constraints,
                               .pages = -1,
                               .storage_stats = settings->storage_stats}};

    if (run_prepare(&run, error) == 0)
        run_write_all(&run, error);
    for (size_t i = 0; settings->crc32s && i < plan->n_records; i++)
        settings->crc32s[i] = bth_image_crc32(&run.image, i);
    stats->moved_nbytes = atomic_load(&run.done_nbytes);
    stats->n_requests = atomic_load(&run.n_requests);
    stats->render_seconds = (double)atomic_load(&run.render_nanoseconds) * 1e-9;
    stats->crc32_seconds = (double)atomic_load(&run.crc32_nanoseconds) * 1e-9;
    stats->disk_seconds = (double)atomic_load(&run.write_nanoseconds) * 1e-9;
    run_close_slots(&run);
    if (run.deferred.blocks)
        pthread_mutex_destroy(&run.deferred.lock);
    bth_release(run.deferred.blocks);
    bth_file_close(run.image.pages);
    bth_release(run.allocated);
    bth_release(run.tiles);
    bth_release(run.image.sums);
    bth_release(run.image.starts);
    return error->code;
}
