/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file as a computed image: any range of it, a tile, is rendered from the plan into a buffer.
 * CRCs are summed in the same pass, part by part in any order. What waits for a CRC that is not
 * known yet, a seam, is left out of the tile and handed to whoever completes the CRC.
 */
#ifndef BERTH_SAVE_IMAGE_H
#define BERTH_SAVE_IMAGE_H

#include <stdatomic.h>

#include "save/plan.h"

#define BERTH_MOST_DESCRIPTOR_NBYTES 24

/* A record's CRC while its parts are being summed. */
typedef struct berth_sum {
    _Atomic uint64_t missing_nbytes; /* not yet rendered */
    _Atomic uint32_t crc32;          /* of the parts so far, each shifted to its place */
} berth_sum;

typedef struct berth_image {
    const berth_plan *plan;
    berth_sum *sums; /* one a record; NULL when no CRC is computed */
    bool in_order;   /* tiles are rendered one after the other: a CRC is known when it is reached */
    char id[BERTH_ID_NBYTES]; /* set by berth_image_settle */
} berth_image;

/* A range of bytes of the file. */
typedef struct berth_range {
    uint64_t offset;
    uint64_t nbytes;
} berth_range;

/* Bytes that belong elsewhere in the file and became known while a tile was rendered. */
typedef struct berth_seam {
    uint64_t offset;
    size_t nbytes; /* 0: none */
    uint8_t bytes[BERTH_MOST_DESCRIPTOR_NBYTES];
} berth_seam;

typedef struct berth_tile {
    uint64_t offset; /* in the file */
    size_t nbytes;
    uint8_t *bytes;
    uint8_t *scratch; /* plan->most_header_nbytes bytes */
    /*
     * Descriptors that others write. At most two: that of the record which began before the tile,
     * and that of the record which goes on after it.
     */
    berth_range gaps[2];
    size_t n_gaps;
    berth_seam seam; /* at most one: of the record which goes on after the tile, or began before */
} berth_tile;

int berth_image_begin(berth_image *image, const berth_plan *plan, bool in_order,
                      berth_error *error);
void berth_image_end(berth_image *image); /* of zeros: nothing */

/*
 * Renders [tile->offset, + tile->nbytes), which lies before plan->tail_offset, or, after
 * berth_image_settle, behind it. Every byte before the tail must be rendered exactly once.
 * Thread-safe for different tiles. Fills gaps and seam.
 */
int berth_image_render(berth_image *image, berth_tile *tile, berth_error *error);

/* When all before the tail is rendered: computes the id, so that the tail can be. */
void berth_image_settle(berth_image *image);

/* What descriptor and directory say. Complete only when all of the record is rendered. */
uint32_t berth_image_crc32(const berth_image *image, size_t i);

/* ---- seam.c ---- */

/* Adds the CRC of rendered bytes [at, at + nbytes) of record i. True if that completes it. */
bool berth_seam_sum(berth_image *image, size_t i, const uint8_t *bytes, size_t nbytes, uint64_t at);
/* Renders the tile's share of record i's descriptor, or makes it a gap, or a seam. */
void berth_seam_descriptor(berth_image *image, berth_tile *tile, size_t i, bool completed);

/* The tile's share of [begin, end): false if there is none. */
bool berth_tile_share(const berth_tile *tile, uint64_t begin, uint64_t end, berth_range *share);
/* Copies the tile's share of a piece whose bytes lie at `offset` in the file. */
void berth_tile_put(berth_tile *tile, uint64_t offset, const uint8_t *bytes, uint64_t nbytes);

/* ---- content.c ---- */

/* Bytes [at, at + nbytes) of a record, in the file's byte order. */
int berth_content_fetch(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes, uint64_t at,
                        berth_error *error);

#endif
