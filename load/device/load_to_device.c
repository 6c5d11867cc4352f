/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads ranges to devices, as load/transfer/transfer.h says; addresses there. */
#include "load/transfer/transfer.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "berth/device.h"
#include "io/device/staging_buffers.h"
#include "io/thread_pool.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"

/* While one is copied, the other is filled. */
#define BUFFERS_PER_WORKER 2
/* Ranges up to this size have the same distances on a device as in the file, if the gaps are those
 * between page-aligned storages or smaller, and are aligned as PyTorch aligns them in files. So one
 * copy moves several: each copy costs some microseconds, even of few bytes. */
#define SMALL_NBYTES 65536
#define SMALL_GAP_NBYTES 8192
#define SMALL_ALIGNMENT 64
/* The number of devices that can be open at a time. */
#define DEVICES_MAX 128

/* A stream, and the last event that it was set to wait for. */
struct staging_stream {
    bth_device_stream stream;
    void *waits_for;
};

struct staging_worker {
    unsigned next; /* of its slots */
    double wait_seconds;
};

/* Each worker has n_slots buffers of the ring, and a stream on each device. Streams and events are
 * opened when they are first needed. */
struct staging_run {
    bth_to_device *to;
    bth_device_handle *devices[DEVICES_MAX];
    uint64_t nbytes[DEVICES_MAX]; /* of the memory that is to be made */
    const bth_device_memory_list *made[DEVICES_MAX];
    unsigned n_devices;
    unsigned n_workers, n_slots;
    bth_staging ring;
    struct staging_worker *workers;
    struct staging_stream *streams; /* of each worker, one a device */
    bth_device_event *events;       /* of each slot, one a device */
    bth_device_event **pending;     /* of each slot: recorded behind the copies from it */
};

/* ---- memory on devices ---- */

static void device_memory_list_free(bth_device_memory_list *list)
{
    for (bth_device_memory_list *next; list; list = next) {
        next = list->next;
        if (!bth_device_life_is_over(list->device, list->life))
            bth_device_release_memory(list->device, list->address);
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

/* Sets the offset of each range in the memory to be made, and the size of that memory. */
static bool staging_measure_device_memory(struct staging_run *run)
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
        uint64_t end = before->offset + before->nbytes;
        bool keeps_distance = /* from the range before it, as in the file */
            i > 0 && before->target.device == range->target.device && before->target.address == 0 &&
            before->nbytes <= SMALL_NBYTES && range->nbytes <= SMALL_NBYTES &&
            range->offset >= end && range->offset - end <= SMALL_GAP_NBYTES &&
            (range->offset - before->offset) % SMALL_ALIGNMENT == 0;
        if (keeps_distance)
            range->region_at = before->region_at + (range->offset - before->offset);
        else if (!bth_try_add(*nbytes, BTH_DEVICE_ALIGNMENT - 1, &range->region_at))
            return false;
        else
            range->region_at -= range->region_at % BTH_DEVICE_ALIGNMENT;
        if (!bth_try_add(range->region_at, range->nbytes, nbytes))
            return false;
    }
    return true;
}

/* Sets the addresses of all ranges. One allocation a device. The caller's memory was checked when
 * it was set; since then it may have been freed. */
static int staging_allocate_memory_of_all_devices(struct staging_run *run, berth_error *error)
{
    const bth_requests *requests = &run->to->transfer.requests;
    bth_device_handle *same;

    if (!staging_measure_device_memory(run))
        return bth_fail_memory(error, UINT64_MAX);
    for (unsigned i = 0; i < run->n_devices; i++) {
        bth_device_handle *device = run->devices[i];
        /* X18: its context may have died since it was opened. */
        if (bth_device_open(bth_device_name(device), &same, error) < 0)
            return error->code;
        if (run->nbytes[i] == 0)
            continue;
        bth_device_memory_list *made = bth_allocate_zeroed(sizeof *made);
        if (!made)
            return bth_fail_memory(error, sizeof *made);
        *made = (bth_device_memory_list){
            .device = device, .life = bth_device_life(device), .next = run->to->memory};
        run->made[i] = run->to->memory = made;
        if (bth_device_allocate_memory(device, run->nbytes[i], &made->address, error) < 0)
            return error->code;
    }
    for (size_t i = 0; i < requests->n_ranges; i++) {
        bth_range *range = &requests->ranges[i];
        bth_range_target *target = &range->target;
        const bth_device_memory_list *made = run->made[staging_device_number(run, target->device)];
        target->is_ours = target->address == 0;
        if (target->is_ours) {
            target->address = made->address + (uintptr_t)range->region_at;
            target->life = made->life;
        } else if (bth_device_check_life(target->device, target->life, error) < 0 ||
                   bth_device_check_memory(target->device, target->address, (size_t)range->nbytes,
                                           error) < 0) {
            return bth_transfer_add_range_to_error(&run->to->transfer, range, error);
        }
    }
    return 0;
}

