/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/snapshot.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "io/pages.h"
#include "io/pool.h"
#include "save/image.h"
#include "save/run.h"
#include "save/staging_slots.h"

/* Of memory and of every device whose direct writes could take their bytes from here. */
#define PAGE_NBYTES 4096

/* What io.memory_nbytes must leave for the pipeline; and for a staging buffer. */
#define MIN_BUFFER_NBYTES ((uint64_t)64 * 1024)
#define MIN_STAGING_NBYTES BTH_LARGE_PAGE_NBYTES

/* Whether the record's bytes are the caller's; the pickle and the texts are the plan's own. */
static bool is_borrowed(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];

    if (record->place.nbytes == 0 || i == plan->id_index)
        return false;
    return !record->data || record->data != plan->pickled.bytes;
}

/* The range of the file that holds all borrowed records. */
static void measure(bth_snapshot *snapshot, const berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_place *place = &plan->records[i].place;
        if (!is_borrowed(plan, i))
            continue;
        if (snapshot->end == 0)
            snapshot->begin = place->data_offset;
        snapshot->end = place->data_offset + place->nbytes;
    }
}

static int bound_memory(struct berth_config *config, const berth_plan *plan, uint64_t nbytes,
                        berth_error *error)
{
    uint64_t least = plan->n_devices > 0 ? MIN_STAGING_NBYTES : MIN_BUFFER_NBYTES;
    uint64_t most = (uint64_t)config->io_memory_nbytes;

    if (most == 0)
        return 0;
    if (most < least || nbytes > most - least)
        return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                        "a snapshot takes %llu bytes, and %llu for buffers; io.memory_nbytes is "
                        "%llu (%llu bytes missing)",
                        (unsigned long long)nbytes, (unsigned long long)least,
                        (unsigned long long)most, (unsigned long long)(nbytes + least - most));
    config->io_memory_nbytes = (int64_t)(most - nbytes);
    return 0;
}

/* Large pages are filled faster, and direct writes take them from where they lie. */
static void make_large(uint8_t *memory, size_t nbytes)
{
    uintptr_t mask = BTH_LARGE_PAGE_NBYTES - 1;
    size_t before_nbytes = (size_t)(-(uintptr_t)memory & mask);

    if (before_nbytes < nbytes)
        bth_pages_make_large(memory + before_nbytes, nbytes - before_nbytes);
}

int bth_snapshot_reserve(bth_snapshot *snapshot, const berth_plan *plan,
                         struct berth_config *config, berth_error *error)
{
    measure(snapshot, plan);
    uint64_t before_nbytes = snapshot->begin % PAGE_NBYTES;
    uint64_t nbytes = snapshot->end - snapshot->begin + before_nbytes + PAGE_NBYTES - 1;

