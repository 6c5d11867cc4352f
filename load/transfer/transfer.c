/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/transfer.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/checksum.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "io/thread_pool.h"

/* Reads of a transfer, counted and timed: for its statistics, and for the trace. */

static void transfer_add_time(atomic_uint_fast64_t *nanoseconds, double seconds)
{
    atomic_fetch_add_explicit(nanoseconds, (uint64_t)(seconds * 1e9), memory_order_relaxed);
}

/* The time at which a read begins, which ends by one of the next two. */
static double transfer_begin_read(void)
{
    double begin_seconds = bth_seconds();

    bth_trace_begin_request();
    return begin_seconds;
}

/* A read for the trace alone, which the caller counts. nbytes 0: it failed. */
static void transfer_trace_read_end(const char *name, double begin_seconds, double end_seconds,
                                    uint64_t offset, uint64_t nbytes)
{
    bth_trace_end_request(&(bth_trace_span){.category = "request,read,disk",
                                            .name = name,
                                            .begin_seconds = begin_seconds,
                                            .end_seconds = end_seconds,
                                            .offset = offset,
                                            .nbytes = nbytes},
                          false);
}

/* Counts a read that began at that time; one that failed is only in the trace. Returns its code. */
static int transfer_end_read(bth_transfer *transfer, double begin_seconds, uint64_t offset,
                             uint64_t nbytes, const berth_error *error)
{
    double end_seconds = error->code < 0 ? bth_trace_seconds() : bth_seconds();

    if (error->code == BERTH_OK) {
        transfer_add_time(&transfer->disk_nanoseconds, end_seconds - begin_seconds);
        atomic_fetch_add_explicit(&transfer->moved_nbytes, nbytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&transfer->n_reads, nbytes > 0, memory_order_relaxed);
    }
    transfer_trace_read_end("read", begin_seconds, end_seconds, offset,
                            error->code < 0 ? 0 : nbytes);
    return error->code;
}

/*
 * Short requests with gaps between them. The system reads ahead only where pages follow each other:
 * it would wait for the disk at each of these requests. Advice makes it read their pages, many at a
 * time.
 */

/* Requests that are told together: while they are read, the next ones are on their way. */
#define STEP UINT64_C(256)
/* Longer ones are read ahead by the system, and could fill the memory. */
#define ADVISED_MAX_NBYTES (UINT64_C(256) << 10)
/* Shorter gaps hold one whole page at most: a disk reads that in less time than another request. */
#define ADVISED_GAP_NBYTES (2 * BTH_PAGE_NBYTES)

/* The bytes from the first to the last of n requests. */
static uint64_t requests_span_nbytes(const bth_request *requests, uint64_t n)
{
    return requests[n - 1].offset + requests[n - 1].nbytes - requests[0].offset;
}

/* Before request number `task`: has the system begin to read what comes after it. */
static void transfer_advise_ahead(const bth_transfer *transfer, uint64_t task)
{
    const bth_request *list = transfer->list;
    uint64_t end = bth_min(task + 2 * STEP, transfer->requests.n_requests);

    if (task % STEP != 0)
        return;
    for (uint64_t i = task == 0 ? 0 : task + STEP, n; i < end; i += n) {
        for (n = 1; i + n < end; n++) {
            const bth_request *before = &list[i + n - 1];
            if (list[i + n].offset - (before->offset + before->nbytes) >= ADVISED_GAP_NBYTES)
                break;
        }
        (void)bth_system.posix_fadvise(
            bth_reader_file(transfer->access->reader), (off_t)list[i].offset,
            (off_t)requests_span_nbytes(&list[i], n), POSIX_FADV_WILLNEED);
    }
}

/* A deflated range (Z12) is one request, which one worker inflates, in pieces. So a transfer is
 * parallel over such ranges, not inside one of them. */

/* Bytes of input that are read at a time, and of output that is only summed. */
#define BUFFER_NBYTES ((size_t)64 << 10)
#define REPORT_SECONDS 0.1

