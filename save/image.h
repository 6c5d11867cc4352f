/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file as a computed image: any range of it, a tile, is rendered from the plan into a buffer.
 * CRCs are summed in the same pass, part by part in any order. What waits for a CRC that is not
 * known yet, a seam, is left out of the tile and handed to whoever completes the CRC. Large
 * contents are not copied where the output takes them from where they lie: they are lent.
 */
#ifndef BTH_SAVE_IMAGE_H
#define BTH_SAVE_IMAGE_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "save/plan.h"

#define BTH_MOST_DESCRIPTOR_NBYTES 24
#define BTH_MOST_LENT 64 /* ranges of one tile; what is beyond is copied */

/* A record's CRC while its parts are being summed. */
typedef struct bth_sum {
    _Atomic uint64_t missing_nbytes; /* not yet rendered */
    _Atomic uint32_t crc32;          /* of the parts so far, each shifted to its place */
} bth_sum;

/* What a writer needs of the memory and of the ranges it gets. */
typedef struct bth_demand {
    uint32_t block_nbytes;     /* a power of two; 1: any range will do */
    uint32_t memory_alignment; /* a power of two, at most block_nbytes */
    size_t least_lent_nbytes;  /* shorter ranges are copied; 0: all are */
    bool large_pages_only;     /* others are copied */
    int pages;                 /* to ask by (io/pages.h) */
} bth_demand;

typedef struct bth_tally bth_tally; /* save/tally.h */

typedef struct bth_image {
    const berth_plan *plan;
    bth_demand demand;
    bth_tally *tallies; /* one a record; NULL: nobody asks why bytes are copied */
    bth_sum *sums;      /* one a record; NULL when no CRC is computed */
    bool in_order; /* tiles are rendered one after the other: a CRC is known when it is reached */
    char id[BTH_ID_NBYTES]; /* set by bth_image_settle */
} bth_image;

/* A range of bytes of the file. */
typedef struct bth_range {
    uint64_t offset;
    uint64_t nbytes;
} bth_range;

/* Bytes that belong elsewhere in the file and became known while a tile was rendered. */
typedef struct bth_seam {
    uint64_t offset;
    size_t nbytes; /* 0: none */
    uint8_t bytes[BTH_MOST_DESCRIPTOR_NBYTES];
} bth_seam;

/* A range of the tile whose bytes are elsewhere: in the caller's memory. */
typedef struct bth_lent {
    bth_range range;
    const uint8_t *bytes;
} bth_lent;

typedef struct bth_tile {
    uint64_t offset; /* in the file */
    size_t nbytes;
    uint8_t *bytes;
    uint8_t *scratch;             /* plan->most_header_nbytes bytes */
    struct bth_lane *lane;        /* of devices (save/lanes.h), begun for it; NULL: none */
    bth_lent lent[BTH_MOST_LENT]; /* in order; `bytes` holds nothing there */
    size_t n_lent;
    double crc32_seconds; /* of rendering it */
    unsigned n_blocks;    /* summed so far */
    /*
     * Without blocks. Descriptors that others write, at most two: that of the record which began
     * before the tile, and that of the record which goes on after it. And one that is written on
     * its own: of the record which goes on after the tile, or began before.
     */
    bth_range gaps[2];
    size_t n_gaps;
    bth_seam seam;
    /*
     * With blocks, which hold a descriptor whole or in two. The record that began before the tile,
     * whose CRC its descriptor here waits for; and the one whose CRC this tile completed although
     * its descriptor, or some of it, is not here. BTH_NO_RECORD: none.
     */
    size_t waits_for;
    size_t completed;
} bth_tile;

/* `demand` NULL: nothing is lent, any range will do. */
int bth_image_begin(bth_image *image, const berth_plan *plan, const bth_demand *demand,
                    bool in_order, berth_error *error);
void bth_image_end(bth_image *image); /* of zeros: nothing */

/*
 * Renders [tile->offset, + tile->nbytes), which lies before plan->tail_offset, or, after
 * bth_image_settle, behind it. Every byte before the tail must be rendered exactly once.
 * Thread-safe for different tiles, which are multiples of the demanded block, but for the last.
 * Fills all from `lent` on.
 */
int bth_image_render(bth_image *image, bth_tile *tile, berth_error *error);

/*
 * Puts into a tile of whole records' ends the descriptors that it was rendered without: when all
 * that is before the tail is rendered.
 */
void bth_image_describe(const bth_image *image, bth_tile *tile);

/* When all before the tail is rendered: computes the id, so that the tail can be. */
void bth_image_settle(bth_image *image);

/* What descriptor and directory say. Complete only when all of the record is rendered. */
uint32_t bth_image_crc32(const bth_image *image, size_t i);
bool bth_image_is_complete(const bth_image *image, size_t i);

/* ---- seam.c ---- */

/* Adds the CRC of rendered bytes [at, at + nbytes) of record i. True if that completes it. */
bool bth_seam_add(bth_image *image, size_t i, uint32_t crc32, uint64_t nbytes, uint64_t at);
/* Renders the tile's share of record i's descriptor, or leaves it to whoever completes its CRC. */
void bth_seam_descriptor(bth_image *image, bth_tile *tile, size_t i, bool completed);
/* Where record i's descriptor is; and renders it into the tile, now that its CRC is complete. */
bth_range bth_seam_range(const berth_plan *plan, size_t i);
void bth_seam_put(const bth_image *image, bth_tile *tile, size_t i);

/* The tile's share of [begin, end): false if there is none. */
bool bth_tile_share(const bth_tile *tile, uint64_t begin, uint64_t end, bth_range *share);
/* Copies the tile's share of a piece whose bytes lie at `offset` in the file. */
void bth_tile_put(bth_tile *tile, uint64_t offset, const uint8_t *bytes, uint64_t nbytes);
/*
 * [begin, end) of the tile as pieces, its own and the lent ones, at most BTH_MOST_PIECES.
 * Returns their number.
 */
#define BTH_MOST_PIECES (2 * BTH_MOST_LENT + 1)
size_t bth_tile_pieces(const bth_tile *tile, uint64_t begin, uint64_t end,
                       struct iovec pieces[BTH_MOST_PIECES]);

/* ---- content.c ---- */

/* Bytes [at, at + nbytes) of a record, in the file's byte order. */
int bth_content_fetch(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes, uint64_t at,
                      berth_error *error);
/* Where byte `at` of a record lies in memory, as it goes to the file, with all that follow it; NULL
 * if it does not. */
const uint8_t *bth_content_memory(const berth_plan *plan, size_t i, uint64_t at);

#endif
