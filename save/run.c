/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/run.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/thread_pool.h"
#include "io/worker_counts.h"
#include "save/image.h"
#include "save/run_state.h"

/* Tiles of a run that writes only ranges of the file (J1: the tiles of others are theirs). */

/* The tile that begins at `begin`, in a range that ends at `end`. */
static bth_range range_cut_tile(uint64_t begin, uint64_t end, uint64_t tile_nbytes)
{
    uint64_t nbytes = tile_nbytes - begin % tile_nbytes;

    return (bth_range){begin, bth_min(nbytes, end - begin)};
}

/* How many tiles the ranges have, and these. A tile crosses no multiple of tile_nbytes. */
static uint64_t run_ranges_count_tiles(const bth_run_parts *parts, uint64_t tile_nbytes)
{
    uint64_t n = 0;

    for (size_t i = 0; i < parts->n_ranges; i++) {
        uint64_t begin = parts->ranges[i].offset, end = begin + parts->ranges[i].nbytes;
        n += (end - 1) / tile_nbytes - begin / tile_nbytes + 1;
    }
    return n;
}

static bth_range *run_ranges_make_tiles(const bth_run_parts *parts, uint64_t tile_nbytes,
                                        berth_error *error)
{
    size_t nbytes =
        bth_array_nbytes((size_t)run_ranges_count_tiles(parts, tile_nbytes), sizeof(bth_range));
    bth_range *tiles = bth_allocate(nbytes), *next = tiles;

    if (!tiles) {
        bth_fail_memory(error, nbytes);
        return NULL;
    }
    for (size_t i = 0; i < parts->n_ranges; i++) {
        uint64_t begin = parts->ranges[i].offset, end = begin + parts->ranges[i].nbytes;
        for (; begin < end; begin = next->offset + next->nbytes, next++)
            *next = range_cut_tile(begin, end, tile_nbytes);
    }
    return tiles;
}

/* `direct` or `buffered`, by the save's method. NULL: any other method. */
static const char *stats_choose_text_by_save_method(const berth_stats *save, const char *direct,
                                                    const char *buffered)
{
    if (strcmp(save->method, "direct") == 0)
        return direct;
    return strcmp(save->method, "buffered") == 0 ? buffered : NULL;
}

/* Copies at the ends of a record do not count if most of it was zero-copy. */
static void stats_fill_report(const bth_storage_stats *stats, const berth_plan *plan, size_t i,
                              const berth_stats *save, berth_storage_stats *out)
{
    const bth_plan_record *record = &plan->records[i];
    uint64_t moved_nbytes = stats ? atomic_load(&stats->moved_nbytes) : 0;

    *out = (berth_storage_stats){.method = "none",
                                 .reason = record->layout.nbytes == 0 ? "it is empty"
                                                                      : "nothing was written",
                                 .nbytes = record->layout.nbytes,
                                 .moved_nbytes = moved_nbytes};
    if (moved_nbytes == 0)
        return;
    const char *why_copied = atomic_load(&stats->why_copied), *method = NULL;
    if (record->device)
        method =
            stats_choose_text_by_save_method(save, "direct, from device", "buffered, from device");
    else if (why_copied && atomic_load(&stats->zero_copy_nbytes) < moved_nbytes / 2)
        method = stats_choose_text_by_save_method(save, "direct, copied", "buffered, copied");
    out->crc32 = plan->compute_crc32 && !record->no_crc32 ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
    out->method = method ? method : save->method;
    out->reason = method && !record->device ? why_copied : save->reason;
}

void bth_storage_stats_fill_reports(const bth_storage_stats *stats, const berth_plan *plan,
                                    const berth_stats *save, berth_storage_stats *reports, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < plan->n_records && at < n; i++)
        if (bth_plan_record_is_storage(plan, i))
            stats_fill_report(stats ? &stats[i] : NULL, plan, i, save, &reports[at++]);
}

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

