/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/to_device.h"

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "io/pages.h"
#include "io/pool.h"
#include "io/staging.h"

/* While one is copied, the other is filled. */
#define BUFFERS_PER_WORKER 2
/*
 * Storages up to this size, and not further apart than storages of files aligned to pages are, lie
 * on a device as in the file: a copy costs some microseconds, however little it copies. Then they
 * are aligned as PyTorch aligns them in files.
 */
#define SMALL_NBYTES 65536
#define SMALL_GAP_NBYTES 8192
#define SMALL_ALIGNMENT 64
/* All that can be open at a time. */
#define MOST_DEVICES 128

/* A buffer, and what it waits for before it can be filled again. */
struct slot {
    bth_staging_buffer *buffer;
    bth_device_event *events;  /* one a device, opened when first needed */
    bth_device_event *pending; /* recorded behind the copies from it */
};

/* A stream, and the last event that it was told to wait for. */
struct track {
    bth_device_stream stream;
    void *waits_for;
};

/* One worker's. */
struct lane {
    struct track *tracks; /* one a device, opened when first needed */
    struct slot *slots;
    unsigned next;
    double wait_seconds;
};

struct run {
    bth_to_device *to;
    bth_device_handle *devices[MOST_DEVICES];
    uint64_t nbytes[MOST_DEVICES]; /* of the memory that is to be made */
    unsigned n_devices;
    unsigned n_workers; /* of the pool */
    bth_staging ring;
    unsigned n_lanes, n_slots; /* slots of each lane */
    struct lane *lanes;
    struct slot *slots;
    struct track *tracks;
    bth_device_event *events;
};

/* ---- memory on devices ---- */

void bth_device_memory_list_free(bth_device_memory_list *list)
{
    for (bth_device_memory_list *next; list; list = next) {
        next = list->next;
        if (!bth_device_is_gone(list->device, list->life))
            bth_device_release(list->device, list->address);
        bth_release(list);
    }
}

static unsigned number_of(struct run *run, const bth_device_handle *device)
{
    unsigned i = 0;

    while (i < run->n_devices && run->devices[i] != device)
        i++;
    return i;
}

/* Whether it lies behind the one before it as in the file. */
static bool is_beside(const bth_item *before, const bth_item *item)
{
    uint64_t offset = item->storage->offset;
    uint64_t end = before->storage->offset + before->storage->nbytes;

    return before->device == item->device && before->address == 0 && item->address == 0 &&
           before->storage->nbytes <= SMALL_NBYTES && item->storage->nbytes <= SMALL_NBYTES &&
           offset >= end && offset - end <= SMALL_GAP_NBYTES &&
           (offset - before->storage->offset) % SMALL_ALIGNMENT == 0;
}

/* Where each item begins in the memory that is made, and how much that is. */
static bool measure(struct run *run)
{
    const bth_spans *spans = run->to->work.spans;

    for (size_t i = 0; i < spans->n_items; i++) {
        bth_item *item = &spans->items[i], *before = item - (i > 0);
        unsigned number = number_of(run, item->device);
        uint64_t *nbytes = &run->nbytes[number];
        if (number == run->n_devices)
            run->devices[run->n_devices++] = item->device;
        if (item->address != 0)
            continue;
        if (i > 0 && is_beside(before, item))
            item->region_at = before->region_at + (item->storage->offset - before->storage->offset);
        else if (!bth_add(*nbytes, BTH_DEVICE_ALIGNMENT - 1, &item->region_at))
            return false;
        else
            item->region_at -= item->region_at % BTH_DEVICE_ALIGNMENT;
        if (!bth_add(item->region_at, item->storage->nbytes, nbytes))
            return false;
    }
    return true;
}

