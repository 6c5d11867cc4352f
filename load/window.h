/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of a source that an open is looking at: its head, kept, and one range besides. What is
 * asked for comes from there or, where the source is memory, from where it lies; else one read
 * brings it. Not thread-safe.
 */
#ifndef BERTH_LOAD_WINDOW_H
#define BERTH_LOAD_WINDOW_H

#include "io/region.h"
#include "io/source.h"

typedef struct berth_window {
    berth_reader *reader;
    const uint8_t *head; /* the source's first bytes; grows, and may move then */
    uint64_t head_nbytes;
    berth_region head_region; /* of zeros where the source is memory */
    uint64_t head_capacity;
    berth_region buffer; /* [at, at + nbytes) of the source */
    uint64_t capacity;
    uint64_t at;
    uint64_t nbytes;
} berth_window;

void berth_window_begin(berth_window *window, berth_reader *reader);
void berth_window_free(berth_window *window);

/* Makes the head nbytes long, or as long as the source: reads only what is missing. */
int berth_window_grow_head(berth_window *window, uint64_t nbytes, berth_error *error);

/*
 * *bytes: [offset, offset + nbytes), until the next call. Where that must be read, `ahead` bytes
 * are read if the source has as many.
 */
int berth_window_get(berth_window *window, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                     const uint8_t **bytes, berth_error *error);

#endif
