/* SPDX-License-Identifier: BSD-3-Clause */
/* Storage statistics: how each storage of a save was written (berth_params.storage_stats). */
#ifndef BTH_SAVE_STORAGE_STATS_H
#define BTH_SAVE_STORAGE_STATS_H

#include "save/image.h"

/* Of one record. */
struct bth_storage_stats {
    _Atomic uint64_t moved_nbytes;
    _Atomic uint64_t zero_copy_nbytes; /* of moved_nbytes */
    _Atomic(const char *) why_copied;  /* static; of the last large range that was copied */
};

/* Adds a tile that is written. */
void bth_storage_stats_add_tile(bth_storage_stats *stats, const berth_plan *plan,
                                const bth_tile *tile);
/* Fills *reports for the first n storages of the file. `stats` NULL: nothing was written. */
void bth_storage_stats_report(const bth_storage_stats *stats, const berth_plan *plan,
                              const berth_stats *save, berth_storage_stats *reports, size_t n);

#endif