/* ---- the ring and its workers ---- */

static int staging_open(struct staging_run *run, berth_error *error)
{
    const bth_transfer *transfer = &run->to->transfer;
    const struct berth_config *config = transfer->config;
    uint64_t n_requests = transfer->requests.n_requests;
    bth_staging_need need = {.buffer_nbytes = (size_t)transfer->requests.chunk_nbytes,
                             .n_buffers = (unsigned)config->device_staging_buffers,
                             .max_nbytes = (uint64_t)config->io_memory_nbytes,
                             .large_pages = config->io_large_pages,
                             .is_pinned = true};

    run->n_workers = transfer->n_workers;
    if (need.n_buffers == 0)
        need.n_buffers = run->n_workers * BUFFERS_PER_WORKER;
    need.n_buffers =
        (unsigned)bth_min(bth_min(need.n_buffers, n_requests), BTH_MAX_STAGING_BUFFERS);
    if (bth_staging_open(run->devices[0], &need, &run->ring, error) < 0)
        return error->code;
    run->to->staging_nbytes = (uint64_t)run->ring.n_buffers * run->ring.buffer_nbytes;
    run->n_workers = (unsigned)bth_min(run->n_workers, run->ring.n_buffers);
    run->n_slots = run->ring.n_buffers / run->n_workers;
    size_t n_slots = (size_t)run->n_workers * run->n_slots;
    size_t n_streams = (size_t)run->n_workers * run->n_devices;
    size_t n_events = n_slots * run->n_devices;
    run->workers = bth_allocate_zeroed(run->n_workers * sizeof *run->workers);
    run->streams = bth_allocate_zeroed(n_streams * sizeof *run->streams);
    run->events = bth_allocate_zeroed(n_events * sizeof *run->events);
    run->pending = bth_allocate_zeroed(n_slots * sizeof(*run->pending));
    if (!run->workers || !run->streams || !run->events || !run->pending)
        return bth_fail_memory(error, n_events * sizeof *run->events);
    return 0;
}

/* The bytes of a request that one copy moves: of a range, or of ranges with equal distances. */
struct range_part {
    uint64_t from, to; /* in the file */
    uintptr_t address;
};

static struct range_part range_part_in_request(const bth_range *range, const bth_request *request)
{
    uint64_t from = bth_max(range->offset, request->offset);
    uint64_t to = bth_min(range->offset + range->nbytes, request->offset + request->nbytes);

    return (struct range_part){
        .from = from, .to = to, .address = range->target.address + (from - range->offset)};
}

/* Copies the request's bytes of its ranges; gaps between them, too, if both ranges are in memory
 * made for them: the gap there has the same size, and nobody uses it. */
static int request_copy(const struct staging_run *run, const bth_request *request,
                        struct staging_stream *stream, berth_error *error)
{
    const bth_range *ranges = run->to->transfer.requests.ranges;

    for (size_t i = request->first_range, next; i < request->end_range; i = next) {
        struct range_part part = range_part_in_request(&ranges[i], request);
        for (next = i + 1; next < request->end_range && ranges[i].target.is_ours; next++) {
            struct range_part more = range_part_in_request(&ranges[next], request);
            if (!ranges[next].target.is_ours ||
                more.address - part.address != more.from - part.from)
                break;
            part.to = more.to;
        }
        /* X17: kernels may still use the caller's memory. The device waits for them, not a thread.
         * The requests of a worker are in order, so each stream waits once for a range. */
        void *ready = ranges[i].target.ready;
        bool waits = ready && ready != stream->waits_for;
        if (waits && bth_device_stream_wait_for_event(&stream->stream, ready, error) < 0)
            return bth_transfer_add_range_to_error(&run->to->transfer, &ranges[i], error);
        if (waits)
            stream->waits_for = ready;
        if (bth_device_begin_copy_to_device(&stream->stream, part.address,
                                            request->memory + (part.from - request->offset),
                                            (size_t)(part.to - part.from), error) < 0)
            return bth_transfer_add_range_to_error(&run->to->transfer, &ranges[i], error);
    }
    return 0;
}

