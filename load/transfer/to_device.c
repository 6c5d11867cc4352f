/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/to_device.h"

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "io/pool.h"
#include "io/region.h"
#include "io/staging.h"
#include "io/workers.h"

/* While one is copied, the other is filled. */
#define BUFFERS_PER_WORKER 2
/*
 * Ranges up to this size, with no longer gaps than storages of files aligned to pages have, lie on
 * a device as in the file: a copy costs some microseconds, however little it copies. Then they are
 * aligned as PyTorch aligns them in files.
 */
#define SMALL_NBYTES 65536
#define SMALL_GAP_NBYTES 8192
#define SMALL_ALIGNMENT 64
/* All that can be open at a time. */
#define DEVICES_MAX 128

/* A buffer, and what it waits for before it can be filled again. */
struct staging_slot {
    bth_staging_buffer *buffer;
    bth_device_event *events;  /* one a device, opened when first needed */
    bth_device_event *pending; /* recorded behind the copies from it */
};

/* A stream, and the last event that it was told to wait for. */
struct staging_stream {
    bth_device_stream stream;
    void *waits_for;
};

/* One worker's. */
struct staging_worker {
    struct staging_stream *streams; /* one a device, opened when first needed */
    struct staging_slot *slots;
    unsigned next;
    double wait_seconds;
};

struct staging_run {
    bth_to_device *to;
    bth_device_handle *devices[DEVICES_MAX];
    uint64_t nbytes[DEVICES_MAX]; /* of the memory that is to be made */
    unsigned n_devices;
    unsigned n_workers, n_slots; /* slots of each worker */
    bth_staging ring;
    struct staging_worker *workers;
    struct staging_slot *slots;
    struct staging_stream *streams;
    bth_device_event *events;
};

static int staging_name(const struct staging_run *run, const bth_range *range, berth_error *error)
{
    const bth_transfer_calls *calls = &run->to->transfer.calls;

    return calls->name ? calls->name(calls->context, range, error) : error->code;
}

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

static unsigned staging_device_number(struct staging_run *run, const bth_device_handle *device)
{
    unsigned i = 0;

    while (i < run->n_devices && run->devices[i] != device)
        i++;
    return i;
}

/* Whether it lies behind the one before it as in the file. */
static bool range_is_beside(const bth_range *before, const bth_range *range)
{
    uint64_t offset = range->offset;
    uint64_t end = before->offset + before->nbytes;

    return before->target.device == range->target.device && before->target.address == 0 &&
           range->target.address == 0 && before->nbytes <= SMALL_NBYTES &&
           range->nbytes <= SMALL_NBYTES && offset >= end && offset - end <= SMALL_GAP_NBYTES &&
           (offset - before->offset) % SMALL_ALIGNMENT == 0;
}

/* Where each range begins in the memory that is made, and how much that is. */
static bool staging_measure(struct staging_run *run)
{
    const bth_requests *requests = &run->to->transfer.requests;

    for (size_t i = 0; i < requests->n_ranges; i++) {
        bth_range *range = &requests->ranges[i], *before = range - (i > 0);
        unsigned number = staging_device_number(run, range->target.device);
        uint64_t *nbytes = &run->nbytes[number];
        if (number == run->n_devices)
            run->devices[run->n_devices++] = range->target.device;
        if (range->target.address != 0)
            continue;
        if (i > 0 && range_is_beside(before, range))
            range->region_at = before->region_at + (range->offset - before->offset);
        else if (!bth_add(*nbytes, BTH_DEVICE_ALIGNMENT - 1, &range->region_at))
            return false;
        else
            range->region_at -= range->region_at % BTH_DEVICE_ALIGNMENT;
        if (!bth_add(range->region_at, range->nbytes, nbytes))
            return false;
    }
    return true;
}

/* One allocation a device. */
static int staging_make_memory(struct staging_run *run, unsigned number, berth_error *error)
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

