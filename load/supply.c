/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/supply.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/file_system.h"
#include "io/pool.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"

/* From the page cache: what the second level of a processor's cache holds. */
#define CACHED_PIECE_NBYTES (UINT64_C(512) << 10)
#define LEAST_PIECE_NBYTES (UINT64_C(64) << 10)
/* Below, opening the file again and asking what is resident takes longer than it gains. */
#define LEAST_DIRECT_NBYTES (UINT64_C(32) << 20)
/* Requests in flight that keep a disk busy, while others are summed. */
#define DIRECT_WORKERS 8

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- which way ---- */

/* Maps the file; false where that is not wanted, or cannot be. */
static bool use_map(bth_supply *supply, const struct berth_config *config, uint64_t end)
{
    berth_error unasked;

    bth_error_clear(&unasked);
    if (!config->load_mmap || config->load_method == BERTH_LOAD_READ ||
        config->load_method == BERTH_LOAD_DIRECT ||
        bth_map_file(supply->reader->fd, 0, end, BTH_MMAP_SHARED, &supply->map, &unasked) < 0)
        return false;
    supply->memory = supply->map.address;
    supply->method = "map";
    return true;
}

static bool use_direct(bth_supply *supply)
{
    const char *reason;

    if (!bth_direct_open_reading(supply->reader->fd, &supply->direct, &reason)) {
        supply->reason = reason;
        return false;
    }
    supply->method = "direct";
    return true;
}

/* A file's way, where nobody has asked for one: by where its bytes are. */
static void choose_measured(bth_supply *supply, const struct berth_config *config, uint64_t begin,
                            uint64_t end, bool through_cache)
{
    int fd = supply->reader->fd;

    if (bth_page_cache_probe(fd, begin, end - begin) == BTH_PAGE_CACHE_WARM) {
        supply->reason = "the file is in the page cache";
        if (bth_file_system_of(fd) != BTH_REMOTE) /* F2: there strangers may cut it short */
            (void)use_map(supply, config, end);
        return;
    }
    supply->reason = "the file is not in the page cache";
    if (through_cache)
        supply->reason = "the file is to be in the page cache";
    else if (end - begin < LEAST_DIRECT_NBYTES)
        supply->reason = "the file is small";
    else if (bth_file_system_of(fd) != BTH_ON_DISK)
        supply->reason = "the file system is not one of a disk";
    else
        (void)use_direct(supply);
}

static void choose(bth_supply *supply, const struct berth_config *config, uint64_t begin,
                   uint64_t end, bool through_cache)
{
    supply->method = "read";
    supply->reason = "the source is a function";
    if (supply->reader->memory) {
        supply->memory = supply->reader->memory;
        supply->method = "memory";
        supply->reason = "the source is memory";
    } else if (supply->reader->fd >= 0 && config->load_method == BERTH_LOAD_READ) {
        supply->reason = "load.method=read";
    } else if (supply->reader->fd >= 0 && config->load_method == BERTH_LOAD_DIRECT) {
        supply->reason = "load.method=direct";
        (void)use_direct(supply);
    } else if (supply->reader->fd >= 0) {
        choose_measured(supply, config, begin, end, through_cache);
    }
}

/* ---- how much at once, and by how many ---- */

static unsigned count_workers(const bth_supply *supply, const struct berth_config *config,
                              uint64_t n_tiles)
{
    uint64_t n = config->io_threads ? (uint64_t)config->io_threads : bth_pool_measure();
    uint64_t memory_nbytes = (uint64_t)config->io_memory_nbytes;

    if (supply->direct.fd >= 0 && !config->io_threads)
        n = larger(n, DIRECT_WORKERS);
    if (memory_nbytes && !supply->memory)
        n = smaller(n, memory_nbytes / supply->piece_nbytes);
    n = smaller(n, n_tiles);
    return n > 1 ? (unsigned)n : 0; /* one is the caller's own thread */
}

/* A request past the cache, or of a caller's source, may take long however short it is. */
static uint64_t piece_of(const bth_supply *supply, const struct berth_config *config,
                         uint64_t tile_nbytes)
{
    bool is_cached = supply->reader->fd >= 0 && supply->direct.fd < 0 && !supply->memory;
    uint64_t most = (uint64_t)config->io_memory_nbytes;
    uint64_t nbytes = is_cached ? smaller(tile_nbytes, CACHED_PIECE_NBYTES) : tile_nbytes;

    if (most)
        nbytes = smaller(nbytes, most);
    return larger(nbytes - nbytes % LEAST_PIECE_NBYTES, LEAST_PIECE_NBYTES);
}

