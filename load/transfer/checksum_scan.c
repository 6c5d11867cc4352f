/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file is cut into tiles, which workers claim in order; a tile is read in blocks small enough
 * to be summed while they are in the processor's cache. Tiles know nothing of records: many small
 * ones share a read, a large one spans many tiles, whose sums are combined in the end.
 */
#include "load/transfer/checksum_scan.h"

#include <errno.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "io/pool.h"
#include "io/workers.h"
#include "load/checkpoint.h"
#include "load/transfer/input.h"

/* Tiles are multiples of it, as supplies want. */
#define TILE_UNIT_NBYTES 65536
/* Bytes between two records that are read rather than jumped over. */
#define GAP_NBYTES 32768
/* The longest descriptor (Z6). */
#define DESCRIPTOR_NBYTES 24

/* Sums of the one record that began before the tile, and of the one that goes on behind it. */
struct tile_sums {
    uint32_t first;
    uint32_t last;
};

struct sweep {
    bth_supply supply;
    bth_sweep_order *order;
    atomic_bool has_unread;
    bth_swept *records;
    size_t n_records;
    uint64_t tile_nbytes;
    uint64_t first_tile; /* of the file: tile 0 of the sweep */
    struct tile_sums *sums;
    uint64_t total_nbytes;
    atomic_uint_fast64_t done_nbytes;
};

