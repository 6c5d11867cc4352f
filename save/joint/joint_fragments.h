/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Fragments of slices that are exchanged, as short runs are: the owner of their window puts the
 * blocks together that writers share, and writes them. Only what shares a block with a header, or
 * with another storage, stays in the part and goes to the coordinator, which writes such blocks.
 */
#ifndef BTH_SAVE_JOINT_FRAGMENTS_H
#define BTH_SAVE_JOINT_FRAGMENTS_H

#include "save/joint/joint_slices.h"

/* The bytes of the parts that could be exchanged. */
uint64_t bth_fragments_count_nbytes(const bth_ticket *ticket, const bth_slice_parts *parts);
/* Takes them out of the parts. */
int bth_fragments_take(const bth_ticket *ticket, bth_slice_parts *parts, berth_error *error);

#endif
