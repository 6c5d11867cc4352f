/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/run.h"

#include "config/error.h"
#include "config/memory.h"
#include "io/pool.h"
#include "save/image.h"
#include "save/readback.h"
#include "save/shortage.h"

/* Large enough that a request costs little beside its bytes, small enough to spread. */
#define TILE_NBYTES ((uint64_t)4 * 1024 * 1024)

typedef struct berth_run_state {
    berth_image image;
    const berth_output *output;
    const berth_run_settings *settings;
    uint64_t begin, end; /* of the part of the file that is being written */
    uint64_t tile_nbytes;
    size_t buffer_nbytes; /* of one worker: the tile, and scratch behind it */
    uint8_t *buffers;
    _Atomic uint64_t done_nbytes;
    _Atomic uint64_t n_requests;
} berth_run_state;

/* io.memory_nbytes bounds the buffers of all workers together. */
static void bound_memory(berth_run_settings *settings, uint64_t memory_nbytes)
{
    if (memory_nbytes == 0)
        return;
    if (settings->tile_nbytes > memory_nbytes)
        settings->tile_nbytes = memory_nbytes;
    if (settings->n_workers > memory_nbytes / settings->tile_nbytes)
        settings->n_workers = (unsigned)(memory_nbytes / settings->tile_nbytes);
}

berth_run_settings berth_run_settings_of(const struct berth_config *config)
{
    berth_run_settings settings = {.n_workers = (unsigned)config->io_threads,
                                   .tile_nbytes = (uint64_t)config->io_chunk_nbytes,
                                   .read_back = config->debug};

    if (settings.n_workers == 0)
        settings.n_workers = berth_pool_measure();
    if (settings.tile_nbytes == 0)
        settings.tile_nbytes = TILE_NBYTES;
    bound_memory(&settings, (uint64_t)config->io_memory_nbytes);
    if (settings.n_workers == 1)
        settings.n_workers = 0; /* one more thread would only be waited for */
    return settings;
}

/* Says it again with the record, and with what is missing where room was short (W1). */
static int fail_write(berth_run_state *run, const berth_error *failed, uint64_t offset,
                      berth_error *error)
{
    const berth_plan *plan = run->image.plan;
    uint64_t at = failed->offset != BERTH_NO_OFFSET ? failed->offset : offset;
    size_t i = berth_plan_find(plan, at);
    const char *name = i < plan->n_records ? berth_plan_name(plan, i) : NULL;

    if (failed->code == BERTH_E_NO_SPACE)
        return berth_fail_shortage(
            error, failed->system_errno, name, at,
            berth_shortage(run->output, plan->nbytes, atomic_load(&run->done_nbytes)));
    if (failed->code == BERTH_E_CALLBACK)
        berth_fail_errno(error, failed->system_errno, name, at, "the sink failed");
    else if (failed->system_errno)
        berth_fail_errno(error, failed->system_errno, name, at, "cannot write");
    else
        berth_fail(error, failed->code, name, at, "%s", failed->message);
    error->code = failed->code;
    return error->code;
}

static int write_range(berth_run_state *run, const uint8_t *bytes, uint64_t nbytes, uint64_t offset,
                       berth_error *error)
{
    berth_error failed;

    if (nbytes == 0)
        return 0;
    if (run->settings->cancelled && atomic_load(run->settings->cancelled))
        return berth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    berth_error_clear(&failed);
    atomic_fetch_add(&run->n_requests, 1);
    if (run->output->write(run->output->context, bytes, (size_t)nbytes, offset, &failed) < 0)
        return fail_write(run, &failed, offset, error);
    atomic_fetch_add(&run->done_nbytes, nbytes);
    return 0;
}

/* All of the tile but its gaps, and then its seam. */
static int write_tile(berth_run_state *run, const berth_tile *tile, berth_error *error)
{
    uint64_t at = tile->offset;

    for (size_t i = 0; i < tile->n_gaps; i++) {
        const berth_range *gap = &tile->gaps[i];
        if (write_range(run, tile->bytes + (at - tile->offset), gap->offset - at, at, error) < 0)
            return error->code;
        at = gap->offset + gap->nbytes;
    }
    uint64_t end = tile->offset + tile->nbytes;
    if (write_range(run, tile->bytes + (at - tile->offset), end - at, at, error) < 0)
        return error->code;
    return write_range(run, tile->seam.bytes, tile->seam.nbytes, tile->seam.offset, error);
}