/* One range that is inflated. */
struct inflated_range {
    bth_transfer *transfer;
    uint8_t *buffers; /* of input, then of output */
    double next_report_seconds;
};

static int inflated_range_read_input(void *context, uint64_t offset, uint64_t nbytes,
                                     uint64_t ahead, const uint8_t **bytes, berth_error *error)
{
    const struct inflated_range *inflated = context;
    double begin_seconds = transfer_begin_read();

    (void)ahead;
    *bytes = inflated->buffers;
    (void)bth_reader_read_untraced(inflated->transfer->access->reader, inflated->buffers,
                                   (size_t)nbytes, offset, error);
    return transfer_end_read(inflated->transfer, begin_seconds, offset, nbytes, error);
}

/* After each piece. Reports progress where no other thread does: the pool runs the request on the
 * caller's thread. A caller who has cancelled need not wait for the range's end. */
static int inflated_range_advance(void *context, uint64_t nbytes, berth_error *error)
{
    struct inflated_range *inflated = context;
    bth_transfer *transfer = inflated->transfer;
    bool is_alone = transfer->n_workers <= 1 || transfer->requests.n_requests <= 1;

    atomic_fetch_add_explicit(&transfer->done_nbytes, nbytes, memory_order_relaxed);
    if (is_alone && bth_seconds() >= inflated->next_report_seconds) {
        (void)bth_transfer_report_progress(transfer);
        inflated->next_report_seconds = bth_seconds() + REPORT_SECONDS;
    }
    if (!atomic_load_explicit(&transfer->is_cancelled, memory_order_relaxed))
        return 0;
    return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
}

/* Inflates the range to its memory; for a scan, only sums it. Z10, Z12: the sum is compared always;
 * that of a scan by its caller. Beside its memory it needs 170 KiB, whatever its size is (Z12). */
static int request_inflate_range(bth_transfer *transfer, const bth_request *request,
                                 berth_error *error)
{
    bth_range *range = &transfer->requests.ranges[request->first_range];
    bth_use use = transfer->requests.use;
    uint8_t *memory = use == BTH_USE_CALLER ? range->memory : request->memory;
    uint8_t *buffers = bth_allocate(2 * BUFFER_NBYTES);
    struct inflated_range inflated = {.transfer = transfer,
                                      .buffers = buffers,
                                      .next_report_seconds = bth_seconds() + REPORT_SECONDS};
    bth_zip_input input = {.get = inflated_range_read_input, .context = &inflated};
    bth_inflate_output output = {.memory = memory,
                                 .nbytes = memory ? range->nbytes : 0,
                                 .from = range->inflated_from,
                                 .scratch_nbytes = BUFFER_NBYTES,
                                 .advance = inflated_range_advance,
                                 .context = &inflated};
    const bth_transfer_calls *calls = &transfer->calls;
    bool present;

    if (!buffers)
        return bth_fail_memory(error, 2 * BUFFER_NBYTES);
    output.scratch = buffers + BUFFER_NBYTES;
    if (bth_inflate_in_pieces(range->deflated, &input, &output, error) == 0) {
        range->crc32 = output.crc32;
        if (use != BTH_USE_CHECKSUMS)
            (void)bth_zip_compare_crc(range->deflated, range->crc32, &present, error);
        if (error->code == 0 && range->unit > 1 && use == BTH_USE_MEMORY)
            bth_swap_bytes(memory, memory, (size_t)(range->nbytes - range->nbytes % range->unit),
                           range->unit);
    }
    bth_release(buffers);
    if (error->code < 0 && calls->failed && calls->failed(calls->context, range, error) == 0)
        range->is_unread = true;
    return error->code;
}

/* Bytes that are summed or swapped while they are in the processor's cache. */
#define PIECE_NBYTES (UINT64_C(512) << 10)
#define BUFFER_MIN_NBYTES (UINT64_C(64) << 10)
/* For fewer bytes, it is not looked up whether the disk rotates. */
#define ROTATING_MIN_NBYTES (UINT64_C(16) << 20)
/* Short requests that are worth a second thread. */
#define MANY 256