static const bth_device_memory_list *staging_memory_of(const bth_device_memory_list *list,
                                                       const bth_device_handle *device)
{
    while (list->device != device)
        list = list->next;
    return list;
}

static void range_place_ours(const bth_device_memory_list *made, bth_range *range)
{
    range->target.address = made->address + (uintptr_t)range->region_at;
    range->target.life = made->life;
}

/* The caller's memory was checked when it was given; it may have been freed since. */
static int staging_place_ranges(struct staging_run *run, berth_error *error)
{
    const bth_requests *requests = &run->to->transfer.requests;

    for (size_t i = 0; i < requests->n_ranges; i++) {
        bth_range *range = &requests->ranges[i];
        range->target.is_ours = range->target.address == 0;
        if (range->target.is_ours)
            range_place_ours(staging_memory_of(run->to->memory, range->target.device), range);
        else if (bth_device_check_life(range->target.device, range->target.life, error) < 0 ||
                 bth_device_check(range->target.device, range->target.address,
                                  (size_t)range->nbytes, error) < 0)
            return staging_name(run, range, error);
    }
    return 0;
}

/* X18: its context may have died since it was opened. */
static int device_reopen(const bth_device_handle *device, berth_error *error)
{
    bth_device_handle *same;

    return bth_device_open(bth_device_name(device), &same, error);
}

static int staging_make_room(struct staging_run *run, berth_error *error)
{
    if (!staging_measure(run))
        return bth_fail_memory(error, UINT64_MAX);
    for (unsigned i = 0; i < run->n_devices; i++)
        if (device_reopen(run->devices[i], error) < 0 || staging_make_memory(run, i, error) < 0)
            return error->code;
    return staging_place_ranges(run, error);
}

/* ---- the ring and its workers ---- */

uint64_t bth_staged_nbytes(const struct berth_config *config)
{
    uint64_t chunk_nbytes = bth_workers_chunk_nbytes(config);
    uint64_t staging_nbytes = (uint64_t)config->device_staging_nbytes;
    uint64_t memory_nbytes = (uint64_t)config->io_memory_nbytes;

    if (staging_nbytes && (staging_nbytes < chunk_nbytes || !config->io_chunk_nbytes))
        chunk_nbytes = staging_nbytes < UINT32_MAX / 2 ? staging_nbytes : UINT32_MAX / 2;
    if (memory_nbytes && memory_nbytes < chunk_nbytes && chunk_nbytes > BTH_LARGE_PAGE_NBYTES)
        chunk_nbytes = BTH_LARGE_PAGE_NBYTES; /* the least that a buffer has */
    if (chunk_nbytes < BTH_MAX_DIRECT_BLOCK_NBYTES)
        return BTH_MAX_DIRECT_BLOCK_NBYTES;
    return chunk_nbytes - chunk_nbytes % BTH_MAX_DIRECT_BLOCK_NBYTES;
}

static int staging_open_ring(struct staging_run *run, berth_error *error)
{
    const bth_transfer *transfer = &run->to->transfer;
    const struct berth_config *config = transfer->config;
    uint64_t n_requests = transfer->requests.n_requests;
    bth_staging_need need = {.buffer_nbytes = (size_t)transfer->requests.chunk_nbytes,
                             .n_buffers = (unsigned)config->device_staging_buffers,
                             .max_nbytes = (uint64_t)config->io_memory_nbytes,
                             .is_pinned = true};

    run->n_workers = transfer->n_workers;
    if (need.n_buffers == 0)
        need.n_buffers = run->n_workers * BUFFERS_PER_WORKER;
    if (need.n_buffers > n_requests)
        need.n_buffers = (unsigned)n_requests;
    if (need.n_buffers > BTH_MAX_STAGING_BUFFERS)
        need.n_buffers = BTH_MAX_STAGING_BUFFERS;
    if (bth_staging_open(run->devices[0], &need, &run->ring, error) < 0)
        return error->code;
    run->to->staging_nbytes = (uint64_t)run->ring.n_buffers * run->ring.buffer_nbytes;
    if (run->n_workers > run->ring.n_buffers)
        run->n_workers = run->ring.n_buffers;
    run->n_slots = run->ring.n_buffers / run->n_workers;
    return 0;
}

