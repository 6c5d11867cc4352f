/* SPDX-License-Identifier: BSD-3-Clause */
/* What a writer of a joint save was given: slices of tensors, as ranges of storages. */
#ifndef BTH_SAVE_JOINT_SLICES_H
#define BTH_SAVE_JOINT_SLICES_H

#include "save/joint/joint_receipt.h"

/* Parts with their bytes, in the file's order and without overlaps. */
typedef struct bth_slice_parts {
    struct bth_slice_part {
        bth_joint_part part;
        const uint8_t *bytes; /* the caller's, in this machine's byte order */
    } * parts;
    size_t n;
    size_t room;
} bth_slice_parts;

/* The caller releases parts->parts, after a failure too. */
int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bth_slice_parts *parts, berth_error *error);

#endif
