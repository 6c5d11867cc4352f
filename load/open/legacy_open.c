/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads files from before PyTorch 1.6: gives their parser as many bytes as it needs. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/pickle/pickle.h"
#include "load/open/open_steps.h"

/* One read gets the counts of small storages that follow each other. */
#define AHEAD_NBYTES 4096
#define COUNT_NBYTES 8

/* The five pickles, with as much of the head as they take. */
static int legacy_read_pickles(bth_opening *opening, bth_legacy *legacy, berth_error *error)
{
    bool inert = opening->config->load_unknown_globals == BTH_UNKNOWN_INERT;
    bth_head_cache *cache = &opening->cache;

    while (bth_legacy_read(cache->head, cache->head_nbytes, inert, opening->contents->tree, legacy,
                           error) == BERTH_E_TRUNCATED &&
           cache->head_nbytes < cache->reader->nbytes) {
        bth_error_clear(error);
        if (bth_head_cache_grow(cache, 4 * cache->head_nbytes, error) < 0)
            break;
    }
    return error->code;
}

static int legacy_place_storages(bth_opening *opening, const bth_legacy *legacy, berth_error *error)
{
    uint64_t at = legacy->payload_offset, file_nbytes = opening->cache.reader->nbytes;
    const uint8_t *count;

    for (size_t i = 0; i < legacy->n_keys; i++)
        if (bth_head_cache_get(&opening->cache, at, COUNT_NBYTES, AHEAD_NBYTES, &count, error) <
                0 ||
            bth_legacy_extent(legacy, opening->contents->tree, i, count, at, file_nbytes, &at,
                              error) < 0)
            return error->code;
    /* One reading: some readers would read a second object behind the first, and others not. */
    if (at != file_nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, at, "%llu bytes follow the last storage",
                        (unsigned long long)(file_nbytes - at));
    return 0;
}

int bth_legacy_open(bth_opening *opening, berth_error *error)
{
    bth_contents *contents = opening->contents;
    bth_legacy legacy = {0};

    contents->is_legacy = true;
    contents->archive = bth_duplicate("", 0);
    if (!contents->archive)
        return bth_fail_memory(error, 1);
    if (legacy_read_pickles(opening, &legacy, error) < 0)
        return error->code;
    contents->root = legacy.root;
    /* PyTorch wrote the elements little-endian on every machine, and reads them so, whatever
       little_endian in the head says of the machine (FORMAT.md 7). */
    contents->is_big = false;
    contents->byteorder_recorded = true;
    return legacy_place_storages(opening, &legacy, error);
}