static uint64_t settings_default_memory_nbytes(const berth_plan *plan)
{
    uint64_t plan_nbytes = plan->n_records * (sizeof *plan->records + sizeof(bth_sum)) +
                           plan->names_nbytes + plan->pickled.nbytes;

    if (plan_nbytes > MEMORY_NBYTES - MIN_MEMORY_NBYTES)
        return MIN_MEMORY_NBYTES;
    return MEMORY_NBYTES - plan_nbytes;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/*
 * A tile from devices fits into one staging buffer, and each worker has one. If the configuration
 * sets their number or size, MEMORY_NBYTES does not limit them.
 */
static void settings_add_staging(bth_run_settings *settings, const struct berth_config *config)
{
    uint64_t nbytes = round_up((uint64_t)config->device_staging_nbytes, BTH_LARGE_PAGE_NBYTES);
    unsigned n_staging = (unsigned)config->device_staging_buffers;

    settings->n_staging = n_staging;
    settings->is_pinned = config->save_use_pinned_memory_for_d2h;
    if (config->io_threads == 0 && n_staging > 0)
        settings->n_workers = n_staging;
    if (nbytes > 0 && (config->io_chunk_nbytes == 0 || settings->tile_nbytes > nbytes))
        settings->tile_nbytes = nbytes;
    uint64_t n = settings->n_workers > n_staging ? settings->n_workers : n_staging;
    if (config->io_memory_nbytes == 0 && (nbytes > 0 || n_staging > 0))
        settings->memory_nbytes += n * round_up(settings->tile_nbytes, BTH_LARGE_PAGE_NBYTES);
}

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

    if (settings.memory_nbytes == 0)
        settings.memory_nbytes = settings_default_memory_nbytes(plan);
    /* Staging buffers of devices are larger. */
    if (settings.tile_nbytes == 0 && output && plan->n_devices == 0)
        settings.tile_nbytes = output->constraints.tile_nbytes;
    if (settings.tile_nbytes == 0)
        settings.tile_nbytes = TILE_NBYTES;
    if (plan->n_devices > 0)
        settings_add_staging(&settings, config);
    return settings;
}

/* ---- how many workers, how large tiles ---- */

/* What a worker needs beside its tile. */
static uint64_t run_worker_nbytes_beside_tile(const bth_run_state *run)
{
    return run->image.plan->max_header_nbytes + bth_deferred_worker_nbytes(run->block_nbytes);
}

/* With blocks: fewer workers, if some can have whole tiles in large pages. */
static bool run_limit_workers_for_large_pages(bth_run_state *run, uint64_t memory_nbytes)
{
    uint64_t fixed = 2 * (uint64_t)run->block_nbytes + BTH_LARGE_PAGE_NBYTES;

    if (run->block_nbytes == 1 || memory_nbytes < fixed)
        return false;
    uint64_t n = (memory_nbytes - fixed) / (run->tile_nbytes + run_worker_nbytes_beside_tile(run));
    if (n < MIN_DIRECT_WORKERS)
        return false;
    if (run->n_workers > n)
        run->n_workers = (unsigned)n;
    return true;
}

/* Keeps the buffers of all workers within the limit: smaller tiles first, then fewer workers. */
static void run_limit_buffer_memory(bth_run_state *run, uint64_t memory_nbytes)
{
    uint64_t overhead = run_worker_nbytes_beside_tile(run), fixed = 2 * (uint64_t)run->block_nbytes;

    if (memory_nbytes == 0 || run_limit_workers_for_large_pages(run, memory_nbytes))
        return;
    memory_nbytes = memory_nbytes > fixed ? memory_nbytes - fixed : 1;
    uint64_t worker_nbytes = memory_nbytes / run->n_workers;
    if (worker_nbytes >= run->tile_nbytes + overhead)
        return;
    if (run->tile_nbytes >= MIN_TILE_NBYTES && worker_nbytes >= MIN_TILE_NBYTES + overhead) {
        run->tile_nbytes = (worker_nbytes - overhead) & ~(TILE_UNIT_NBYTES - 1);
        return;
    }
    if (run->tile_nbytes > MIN_TILE_NBYTES)
        run->tile_nbytes = MIN_TILE_NBYTES;
    uint64_t n = memory_nbytes / (run->tile_nbytes + overhead);
    if (n == 0)
        run->tile_nbytes = memory_nbytes > overhead ? memory_nbytes - overhead : 1;
    run->n_workers = n > 1 ? (unsigned)n : 1;
}

/* From devices: a tile fits into a staging buffer. */
static void run_choose_staging_sizes(bth_run_state *run, uint64_t memory_nbytes)
{
    uint64_t others =
        2 * (uint64_t)run->block_nbytes + run->n_workers * run_worker_nbytes_beside_tile(run);
    uint64_t rest = memory_nbytes > others ? memory_nbytes - others : 1;

    run->staging =
        bth_staging_slots_compute_need(run->settings, run->n_workers, memory_nbytes > 0 ? rest : 0);
    if (run->tile_nbytes > run->staging.buffer_nbytes)
        run->tile_nbytes = run->staging.buffer_nbytes;
}