/* Tiles lie at multiples of their size in the file, whatever part of it is being written. */
static int run_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    berth_run_state *run = context;
    uint8_t *buffer = run->buffers + worker * run->buffer_nbytes;
    uint64_t index = run->begin / run->tile_nbytes + task;
    uint64_t begin = index * run->tile_nbytes;
    uint64_t rest = run->end - begin;
    uint64_t end = begin + (rest < run->tile_nbytes ? rest : run->tile_nbytes);
    if (begin < run->begin)
        begin = run->begin;
    berth_tile tile = {.offset = begin,
                       .nbytes = (size_t)(end - begin),
                       .bytes = buffer,
                       .scratch = buffer + run->tile_nbytes};

    if (berth_image_render(&run->image, &tile, error) < 0)
        return error->code;
    return write_tile(run, &tile, error);
}

static int tell_progress(void *context)
{
    berth_run_state *run = context;
    const berth_run_settings *settings = run->settings;

    if (!settings->progress)
        return 0;
    return settings->progress(settings->progress_context, atomic_load(&run->done_nbytes),
                              run->image.plan->nbytes);
}

static int write_part(berth_run_state *run, unsigned n_workers, uint64_t begin, uint64_t end,
                      berth_error *error)
{
    if (begin == end)
        return 0;
    run->begin = begin;
    run->end = end;
    uint64_t n_tiles = (end - 1) / run->tile_nbytes - begin / run->tile_nbytes + 1;
    return berth_pool_run(n_tiles > 1 ? n_workers : 0, n_tiles, run_tile, tell_progress, run,
                          error);
}

static int allocate_buffers(berth_run_state *run, unsigned n_workers, berth_error *error)
{
    const berth_plan *plan = run->image.plan;
    uint64_t n_buffers = n_workers > 0 ? n_workers : 1;
    uint64_t one, all;

    if (!berth_add(run->tile_nbytes, plan->most_header_nbytes, &one) ||
        !berth_multiply(one, n_buffers, &all) || all > SIZE_MAX)
        return berth_fail_memory(error, UINT64_MAX);
    run->buffer_nbytes = (size_t)one;
    run->buffers = berth_allocate((size_t)all);
    return run->buffers ? 0 : berth_fail_memory(error, all);
}

static unsigned useful_workers(const berth_plan *plan, const berth_output *output,
                               unsigned n_workers, uint64_t tile_nbytes)
{
    uint64_t n_tiles = (plan->nbytes - 1) / tile_nbytes + 1;

    if (output->in_order)
        return 0;
    return n_workers < n_tiles ? n_workers : (unsigned)n_tiles;
}

/* Data first; then what depends on every CRC: the id, the directory, the end. */
static int write_all(berth_run_state *run, unsigned n_workers, berth_error *error)
{
    const berth_plan *plan = run->image.plan;

    if (write_part(run, n_workers, 0, plan->tail_offset, error) < 0)
        return error->code;
    berth_image_settle(&run->image);
    if (write_part(run, n_workers, plan->tail_offset, plan->nbytes, error) < 0)
        return error->code;
    if (run->settings->read_back && berth_readback(&run->image, run->output, error) < 0)
        return error->code;
    if (tell_progress(run) != 0)
        return berth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    return 0;
}

int berth_run(const berth_plan *plan, const berth_output *output,
              const berth_run_settings *settings, berth_run_facts *facts, berth_error *error)
{
    berth_run_state run = {.output = output, .settings = settings};
    unsigned n_workers = useful_workers(plan, output, settings->n_workers, settings->tile_nbytes);

    run.tile_nbytes = settings->tile_nbytes;
    if (run.tile_nbytes > plan->nbytes)
        run.tile_nbytes = plan->nbytes;
    if (berth_image_begin(&run.image, plan, n_workers <= 1, error) == 0 &&
        allocate_buffers(&run, n_workers, error) == 0)
        write_all(&run, n_workers, error);
    facts->moved_nbytes = atomic_load(&run.done_nbytes);
    facts->n_requests = atomic_load(&run.n_requests);
    berth_release(run.buffers);
    berth_image_end(&run.image);
    return error->code;
}
