/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The base of a save: an earlier checkpoint on the same file system. What the base has, too, is not
 * written again: the file system lets both files share blocks (FICLONERANGE of XFS and btrfs). So a
 * clone costs neither room nor a write.
 *
 * W12: nothing of the base is trusted. What may be equal is cloned into a file without a name,
 * where no writer of the base can change it and nobody else can read it, and compared there with
 * the caller's bytes. What is equal is cloned from there into the new file, which so never has a
 * byte of the base that is not the caller's (X1). Candidates are the record of the same name and
 * size, then those of the same size and CRC, at offsets that are equal modulo the block.
 */
#ifndef BTH_SAVE_BASE_FILE_H
#define BTH_SAVE_BASE_FILE_H

#include "berth.h"
#include "io/thread_pool.h"
#include "save/output.h"
#include "save/run.h"

typedef struct bth_base {
    int fd;                 /* -1: nothing is cloned, or all is done */
    uint64_t nbytes;        /* of the base */
    uint32_t block_nbytes;  /* clones are whole blocks; a power of two */
    uint64_t memory_nbytes; /* of the buffers that comparing took */
    const char *reason;     /* static; why nothing, or not everything, is cloned; NULL: no reason */
    bth_run_parts parts;    /* what bth_base_clone leaves to be written; zeros: all */
    bth_range *ranges;      /* of parts */
    bth_present *present;
} bth_base;

/* What may share blocks with a base. */
typedef struct bth_base_work {
    berth_plan *plan;
    const bth_range *wholes; /* for each record the data of the storage, of which it may be a part;
                                NULL: records are whole */
    bth_run_parts own; /* what this process writes, and what is present already; zeros: all of it */
    const bth_output_file *to;
    int folder; /* of that file */
} bth_base_work;

#define BTH_NO_BASE                                                                                \
    (bth_base)                                                                                     \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* Why not elsewhere. */
#define BTH_BASE_ONLY_PATHS "only a file that is saved to a path shares blocks"

/* berth_params.base, or save.base. "": none. */
const char *bth_base_choose(const berth_params *params, const struct berth_config *config);

/* Opens the base of a plan, and asks the file system of `to`, the temporary. Never fails:
 * base->reason says what is in the way. */
void bth_base_open(bth_base *base, const char *path, const berth_plan *plan,
                   const bth_output_file *to);

/*
 * Clones, compares; fills base->parts, which is work->own without what is shared. Sums that this
 * needs stay in the plan. `watch`: as of bth_pool_run, with `context`; a cancel is an error, as are
 * a failing read of the caller's bytes and missing memory. Then reserves room for what is left;
 * that there is none is an error, too, and nothing else is. Closes the base.
 */
int bth_base_clone(bth_base *base, const bth_base_work *work, const struct berth_config *config,
                   bth_pool_watch watch, void *context, berth_stats *stats, berth_error *error);

void bth_base_free(bth_base *base);

#endif