static void run_choose_sizes(bth_run_state *run)
{
    const bth_run_settings *settings = run->settings;
    uint64_t nbytes = round_up(run->image.plan->nbytes, run->block_nbytes);
    /* No descriptor in more than two tiles: BTH_DEFERRED_PER_WORKER. */
    uint64_t min_nbytes = run->block_nbytes > 1 ? run->block_nbytes : BTH_MAX_DESCRIPTOR_NBYTES;

    run->n_workers = run->output->in_order || settings->n_workers == 0 ? 1 : settings->n_workers;
    run->tile_nbytes = settings->tile_nbytes < nbytes ? settings->tile_nbytes : nbytes;
    if (run->image.plan->n_devices > 0)
        run_choose_staging_sizes(run, settings->memory_nbytes);
    else
        run_limit_buffer_memory(run, settings->memory_nbytes);
    run->tile_nbytes &= ~(uint64_t)(run->block_nbytes - 1);
    if (run->tile_nbytes < min_nbytes)
        run->tile_nbytes = min_nbytes;
    uint64_t n_tiles = (nbytes - 1) / run->tile_nbytes + 1;
    if (settings->parts.ranges)
        n_tiles = run->n_range_tiles = run_ranges_count_tiles(&settings->parts, run->tile_nbytes);
    if (run->n_workers > n_tiles)
        run->n_workers = (unsigned)n_tiles;
    if (run->staging.n_buffers > n_tiles)
        run->staging.n_buffers = (unsigned)n_tiles;
}

/* ---- begin ---- */

/*
 * From large pages a disk gets fewer and larger requests (measured on virtio: 2.4 GB/s from pages
 * of 4 KiB, 3.9 from 2 MiB). Only where the limit of memory leaves room to align them.
 */
static uint64_t run_buffers_alignment(const bth_run_state *run, uint64_t nbytes)
{
    uint64_t bound = run->settings->memory_nbytes;

    if (run->slots.n == 0 && run->block_nbytes > 1 && run->tile_nbytes >= BTH_LARGE_PAGE_NBYTES &&
        (bound == 0 || nbytes + BTH_LARGE_PAGE_NBYTES <= bound))
        return BTH_LARGE_PAGE_NBYTES;
    return run->block_nbytes;
}

static int run_allocate_aligned(bth_run_state *run, uint64_t nbytes, berth_error *error)
{
    uint64_t alignment = run_buffers_alignment(run, nbytes), all;
    bth_pages pages = {.wanted = run->settings->large_pages};

    if (bth_try_add(nbytes, alignment - 1, &all) && all <= SIZE_MAX)
        run->allocated = bth_allocate((size_t)all);
    if (!run->allocated)
        return bth_fail_memory(error, nbytes);
    run->stats->memory_nbytes += all;
    uintptr_t begin = (uintptr_t)run->allocated;
    run->buffers = run->allocated + (round_up(begin, alignment) - begin);
    if (alignment < BTH_LARGE_PAGE_NBYTES)
        return 0;
    if (run->settings->large_pages == BTH_LARGE_PAGES_AUTO &&
        run->image.plan->nbytes / LARGE_MIN_FILLS >= nbytes)
        pages.wanted = BTH_LARGE_PAGES_ON;
    bth_pages_choose(&pages, run->buffers, (size_t)nbytes);
    if (run->stats->pages) /* those of a snapshot, which are more */
        return 0;
    bth_pages_describe(&pages, run->stats);
    if (pages.wanted != run->settings->large_pages)
        run->stats->pages_reason = "the buffers are filled many times";
    return 0;
}

/* One block of memory: the workers' tiles, deferred blocks, the workers' scratch. */
static int run_allocate_buffers(bth_run_state *run, berth_error *error)
{
    uint64_t n_tiles = run->slots.n > 0 ? 0 : run->n_workers;
    uint64_t deferred = bth_deferred_nbytes(run->n_workers, run->block_nbytes);
    uint64_t tiles, scratch, all;

    if (!bth_try_multiply(run->tile_nbytes, n_tiles, &tiles) ||
        !bth_try_multiply(run->image.plan->max_header_nbytes, run->n_workers, &scratch) ||
        !bth_try_add(tiles, scratch, &all) || !bth_try_add(all, deferred, &all))
        return bth_fail_memory(error, UINT64_MAX);
    if (run_allocate_aligned(run, all, error) < 0)
        return error->code;
    run->scratch = run->buffers + tiles + deferred;
    return bth_deferred_begin(&run->deferred, run->n_workers, run->block_nbytes,
                              run->buffers + tiles, error);
}