/* One allocation a device. */
static int make_memory(struct run *run, unsigned number, berth_error *error)
{
    bth_device_memory_list *made;

    if (run->nbytes[number] == 0)
        return 0;
    made = bth_allocate_zeroed(sizeof *made);
    if (!made)
        return bth_fail_memory(error, sizeof *made);
    *made = (bth_device_memory_list){.device = run->devices[number],
                                     .life = bth_device_life(run->devices[number]),
                                     .next = run->to->memory};
    run->to->memory = made;
    run->to->memory_nbytes += run->nbytes[number];
    return bth_device_allocate(made->device, run->nbytes[number], &made->address, error);
}

static const bth_device_memory_list *memory_of(const bth_device_memory_list *list,
                                               const bth_device_handle *device)
{
    while (list->device != device)
        list = list->next;
    return list;
}

static void place_ours(const bth_device_memory_list *made, bth_item *item)
{
    item->address = made->address + (uintptr_t)item->region_at;
    item->life = made->life;
}

/* What the caller gave was looked at when it was given, but may be freed since. */
static int place_items(struct run *run, berth_error *error)
{
    const bth_spans *spans = run->to->work.spans;

    for (size_t i = 0; i < spans->n_items; i++) {
        bth_item *item = &spans->items[i];
        item->is_ours = item->address == 0;
        if (item->is_ours)
            place_ours(memory_of(run->to->memory, item->device), item);
        else if (bth_device_check_life(item->device, item->life, error) < 0 ||
                 bth_device_check(item->device, item->address, (size_t)item->storage->nbytes,
                                  error) < 0)
            return bth_error_in_storage(run->to->work.checkpoint, item->storage, error);
    }
    return 0;
}

/* X18: its context may have died since it was opened. */
static int reopen(const bth_device_handle *device, berth_error *error)
{
    bth_device_handle *same;

    return bth_device_open(bth_device_name(device), &same, error);
}

static int make_room(struct run *run, berth_error *error)
{
    if (!measure(run))
        return bth_fail_memory(error, UINT64_MAX);
    for (unsigned i = 0; i < run->n_devices; i++)
        if (reopen(run->devices[i], error) < 0 || make_memory(run, i, error) < 0)
            return error->code;
    return place_items(run, error);
}

/* ---- the ring and its lanes ---- */

uint64_t bth_staged_nbytes(const struct berth_config *config)
{
    uint64_t chunk_nbytes = bth_chunk_nbytes(config);
    uint64_t staging_nbytes = (uint64_t)config->device_staging_nbytes;
    uint64_t memory_nbytes = (uint64_t)config->io_memory_nbytes;

    if (staging_nbytes && (staging_nbytes < chunk_nbytes || !config->io_chunk_nbytes))
        chunk_nbytes = staging_nbytes < UINT32_MAX / 2 ? staging_nbytes : UINT32_MAX / 2;
    if (memory_nbytes && memory_nbytes < chunk_nbytes && chunk_nbytes > BTH_LARGE_PAGE_NBYTES)
        chunk_nbytes = BTH_LARGE_PAGE_NBYTES; /* the least that a buffer has */
    if (chunk_nbytes < BTH_DIRECT_MOST_BLOCK_NBYTES)
        return BTH_DIRECT_MOST_BLOCK_NBYTES;
    return chunk_nbytes - chunk_nbytes % BTH_DIRECT_MOST_BLOCK_NBYTES;
}

static int open_ring(struct run *run, berth_error *error)
{
    const bth_chunks *work = &run->to->work;
    const struct berth_config *config = work->config;
    uint64_t n_chunks = work->spans->n_chunks;
    bth_staging_need need = {.buffer_nbytes = (size_t)work->spans->chunk_nbytes,
                             .n_buffers = (unsigned)config->device_staging_buffers,
                             .most_nbytes = (uint64_t)config->io_memory_nbytes,
                             .is_pinned = true};

    run->n_workers = bth_chunks_n_workers(work, n_chunks);
    run->n_lanes = run->n_workers > 0 ? run->n_workers : 1;
    if (need.n_buffers == 0)
        need.n_buffers = run->n_lanes * BUFFERS_PER_WORKER;
    if (need.n_buffers > n_chunks)
        need.n_buffers = (unsigned)n_chunks;
    if (need.n_buffers > BTH_STAGING_MOST_BUFFERS)
        need.n_buffers = BTH_STAGING_MOST_BUFFERS;
    if (bth_staging_open(run->devices[0], &need, &run->ring, error) < 0)
        return error->code;
    run->to->staging_nbytes = (uint64_t)run->ring.n_buffers * run->ring.buffer_nbytes;
    if (run->n_lanes > run->ring.n_buffers)
        run->n_lanes = run->ring.n_buffers;
    if (run->n_lanes < run->n_workers)
        run->n_workers = run->n_lanes > 1 ? run->n_lanes : 0;
    run->n_slots = run->ring.n_buffers / run->n_lanes;
    return 0;
}