/* Before anything is read. */
static int check_memory(const bth_supply *supply, const struct berth_config *config,
                        berth_error *error)
{
    uint64_t most = (uint64_t)config->io_memory_nbytes;

    if (supply->memory || most == 0 || most >= LEAST_PIECE_NBYTES)
        return 0;
    return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                    "io.memory_nbytes=%llu is too little for a buffer: %llu bytes are missing",
                    (unsigned long long)most, (unsigned long long)(LEAST_PIECE_NBYTES - most));
}

/* ---- the interface ---- */

int bth_supply_begin(bth_supply *supply, bth_reader *reader, const struct berth_config *config,
                     uint64_t begin, uint64_t end, uint64_t tile_nbytes, bool through_cache,
                     berth_error *error)
{
    memset(supply, 0, sizeof *supply);
    supply->reader = reader;
    supply->direct.fd = -1;
    supply->spread = config->io_numa == BTH_NUMA_INTERLEAVE;
    atomic_init(&supply->is_refused, false);
    choose(supply, config, begin, end, through_cache);
    if (check_memory(supply, config, error) < 0) {
        bth_supply_end(supply);
        return error->code;
    }
    supply->piece_nbytes = piece_of(supply, config, tile_nbytes);
    supply->n_workers =
        count_workers(supply, config, (end - 1) / tile_nbytes - begin / tile_nbytes + 1);
    unsigned n_buffers = supply->n_workers > 0 ? supply->n_workers : 1;
    supply->buffers = bth_allocate_zeroed(n_buffers * sizeof *supply->buffers);
    if (supply->buffers)
        return 0;
    (void)bth_fail_memory(error, n_buffers * sizeof *supply->buffers);
    bth_supply_end(supply);
    return error->code;
}

void bth_supply_end(bth_supply *supply)
{
    for (unsigned i = 0; supply->buffers && i < (supply->n_workers ? supply->n_workers : 1); i++)
        bth_region_free(&supply->buffers[i]);
    bth_release(supply->buffers);
    bth_map_free(&supply->map);
    bth_direct_close(&supply->direct);
    supply->buffers = NULL;
    if (!atomic_load(&supply->is_refused))
        return;
    supply->method = "direct, then read";
    supply->reason = "a direct request was refused";
}

static void count(bth_supply *supply, uint64_t nbytes)
{
    atomic_fetch_add_explicit(&supply->reader->n_requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&supply->reader->moved_nbytes, nbytes, memory_order_relaxed);
}

/*
 * F2: bytes of a map are touched only after the kernel has said that they are there: those of a
 * file that was cut short meanwhile are read instead, which is an error and no signal.
 */
static bool is_present(bth_supply *supply, uint64_t begin, uint64_t end)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = begin - begin % page_nbytes;

    if (!supply->map.base)
        return true;
    if (bth_system.madvise((uint8_t *)supply->map.base + from, end - from, MADV_POPULATE_READ) < 0)
        return false;
    count(supply, end - begin);
    return true;
}

/* Whole blocks around [begin, end), to a buffer of a piece; *done_nbytes of them from begin on. */
static int read_direct(bth_supply *supply, uint8_t *buffer, uint64_t begin, uint64_t end,
                       uint64_t *done_nbytes, berth_error *error)
{
    uint64_t block_nbytes = supply->direct.block_nbytes, before = begin % block_nbytes;
    uint64_t nbytes = (before + (end - begin) + block_nbytes - 1) / block_nbytes * block_nbytes;
    size_t n;
    bool refused;

    if (bth_direct_read(&supply->direct, buffer, nbytes, begin - before, &n, &refused, error) < 0)
        return error->code;
    if (refused)
        atomic_store(&supply->is_refused, true);
    *done_nbytes = n < before ? 0 : smaller(n - before, end - begin);
    if (*done_nbytes > 0)
        count(supply, n); /* whole blocks were read */
    return 0;
}

int bth_supply_get(bth_supply *supply, unsigned worker, uint64_t begin, uint64_t end,
                   const uint8_t **bytes, berth_error *error)
{
    bth_region *buffer = &supply->buffers[worker];
    bool is_direct = supply->direct.fd >= 0 && !atomic_load(&supply->is_refused);
    uint64_t before = supply->direct.fd >= 0 ? begin % supply->direct.block_nbytes : 0;
    uint64_t done_nbytes = 0;

    if (supply->memory && is_present(supply, begin, end)) {
        *bytes = supply->memory + begin;
        return 0;
    }
    if (!buffer->bytes && bth_region_new(supply->piece_nbytes, BTH_DIRECT_MOST_BLOCK_NBYTES,
                                         supply->spread, buffer, error) < 0)
        return error->code;
    *bytes = buffer->bytes + before;
    if (is_direct && read_direct(supply, buffer->bytes, begin, end, &done_nbytes, error) < 0)
        return error->code;
    if (done_nbytes == end - begin)
        return 0;
    return bth_reader_read(supply->reader, buffer->bytes + before + done_nbytes,
                           end - begin - done_nbytes, begin + done_nbytes, error);
}
