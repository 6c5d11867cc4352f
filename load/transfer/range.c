/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/range.h"

#include <errno.h>
#include <string.h>

#include "config/error.h"
#include "io/file.h"
#include "io/pool.h"
#include "io/syscalls.h"
#include "io/workers.h"
#include "load/transfer/input.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

/* Chunks of io.chunk_nbytes from which on a range is long. */
#define LEAST_CHUNKS 2
/* Pieces of a supply begin at multiples of it. */
#define TILE_UNIT_NBYTES (UINT64_C(64) << 10)

struct range {
    bth_reader *reader;
    const uint8_t *memory; /* where it lies already; NULL: it is read */
    bool is_mapped;        /* there */
    bth_supply supply;     /* else */
    uint8_t *buffer;
    uint64_t begin, end; /* in the source */
    uint64_t tile_nbytes;
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool bth_range_is_long(const struct berth_config *config, uint64_t nbytes)
{
    return nbytes / LEAST_CHUNKS >= bth_workers_chunk_nbytes(config);
}

/* ---- present ---- */

static int fail_absent(const bth_reader *reader, uint64_t nbytes, uint64_t offset,
                       berth_error *error)
{
    uint64_t file_nbytes;

    if (bth_file_size(reader->fd, &file_nbytes, error) < 0)
        return error->code;
    if (file_nbytes < offset + nbytes)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, file_nbytes > offset ? file_nbytes : offset,
                        "the file ends here, %llu bytes too early",
                        (unsigned long long)(offset + nbytes - file_nbytes));
    return bth_fail_errno(error, EIO, NULL, offset, "%llu mapped bytes not read",
                          (unsigned long long)nbytes);
}

int bth_make_present(const bth_reader *reader, const uint8_t *memory, uint64_t nbytes,
                     uint64_t offset, berth_error *error)
{
    uintptr_t page_nbytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t before = (uintptr_t)memory % page_nbytes;
    int result;

    do
        result = bth_system.madvise((void *)((uintptr_t)memory - before), nbytes + before,
                                    MADV_POPULATE_READ);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno == EFAULT)
        return fail_absent(reader, nbytes, offset, error);
    return 0;
}

/* ---- tiles ---- */

/* Through the worker's buffer, a piece after the other. */
static int copy_pieces(struct range *range, unsigned worker, uint64_t begin, uint64_t end,
                       berth_error *error)
{
    uint64_t piece_nbytes = range->supply.piece_nbytes;

    for (uint64_t at = begin, next; at < end; at = next) {
        const uint8_t *bytes;
        next = smaller(end, at - at % TILE_UNIT_NBYTES + piece_nbytes);
        if (bth_supply_get(&range->supply, worker, at, next, &bytes, error) < 0)
            return error->code;
        memcpy(range->buffer + (at - range->begin), bytes, next - at);
    }
    return 0;
}

static int bring_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct range *range = context;
    uint64_t tile = range->begin / range->tile_nbytes + task;
    uint64_t begin = task == 0 ? range->begin : tile * range->tile_nbytes;
    uint64_t end = smaller(range->end, (tile + 1) * range->tile_nbytes);
    uint64_t at = begin - range->begin;

    if (!range->memory && range->supply.direct.fd >= 0)
        return copy_pieces(range, worker, begin, end, error);
    if (!range->memory)
        return bth_reader_read(range->reader, range->buffer + at, end - begin, begin, error);
    if (range->is_mapped &&
        bth_make_present(range->reader, range->memory + at, end - begin, begin, error) < 0)
        return error->code;
    memcpy(range->buffer + at, range->memory + at, end - begin);
    return 0;
}

/* ---- the whole ---- */

static struct range range_of(bth_reader *reader, const struct berth_config *config, uint8_t *buffer,
                             uint64_t nbytes, uint64_t offset)
{
    uint64_t chunk_nbytes = bth_workers_chunk_nbytes(config);

    return (struct range){.reader = reader,
                          .buffer = buffer,
                          .begin = offset,
                          .end = offset + nbytes,
                          .tile_nbytes = chunk_nbytes - chunk_nbytes % TILE_UNIT_NBYTES};
}

static uint64_t n_tiles(const struct range *range)
{
    return (range->end - 1) / range->tile_nbytes - range->begin / range->tile_nbytes + 1;
}

int bth_range_read(bth_reader *reader, const struct berth_config *asked, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error)
{
    struct range range = range_of(reader, asked, buffer, nbytes, offset);
    struct berth_config config = *asked;

    config.load_mmap = false; /* a map would be one more copy */
    if ((uint64_t)config.io_memory_nbytes < TILE_UNIT_NBYTES && config.io_memory_nbytes > 0) {
        config.load_method = BERTH_LOAD_READ; /* which needs no buffer */
        config.io_memory_nbytes = 0;
    }
    if (bth_supply_begin(&range.supply, reader, &config, range.begin, range.end, range.tile_nbytes,
                         through_cache, error) < 0)
        return error->code;
    (void)bth_pool_run(range.supply.n_workers, n_tiles(&range), bring_tile, NULL, &range, error);
    bth_supply_end(&range.supply);
    return error->code;
}

static bool is_mapped(berth_checkpoint *checkpoint, const uint8_t *memory)
{
    bth_checkpoint_lock(checkpoint);
    bool holds = bth_map_holds(&checkpoint->source.map, memory);
    bth_checkpoint_unlock(checkpoint);
    return holds;
}

int bth_range_copy(berth_checkpoint *checkpoint, const uint8_t *memory, uint8_t *buffer,
                   uint64_t nbytes, uint64_t offset, berth_error *error)
{
    struct range range =
        range_of(&checkpoint->source.reader, &checkpoint->config, buffer, nbytes, offset);
    uint64_t n = n_tiles(&range);

    range.memory = memory;
    range.is_mapped = is_mapped(checkpoint, memory);
    unsigned n_workers = bth_workers_count(&checkpoint->config, BTH_WORKERS_COMPUTE, n,
                                           bth_workers_chunk_nbytes(&checkpoint->config));
    return bth_pool_run(n_workers, n, bring_tile, NULL, &range, error);
}
