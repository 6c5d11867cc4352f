/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The base of a save: an earlier checkpoint on the same file system. A storage that the base has,
 * too, is not written again: the file system lets both files share its blocks (FICLONERANGE of XFS
 * and btrfs). So a clone costs neither room nor a write.
 *
 * W12: a candidate has the size and the CRC of a record of the base, at an offset that is equal
 * modulo the block. That proves nothing, so its whole blocks are first cloned into the temporary,
 * where no writer of the base can change them any more, and then compared with the caller's bytes.
 * What differs is taken out again, and written like everything else.
 */
#ifndef BTH_SAVE_BASE_FILE_H
#define BTH_SAVE_BASE_FILE_H

#include <sys/types.h>

#include "io/thread_pool.h"
#include "save/output.h"
#include "save/run.h"

typedef struct bth_base {
    int fd;                 /* -1: nothing is cloned, or all is done */
    uint64_t nbytes;        /* of the base */
    uint32_t block_nbytes;  /* clones are whole blocks; a power of two */
    uint64_t memory_nbytes; /* of the buffers that comparing took */
    mode_t hidden_mode;     /* of the temporary, which has fewer rights now; 0: it has its own */
    const char *reason;     /* static; why nothing, or not everything, is cloned; NULL: no reason */
    /* What bth_base_clone found: what is in the file already, and the rest. Zeros: nothing is. */
    bth_run_parts parts;
    bth_range *ranges; /* of parts */
    bth_present *present;
} bth_base;

#define BTH_NO_BASE                                                                                \
    (bth_base)                                                                                     \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* Opens the base of a plan, and asks the file system of `to`, the temporary. Never fails:
 * base->reason says what is in the way. */
void bth_base_open(bth_base *base, const char *path, const berth_plan *plan,
                   const bth_output_file *to);

/*
 * Sums the candidates of the plan, clones, compares; fills base->parts. The sums stay in the plan,
 * so that no byte is summed twice. `watch`: as of bth_pool_run, with `context`; a cancel is an
 * error, as are a failing read of the caller's bytes, missing memory, and a temporary that cannot
 * be changed. Nothing else fails the save. Closes the base. What is not present has no blocks then:
 * the caller reserves them.
 */
int bth_base_clone(bth_base *base, berth_plan *plan, const bth_output_file *to,
                   const struct berth_config *config, bth_pool_watch watch, void *context,
                   berth_stats *stats, berth_error *error);

void bth_base_free(bth_base *base);

#endif