/* ---- the pieces of one request, in their order: sums, swaps, delivery ---- */

struct walk {
    bth_transfer *transfer;
    bth_request *request;
    size_t range;         /* the first that is not done */
    uint32_t crc32;       /* of its bytes in this request so far */
    double crc32_seconds; /* of the piece at hand, where sums are timed by themselves */
};

/* Ranges that are moved down, or go to the caller, are swapped after all of them is read. */
static bool range_is_swapped_after_read(const bth_transfer *transfer, const bth_range *range)
{
    return transfer->requests.use == BTH_USE_CALLER || (range->shift > 0 && !range->target.device);
}

/*
 * Bytes [begin, end) of the source are at `bytes`; NULL: they could not be read. T5: they end at a
 * multiple of every unit, or with the range. Z10: sets the CRC of what begins here;
 * bth_transfer_merge_request_results adds the rest.
 */
static void request_walk_ranges(struct walk *walk, uint8_t *bytes, uint64_t begin, uint64_t end)
{
    const bth_transfer *transfer = walk->transfer;
    const bth_transfer_calls *calls = &transfer->calls;

    for (; walk->range < walk->request->end_range; walk->range++, walk->crc32 = 0) {
        bth_range *range = &transfer->requests.ranges[walk->range];
        uint64_t from = bth_max(range->offset, begin);
        uint64_t to = bth_min(range->offset + range->nbytes, end);
        if (bth_range_surroundings_begin(range) >= end)
            return;
        if (!bytes)
            range->is_unread = true;
        else if (calls->look)
            calls->look(calls->context, range, bytes, begin, end);
        if (bytes && from < to) {
            uint8_t *here = bytes + (from - begin);
            size_t nbytes = (size_t)(to - from);
            if (transfer->with_crc32) {
                /* Else request_walk_sum_and_use_piece counts the time. */
                bool is_timed = transfer->is_swapped;
                double begin_seconds = is_timed ? bth_seconds() : 0;
                walk->crc32 = bth_crc32(walk->crc32, here, nbytes);
                if (range->offset >= walk->request->offset)
                    range->crc32 = walk->crc32;
                else
                    walk->request->head_crc32 = walk->crc32;
                if (is_timed)
                    walk->crc32_seconds += bth_seconds() - begin_seconds;
            }
            if (range->unit > 1 && !range_is_swapped_after_read(transfer, range))
                bth_swap_bytes(here, here, nbytes - nbytes % range->unit, range->unit);
            if (transfer->requests.use == BTH_USE_CALLER &&
                range->memory + (from - range->offset) != here)
                memcpy(range->memory + (from - range->offset), here, nbytes);
        }
        if (bth_range_surroundings_end(range) > end)
            return;
    }
}

static void request_walk_sum_and_use_piece(struct walk *walk, uint8_t *bytes, uint64_t begin,
                                           uint64_t end)
{
    bth_transfer *transfer = walk->transfer;
    double begin_seconds = bth_seconds();

    walk->crc32_seconds = 0;
    request_walk_ranges(walk, bytes, begin, end);
    double end_seconds = bth_seconds();
    if (transfer->with_crc32 && !transfer->is_swapped)
        walk->crc32_seconds = end_seconds - begin_seconds;
    transfer_add_time(&transfer->crc32_nanoseconds, walk->crc32_seconds);
    transfer_add_time(&transfer->render_nanoseconds, end_seconds - begin_seconds);
    BTH_TRACE(.category = "work",
              .name = transfer->is_swapped   ? "swap and sum"
                      : transfer->with_crc32 ? "CRC-32"
                                             : "deliver",
              .begin_seconds = begin_seconds, .end_seconds = end_seconds, .offset = begin,
              .nbytes = end - begin, .crc32_seconds = walk->crc32_seconds);
}

/* ---- one request ---- */

/* Reads bytes [begin, end) of the source. After one refusal of a direct read the rest is read
 * without O_DIRECT. */