static int staging_open_workers(struct staging_run *run, berth_error *error)
{
    size_t n_slots = (size_t)run->n_workers * run->n_slots;
    size_t n_streams = (size_t)run->n_workers * run->n_devices;
    size_t n_events = n_slots * run->n_devices;

    run->workers = bth_allocate_zeroed(run->n_workers * sizeof *run->workers);
    run->slots = bth_allocate_zeroed(n_slots * sizeof *run->slots);
    run->streams = bth_allocate_zeroed(n_streams * sizeof *run->streams);
    run->events = bth_allocate_zeroed(n_events * sizeof *run->events);
    if (!run->workers || !run->slots || !run->streams || !run->events)
        return bth_fail_memory(error, n_events * sizeof *run->events);
    for (unsigned i = 0; i < run->n_workers; i++)
        run->workers[i] =
            (struct staging_worker){.streams = run->streams + (size_t)i * run->n_devices,
                                    .slots = run->slots + (size_t)i * run->n_slots};
    for (size_t i = 0; i < n_slots; i++)
        run->slots[i] = (struct staging_slot){.buffer = &run->ring.buffers[i],
                                              .events = run->events + i * run->n_devices};
    return 0;
}

/* Streams first: closing them waits until nothing is copied any more. */
static void staging_close(struct staging_run *run)
{
    size_t n_slots = (size_t)run->n_workers * run->n_slots;

    for (size_t i = 0; run->streams && i < (size_t)run->n_workers * run->n_devices; i++)
        bth_device_stream_close(&run->streams[i].stream);
    for (size_t i = 0; run->events && i < n_slots * run->n_devices; i++)
        bth_device_event_close(&run->events[i]);
    bth_staging_close(&run->ring);
    bth_release(run->events);
    bth_release(run->streams);
    bth_release(run->slots);
    bth_release(run->workers);
}

/* ---- one request ---- */

static int slot_wait(struct staging_worker *mine, struct staging_slot *slot, berth_error *error)
{
    if (!slot->pending)
        return 0;
    double begin_seconds = bth_seconds();
    (void)bth_device_event_wait(slot->pending, error);
    mine->wait_seconds += bth_seconds() - begin_seconds;
    slot->pending = NULL;
    return error->code;
}

/* What a request has of a range, or of some that lie on the device as in the file. */
struct range_part {
    uint64_t from, to; /* in the file */
    uintptr_t address;
};

static struct range_part range_part_of(const bth_range *range, const bth_request *request)
{
    uint64_t begin = range->offset, end = begin + range->nbytes;
    uint64_t request_end = request->offset + request->nbytes;
    uint64_t from = begin > request->offset ? begin : request->offset;

    return (struct range_part){.from = from,
                               .to = end < request_end ? end : request_end,
                               .address = range->target.address + (uintptr_t)(from - begin)};
}

/*
 * X17: kernels may still use the caller's memory. The device waits for them, no thread does. The
 * requests of a worker are in order, so that each stream waits once for a range.
 */
static int range_wait_until_ready(const bth_range *range, struct staging_stream *stream,
                                  berth_error *error)
{
    if (!range->target.ready || range->target.ready == stream->waits_for)
        return 0;
    if (bth_device_stream_wait_for(&stream->stream, range->target.ready, error) < 0)
        return error->code;
    stream->waits_for = range->target.ready;
    return 0;
}

/*
 * Copies all that the request has of its ranges. Bytes between two ranges are copied, too, where
 * both are in memory made for them: there the same bytes lie between them, and nobody uses them.
 */
static int request_copy(const struct staging_run *run, const bth_request *request,
                        struct staging_stream *stream, berth_error *error)
{
    const bth_range *ranges = run->to->transfer.requests.ranges;

