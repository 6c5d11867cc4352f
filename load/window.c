/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/window.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"

void berth_window_begin(berth_window *window, berth_reader *reader)
{
    memset(window, 0, sizeof *window);
    window->reader = reader;
    if (reader->memory) {
        window->head = reader->memory;
        window->head_nbytes = reader->nbytes;
    }
}

void berth_window_free(berth_window *window)
{
    berth_release(window->head_owned);
    berth_release(window->buffer);
    memset(window, 0, sizeof *window);
}

int berth_window_grow_head(berth_window *window, uint64_t nbytes, berth_error *error)
{
    if (nbytes > window->reader->nbytes)
        nbytes = window->reader->nbytes;
    if (nbytes <= window->head_nbytes)
        return 0;
    uint8_t *grown = berth_reallocate(window->head_owned, nbytes);
    if (!grown)
        return berth_fail_memory(error, nbytes);
    window->head = window->head_owned = grown;
    if (berth_reader_read(window->reader, grown + window->head_nbytes, nbytes - window->head_nbytes,
                          window->head_nbytes, error) < 0)
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

static int read_range(berth_window *window, uint64_t offset, uint64_t nbytes, berth_error *error)
{
    window->nbytes = 0;
    if (nbytes > window->capacity) {
        berth_release(window->buffer);
        window->capacity = 0;
        window->buffer = berth_allocate(nbytes);
        if (!window->buffer)
            return berth_fail_memory(error, nbytes);
        window->capacity = nbytes;
    }
    if (berth_reader_read(window->reader, window->buffer, nbytes, offset, error) < 0)
        return error->code;
    window->at = offset;
    window->nbytes = nbytes;
    return 0;
}

int berth_window_get(berth_window *window, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                     const uint8_t **bytes, berth_error *error)
{
    uint64_t left = offset <= window->reader->nbytes ? window->reader->nbytes - offset : 0;

    *bytes = held(window->head, 0, window->head_nbytes, offset, nbytes);
    if (!*bytes)
        *bytes = held(window->buffer, window->at, window->nbytes, offset, nbytes);
    if (*bytes)
        return 0;
    /* Before anything is allocated: the range is really there. */
    if (nbytes > left)
        return berth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                          "%llu bytes needed, but there are only %llu bytes in all",
                          (unsigned long long)nbytes, (unsigned long long)window->reader->nbytes);
    if (ahead < nbytes)
        ahead = nbytes;
    if (ahead > left)
        ahead = left;
    if (read_range(window, offset, ahead, error) < 0)
        return error->code;
    *bytes = window->buffer;
    return 0;
}