static int request_read_piece(bth_transfer *transfer, bth_request *request, uint8_t *memory,
                              uint64_t begin, uint64_t end, berth_error *error)
{
    bth_access *access = transfer->access;
    bool is_direct = request->method == BERTH_LOAD_DIRECT;
    size_t done_nbytes = 0;

    if (is_direct)
        request->fell_back = atomic_load(&access->direct_is_refused);
    if (is_direct && !request->fell_back) {
        double begin_seconds = transfer_begin_read();
        (void)bth_direct_read(&access->direct, memory, request->nbytes, request->offset,
                              &done_nbytes, &request->fell_back, error);
        if (transfer_end_read(transfer, begin_seconds, request->offset, done_nbytes, error) < 0)
            return error->code;
        if (request->fell_back)
            atomic_store(&access->direct_is_refused, true);
        if (done_nbytes > 0)
            bth_reader_count_request(access->reader, done_nbytes);
    }
    if (done_nbytes >= end - begin)
        return 0;
    double begin_seconds = transfer_begin_read();
    size_t nbytes = (size_t)(end - begin) - done_nbytes;
    begin += done_nbytes;
    (void)bth_reader_read_untraced(access->reader, memory + done_nbytes, nbytes, begin, error);
    return transfer_end_read(transfer, begin_seconds, begin, nbytes, error);
}

/* The range that an error's byte belongs to, or else the first from `range` on. */
static const bth_range *request_find_range_at_offset(const bth_transfer *transfer,
                                                     const bth_request *request, size_t range,
                                                     uint64_t offset)
{
    const bth_range *ranges = transfer->requests.ranges;

    while (range + 1 < request->end_range && offset != BERTH_NO_OFFSET &&
           ranges[range + 1].offset <= offset)
        range++;
    return &ranges[range];
}

static int request_read(bth_transfer *transfer, bth_request *request, unsigned worker,
                        berth_error *error)
{
    struct walk walk = {.transfer = transfer, .request = request, .range = request->first_range};
    const bth_transfer_calls *calls = &transfer->calls;

    if (request->end_range == request->first_range) /* the tail of a block, without any range */
        return 0;
    /* Where the whole request can be read to. NULL: to the worker's buffer, piece by piece. */
    const bth_range *first = &transfer->requests.ranges[request->first_range];
    const bth_range *last = &transfer->requests.ranges[request->end_range - 1];
    uint64_t begin = request->offset, end = begin + request->nbytes;
    uint8_t *memory = request->memory;
    if (!memory && transfer->requests.use == BTH_USE_CALLER && begin >= first->offset &&
        end <= first->offset + first->nbytes) {
        memory = first->memory + (begin - first->offset);
        if (request->method == BERTH_LOAD_DIRECT &&
            (uintptr_t)memory % transfer->requests.block_nbytes != 0)
            memory = NULL;
    }
    bth_region *buffer = memory ? NULL : &transfer->buffers[worker];
    if (buffer && !buffer->bytes) {
        bth_pages pages = {.wanted = transfer->config->io_large_pages};
        bool is_spread = transfer->config->io_numa == BTH_NUMA_INTERLEAVE;
        assert(transfer->buffer_nbytes > 0);
        if (bth_region_new(transfer->buffer_nbytes, BTH_MAX_DIRECT_BLOCK_NBYTES, is_spread, &pages,
                           buffer, error) < 0)
            return error->code;
    }
    /* The last range's end: the file may end before the block does. */
    end = bth_min(bth_range_surroundings_end(last), end);
    for (uint64_t at = begin, next; at < end; at = next) {
        /* A direct read is one piece. So is a read to final memory without sums or swaps. Else the
         * piece ends at an address that is aligned for elements. */
        uint8_t *bytes = buffer ? buffer->bytes : memory + (at - request->offset);
        next = end;
        if (request->method != BERTH_LOAD_DIRECT && buffer)
            next = bth_min(end, at + transfer->buffer_nbytes);
        else if (request->method != BERTH_LOAD_DIRECT && end - at > PIECE_NBYTES &&
                 (transfer->with_crc32 || transfer->is_swapped))
            next = at + PIECE_NBYTES - (uintptr_t)(bytes + PIECE_NBYTES) % BTH_MEMORY_ALIGNMENT;
        if (request_read_piece(transfer, request, bytes, at, next, error) == 0) {
            request_walk_sum_and_use_piece(&walk, bytes, at, next);
            continue;
        }
        const bth_range *failed =
            request_find_range_at_offset(transfer, request, walk.range, error->offset);
        if (!calls->failed || calls->failed(calls->context, failed, error) < 0)
            return error->code;
        request_walk_ranges(&walk, NULL, at, next); /* the transfer goes on: they are unread */
    }
    return 0;
}