    for (size_t i = request->first_range, next; i < request->end_range; i = next) {
        struct range_part part = range_part_of(&ranges[i], request);
        for (next = i + 1; next < request->end_range && ranges[i].target.is_ours; next++) {
            struct range_part more = range_part_of(&ranges[next], request);
            if (!ranges[next].target.is_ours ||
                more.address - part.address != more.from - part.from)
                break;
            part.to = more.to;
        }
        if (range_wait_until_ready(&ranges[i], stream, error) < 0 ||
            bth_device_copy_to_device(&stream->stream, part.address,
                                      request->memory + (part.from - request->offset),
                                      (size_t)(part.to - part.from), error) < 0)
            return staging_name(run, &ranges[i], error);
    }
    return 0;
}

static int request_send(struct staging_run *run, struct staging_worker *mine,
                        struct staging_slot *slot, const bth_request *request, berth_error *error)
{
    bth_device_handle *device =
        run->to->transfer.requests.ranges[request->first_range].target.device;
    unsigned number = staging_device_number(run, device);
    struct staging_stream *stream = &mine->streams[number];
    bth_device_event *event = &slot->events[number];

    if (!event->native && bth_device_event_open(device, event, error) < 0)
        return error->code;
    if (request_copy(run, request, stream, error) < 0 ||
        bth_device_event_record(event, &stream->stream, error) < 0)
        return error->code;
    slot->pending = event;
    return 0;
}

static int request_open_stream(struct staging_run *run, struct staging_worker *mine,
                               const bth_request *request, berth_error *error)
{
    bth_device_handle *device =
        run->to->transfer.requests.ranges[request->first_range].target.device;
    bth_device_stream *stream = &mine->streams[staging_device_number(run, device)].stream;

    return stream->native ? 0 : bth_device_stream_open(device, stream, error);
}

static int staging_run_request(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct staging_run *run = context;
    bth_request *request = &run->to->transfer.list[task];
    struct staging_worker *mine = &run->workers[worker];
    struct staging_slot *slot = &mine->slots[mine->next];

    if (request->first_range == request->end_range) /* the tail of a block, without any range */
        return 0;
    mine->next = (mine->next + 1) % run->n_slots;
    if (request_open_stream(run, mine, request, error) < 0 || slot_wait(mine, slot, error) < 0)
        return error->code;
    request->memory = slot->buffer->bytes + request->phase;
    if (bth_transfer_request(&run->to->transfer, request, worker, error) < 0)
        return error->code;
    return request_send(run, mine, slot, request, error);
}

/* ---- all ---- */

static int staging_watch(void *context)
{
    return bth_transfer_watch(&((struct staging_run *)context)->to->transfer);
}

/* Errors of copies may come only here. */
static int staging_wait(struct staging_run *run, berth_error *error)
{
    double begin_seconds = bth_seconds();

    for (size_t i = 0; i < (size_t)run->n_workers * run->n_devices && error->code == 0; i++)
        if (run->streams[i].stream.native)
            (void)bth_device_stream_wait(&run->streams[i].stream, error);
    run->to->device_seconds += bth_seconds() - begin_seconds;
    return error->code;
}

int bth_to_device_run(bth_to_device *to, berth_error *error)
{
    struct staging_run run = {.to = to};
    uint64_t n_requests = to->transfer.requests.n_requests;

    if (staging_make_room(&run, error) == 0 && staging_open_ring(&run, error) == 0 &&
        staging_open_workers(&run, error) == 0 &&
        bth_pool_run(run.n_workers, n_requests, staging_run_request, staging_watch, &run, error) ==
            0 &&
        staging_wait(&run, error) == 0)
        bth_transfer_join(&to->transfer);
    for (unsigned i = 0; run.workers && i < run.n_workers; i++)
        to->device_seconds += run.workers[i].wait_seconds;
    staging_close(&run);
    return error->code;
}