    if (snapshot->end == 0)
        return 0;
    if (bound_memory(config, plan, nbytes, error) < 0)
        return error->code;
    snapshot->memory = nbytes <= SIZE_MAX ? bth_allocate((size_t)nbytes) : NULL;
    if (!snapshot->memory)
        return bth_fail_memory(error, nbytes);
    make_large(snapshot->memory, (size_t)nbytes);
    uintptr_t page = ((uintptr_t)snapshot->memory + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    snapshot->bytes =
        (uint8_t *)snapshot->memory + (page - (uintptr_t)snapshot->memory) + before_nbytes;
    return 0;
}

/* ---- copying ---- */

/* In chunks of the range, as tiles of the file. */
typedef struct copying {
    const berth_plan *plan;
    const bth_snapshot *snapshot;
    uint64_t chunk_nbytes;
    unsigned n_workers;
    bth_staging_slots slots; /* where storages lie on devices: each worker has one */
} copying;

/* The share of record i in a tile; through its lane, if it has one and that copies the share. */
static int copy_share(const copying *copy, const bth_tile *tile, size_t i, berth_error *error)
{
    const bth_plan_record *record = &copy->plan->records[i];
    uint64_t data_offset = record->place.data_offset;
    bth_range share;

    if (!bth_tile_share(tile, data_offset, data_offset + record->place.nbytes, &share))
        return 0;
    uint8_t *to = copy->snapshot->bytes + (share.offset - copy->snapshot->begin);
    if (!tile->slot ||
        !bth_staging_slot_copies(copy->plan, i, share.nbytes, share.offset - data_offset))
        return bth_record_data_read(copy->plan, i, to, (size_t)share.nbytes,
                                    share.offset - data_offset, error);
    if (bth_staging_slot_wait(tile->slot, i, error) < 0)
        return error->code;
    const uint8_t *from = tile->slot->buffer->bytes + (share.offset - tile->offset);
    if (record->swap_nbytes > 1)
        bth_swap_bytes(to, from, (size_t)share.nbytes, record->swap_nbytes);
    else
        memcpy(to, from, (size_t)share.nbytes);
    return 0;
}

static int copy_chunk(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const copying *copy = context;
    const berth_plan *plan = copy->plan;
    uint64_t begin = copy->snapshot->begin + task * copy->chunk_nbytes;
    uint64_t rest = copy->snapshot->end - begin;
    bth_tile tile = {.offset = begin,
                     .nbytes = (size_t)(rest < copy->chunk_nbytes ? rest : copy->chunk_nbytes),
                     .slot = copy->slots.n > 0 ? &copy->slots.slots[worker] : NULL};

    if (tile.slot && bth_staging_slot_begin(tile.slot, &tile, error) < 0)
        return error->code;
    for (size_t i = bth_plan_find(plan, begin);
         i < plan->n_records && plan->records[i].place.header_offset < begin + tile.nbytes; i++)
        if (is_borrowed(plan, i) && copy_share(copy, &tile, i, error) < 0)
            return error->code;
    return 0;
}

/* What lies on devices comes through the same staging buffers as a save without a snapshot. */
static int open_slots(copying *copy, const bth_run_settings *settings, berth_error *error)
{
    if (copy->plan->n_devices == 0)
        return 0;
    const bth_staging_need need =
        bth_staging_slots_need(settings, settings->n_workers, settings->memory_nbytes);
    if (bth_staging_slots_open(&copy->slots, copy->plan, &need, error) < 0)
        return error->code;
    if (copy->chunk_nbytes > copy->slots.ring.buffer_nbytes)
        copy->chunk_nbytes = copy->slots.ring.buffer_nbytes;
    if (copy->n_workers > copy->slots.n)
        copy->n_workers = copy->slots.n > 1 ? copy->slots.n : 0;
    return 0;
}

static void use_copy(const bth_snapshot *snapshot, berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_plan_record *record = &plan->records[i];
        if (!is_borrowed(plan, i))
            continue;
        record->data = snapshot->bytes + (record->place.data_offset - snapshot->begin);
        record->read = NULL;
        record->context = NULL;
        record->storage = NULL;
        record->device = 0;
        record->swap_nbytes = 1;
    }
    plan->n_devices = 0; /* all of theirs is copied */
}

int bth_snapshot_take(bth_snapshot *snapshot, berth_plan *plan, const struct berth_config *config,
                      berth_error *error)
{
    bth_run_settings settings = bth_run_settings_of(config, plan, NULL);
    copying copy = {.plan = plan,
                    .snapshot = snapshot,
                    .chunk_nbytes = settings.tile_nbytes,
                    .n_workers = settings.n_workers};

    if (!snapshot->memory || open_slots(&copy, &settings, error) < 0)
        return error->code;
    uint64_t n_chunks = (snapshot->end - snapshot->begin - 1) / copy.chunk_nbytes + 1;
    int status =
        bth_pool_run(n_chunks > 1 ? copy.n_workers : 0, n_chunks, copy_chunk, NULL, &copy, error);
    bth_staging_slots_close(&copy.slots);
    if (status == 0)
        use_copy(snapshot, plan);
    return error->code;
}

void bth_snapshot_free(bth_snapshot *snapshot)
{
    bth_release(snapshot->memory);
    *snapshot = (bth_snapshot){0};
}