/* F2: bytes of a map are touched only after the kernel has reported that they are present. A scan
 * reads others into its buffer: if the file was truncated, that is an error, not a signal. */
static int request_populate_and_walk_map(bth_transfer *transfer, bth_request *request,
                                         unsigned worker, berth_error *error)
{
    struct walk walk = {.transfer = transfer, .request = request, .range = request->first_range};
    bool is_scan = transfer->requests.use == BTH_USE_CHECKSUMS, is_present = true;
    bool is_file = transfer->access->reader->fd >= 0 && !transfer->is_in_memory;
    bool is_counted = is_file && is_scan;
    double begin_seconds = is_counted ? transfer_begin_read() : bth_seconds();

    if (is_file)
        (void)bth_access_advise_mapped_bytes(transfer->access->reader, request->memory,
                                             request->nbytes, request->offset, MADV_POPULATE_READ,
                                             &is_present, error);
    bool is_done = is_present && error->code == BERTH_OK;
    double end_seconds = bth_seconds();
    if (is_counted)
        transfer_trace_read_end("populate", begin_seconds, end_seconds, request->offset,
                                is_done ? request->nbytes : 0);
    else if (is_done)
        BTH_TRACE(.category = "disk", .name = "populate", .begin_seconds = begin_seconds,
                  .end_seconds = end_seconds, .offset = request->offset, .nbytes = request->nbytes);
    if (!is_present && is_scan) {
        bth_error_clear(error);
        request->memory = NULL;
        return request_read(transfer, request, worker, error);
    }
    if (error->code < 0)
        return error->code;
    if (is_counted)
        bth_reader_count_request(transfer->access->reader, request->nbytes);
    transfer_add_time(&transfer->disk_nanoseconds, end_seconds - begin_seconds);
    request_walk_sum_and_use_piece(&walk, request->memory, request->offset,
                                   request->offset + request->nbytes);
    return 0;
}

int bth_transfer_add_range_to_error(const bth_transfer *transfer, const bth_range *range,
                                    berth_error *error)
{
    const bth_transfer_calls *calls = &transfer->calls;

    return calls->name ? calls->name(calls->context, range, error) : error->code;
}

int bth_transfer_run_request(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    bth_transfer *transfer = context;
    bth_request *request = &transfer->list[task];

    if (transfer->is_advised)
        transfer_advise_ahead(transfer, task);
    /* Before the request writes to its memory. */
    uint64_t begin = request->offset, end = begin + request->nbytes;
    if (transfer->region && request->memory && request->method != BERTH_LOAD_MAP)
        bth_pages_touch(&transfer->pages, &transfer->front, request->memory,
                        (size_t)request->nbytes);
    for (size_t i = request->first_range; i < request->end_range; i++) {
        bth_range *range = &transfer->requests.ranges[i];
        if (!range->is_new)
            continue;
        uint64_t from = range->deflated ? 0 : bth_max(range->offset, begin) - range->offset;
        uint64_t to = range->deflated ? range->nbytes
                                      : bth_min(range->offset + range->nbytes, end) - range->offset;
        bth_pages_touch(&transfer->pages, &range->front, range->memory + from, (size_t)(to - from));
    }
    int result = request->is_deflated ? request_inflate_range(transfer, request, error)
                 : request->method == BERTH_LOAD_MAP
                     ? request_populate_and_walk_map(transfer, request, worker, error)
                     : request_read(transfer, request, worker, error);

    if (result == BERTH_E_CANCELLED)
        return result;
    if (result < 0)
        return bth_transfer_add_range_to_error(
            transfer,
            request_find_range_at_offset(transfer, request, request->first_range, error->offset),
            error);
    if (!request->is_deflated) /* else each piece was counted */
        atomic_fetch_add_explicit(&transfer->done_nbytes, request->nbytes, memory_order_relaxed);
    return result;
}

