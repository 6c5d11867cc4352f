/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of a source that an open is looking at: its head, kept, and one range besides. What is
 * asked for comes from there or, where the source is memory, from where it lies; else one read
 * brings it. Not thread-safe.
 */
#ifndef BTH_LOAD_OPEN_HEAD_CACHE_H
#define BTH_LOAD_OPEN_HEAD_CACHE_H

#include "io/region.h"
#include "io/source.h"

typedef struct bth_window {
    bth_reader *reader;
    const uint8_t *head; /* the source's first bytes; grows, and may move then */
    uint64_t head_nbytes;
    bth_region head_region; /* of zeros where the source is memory */
    uint64_t head_capacity;
    bth_region buffer; /* [at, at + nbytes) of the source */
    uint64_t capacity;
    uint64_t at;
    uint64_t nbytes;
} bth_window;

void bth_window_begin(bth_window *window, bth_reader *reader);
void bth_window_free(bth_window *window);

/* Makes the head nbytes long, or as long as the source: reads only what is missing. */
int bth_window_grow_head(bth_window *window, uint64_t nbytes, berth_error *error);

/*
 * *bytes: [offset, offset + nbytes), until the next call. Where that must be read, `ahead` bytes
 * are read if the source has as many.
 */
int bth_window_get(bth_window *window, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                   const uint8_t **bytes, berth_error *error);

#endif
