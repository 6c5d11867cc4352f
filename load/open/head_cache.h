/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What opening has read of a source: its head, which is kept, and one other range. A range that is
 * in neither is read; of a source in memory nothing is copied. Not thread-safe.
 */
#ifndef BTH_LOAD_OPEN_HEAD_CACHE_H
#define BTH_LOAD_OPEN_HEAD_CACHE_H

#include "format/zip/zip.h"
#include "io/region.h"
#include "io/source.h"

typedef struct bth_head_cache {
    bth_reader *reader;
    const uint8_t *head; /* the source's first bytes; they may move when the head grows */
    uint64_t head_nbytes;
    bth_region head_region; /* zeros where the source is memory */
    uint64_t head_capacity;
    bth_region buffer; /* the other range: [at, at + nbytes) of the source */
    uint64_t capacity;
    uint64_t at;
    uint64_t nbytes;
} bth_head_cache;

void bth_head_cache_begin(bth_head_cache *cache, bth_reader *reader);
void bth_head_cache_free(bth_head_cache *cache);

/* Makes the head nbytes long, or as long as the source. Reads only what is missing. */
int bth_head_cache_grow(bth_head_cache *cache, uint64_t nbytes, berth_error *error);

/*
 * Sets *bytes to [offset, offset + nbytes) of the source; they live until the next call. If they
 * must be read, up to `ahead` bytes are read.
 */
int bth_head_cache_get(bth_head_cache *cache, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                       const uint8_t **bytes, berth_error *error);

/* The same for the record check. */
bth_zip_input bth_head_cache_input(bth_head_cache *cache);

#endif