static int open_lanes(struct run *run, berth_error *error)
{
    size_t n_slots = (size_t)run->n_lanes * run->n_slots;
    size_t n_tracks = (size_t)run->n_lanes * run->n_devices;
    size_t n_events = n_slots * run->n_devices;

    run->lanes = bth_allocate_zeroed(run->n_lanes * sizeof *run->lanes);
    run->slots = bth_allocate_zeroed(n_slots * sizeof *run->slots);
    run->tracks = bth_allocate_zeroed(n_tracks * sizeof *run->tracks);
    run->events = bth_allocate_zeroed(n_events * sizeof *run->events);
    if (!run->lanes || !run->slots || !run->tracks || !run->events)
        return bth_fail_memory(error, n_events * sizeof *run->events);
    for (unsigned i = 0; i < run->n_lanes; i++)
        run->lanes[i] = (struct lane){.tracks = run->tracks + (size_t)i * run->n_devices,
                                      .slots = run->slots + (size_t)i * run->n_slots};
    for (size_t i = 0; i < n_slots; i++)
        run->slots[i] = (struct slot){.buffer = &run->ring.buffers[i],
                                      .events = run->events + i * run->n_devices};
    return 0;
}

/* Streams first: closing them waits until nothing is copied any more. */
static void close_all(struct run *run)
{
    size_t n_slots = (size_t)run->n_lanes * run->n_slots;

    for (size_t i = 0; run->tracks && i < (size_t)run->n_lanes * run->n_devices; i++)
        bth_device_stream_close(&run->tracks[i].stream);
    for (size_t i = 0; run->events && i < n_slots * run->n_devices; i++)
        bth_device_event_close(&run->events[i]);
    bth_staging_close(&run->ring);
    bth_release(run->events);
    bth_release(run->tracks);
    bth_release(run->slots);
    bth_release(run->lanes);
}

/* ---- one chunk ---- */

static int wait_for(struct lane *lane, struct slot *slot, berth_error *error)
{
    if (!slot->pending)
        return 0;
    double begin_seconds = bth_seconds();
    (void)bth_device_event_wait(slot->pending, error);
    lane->wait_seconds += bth_seconds() - begin_seconds;
    slot->pending = NULL;
    return error->code;
}

/* What a chunk has of an item, or of some that lie on the device as in the file. */
struct share {
    uint64_t from, to; /* in the file */
    uintptr_t address;
};

static struct share share_of(const bth_item *item, const bth_chunk *chunk)
{
    uint64_t begin = item->storage->offset, end = begin + item->storage->nbytes;
    uint64_t chunk_end = chunk->offset + chunk->nbytes;
    uint64_t from = begin > chunk->offset ? begin : chunk->offset;

    return (struct share){.from = from,
                          .to = end < chunk_end ? end : chunk_end,
                          .address = item->address + (uintptr_t)(from - begin)};
}

/*
 * X17: kernels may use memory of the caller's still; the device waits for them, nobody else. A
 * worker's chunks come in order, so that a storage is waited for once a stream.
 */
static int wait_until_ready(const bth_item *item, struct track *track, berth_error *error)
{
    if (!item->ready || item->ready == track->waits_for)
        return 0;
    if (bth_device_stream_wait_for(&track->stream, item->ready, error) < 0)
        return error->code;
    track->waits_for = item->ready;
    return 0;
}

