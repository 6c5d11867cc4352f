/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/snapshot.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "io/memory_region.h"
#include "io/thread_pool.h"
#include "io/trace/trace.h"
#include "save/image.h"
#include "save/run.h"
#include "save/staging_slots.h"

/* Alignment for direct writes to any disk. */
#define PAGE_NBYTES 4096

/* What io.memory_nbytes must leave for buffers; and for a staging buffer. */
#define MIN_BUFFER_NBYTES ((uint64_t)64 * 1024)
#define MIN_STAGING_NBYTES BTH_LARGE_PAGE_NBYTES

/* The caller's bytes, and short records beside them; but the pickle, which is the plan's own. */
static bool record_is_in_snapshot(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];

    return record->layout.nbytes > 0 && (!record->data || record->data != plan->pickled.bytes);
}

/* The range of the file that holds all borrowed records. */
static void snapshot_compute_file_range(bth_snapshot *snapshot, const berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_range data = bth_plan_data_range(plan, i);
        if (!record_is_in_snapshot(plan, i))
            continue;
        if (snapshot->end == 0)
            snapshot->begin = data.offset;
        snapshot->end = data.offset + data.nbytes;
    }
}

static int snapshot_lower_memory_limit(struct berth_config *config, const berth_plan *plan,
                                       uint64_t nbytes, berth_error *error)
{
    uint64_t min_nbytes = plan->n_devices > 0 ? MIN_STAGING_NBYTES : MIN_BUFFER_NBYTES;
    uint64_t max_nbytes = (uint64_t)config->io_memory_nbytes;

    if (max_nbytes == 0)
        return 0;
    if (max_nbytes < min_nbytes || nbytes > max_nbytes - min_nbytes)
        return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                        "a snapshot takes %llu bytes, and %llu for buffers; io.memory_nbytes is "
                        "%llu (%llu bytes missing)",
                        (unsigned long long)nbytes, (unsigned long long)min_nbytes,
                        (unsigned long long)max_nbytes,
                        (unsigned long long)(nbytes + min_nbytes - max_nbytes));
    config->io_memory_nbytes = (int64_t)(max_nbytes - nbytes);
    return 0;
}

int bth_snapshot_reserve(bth_snapshot *snapshot, const berth_plan *plan,
                         struct berth_config *config, berth_error *error)
{
    snapshot_compute_file_range(snapshot, plan);
    uint64_t before_nbytes = snapshot->begin % PAGE_NBYTES;
    uint64_t nbytes = snapshot->end - snapshot->begin + before_nbytes + PAGE_NBYTES - 1;

    if (snapshot->end == 0)
        return 0;
    if (snapshot_lower_memory_limit(config, plan, nbytes, error) < 0)
        return error->code;
    snapshot->memory = nbytes <= SIZE_MAX ? bth_allocate((size_t)nbytes) : NULL;
    if (!snapshot->memory)
        return bth_fail_memory(error, nbytes);
    /* Large pages are filled faster, and direct writes need no copy of them. */
    snapshot->pages.wanted = config->io_large_pages;
    bth_pages_begin(&snapshot->pages, &snapshot->front, snapshot->memory, (size_t)nbytes);
    uintptr_t page = ((uintptr_t)snapshot->memory + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    snapshot->bytes =
        (uint8_t *)snapshot->memory + (page - (uintptr_t)snapshot->memory) + before_nbytes;
    return 0;
}

/* ---- copying ---- */

/* In tiles of an image without CRCs, which is rendered into the snapshot. */
typedef struct copying {
    bth_image image;
    bth_snapshot *snapshot;
    uint64_t tile_nbytes;
    unsigned n_workers;
    uint8_t *scratch;
    bth_staging_slots slots; /* where storages lie on devices: each worker has one */
} copying;

static int snapshot_copy_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    copying *copy = context;
    bth_snapshot *snapshot = copy->snapshot;
    uint64_t begin = snapshot->begin + task * copy->tile_nbytes;
    uint64_t rest = snapshot->end - begin;
    bth_tile tile = {.offset = begin,
                     .nbytes = (size_t)(rest < copy->tile_nbytes ? rest : copy->tile_nbytes),
                     .bytes = snapshot->bytes + (begin - snapshot->begin),
                     .scratch = copy->scratch + worker * copy->image.plan->max_header_nbytes,
                     .slot = copy->slots.n > 0 ? &copy->slots.slots[worker] : NULL};

    if (tile.slot && bth_staging_slot_begin(tile.slot, &tile, error) < 0)
        return error->code;
    double begin_seconds = bth_trace_seconds();
    bth_pages_touch(&snapshot->pages, &snapshot->front, tile.bytes, tile.nbytes);
    (void)bth_image_render(&copy->image, &tile, error);
    BTH_TRACE(.category = "copy", .name = "copy tile", .begin_seconds = begin_seconds,
              .end_seconds = bth_seconds(), .offset = begin, .nbytes = tile.nbytes);
    return error->code;
}

/* Storages on devices come through the same staging buffers as in a save without a snapshot. */
static int snapshot_open_slots(copying *copy, const bth_run_settings *settings, berth_error *error)
{
    const bth_staging_need need =
        bth_staging_slots_compute_need(settings, settings->n_workers, settings->memory_nbytes);

    if (bth_staging_slots_open(&copy->slots, copy->image.plan, &need, error) < 0)
        return error->code;
    if (copy->tile_nbytes > copy->slots.ring.buffer_nbytes)
        copy->tile_nbytes = copy->slots.ring.buffer_nbytes;
    if (copy->n_workers > copy->slots.n)
        copy->n_workers = copy->slots.n;
    return 0;
}

static void snapshot_point_records_to_copy(const bth_snapshot *snapshot, berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_plan_record *record = &plan->records[i];
        if (!record_is_in_snapshot(plan, i))
            continue;
        record->data = snapshot->bytes + (record->layout.data_offset - snapshot->begin);
        record->read = NULL;
        record->storage = NULL;
        record->device = 0;
        record->swap_nbytes = 1;
    }
    plan->n_devices = 0; /* all of their bytes are copied */
}

int bth_snapshot_take(bth_snapshot *snapshot, berth_plan *plan, const struct berth_config *config,
                      berth_error *error)
{
    bth_run_settings settings = bth_run_settings_of(config, plan, NULL);
    copying copy = {.image = {.plan = plan, .constraints.block_nbytes = 1},
                    .snapshot = snapshot,
                    .tile_nbytes = settings.tile_nbytes,
                    .n_workers = settings.n_workers};
    size_t scratch_nbytes = bth_array_nbytes(copy.n_workers, plan->max_header_nbytes);

    if (!snapshot->memory)
        return 0;
    copy.scratch = bth_allocate(scratch_nbytes);
    if (!copy.scratch)
        bth_fail_memory(error, scratch_nbytes);
    else if (plan->n_devices == 0 || snapshot_open_slots(&copy, &settings, error) == 0) {
        uint64_t n_tiles = (snapshot->end - snapshot->begin - 1) / copy.tile_nbytes + 1;
        bth_pool_run(copy.n_workers, n_tiles, snapshot_copy_tile, NULL, &copy, error);
    }
    bth_staging_slots_close(&copy.slots);
    bth_release(copy.scratch);
    if (error->code == BERTH_OK)
        snapshot_point_records_to_copy(snapshot, plan);
    return error->code;
}
