/* SPDX-License-Identifier: BSD-3-Clause */
/* The receipts of a joint save, put together. */
#ifndef BTH_SAVE_JOINT_PARTS_H
#define BTH_SAVE_JOINT_PARTS_H

#include "save/joint/joint_receipt.h"
#include "save/run.h"

/* A part with its writer and its fragments, which lie in a receipt. There are millions. */
typedef struct bth_written_part {
    bth_joint_part part;
    uint32_t writer;
    const uint8_t *fragments; /* the head, then the tail */
} bth_written_part;

/* The parts of one storage: their fragments are the content of its record. */
typedef struct bth_joint_source {
    const bth_ticket *ticket;
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
} bth_joint_source;

typedef struct bth_joint_parts {
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
    bth_joint_source *sources; /* one a storage of the ticket */
    bth_present *present;
    bth_range *ranges;
    bth_run_parts run;
} bth_joint_parts;

/*
 * Checks that each byte of each storage is in just one part. Then the plan's storages without bytes
 * get the fragments as their content, and parts->run says what is left to write. The ticket and
 * the receipts, one a writer, must live as long as the parts. The caller calls
 * bth_joint_parts_free_all, after a failure too.
 */
int bth_joint_parts_make(const bth_ticket *ticket, const bth_receipt *receipts, berth_plan *plan,
                         bth_joint_parts *parts, berth_error *error);
void bth_joint_parts_free_all(bth_joint_parts *parts);

#endif
