/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/open/open.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

#define HEADROOM 16
#define ALIGNMENT 64

void bth_head_cache_initialize(bth_head_cache *cache, bth_reader *reader, int64_t large_pages)
{
    *cache = (bth_head_cache){.reader = reader, .pages.wanted = large_pages};
    if (reader->memory) {
        cache->head = reader->memory;
        cache->head_nbytes = reader->nbytes;
    }
}

void bth_head_cache_free(bth_head_cache *cache)
{
    bth_region_free(&cache->head_region);
    bth_region_free(&cache->buffer);
    memset(cache, 0, sizeof *cache);
}

int bth_head_cache_extend_head(bth_head_cache *cache, uint64_t nbytes, berth_error *error)
{
    uint64_t file_nbytes = cache->reader->nbytes, capacity;
    bth_region region;

    nbytes = bth_min(nbytes, file_nbytes);
    if (nbytes <= cache->head_nbytes)
        return 0;
    if (nbytes > cache->head_capacity) {
        /* The first time for HEADROOM heads, so that it can grow twice without moving. */
        capacity = nbytes < file_nbytes / HEADROOM ? nbytes * HEADROOM : file_nbytes;
        if (cache->head_capacity > 0)
            capacity = nbytes;
        if (bth_region_new(capacity, ALIGNMENT, false, &cache->pages, &region, error) < 0)
            return error->code;
        if (cache->head_nbytes > 0)
            memcpy(region.bytes, cache->head, cache->head_nbytes);
        bth_region_free(&cache->head_region);
        cache->head_region = region;
        cache->head_capacity = capacity;
        cache->head = region.bytes;
    }
    if (bth_reader_read(cache->reader, cache->head_region.bytes + cache->head_nbytes,
                        nbytes - cache->head_nbytes, cache->head_nbytes, error) < 0)
        return error->code;
    cache->head_nbytes = nbytes;
    return 0;
}

/* The range, if [at, at + have) holds it. */
static const uint8_t *head_cache_find_range(const uint8_t *bytes, uint64_t at, uint64_t have,
                                            uint64_t offset, uint64_t nbytes)
{
    /* If the offset is before the range, the difference wraps and is too large, too. */
    if (!bytes || offset - at > have || nbytes > have - (offset - at))
        return NULL;
    return bytes + (offset - at);
}

int bth_head_cache_get_or_read(bth_head_cache *cache, uint64_t offset, uint64_t nbytes,
                               uint64_t ahead, const uint8_t **bytes, berth_error *error)
{
    uint64_t left = offset <= cache->reader->nbytes ? cache->reader->nbytes - offset : 0;

    *bytes = head_cache_find_range(cache->head, 0, cache->head_nbytes, offset, nbytes);
    if (!*bytes)
        *bytes =
            head_cache_find_range(cache->buffer.bytes, cache->at, cache->nbytes, offset, nbytes);
    if (*bytes)
        return 0;
    /* Checked before anything is allocated: the source has the range. */
    if (nbytes > left)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%llu bytes needed, but there are only %llu bytes in all",
                        (unsigned long long)nbytes, (unsigned long long)cache->reader->nbytes);
    ahead = bth_min(bth_max(ahead, nbytes), left);
    cache->nbytes = 0;
    if (ahead > cache->capacity) {
        bth_region_free(&cache->buffer);
        cache->capacity = 0;
        if (bth_region_new(ahead, ALIGNMENT, false, &cache->pages, &cache->buffer, error) < 0)
            return error->code;
        cache->capacity = ahead;
    }
    if (bth_reader_read(cache->reader, cache->buffer.bytes, ahead, offset, error) < 0)
        return error->code;
    cache->at = offset;
    cache->nbytes = ahead;
    *bytes = cache->buffer.bytes;
    return 0;
}

static int head_cache_input_get(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                                const uint8_t **bytes, berth_error *error)
{
    return bth_head_cache_get_or_read(context, offset, nbytes, ahead, bytes, error);
}

bth_zip_input bth_head_cache_input(bth_head_cache *cache)
{
    return (bth_zip_input){.get = head_cache_input_get, .context = cache};
}
