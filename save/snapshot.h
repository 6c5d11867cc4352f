/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A copy of all that a plan reads of the caller's. It lies in memory as it will lie in the file, so
 * that what is aligned there is aligned here, and the other byte order is made in the same pass.
 */
#ifndef BTH_SAVE_SNAPSHOT_H
#define BTH_SAVE_SNAPSHOT_H

#include "save/plan.h"

typedef struct bth_snapshot {
    void *memory;
    uint8_t *bytes;      /* of the file's range: */
    uint64_t begin, end; /* first and last byte of the records that are copied */
} bth_snapshot;

/*
 * Allocates. io.memory_nbytes, where it is set, must hold it beside some buffers; what remains
 * of it is written to the configuration.
 */
int bth_snapshot_reserve(bth_snapshot *snapshot, const berth_plan *plan,
                         struct berth_config *config, berth_error *error);
/* Copies, and makes the plan read of the copy. The plan must not be in use. */
int bth_snapshot_take(bth_snapshot *snapshot, berth_plan *plan, const struct berth_config *config,
                      berth_error *error);
void bth_snapshot_free(bth_snapshot *snapshot); /* of zeros: nothing */

#endif