/* ---- after all requests ---- */

void bth_transfer_merge_request_results(bth_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->requests.n_requests; i++) {
        const bth_request *request = &transfer->list[i];
        bth_range *first = &transfer->requests.ranges[request->first_range];
        for (size_t j = request->first_range; request->fell_back && j < request->end_range; j++)
            transfer->requests.ranges[j].fell_back = true;
        if (!transfer->with_crc32 || request->first_range == request->end_range)
            continue;
        uint64_t end = first->offset + first->nbytes;
        if (first->offset < request->offset && end > request->offset)
            first->crc32 = bth_crc32_combine(first->crc32, request->head_crc32,
                                             bth_min(end - request->offset, request->nbytes));
    }
}

/* T5: moves it to an address that is aligned for its elements. The bytes before it are unused. */
static int range_shift_and_swap(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const bth_transfer *transfer = context;
    bth_range *range = &transfer->requests.ranges[task];
    size_t nbytes = (size_t)range->nbytes;

    (void)worker, (void)error;
    if (!range_is_swapped_after_read(transfer, range))
        return 0;
    if (range->shift > 0) {
        range->memory -= range->shift;
        memmove(range->memory, range->memory + range->shift, nbytes);
    }
    if (range->unit > 1)
        bth_swap_bytes(range->memory, range->memory, nbytes - nbytes % range->unit, range->unit);
    return 0;
}

/* ---- the whole ---- */

int bth_transfer_report_progress(void *context)
{
    bth_transfer *transfer = context;
    const berth_params *params = transfer->params;
    uint64_t done_nbytes = transfer->earlier_nbytes + atomic_load(&transfer->done_nbytes);

    if (!params || !params->progress)
        return 0;
    int result = params->progress(params->progress_context, done_nbytes,
                                  transfer->earlier_nbytes + transfer->requests.nbytes +
                                      transfer->later_nbytes);
    if (result != 0)
        atomic_store(&transfer->is_cancelled, true);
    return result;
}

static bool transfer_lacks_buffer_memory(const bth_transfer *transfer)
{
    int64_t max_nbytes = transfer->config->io_memory_nbytes;

    return max_nbytes > 0 && (uint64_t)max_nbytes < BUFFER_MIN_NBYTES;
}