static int staging_load_request(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct staging_run *run = context;
    bth_transfer *transfer = &run->to->transfer;
    bth_request *request = &transfer->list[task];
    struct staging_worker *mine = &run->workers[worker];
    size_t slot = (size_t)worker * run->n_slots + mine->next;

    if (request->first_range == request->end_range) /* the tail of a block, without any range */
        return 0;
    bth_device_handle *device = transfer->requests.ranges[request->first_range].target.device;
    unsigned number = staging_device_number(run, device);
    struct staging_stream *stream = &run->streams[(size_t)worker * run->n_devices + number];
    bth_device_event *event = &run->events[slot * run->n_devices + number];
    mine->next = (mine->next + 1) % run->n_slots;
    if ((!stream->stream.native && bth_device_stream_open(device, &stream->stream, error) < 0) ||
        (!event->native && bth_device_event_open(device, event, error) < 0))
        return error->code;
    if (run->pending[slot]) {
        double begin_seconds = bth_seconds();
        (void)bth_device_event_wait(run->pending[slot], error);
        double end_seconds = bth_seconds();
        mine->wait_seconds += end_seconds - begin_seconds;
        BTH_TRACE(.category = "wait", .name = "wait for a device", .begin_seconds = begin_seconds,
                  .end_seconds = end_seconds);
        run->pending[slot] = NULL;
        if (error->code < 0)
            return error->code;
    }
    request->memory = run->ring.buffers[slot].bytes + request->phase;
    if (bth_transfer_run_request(transfer, task, worker, error) < 0 ||
        request_copy(run, request, stream, error) < 0 ||
        bth_device_event_record(event, &stream->stream, error) < 0)
        return error->code;
    run->pending[slot] = event;
    return 0;
}

/* ---- all ---- */

static int staging_report_progress(void *context)
{
    return bth_transfer_report_progress(&((struct staging_run *)context)->to->transfer);
}

static int to_device_run(bth_to_device *to, berth_error *error)
{
    struct staging_run run = {.to = to};
    uint64_t n_requests = to->transfer.requests.n_requests;

    if (staging_allocate_memory_of_all_devices(&run, error) == 0 &&
        staging_open(&run, error) == 0 &&
        bth_pool_run(run.n_workers, n_requests, staging_load_request, staging_report_progress, &run,
                     error) == 0) {
        /* Errors of copies can appear only here. */
        double begin_seconds = bth_seconds();
        for (size_t i = 0; i < (size_t)run.n_workers * run.n_devices && error->code == 0; i++)
            if (run.streams[i].stream.native)
                (void)bth_device_stream_wait(&run.streams[i].stream, error);
        double end_seconds = bth_seconds();
        to->device_seconds += end_seconds - begin_seconds;
        BTH_TRACE(.category = "wait", .name = "wait for a device", .begin_seconds = begin_seconds,
                  .end_seconds = end_seconds);
        if (error->code == 0)
            bth_transfer_merge_request_results(&to->transfer);
    }
    for (unsigned i = 0; run.workers && i < run.n_workers; i++)
        to->device_seconds += run.workers[i].wait_seconds;
    /* Streams first: closing them waits until nothing is copied any more. */
    size_t n_slots = (size_t)run.n_workers * run.n_slots;
    for (size_t i = 0; run.streams && i < (size_t)run.n_workers * run.n_devices; i++)
        bth_device_stream_close(&run.streams[i].stream);
    for (size_t i = 0; run.events && i < n_slots * run.n_devices; i++)
        bth_device_event_close(&run.events[i]);
    bth_staging_close(&run.ring);
    bth_release(run.pending);
    bth_release(run.events);
    bth_release(run.streams);
    bth_release(run.workers);
    return error->code;
}

const bth_to_device_functions bth_wing_to_device = {
    .run = to_device_run,
    .free_memory = device_memory_list_free,
};

int berth_tensor_device_address(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                uintptr_t *address, berth_error *error)
{
    uint64_t offset = 0;

    BTH_ERROR_BEGIN(error);
    if (!address) {
        (void)bth_fail_argument(error, "the pointer for the address is NULL");
        return bth_error_in_checkpoint(checkpoint, error);
    }
    *address = 0;
    if (bth_checkpoint_find_caller_tensor(checkpoint, tensor, &offset, error) == 0) {
        const berth_storage *storage = tensor->storage, *root = bth_storage_root(storage);
        bth_load_request request = {.config = &checkpoint->config, .at_once = true};
        bth_storage_target target = bth_storage_get_target(checkpoint, root);
        if (target.range.device && !target.is_there &&
            bth_storages_load(checkpoint, &request, &root, 1, error) == 0)
            target = bth_storage_get_target(checkpoint, root);
        if (error->code == 0 && !target.is_there)
            (void)bth_fail_argument(error,
                                    "it is in the memory of the host: call berth_tensor_data");
        else if (error->code == 0 && target.range.address != 0) { /* 0: it is empty */
            /* X18: if the context died, the address may be invalid, or belong to other memory. */
            if (bth_device_check_life(target.range.device, target.range.life, error) < 0 ||
                bth_device_check_memory(target.range.device, target.range.address, 1, error) < 0)
                (void)bth_error_in_storage(checkpoint, root, error);
            else
                *address = target.range.address + (uintptr_t)(storage->root_offset + offset);
        }
    }
    (void)bth_error_in_tensor(checkpoint, tensor, error);
    return bth_error_in_checkpoint(checkpoint, error);
}
