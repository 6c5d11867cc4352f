/* SPDX-License-Identifier: BSD-3-Clause */
/* What a writer of a joint save was given: slices of tensors, as ranges of storages. */
#ifndef BTH_SAVE_JOINT_SLICES_H
#define BTH_SAVE_JOINT_SLICES_H

#include "berth/joint.h"
#include "save/joint/joint_receipt.h"

/* A part with its bytes, in this machine's byte order. */
typedef struct bth_slice_part {
    bth_joint_part part;
    const uint8_t *bytes; /* the caller's or a window's; NULL: only the fragments are kept */
    size_t kept_at;       /* where they are kept */
} bth_slice_part;

/* Short runs of one slice. They lie on a grid; in memory they follow each other. */
typedef struct bth_short_box {
    uint32_t storage;
    int32_t n_dims; /* of the grid: 1 or more */
    uint64_t at;    /* of the first run in the storage */
    uint64_t end;   /* of the last run */
    uint64_t run_nbytes;
    uint64_t n_runs;
    uint64_t lengths[BERTH_MAX_RANK]; /* runs along each dimension; the last one is the innermost */
    uint64_t strides[BERTH_MAX_RANK]; /* in bytes */
    const uint8_t *bytes;             /* the caller's */
} bth_short_box;

/* A slice on a device, on the host. */
typedef struct bth_slice_copy {
    struct bth_slice_copy *next;
    uint8_t bytes[];
} bth_slice_copy;

typedef struct bth_slice_parts {
    bth_slice_part *parts; /* in the file's order and without overlaps */
    size_t n;
    size_t room;
    bth_short_box *boxes; /* to be exchanged */
    size_t n_boxes;
    size_t boxes_room;
    bth_slice_part *fragments; /* to be exchanged, in the file's order (joint_ends.c) */
    size_t n_fragments;
    bth_slice_copy *copies;
} bth_slice_parts;

/* can_exchange: slices of short runs become boxes; else they are refused. The caller calls
 * bth_slice_parts_free_all, after a failure too. */
int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bool can_exchange, bth_slice_parts *parts, berth_error *error);
void bth_slice_parts_free_all(bth_slice_parts *parts);
int bth_slice_parts_append(bth_slice_parts *parts, const bth_joint_part *part, const uint8_t *bytes,
                           berth_error *error);
/* Puts them into the file's order. */
void bth_slice_parts_sort(bth_slice_parts *parts);

/* ---- joint_ends.c ---- */

/*
 * Marks chains: neighbours in the file that one writer has as a whole (joint_receipt.h). It writes
 * the descriptors and headers between them, which otherwise are left to the coordinator, a block
 * each. The parts are of slices, in the file's order.
 */
void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts);

/*
 * Fragments of slices are exchanged, as short runs are: the owner of their window puts the blocks
 * together that writers share, and writes them. Only what shares a block with a header, or with
 * another storage, stays in the part and goes to the coordinator, which writes such blocks.
 */

/* The bytes of the parts that could be exchanged. */
uint64_t bth_fragments_count_nbytes(const bth_ticket *ticket, const bth_slice_parts *parts);
/* Takes them out of the parts. */
int bth_fragments_take(const bth_ticket *ticket, bth_slice_parts *parts, berth_error *error);

#endif