/*
 * Asks for copies of all that the chunk has of its items. What lies between two is copied along
 * only where both are in memory of ours: there it is between them, too, and nobody's.
 */
static int copy_items(const struct run *run, const bth_chunk *chunk, struct track *track,
                      berth_error *error)
{
    const bth_item *items = run->to->work.spans->items;

    for (size_t i = chunk->first_item, next; i < chunk->end_item; i = next) {
        struct share share = share_of(&items[i], chunk);
        for (next = i + 1; next < chunk->end_item && items[i].is_ours; next++) {
            struct share more = share_of(&items[next], chunk);
            if (!items[next].is_ours || more.address - share.address != more.from - share.from)
                break;
            share.to = more.to;
        }
        if (wait_until_ready(&items[i], track, error) < 0 ||
            bth_device_copy_to_device(&track->stream, share.address,
                                      chunk->memory + (share.from - chunk->offset),
                                      (size_t)(share.to - share.from), error) < 0)
            return bth_error_in_storage(run->to->work.checkpoint, items[i].storage, error);
    }
    return 0;
}

static int send(struct run *run, struct lane *lane, struct slot *slot, const bth_chunk *chunk,
                berth_error *error)
{
    bth_device_handle *device = run->to->work.spans->items[chunk->first_item].device;
    unsigned number = number_of(run, device);
    struct track *track = &lane->tracks[number];
    bth_device_event *event = &slot->events[number];

    if (!event->native && bth_device_event_open(device, event, error) < 0)
        return error->code;
    if (copy_items(run, chunk, track, error) < 0 ||
        bth_device_event_record(event, &track->stream, error) < 0)
        return error->code;
    slot->pending = event;
    return 0;
}

static int open_stream(struct run *run, struct lane *lane, const bth_chunk *chunk,
                       berth_error *error)
{
    bth_device_handle *device = run->to->work.spans->items[chunk->first_item].device;
    bth_device_stream *stream = &lane->tracks[number_of(run, device)].stream;

    return stream->native ? 0 : bth_device_stream_open(device, stream, error);
}

static int bring(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct run *run = context;
    bth_chunk *chunk = &run->to->work.chunks[task];
    struct lane *lane = &run->lanes[worker];
    struct slot *slot = &lane->slots[lane->next];

    if (chunk->first_item == chunk->end_item) /* a block's tail without any item */
        return 0;
    lane->next = (lane->next + 1) % run->n_slots;
    if (open_stream(run, lane, chunk, error) < 0 || wait_for(lane, slot, error) < 0)
        return error->code;
    chunk->memory = slot->buffer->bytes + chunk->phase;
    if (bth_chunk_bring(&run->to->work, chunk, error) < 0)
        return error->code;
    return send(run, lane, slot, chunk, error);
}

/* ---- all ---- */

static int watch(void *context)
{
    return bth_chunks_watch(&((struct run *)context)->to->work);
}

/* Errors of copies may come only here. */
static int wait_for_all(struct run *run, berth_error *error)
{
    double begin_seconds = bth_seconds();

    for (size_t i = 0; i < (size_t)run->n_lanes * run->n_devices && error->code == 0; i++)
        if (run->tracks[i].stream.native)
            (void)bth_device_stream_wait(&run->tracks[i].stream, error);
    run->to->device_seconds += bth_seconds() - begin_seconds;
    return error->code;
}

int bth_to_device_run(bth_to_device *to, berth_error *error)
{
    struct run run = {.to = to};
    uint64_t n_chunks = to->work.spans->n_chunks;

    if (make_room(&run, error) == 0 && open_ring(&run, error) == 0 &&
        open_lanes(&run, error) == 0 &&
        bth_pool_run(run.n_workers, n_chunks, bring, watch, &run, error) == 0 &&
        wait_for_all(&run, error) == 0)
        bth_chunks_join(&to->work);
    for (unsigned i = 0; run.lanes && i < run.n_lanes; i++)
        to->device_seconds += run.lanes[i].wait_seconds;
    close_all(&run);
    return error->code;
}