/* Each worker has one slot; a single worker has them all. */
static int run_open_slots(bth_run_state *run, berth_error *error)
{
    if (run->image.plan->n_devices == 0)
        return 0;
    if (bth_staging_slots_open(&run->slots, run->image.plan, &run->staging, error) < 0)
        return error->code;
    if (run->n_workers > run->slots.n)
        run->n_workers = run->slots.n;
    run->stats->memory_nbytes += run->slots.n * (uint64_t)run->slots.ring.buffer_nbytes;
    return 0;
}

static int run_begin_image(bth_run_state *run, berth_error *error)
{
    const bth_run_parts *parts = &run->settings->parts;

    if (bth_image_allocate_crc32s(&run->image, error) < 0 ||
        bth_image_begin_id(&run->image, error) < 0)
        return error->code;
    for (size_t i = 0; i < parts->n_present; i++) {
        bth_image_add_present(&run->image, &parts->present[i]);
        run->present_nbytes += parts->present[i].before_nbytes + parts->present[i].range.nbytes;
    }
    if (parts->ranges)
        run->tiles = run_ranges_make_tiles(parts, run->tile_nbytes, error);
    return error->code;
}

static int run_prepare(bth_run_state *run, berth_error *error)
{
    bth_output_constraints *constraints = &run->image.constraints;

    if (constraints->block_nbytes <= 1)
        constraints->block_nbytes = constraints->memory_alignment = 1;
    run->block_nbytes = constraints->block_nbytes;
    if (constraints->large_pages_only)
        run->image.pages = bth_pagemap_open();
    run_choose_sizes(run);
    if (run_open_slots(run, error) < 0 || run_begin_image(run, error) < 0)
        return error->code;
    return run_allocate_buffers(run, error);
}

/* ---- run ---- */

static void run_close_slots(bth_run_state *run)
{
    for (unsigned i = 0; i < run->slots.n; i++)
        run->stats->device_seconds += run->slots.slots[i].wait_seconds;
    bth_staging_slots_close(&run->slots);
}

static int run_report_progress(void *context)
{
    bth_run_state *run = context;
    const bth_run_settings *settings = run->settings;

    if (!settings->progress)
        return 0;
    return settings->progress(settings->progress_context,
                              run->present_nbytes + atomic_load(&run->done_nbytes),
                              run->image.plan->nbytes);
}

static int run_write_part_of_file(bth_run_state *run, uint64_t begin, uint64_t end,
                                  berth_error *error)
{
    assert(begin < end);
    run->begin = begin;
    run->end = end;
    run->n_tiles = run->tiles && !run->is_tail
                       ? run->n_range_tiles
                       : (end - 1) / run->tile_nbytes - begin / run->tile_nbytes + 1;
    atomic_store(&run->n_unread, run->n_tiles);
    return bth_pool_run(run->n_workers, run->n_tiles, bth_run_tile, run_report_progress, run,
                        error);
}

/* Frees the tiles' buffers first: io.memory_nbytes also limits debug mode. */
static int run_read_back(bth_run_state *run, berth_error *error)
{
    if (!run->settings->read_back)
        return 0;
    bth_release(run->allocated);
    run->allocated = run->buffers = NULL;
    run_close_slots(run);
    return bth_readback_check_headers_and_directory(&run->image, run->output, error);
}

/* Data first, then the tail, which depends on every CRC: the id, the directory, the end. */
static int run_write_all(bth_run_state *run, berth_error *error)
{
    const berth_plan *plan = run->image.plan;
    uint64_t tail = plan->tail_offset & ~(uint64_t)(run->block_nbytes - 1);

    if (plan->tail_offset > 0 && run_write_part_of_file(run, 0, plan->tail_offset, error) < 0)
        return error->code;
    bth_image_compute_id(&run->image);
    run->is_tail = true;
    /* A safetensors file has no tail, but the last block of its data may wait for one. */
    if ((tail < plan->nbytes && run_write_part_of_file(run, tail, plan->nbytes, error) < 0) ||
        run_read_back(run, error) < 0)
        return error->code;
    if (run_report_progress(run) != 0)
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    return 0;
}

int bth_run(const berth_plan *plan, const bth_output *output, const bth_run_settings *settings,
            berth_stats *stats, berth_error *error)
{
    bth_run_state run = {.output = output,
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
    bth_deferred_free_all(&run.deferred);
    bth_file_close(run.image.pages);
    bth_release(run.allocated);
    bth_release(run.tiles);
    bth_image_free_all(&run.image);
    return error->code;
}
