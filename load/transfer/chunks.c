/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/chunks.h"

#include <string.h>

#include "config/error.h"
#include "format/checksum.h"
#include "format/values/tensor.h"
#include "io/clock.h"
#include "io/file.h"
#include "io/pool.h"
#include "io/workers.h"
#include "load/transfer/range.h"

/* Bytes that are summed or swapped while they are in the cache. */
#define CACHED_NBYTES 524288

static void count_time(atomic_uint_fast64_t *nanoseconds, double begin_seconds)
{
    double seconds = bth_seconds() - begin_seconds;

    atomic_fetch_add_explicit(nanoseconds, (uint64_t)(seconds * 1e9), memory_order_relaxed);
}

/* ---- sums and swaps, piece by piece in the order of one chunk ---- */

struct walk {
    bth_chunks *work;
    bth_chunk *chunk;
    size_t item;    /* the first that is not done */
    uint32_t crc32; /* of its bytes in this chunk so far */
};

/* Goes on with the CRC. Where nothing is swapped there is nothing else to be timed (take). */
static void sum(struct walk *walk, const uint8_t *bytes, size_t nbytes)
{
    bool is_timed = walk->work->checkpoint->contents.is_foreign;
    double begin_seconds = is_timed ? bth_seconds() : 0;

    walk->crc32 = bth_crc32(walk->crc32, bytes, nbytes);
    if (is_timed)
        count_time(&walk->work->crc32_nanoseconds, begin_seconds);
}

static struct walk walk_from(bth_chunks *work, bth_chunk *chunk)
{
    return (struct walk){.work = work, .chunk = chunk, .item = chunk->first_item};
}

/* Z10: what began here is the item's, until the chunks behind add theirs. */
static void keep_crc32(struct walk *walk)
{
    bth_item *item = &walk->work->spans->items[walk->item];

    if (item->storage->offset >= walk->chunk->offset)
        item->crc32 = walk->crc32;
    else
        walk->chunk->head_crc32 = walk->crc32;
}

/*
 * T5. Pieces end at multiples of every unit; what is moved down is swapped after that, but what
 * goes to a device is whole elements as it is.
 */
static void swap_piece(const struct walk *walk, const bth_item *item, uint8_t *bytes, size_t nbytes)
{
    size_t unit = walk->work->checkpoint->storages.stored[item->storage->index].unit;

    if (unit > 1 && (item->shift == 0 || item->device))
        bth_swap_bytes(bytes, bytes, nbytes - nbytes % unit, unit);
}

static void look_at(struct walk *walk, uint64_t begin, uint64_t end)
{
    for (; walk->item < walk->chunk->end_item; walk->item++) {
        const bth_item *item = &walk->work->spans->items[walk->item];
        uint64_t item_begin = item->storage->offset;
        uint64_t item_end = item_begin + item->storage->nbytes;
        uint64_t from = item_begin > begin ? item_begin : begin;
        uint64_t to = item_end < end ? item_end : end;
        if (from < to) {
            uint8_t *bytes = walk->chunk->memory + (from - walk->chunk->offset);
            if (walk->work->with_crc32)
                sum(walk, bytes, (size_t)(to - from));
            swap_piece(walk, item, bytes, (size_t)(to - from));
        }
        if (walk->work->with_crc32)
            keep_crc32(walk);
        if (item_end > end)
            return;
        walk->crc32 = 0;
    }
}

/* Bytes [begin, end) of the file have come; those before, too. */
static void take(struct walk *walk, uint64_t begin, uint64_t end)
{
    double begin_seconds = bth_seconds();

    look_at(walk, begin, end);
    if (walk->work->with_crc32 && !walk->work->checkpoint->contents.is_foreign)
        count_time(&walk->work->crc32_nanoseconds, begin_seconds);
    count_time(&walk->work->render_nanoseconds, begin_seconds);
}

/* ---- bringing one chunk ---- */

