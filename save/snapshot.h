/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A copy of all of the caller's data that a plan reads. It has the layout of the file, so that
 * direct writes find it aligned, and is already swapped to the byte order of the file.
 */
#ifndef BTH_SAVE_SNAPSHOT_H
#define BTH_SAVE_SNAPSHOT_H

#include "io/large_pages.h"
#include "save/plan.h"

typedef struct bth_snapshot {
    void *memory;        /* the caller releases it */
    uint8_t *bytes;      /* of the file's range: */
    uint64_t begin, end; /* first and last byte of the records that are copied */
    bth_pages pages;     /* of the memory */
} bth_snapshot;

/* Allocates. If io.memory_nbytes is set, it must be enough for the copy and some buffers; the
 * rest of it is written to the configuration. */
int bth_snapshot_reserve(bth_snapshot *snapshot, const berth_plan *plan,
                         struct berth_config *config, berth_error *error);
/* Copies, and makes the plan read from the copy. The plan must not be in use. */
int bth_snapshot_take(bth_snapshot *snapshot, berth_plan *plan, const struct berth_config *config,
                      berth_error *error);

#endif