/* A worker's way through one tile. */
struct walk {
    struct sweep *sweep;
    uint64_t tile; /* of the sweep */
    uint64_t begin, end;
    size_t at;            /* the record that is being summed */
    uint32_t crc32;       /* of its bytes in this tile, so far */
    uint64_t done_nbytes; /* not told yet */
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- which bytes are asked for: a record's data, and what is wanted before and behind ---- */

static uint64_t data_end(const bth_swept *record)
{
    return record->offset + record->nbytes;
}

static uint64_t begin_of(const bth_swept *record)
{
    return record->wants_header ? record->entry->header_offset : record->offset;
}

static uint64_t end_of(const bth_swept *record)
{
    if (!record->wants_descriptor)
        return data_end(record);
    return smaller(data_end(record) + DESCRIPTOR_NBYTES, record->entry->next_offset);
}

/* The first record that has bytes behind `offset`. */
static size_t find(const struct sweep *sweep, uint64_t offset)
{
    size_t low = 0, high = sweep->n_records;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (end_of(&sweep->records[middle]) > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- one block ---- */

/* Z5: a header that is whole in [bytes, bytes + nbytes) and says what was computed. */
static bool header_agrees(const bth_swept *record, const uint8_t *bytes, uint64_t nbytes)
{
    bth_zip_entry entry = *record->entry;
    bth_zip_local local;
    berth_error unasked;

    bth_error_clear(&unasked);
    return nbytes >= BTH_ZIP_LOCAL_NBYTES && bth_zip_local_nbytes(bytes) <= nbytes &&
           bth_zip_read_local(bytes, nbytes, entry.header_offset, &local, &unasked) == 0 &&
           bth_zip_check_local(&local, &entry, &unasked) == 0 &&
           entry.data_offset == record->offset;
}

/* Z6 */
static bool descriptor_agrees(const bth_swept *record, const uint8_t *bytes, uint64_t nbytes)
{
    bth_zip_entry entry = *record->entry;
    berth_error unasked;

    bth_error_clear(&unasked);
    entry.data_offset = record->offset;
    /* Without a signature the bytes before it matter, too: left to who reads them again. */
    return bth_zip_before_descriptor(&entry) == 0 &&
           bth_zip_check_descriptor(bytes, nbytes, entry.next_offset, &entry, &unasked) == 0;
}

/* What [begin, end) of the file, which is at `bytes`, shows of one record. */
static void take(struct walk *walk, bth_swept *record, const uint8_t *bytes, uint64_t begin,
                 uint64_t end)
{
    uint64_t from = larger(record->offset, begin), to = smaller(data_end(record), end);

    if (record->wants_header && record->entry->header_offset >= begin)
        record->header_is_good =
            header_agrees(record, bytes + (record->entry->header_offset - begin),
                          smaller(end, record->offset) - record->entry->header_offset);
    if (from < to) {
        walk->crc32 = bth_crc32(walk->crc32, bytes + (from - begin), to - from);
        walk->done_nbytes += to - from;
    }
    if (record->wants_descriptor && data_end(record) >= begin && end_of(record) <= end)
        record->descriptor_is_good = descriptor_agrees(record, bytes + (data_end(record) - begin),
                                                       end_of(record) - data_end(record));
}

/* The record has no more bytes in this tile. */
static void put_sum(struct walk *walk)
{
    bth_swept *record = &walk->sweep->records[walk->at];

    if (record->offset < walk->begin)
        walk->sweep->sums[walk->tile].first = walk->crc32;
    else if (data_end(record) > walk->end)
        walk->sweep->sums[walk->tile].last = walk->crc32;
    else
        record->crc32 = walk->crc32;
    walk->crc32 = 0;
}

static bool is_empty(const bth_swept *record)
{
    return begin_of(record) == end_of(record);
}

/*
 * The first part of [*begin, *end) that is asked for, without a gap that is worth to be jumped
 * over; false: none is.
 */
static bool narrow(struct walk *walk, uint64_t *begin, uint64_t *end)
{
    const bth_swept *records = walk->sweep->records;
    size_t n = walk->sweep->n_records;

    while (walk->at < n && is_empty(&records[walk->at]))
        walk->at++;
    if (walk->at == n || begin_of(&records[walk->at]) >= *end)
        return false;
    *begin = larger(*begin, begin_of(&records[walk->at]));
    uint64_t last = end_of(&records[walk->at]);
    for (size_t i = walk->at + 1; i < n && begin_of(&records[i]) < *end; i++) {
        if (is_empty(&records[i]))
            continue;
        if (begin_of(&records[i]) - last > GAP_NBYTES)
            break;
        last = end_of(&records[i]);
    }
    *end = smaller(*end, last);
    return *begin < *end;
}

bool bth_sweep_goes_on(const bth_sweep_order *order, const berth_error *error)
{
    int reason = error->system_errno;

    return order->goes_on && (reason == EIO || reason == ENODATA || reason == EILSEQ);
}

/* A request failed. 0: its records are read again, one by one, when all others are summed. */
static int leave_unread(struct sweep *sweep, const bth_swept *record, berth_error *error)
{
    (void)bth_error_in(error, record->entry ? record->entry->record : "storages");
    if (!bth_sweep_goes_on(sweep->order, error))
        return error->code;
    if (!atomic_exchange(&sweep->has_unread, true))
        sweep->order->unread = *error;
    bth_error_clear(error);
    return 0;
}

static int sweep_run(struct walk *walk, unsigned worker, uint64_t begin, uint64_t end,
                     berth_error *error)
{
    struct sweep *sweep = walk->sweep;
    const uint8_t *bytes;
    bool is_read = bth_supply_get(&sweep->supply, worker, begin, end, &bytes, error) == 0;

    if (!is_read && leave_unread(sweep, &sweep->records[walk->at], error) < 0)
        return error->code;
    while (walk->at < sweep->n_records && begin_of(&sweep->records[walk->at]) < end) {
        bth_swept *record = &sweep->records[walk->at];
        if (is_read)
            take(walk, record, bytes, begin, end);
        else
            atomic_store(&record->is_unread, true);
        if (end_of(record) > end)
            break; /* goes on in the next block, or tile */
        put_sum(walk);
        walk->at++;
    }
    atomic_fetch_add_explicit(&sweep->done_nbytes, walk->done_nbytes, memory_order_relaxed);
    walk->done_nbytes = 0;
    return 0;
}

static int sweep_block(struct walk *walk, unsigned worker, uint64_t begin, uint64_t end,
                       berth_error *error)
{
    for (uint64_t run_end = end; narrow(walk, &begin, &run_end); begin = run_end, run_end = end)
        if (sweep_run(walk, worker, begin, run_end, error) < 0)
            return error->code;
    return 0;
}

/* ---- tiles ---- */

static int sweep_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct sweep *sweep = context;
    uint64_t begin = (sweep->first_tile + task) * sweep->tile_nbytes;
    struct walk walk = {.sweep = sweep,
                        .tile = task,
                        .begin = begin,
                        .end = begin + sweep->tile_nbytes,
                        .at = find(sweep, begin)};

    for (uint64_t at = begin; at < walk.end; at += sweep->supply.piece_nbytes)
        if (sweep_block(&walk, worker, at, smaller(at + sweep->supply.piece_nbytes, walk.end),
                        error) < 0)
            return error->code;
    if (walk.at < sweep->n_records && begin_of(&sweep->records[walk.at]) < walk.end)
        put_sum(&walk);
    return 0;
}

/* The sum of a record that lies in several tiles. */
static uint32_t combine(const struct sweep *sweep, const bth_swept *record)
{
    uint64_t tile = record->offset / sweep->tile_nbytes;
    uint32_t crc32 = sweep->sums[tile - sweep->first_tile].last;

    while (++tile * sweep->tile_nbytes < data_end(record))
        crc32 = bth_crc32_combine(
            crc32, sweep->sums[tile - sweep->first_tile].first,
            smaller(sweep->tile_nbytes, data_end(record) - tile * sweep->tile_nbytes));
    return crc32;
}

static void combine_all(const struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->n_records; i++) {
        bth_swept *record = &sweep->records[i];
        if (record->nbytes > 0 &&
            record->offset / sweep->tile_nbytes != (data_end(record) - 1) / sweep->tile_nbytes)
            record->crc32 = combine(sweep, record);
    }
}

/* ---- the whole ---- */

static int watch(void *context)
{
    struct sweep *sweep = context;

    const berth_params *call = sweep->order->call;

    if (!call || !call->progress)
        return 0;
    return call->progress(call->progress_context, atomic_load(&sweep->done_nbytes),
                          sweep->total_nbytes);
}

static int run(struct sweep *sweep, uint64_t n_tiles, berth_error *error)
{
    sweep->sums = bth_allocate_zeroed(n_tiles * sizeof *sweep->sums);
    if (!sweep->sums)
        return bth_fail_memory(error, n_tiles * sizeof *sweep->sums);
    if (bth_pool_run(sweep->supply.n_workers, n_tiles, sweep_tile, watch, sweep, error) == 0)
        combine_all(sweep);
    bth_release(sweep->sums);
    return error->code;
}

int bth_sweep(bth_reader *reader, const struct berth_config *config, bth_sweep_order *order,
              bth_swept *records, size_t n_records, berth_error *error)
{
    uint64_t chunk_nbytes = bth_workers_chunk_nbytes(config);
    struct sweep sweep = {.order = order,
                          .records = records,
                          .n_records = n_records,
                          .tile_nbytes = chunk_nbytes - chunk_nbytes % TILE_UNIT_NBYTES};

    atomic_init(&sweep.done_nbytes, 0);
    atomic_init(&sweep.has_unread, false);
    for (size_t i = 0; i < n_records; i++)
        sweep.total_nbytes += records[i].nbytes;
    uint64_t begin = n_records > 0 ? begin_of(&records[0]) : 0;
    uint64_t end = n_records > 0 ? end_of(&records[n_records - 1]) : 0;
    if (begin == end)
        return 0; /* but empty records, whose sums are 0 */
    sweep.first_tile = begin / sweep.tile_nbytes;
    if (bth_supply_begin(&sweep.supply, reader, config, begin, end, sweep.tile_nbytes,
                         order->through_cache, error) < 0)
        return error->code;
    (void)run(&sweep, (end - 1) / sweep.tile_nbytes - sweep.first_tile + 1, error);
    bth_supply_end(&sweep.supply);
    order->method = sweep.supply.method;
    order->reason = sweep.supply.reason;
    return error->code;
}