int bth_transfer_measure_requests(bth_transfer *transfer, berth_error *error)
{
    bth_requests *requests = &transfer->requests;
    bool any_direct = false, any_read = false;

    if (requests->chunk_nbytes == 0)
        requests->chunk_nbytes = bth_workers_chunk_nbytes(transfer->config);
    requests->chunk_nbytes -= requests->chunk_nbytes % BTH_MAX_DIRECT_BLOCK_NBYTES;
    for (size_t i = 0; i < requests->n_ranges; i++) {
        const bth_range *range = &requests->ranges[i];
        any_direct |= range->choice.method == BERTH_LOAD_DIRECT;
        any_read |= range->choice.method == BERTH_LOAD_READ;
        transfer->is_swapped |= range->unit > 1;
        transfer->any_late |=
            range_is_swapped_after_read(transfer, range) && (range->shift > 0 || range->unit > 1);
    }
    requests->block_nbytes =
        any_direct ? transfer->access->direct.block_nbytes : BTH_MEMORY_ALIGNMENT;
    if (requests->use == BTH_USE_CALLER || requests->use == BTH_USE_CHECKSUMS) {
        /* Buffers, for ranges without memory of their own. Direct requests, and those to the
         * caller's function, are slow even if short: then a buffer holds a whole request. */
        uint64_t max_nbytes = (uint64_t)transfer->config->io_memory_nbytes;
        bool is_long = any_direct || transfer->access->reader->fd < 0;
        if (transfer_lacks_buffer_memory(transfer) && requests->use == BTH_USE_CHECKSUMS &&
            (any_direct || any_read))
            return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                            "io.memory_nbytes=%llu is too little for a buffer: %llu bytes are "
                            "missing",
                            (unsigned long long)max_nbytes,
                            (unsigned long long)(BUFFER_MIN_NBYTES - max_nbytes));
        if (max_nbytes > 0)
            requests->chunk_nbytes = bth_max(
                bth_min(requests->chunk_nbytes, max_nbytes - max_nbytes % BUFFER_MIN_NBYTES),
                BUFFER_MIN_NBYTES);
        transfer->buffer_nbytes =
            is_long ? requests->chunk_nbytes : bth_min(requests->chunk_nbytes, PIECE_NBYTES);
    }
    if (!bth_requests_measure(requests))
        return bth_fail_memory(error, UINT64_MAX);
    uint64_t n_tasks = requests->n_requests;
    if (requests->use == BTH_USE_CHECKSUMS) /* few bytes are not worth a second thread */
        n_tasks = bth_min(n_tasks, requests->nbytes / requests->chunk_nbytes + 1);
    if (requests->gap_nbytes > 0)
        n_tasks = bth_min(n_tasks, requests->nbytes / requests->chunk_nbytes + n_tasks / MANY + 1);
    int fd = transfer->access->reader->fd;
    bth_workers_kind kind = any_direct ? BTH_WORKERS_WAIT : BTH_WORKERS_COMPUTE;
    if ((any_direct || transfer->is_cold) && fd >= 0 && requests->nbytes >= ROTATING_MIN_NBYTES &&
        bth_disk_is_rotating(fd, ""))
        kind = BTH_WORKERS_ROTATING;
    transfer->n_workers =
        bth_workers_choose_count(transfer->config, kind, n_tasks, transfer->buffer_nbytes);
    return 0;
}

int bth_transfer_cut(bth_transfer *transfer, uint8_t *region, const uint8_t *mapped,
                     berth_error *error)
{
    size_t list_nbytes = transfer->requests.n_requests * sizeof *transfer->list;
    size_t buffers_nbytes = transfer->n_workers * sizeof *transfer->buffers;

    transfer->list = bth_allocate(list_nbytes);
    if (!transfer->list)
        return bth_fail_memory(error, list_nbytes);
    if (transfer->buffer_nbytes > 0) {
        transfer->buffers = bth_allocate_zeroed(buffers_nbytes);
        if (!transfer->buffers)
            return bth_fail_memory(error, buffers_nbytes);
    }
    bth_requests_cut(&transfer->requests, region, mapped, transfer->list);
    transfer->region = region;
    transfer->pages.wanted = transfer->config->io_large_pages;
    if (region)
        bth_pages_begin(&transfer->pages, &transfer->front, region,
                        (size_t)transfer->requests.region_nbytes);
    for (size_t i = 0; i < transfer->requests.n_ranges; i++) {
        bth_range *range = &transfer->requests.ranges[i];
        if (range->is_new)
            bth_pages_begin(&transfer->pages, &range->front, range->memory, (size_t)range->nbytes);
    }
    const bth_request *first = transfer->list;
    uint64_t n = transfer->requests.n_requests;
    int fd = bth_reader_file(transfer->access->reader);
    if (transfer->requests.gap_nbytes == 0 || n <= 1 || first->method != BERTH_LOAD_READ ||
        first->nbytes > ADVISED_MAX_NBYTES || fd < 0)
        return 0;
    bool is_warm = transfer->is_warm;
    if (!is_warm && !transfer->is_cold) /* not known yet */
        is_warm = bth_page_cache_probe(fd, first->offset, requests_span_nbytes(first, n)) ==
                  BTH_PAGE_CACHE_WARM;
    transfer->is_advised = !is_warm;
    return 0;
}

