/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file as a computed image: any range of it, a tile, is rendered from the plan into a buffer.
 * The same pass computes the CRCs, part by part and in any order. A descriptor whose CRC is not
 * complete is left out of the tile; its blocks are deferred (run.c). Large contents are
 * not copied where the output can write them from the caller's memory: zero-copy ranges.
 */
#ifndef BTH_SAVE_IMAGE_H
#define BTH_SAVE_IMAGE_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "format/serialization_id.h"
#include "save/output.h"
#include "save/plan.h"

#define BTH_MAX_DESCRIPTOR_NBYTES 24

#define BTH_MAX_ZERO_COPIES 64 /* ranges of one tile; further ones are copied */

/* A range of the tile that is written from the caller's memory. */
typedef struct bth_zero_copy {
    bth_range range;
    const uint8_t *bytes;
} bth_zero_copy;

/* A range of the file that one worker renders into a buffer and writes. */
typedef struct bth_tile {
    uint64_t offset; /* in the file */
    size_t nbytes;
    uint8_t *bytes;
    uint8_t *scratch;              /* plan->max_header_nbytes bytes */
    struct bth_staging_slot *slot; /* of devices (save/staging_slots.h), begun; NULL: none */
    /* In order. `bytes` holds nothing there. */
    bth_zero_copy zero_copies[BTH_MAX_ZERO_COPIES];
    size_t n_zero_copies;
    uint32_t crc32; /* of the share that is being rendered */
    /* Sums of what is rendered: before the incomplete descriptor, and behind it. */
    struct {
        bth_range range;
        uint32_t crc32;
    } spans[2];
    unsigned n_spans;     /* that get no more */
    bool is_summed;       /* the CRC of its record is known already */
    double crc32_seconds; /* of rendering the tile */
    unsigned n_blocks;    /* whose CRC was computed so far */
    /*
     * BTH_NO_RECORD: none. `incomplete`: the record whose descriptor, or a share of it, belongs
     * here, but whose CRC is not complete. `completed`: the record whose CRC this tile completed,
     * but whose descriptor, or a share of it, belongs elsewhere.
     */
    size_t incomplete;
    size_t completed;
} bth_tile;

/* The first record that ends after `offset`. n_records: none. */
size_t bth_plan_find_record_by_offset(const berth_plan *plan, uint64_t offset);
/* The record whose directory entry holds the byte at `offset`, which lies in the directory; the
 * first one, if it lies before. */
size_t bth_plan_find_directory_entry(const berth_plan *plan, uint64_t offset);
/* The tile's share of a range. False if there is none. */
bool bth_tile_intersect_range(const bth_tile *tile, bth_range range, bth_range *share);
/* The CRC of [begin, end) of a tile without zero-copy ranges: of the large shares in it the sums
 * are known, the rest is summed now. */
uint32_t bth_tile_sum_range(const bth_tile *tile, uint64_t begin, uint64_t end);
#define BTH_MAX_PIECES (2 * BTH_MAX_ZERO_COPIES + 1) /* of a tile: its own and zero-copy ranges */

/* A record's CRC while its parts are being summed. */
typedef struct bth_sum {
    _Atomic uint64_t missing_nbytes; /* not yet rendered */
    _Atomic uint32_t crc32;          /* of the parts so far, each shifted to its position */
} bth_sum;

/* Storage statistics: how a record was written (berth_params.storage_stats). */
typedef struct bth_storage_stats {
    _Atomic uint64_t moved_nbytes;
    _Atomic uint64_t zero_copy_nbytes; /* of moved_nbytes */
    uint64_t shared_nbytes;            /* of the base; never moved */
    _Atomic(const char *) why_copied;  /* static; of the last large range that was copied */
} bth_storage_stats;

typedef struct bth_image {
    const berth_plan *plan;
    bool without_storages;                  /* their bytes are not rendered (berth_plan_read) */
    bth_output_constraints constraints;     /* 1 where there are no blocks */
    int pages;                              /* to find large pages (io/memory_region.h) */
    bth_storage_stats *storage_stats;       /* one a record; NULL: not wanted */
    bth_sum *sums;                          /* one a record; NULL when no CRC is computed */
    uint8_t (*starts)[BTH_ID_START_NBYTES]; /* of each record's data; NULL: the plan has no id */
    uint64_t names_hash;                    /* the first half of the id */
    char id[BTH_ID_NBYTES];                 /* set by bth_image_compute_id */
} bth_image;

/* Data of a record that are in the file already: another process has written them, or the base has
 * them, too. */
typedef struct bth_present {
    size_t record;
    bth_range range;        /* of the file */
    uint64_t before_nbytes; /* descriptor and header before them, written with them */
    /* Of these bytes, shifted over the rest of the record's data; 0 where none are computed, or the
     * record is_summed. */
    uint32_t crc32;
    uint8_t start[BTH_ID_START_NBYTES]; /* the first of them; zeros behind fewer */
} bth_present;

/* Before the first tile of a file: adds the sums, if the plan wants CRCs, with what is present, and
 * computes the half of the id that needs only names. The caller releases sums and starts. */
int bth_image_begin(bth_image *image, const bth_present *present, size_t n_present,
                    berth_error *error);

/*
 * Renders [tile->offset, + tile->nbytes), which lies before plan->tail_offset, or, after
 * bth_image_compute_id, behind it. Every byte before the tail must be rendered exactly once.
 * Thread-safe for different tiles. Tiles begin at multiples of a block, but for the first of the
 * tail. Fills zero_copies, incomplete and completed.
 */
int bth_image_render(bth_image *image, bth_tile *tile, berth_error *error);

/* Renders the tile's share of the descriptor of record i, whose CRC must be complete. */
void bth_image_put_descriptor(const bth_image *image, bth_tile *tile, size_t i);

/* What descriptor and directory say. Complete only when all of the record is rendered. */
uint32_t bth_image_crc32(const bth_image *image, size_t i);
bool bth_image_crc32_is_complete(const bth_image *image, size_t i);

/* When all before the tail is rendered: computes the rest, so that the tail can be rendered. */
void bth_image_compute_id(bth_image *image);

/* Reads bytes [at, at + nbytes) of a record, in the file's byte order. */
int bth_record_data_read(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes, uint64_t at,
                         berth_error *error);

/* The address of byte `at` of a record and of all that follow it, if they lie in memory in the
 * file's byte order. Else NULL. */
const uint8_t *bth_record_data_address(const berth_plan *plan, size_t i, uint64_t at);

/* memcpy for bytes that a device reads next: it writes past the processor's caches if it can. */
void bth_copy_bypassing_caches(void *to, const void *from, size_t nbytes);

#endif
