/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/snapshot.h"

#include "config/error.h"
#include "config/memory.h"
#include "io/pages.h"
#include "io/pool.h"
#include "save/image.h"
#include "save/run.h"

/* Of memory and of every device whose direct writes could take their bytes from here. */
#define PAGE_NBYTES 4096

/* What io.memory_nbytes must leave for the pipeline. */
#define LEAST_BUFFER_NBYTES ((uint64_t)64 * 1024)

/* Whether the record's bytes are the caller's; the pickle and the texts are the plan's own. */
static bool is_borrowed(const berth_plan *plan, size_t i)
{
    const berth_planned *record = &plan->records[i];

    if (record->place.nbytes == 0 || i == plan->id_index)
        return false;
    return !record->data || record->data != plan->pickled.bytes;
}

/* The range of the file that holds all borrowed records. */
static void measure(berth_snapshot *snapshot, const berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        const berth_place *place = &plan->records[i].place;
        if (!is_borrowed(plan, i))
            continue;
        if (snapshot->end == 0)
            snapshot->begin = place->data_offset;
        snapshot->end = place->data_offset + place->nbytes;
    }
}

static int bound_memory(struct berth_config *config, uint64_t nbytes, berth_error *error)
{
    uint64_t most = (uint64_t)config->io_memory_nbytes;

    if (most == 0)
        return 0;
    if (most < LEAST_BUFFER_NBYTES || nbytes > most - LEAST_BUFFER_NBYTES)
        return berth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                          "a snapshot takes %llu bytes, and %llu for buffers; io.memory_nbytes is "
                          "%llu (%llu bytes missing)",
                          (unsigned long long)nbytes, (unsigned long long)LEAST_BUFFER_NBYTES,
                          (unsigned long long)most,
                          (unsigned long long)(nbytes + LEAST_BUFFER_NBYTES - most));
    config->io_memory_nbytes = (int64_t)(most - nbytes);
    return 0;
}

/* Large pages are filled faster, and direct writes take them from where they lie. */
static void make_large(uint8_t *memory, size_t nbytes)
{
    uintptr_t mask = BERTH_LARGE_PAGE_NBYTES - 1;
    size_t before_nbytes = (size_t)(-(uintptr_t)memory & mask);

    if (before_nbytes < nbytes)
        berth_pages_make_large(memory + before_nbytes, nbytes - before_nbytes);
}

int berth_snapshot_reserve(berth_snapshot *snapshot, const berth_plan *plan,
                           struct berth_config *config, berth_error *error)
{
    measure(snapshot, plan);
    uint64_t before_nbytes = snapshot->begin % PAGE_NBYTES;
    uint64_t nbytes = snapshot->end - snapshot->begin + before_nbytes + PAGE_NBYTES - 1;

    if (snapshot->end == 0)
        return 0;
    if (bound_memory(config, nbytes, error) < 0)
        return error->code;
    snapshot->memory = nbytes <= SIZE_MAX ? berth_allocate((size_t)nbytes) : NULL;
    if (!snapshot->memory)
        return berth_fail_memory(error, nbytes);
    make_large(snapshot->memory, (size_t)nbytes);
    uintptr_t page = ((uintptr_t)snapshot->memory + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    snapshot->bytes =
        (uint8_t *)snapshot->memory + (page - (uintptr_t)snapshot->memory) + before_nbytes;
    return 0;
}

/* One chunk of the range. */
typedef struct copying {
    const berth_plan *plan;
    const berth_snapshot *snapshot;
    uint64_t chunk_nbytes;
} copying;

/* The share of record i in the file's bytes [begin, end). */
static int copy_share(const copying *copy, size_t i, uint64_t begin, uint64_t end,
                      berth_error *error)
{
    const berth_place *place = &copy->plan->records[i].place;
    uint64_t data_end = place->data_offset + place->nbytes;

    if (begin < place->data_offset)
        begin = place->data_offset;
    if (end > data_end)
        end = data_end;
    if (begin >= end)
        return 0;
    return berth_content_fetch(copy->plan, i,
                               copy->snapshot->bytes + (begin - copy->snapshot->begin),
                               (size_t)(end - begin), begin - place->data_offset, error);
}

static int copy_chunk(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const copying *copy = context;
    const berth_plan *plan = copy->plan;
    uint64_t begin = copy->snapshot->begin + task * copy->chunk_nbytes;
    uint64_t rest = copy->snapshot->end - begin;
    uint64_t end = begin + (rest < copy->chunk_nbytes ? rest : copy->chunk_nbytes);

    (void)worker;
    for (size_t i = berth_plan_find(plan, begin);
         i < plan->n_records && plan->records[i].place.header_offset < end; i++)
        if (is_borrowed(plan, i) && copy_share(copy, i, begin, end, error) < 0)
            return error->code;
    return 0;
}

static void use_copy(const berth_snapshot *snapshot, berth_plan *plan)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        berth_planned *record = &plan->records[i];
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

int berth_snapshot_take(berth_snapshot *snapshot, berth_plan *plan,
                        const struct berth_config *config, berth_error *error)
{
    berth_run_settings settings = berth_run_settings_of(config, plan, NULL);
    copying copy = {.plan = plan, .snapshot = snapshot, .chunk_nbytes = settings.tile_nbytes};

    if (!snapshot->memory)
        return 0;
    uint64_t n_chunks = (snapshot->end - snapshot->begin - 1) / copy.chunk_nbytes + 1;
    if (berth_pool_run(n_chunks > 1 ? settings.n_workers : 0, n_chunks, copy_chunk, NULL, &copy,
                       error) == 0)
        use_copy(snapshot, plan);
    return error->code;
}

void berth_snapshot_free(berth_snapshot *snapshot)
{
    berth_release(snapshot->memory);
    *snapshot = (berth_snapshot){0};
}