int bth_transfer_run(bth_transfer *transfer, berth_error *error)
{
    const bth_requests *requests = &transfer->requests;

    if (bth_pool_run(transfer->n_workers, requests->n_requests, bth_transfer_run_request,
                     bth_transfer_report_progress, transfer, error) < 0)
        return error->code;
    if (transfer->region)
        bth_pages_end(&transfer->pages, transfer->region, (size_t)requests->region_nbytes);
    for (size_t i = 0; i < requests->n_ranges; i++)
        if (requests->ranges[i].is_new)
            bth_pages_end(&transfer->pages, requests->ranges[i].memory,
                          (size_t)requests->ranges[i].nbytes);
    bth_transfer_merge_request_results(transfer);
    if (!transfer->any_late)
        return 0;
    unsigned n_workers =
        bth_workers_choose_count(transfer->config, BTH_WORKERS_COMPUTE, requests->n_ranges, 0);
    return bth_pool_run(n_workers, requests->n_ranges, range_shift_and_swap,
                        bth_transfer_report_progress, transfer, error);
}

void bth_transfer_end(bth_transfer *transfer)
{
    for (unsigned i = 0; transfer->buffers && i < transfer->n_workers; i++)
        bth_region_free(&transfer->buffers[i]);
    bth_release(transfer->buffers);
    bth_release(transfer->list);
    transfer->buffers = NULL;
    transfer->list = NULL;
}

int bth_transfer_once(bth_transfer *transfer, bth_reader *reader, bool through_cache,
                      berth_error *error)
{
    bth_requests *requests = &transfer->requests;
    bth_conditions conditions = {.use = requests->use, .through_cache = through_cache};
    bth_choice choice = {.method = BERTH_LOAD_MAP};
    const uint8_t *map = transfer->memory;
    uint64_t nbytes = 0;
    bth_access access;

    if (requests->n_ranges == 0)
        return 0;
    bth_access_initialize(&access, reader);
    transfer->access = &access;
    if (!map) { /* one choice for all ranges */
        berth_load_method requested = (berth_load_method)transfer->config->load_method;
        uint64_t begin = bth_range_surroundings_begin(&requests->ranges[0]);
        uint64_t end = bth_range_surroundings_end(&requests->ranges[requests->n_ranges - 1]);
        requests->is_separate =
            requests->use == BTH_USE_CALLER && transfer_lacks_buffer_memory(transfer);
        if (requests->is_separate)
            requested = BERTH_LOAD_READ;
        for (size_t i = 0; i < requests->n_ranges; i++)
            nbytes += bth_range_surroundings_end(&requests->ranges[i]) -
                      bth_range_surroundings_begin(&requests->ranges[i]);
        bth_access_set_known_conditions(&access, &conditions);
        if (requested == BERTH_LOAD_AUTO || requested == BERTH_LOAD_MAP)
            bth_access_measure(&access, &conditions, begin, end, nbytes);
        transfer->is_cold = conditions.at_once && conditions.page_cache == BTH_PAGE_CACHE_COLD;
        transfer->is_warm = conditions.at_once && conditions.page_cache == BTH_PAGE_CACHE_WARM;
        choice = bth_access_choose(&access, transfer->config, &conditions, requested, NULL);
        if (choice.method == BERTH_LOAD_MAP &&
            bth_access_map(&access, BTH_MMAP_SHARED, begin, &map, error) == 0 && !map) {
            conditions.cannot_map = true;
            choice = bth_access_choose(&access, transfer->config, &conditions, requested, NULL);
        }
    }
    if (error->code == 0) {
        for (size_t i = 0; i < requests->n_ranges; i++) {
            bth_range *range = &requests->ranges[i];
            range->choice = range->deflated ? bth_choice_for_deflated() : choice;
        }
        if (bth_transfer_measure_requests(transfer, error) == 0 &&
            bth_transfer_cut(transfer, NULL, map, error) == 0)
            (void)bth_transfer_run(transfer, error);
        bth_transfer_end(transfer);
    }
    bth_access_close_direct(&access);
    bth_map_free(&access.map);
    transfer->access = NULL;
    return error->code;
}
