/* SPDX-License-Identifier: BSD-3-Clause */
/* What became of every storage of a save, for callers who ask (berth_params.storage_stats). */
#ifndef BTH_SAVE_STORAGE_STATS_H
#define BTH_SAVE_STORAGE_STATS_H

#include "save/image.h"

/* Of one record. */
struct bth_storage_stats {
    _Atomic uint64_t moved_nbytes;
    _Atomic uint64_t zero_copy_nbytes; /* of them: never copied */
    _Atomic(const char *) why_copied;  /* static; of the last larger range that was copied */
};

/* One a record, zeroed. */
bth_storage_stats *bth_storage_stats_new(const berth_plan *plan, berth_error *error);
/* A tile that is written. */
void bth_storage_stats_add_tile(bth_storage_stats *storage_stats, const berth_plan *plan,
                                const bth_tile *tile);
/* The first n storages of the file. `tallies` NULL: nothing was written. */
void bth_storage_stats_report(const bth_storage_stats *storage_stats, const berth_plan *plan,
                              const berth_stats *stats, berth_storage_stats *told, size_t n);

#endif
