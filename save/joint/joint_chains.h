/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Chains: neighbours in the file that one writer has as a whole (joint_receipt.h). It writes the
 * descriptors and headers between them, which otherwise are left to the coordinator, a block each.
 */
#ifndef BTH_SAVE_JOINT_CHAINS_H
#define BTH_SAVE_JOINT_CHAINS_H

#include "save/joint/joint_slices.h"

/* Marks the parts of slices, which are in the file's order. */
void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts);

#endif