static int read_piece(bth_chunks *work, const bth_chunk *chunk, uint64_t begin, uint64_t end,
                      berth_error *error)
{
    double begin_seconds = bth_seconds();

    if (bth_reader_read(&work->checkpoint->source.reader, chunk->memory + (begin - chunk->offset),
                        (size_t)(end - begin), begin, error) < 0)
        return error->code;
    count_time(&work->disk_nanoseconds, begin_seconds);
    atomic_fetch_add_explicit(&work->moved_nbytes, end - begin, memory_order_relaxed);
    atomic_fetch_add_explicit(&work->n_requests, 1, memory_order_relaxed);
    return 0;
}

/* Where the piece ends that begins here: whole, if nothing is done with it. In memory its end is
 * aligned, for elements are. */
static uint64_t piece_end(const bth_chunks *work, const bth_chunk *chunk, uint64_t begin)
{
    bool is_looked_at = work->with_crc32 || work->checkpoint->contents.is_foreign;
    uint64_t end = chunk->offset + chunk->nbytes;

    if (!is_looked_at || end - begin <= CACHED_NBYTES)
        return end;
    begin += CACHED_NBYTES;
    return begin - ((uintptr_t)chunk->memory + (begin - chunk->offset)) % BTH_MEMORY_ALIGNMENT;
}

static int read_chunk(bth_chunks *work, bth_chunk *chunk, berth_error *error)
{
    struct walk walk = walk_from(work, chunk);
    uint64_t end = chunk->offset + chunk->nbytes;

    for (uint64_t at = chunk->offset, next; at < end; at = next) {
        next = piece_end(work, chunk, at);
        if (read_piece(work, chunk, at, next, error) < 0)
            return error->code;
        take(&walk, at, next);
    }
    return 0;
}

/* Where the last item of a chunk ends in it: the file may end before the block does. */
static uint64_t needed_end(const bth_chunks *work, const bth_chunk *chunk)
{
    const berth_storage *last = work->spans->items[chunk->end_item - 1].storage;
    uint64_t end = chunk->offset + chunk->nbytes;

    return last->offset + last->nbytes < end ? last->offset + last->nbytes : end;
}

/* After one refusal none is tried again for this file: all else is read through the page cache. */
static int read_directly(bth_chunks *work, bth_chunk *chunk, berth_error *error)
{
    berth_checkpoint *checkpoint = work->checkpoint;
    struct walk walk = walk_from(work, chunk);
    size_t done_nbytes = 0;

    if (chunk->end_item == chunk->first_item) /* a block's tail without any item */
        return 0;
    uint64_t end = needed_end(work, chunk);
    double begin_seconds = bth_seconds();
    chunk->fell_back = atomic_load(&checkpoint->source.direct_is_refused);
    if (!chunk->fell_back &&
        bth_direct_read(&checkpoint->source.direct, chunk->memory, chunk->nbytes, chunk->offset,
                        &done_nbytes, &chunk->fell_back, error) < 0)
        return error->code;
    count_time(&work->disk_nanoseconds, begin_seconds);
    if (chunk->fell_back)
        atomic_store(&checkpoint->source.direct_is_refused, true);
    if (done_nbytes > 0)
        bth_reader_count(&checkpoint->source.reader, done_nbytes);
    atomic_fetch_add_explicit(&work->moved_nbytes, done_nbytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&work->n_requests, done_nbytes > 0, memory_order_relaxed);
    if (chunk->offset + done_nbytes < end &&
        read_piece(work, chunk, chunk->offset + done_nbytes, end, error) < 0)
        return error->code;
    take(&walk, chunk->offset, end);
    return 0;
}

static int populate(bth_chunks *work, bth_chunk *chunk, berth_error *error)
{
    struct walk walk = walk_from(work, chunk);
    double begin_seconds = bth_seconds();

    if (work->checkpoint->source.reader.fd >= 0 &&
        bth_make_present(&work->checkpoint->source.reader, chunk->memory, chunk->nbytes,
                         chunk->offset, error) < 0)
        return error->code;
    count_time(&work->disk_nanoseconds, begin_seconds);
    take(&walk, chunk->offset, chunk->offset + chunk->nbytes);
    return 0;
}

