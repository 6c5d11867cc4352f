/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/open/head_cache.h"

#include <string.h>

#include "config/error.h"

/* Memory for so many times the head, so that it need not move while it grows twice. */
#define HEADROOM 16
#define ALIGNMENT 64

void bth_window_begin(bth_window *window, bth_reader *reader)
{
    memset(window, 0, sizeof *window);
    window->reader = reader;
    if (reader->memory) {
        window->head = reader->memory;
        window->head_nbytes = reader->nbytes;
    }
}

void bth_window_free(bth_window *window)
{
    bth_region_free(&window->head_region);
    bth_region_free(&window->buffer);
    memset(window, 0, sizeof *window);
}

/* Memory for a head of nbytes, with what there is of it. */
static int reserve_head(bth_window *window, uint64_t nbytes, berth_error *error)
{
    uint64_t file_nbytes = window->reader->nbytes;
    uint64_t capacity = nbytes < file_nbytes / HEADROOM ? nbytes * HEADROOM : file_nbytes;
    bth_region region;

    if (nbytes <= window->head_capacity)
        return 0;
    if (window->head_capacity > 0 || capacity < nbytes)
        capacity = nbytes;
    if (bth_region_new(capacity, ALIGNMENT, false, &region, error) < 0)
        return error->code;
    if (window->head_nbytes > 0)
        memcpy(region.bytes, window->head, window->head_nbytes);
    bth_region_free(&window->head_region);
    window->head_region = region;
    window->head_capacity = capacity;
    window->head = region.bytes;
    return 0;
}

int bth_window_grow_head(bth_window *window, uint64_t nbytes, berth_error *error)
{
    if (nbytes > window->reader->nbytes)
        nbytes = window->reader->nbytes;
    if (nbytes <= window->head_nbytes)
        return 0;
    if (reserve_head(window, nbytes, error) < 0 ||
        bth_reader_read(window->reader, window->head_region.bytes + window->head_nbytes,
                        nbytes - window->head_nbytes, window->head_nbytes, error) < 0)
        return error->code;
    window->head_nbytes = nbytes;
    return 0;
}

/* The range, if [at, at + have) holds it. */
static const uint8_t *held(const uint8_t *bytes, uint64_t at, uint64_t have, uint64_t offset,
                           uint64_t nbytes)
{
    if (!bytes || offset < at || offset - at > have || nbytes > have - (offset - at))
        return NULL;
    return bytes + (offset - at);
}

static int read_range(bth_window *window, uint64_t offset, uint64_t nbytes, berth_error *error)
{
    window->nbytes = 0;
    if (nbytes > window->capacity) {
        bth_region_free(&window->buffer);
        window->capacity = 0;
        if (bth_region_new(nbytes, ALIGNMENT, false, &window->buffer, error) < 0)
            return error->code;
        window->capacity = nbytes;
    }
    if (bth_reader_read(window->reader, window->buffer.bytes, nbytes, offset, error) < 0)
        return error->code;
    window->at = offset;
    window->nbytes = nbytes;
    return 0;
}

int bth_window_get(bth_window *window, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                   const uint8_t **bytes, berth_error *error)
{
    uint64_t left = offset <= window->reader->nbytes ? window->reader->nbytes - offset : 0;

    *bytes = held(window->head, 0, window->head_nbytes, offset, nbytes);
    if (!*bytes)
        *bytes = held(window->buffer.bytes, window->at, window->nbytes, offset, nbytes);
    if (*bytes)
        return 0;
    /* Before anything is allocated: the range is really there. */
    if (nbytes > left)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%llu bytes needed, but there are only %llu bytes in all",
                        (unsigned long long)nbytes, (unsigned long long)window->reader->nbytes);
    if (ahead < nbytes)
        ahead = nbytes;
    if (ahead > left)
        ahead = left;
    if (read_range(window, offset, ahead, error) < 0)
        return error->code;
    *bytes = window->buffer.bytes;
    return 0;
}