/* The item that an error's byte belongs to, or the chunk's first. */
static int name_record(const bth_chunks *work, const bth_chunk *chunk, berth_error *error)
{
    size_t i = chunk->first_item;

    while (i + 1 < chunk->end_item && error->offset != BERTH_NO_OFFSET &&
           work->spans->items[i + 1].storage->offset <= error->offset)
        i++;
    return bth_error_in_storage(work->checkpoint, work->spans->items[i].storage, error);
}

int bth_chunk_bring(bth_chunks *work, bth_chunk *chunk, berth_error *error)
{
    int result;

    if (chunk->method == BERTH_LOAD_MAP)
        result = populate(work, chunk, error);
    else if (chunk->method == BERTH_LOAD_DIRECT)
        result = read_directly(work, chunk, error);
    else
        result = read_chunk(work, chunk, error);
    if (result < 0)
        return name_record(work, chunk, error);
    atomic_fetch_add_explicit(&work->done_nbytes, chunk->nbytes, memory_order_relaxed);
    return 0;
}

static int bring_task(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    bth_chunks *work = context;

    (void)worker;
    return bth_chunk_bring(work, &work->chunks[task], error);
}

/* ---- what is known only when all have come ---- */

void bth_chunks_join(bth_chunks *work)
{
    for (uint64_t i = 0; i < work->spans->n_chunks; i++) {
        const bth_chunk *chunk = &work->chunks[i];
        bth_item *first = &work->spans->items[chunk->first_item];
        for (size_t j = chunk->first_item; chunk->fell_back && j < chunk->end_item; j++)
            work->spans->items[j].fell_back = true;
        if (!work->with_crc32 || chunk->first_item == chunk->end_item ||
            first->storage->offset >= chunk->offset)
            continue;
        uint64_t left = first->storage->offset + first->storage->nbytes - chunk->offset;
        first->crc32 = bth_crc32_combine(first->crc32, chunk->head_crc32,
                                         left < chunk->nbytes ? left : chunk->nbytes);
    }
}

/* T5: to an address that is aligned for its elements; before it lies nothing that is used. */
static int move_down(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const bth_chunks *work = context;
    bth_item *item = &work->spans->items[task];
    size_t nbytes = (size_t)item->storage->nbytes;
    size_t unit = work->checkpoint->storages.stored[item->storage->index].unit;

    (void)worker, (void)error;
    if (item->shift == 0)
        return 0;
    item->memory -= item->shift;
    memmove(item->memory, item->memory + item->shift, nbytes);
    if (unit > 1)
        bth_swap_bytes(item->memory, item->memory, nbytes - nbytes % unit, unit);
    return 0;
}

int bth_chunks_watch(void *context)
{
    const bth_chunks *work = context;

    if (!work->call || !work->call->progress)
        return 0;
    return work->call->progress(
        work->call->progress_context, work->before_nbytes + atomic_load(&work->done_nbytes),
        work->before_nbytes + work->spans->chunks_nbytes + work->behind_nbytes);
}

unsigned bth_chunks_n_workers(const bth_chunks *work, uint64_t n_tasks)
{
    bool any_direct = false;

    for (uint64_t i = 0; i < work->spans->n_chunks && !any_direct; i++)
        any_direct = work->chunks[i].method == BERTH_LOAD_DIRECT;
    return bth_workers_count(work->config, any_direct ? BTH_WORKERS_WAIT : BTH_WORKERS_COMPUTE,
                             n_tasks, 0);
}

int bth_chunks_run(bth_chunks *work, berth_error *error)
{
    uint64_t n_chunks = work->spans->n_chunks;
    bool any_shift = false;

    if (bth_pool_run(bth_chunks_n_workers(work, n_chunks), n_chunks, bring_task, bth_chunks_watch,
                     work, error) < 0)
        return error->code;
    bth_chunks_join(work);
    for (size_t i = 0; i < work->spans->n_items; i++)
        any_shift = any_shift || work->spans->items[i].shift > 0;
    if (!any_shift)
        return 0;
    return bth_pool_run(bth_chunks_n_workers(work, work->spans->n_items), work->spans->n_items,
                        move_down, bth_chunks_watch, work, error);
}
