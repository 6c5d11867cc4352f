/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/storage_stats.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"

bth_storage_stats *bth_storage_stats_new(const berth_plan *plan, berth_error *error)
{
    bth_storage_stats *storage_stats = bth_allocate(plan->n_records * sizeof *storage_stats);

    if (!storage_stats) {
        bth_fail_memory(error, plan->n_records * sizeof *storage_stats);
        return NULL;
    }
    for (size_t i = 0; i < plan->n_records; i++) {
        atomic_init(&storage_stats[i].moved_nbytes, 0);
        atomic_init(&storage_stats[i].zero_copy_nbytes, 0);
        atomic_init(&storage_stats[i].why_copied, NULL);
    }
    return storage_stats;
}

void bth_storage_stats_add_tile(bth_storage_stats *storage_stats, const berth_plan *plan,
                                const bth_tile *tile)
{
    uint64_t end = tile->offset + tile->nbytes;

    for (size_t i = bth_plan_find(plan, tile->offset);
         i < plan->n_records && plan->records[i].place.header_offset < end; i++) {
        const bth_place *place = &plan->records[i].place;
        bth_range share;
        if (bth_tile_share(tile, place->data_offset, place->data_offset + place->nbytes, &share))
            atomic_fetch_add(&storage_stats[i].moved_nbytes, share.nbytes);
    }
    for (size_t i = 0; i < tile->n_zero_copies; i++) {
        const bth_range *range = &tile->zero_copies[i].range;
        atomic_fetch_add(&storage_stats[bth_plan_find(plan, range->offset)].zero_copy_nbytes,
                         range->nbytes);
    }
}

/* A record of which most was lent counts as lent: its ends share blocks with headers. */
static void tell(const bth_storage_stats *tally, const berth_plan *plan, size_t i,
                 const berth_stats *stats, berth_storage_stats *told)
{
    const bth_plan_record *record = &plan->records[i];
    bool is_summed = plan->compute_crc32 && !record->no_crc32;
    uint64_t moved_nbytes = tally ? atomic_load(&tally->moved_nbytes) : 0;

    *told = (berth_storage_stats){.method = "none",
                                  .reason = record->place.nbytes == 0 ? "it is empty"
                                                                      : "nothing was written",
                                  .nbytes = record->place.nbytes,
                                  .moved_nbytes = moved_nbytes};
    if (moved_nbytes == 0)
        return;
    const char *why_copied = atomic_load(&tally->why_copied);
    told->crc32 = is_summed ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
    told->method = stats->method;
    told->reason = stats->reason;
    if (record->device) {
        if (strcmp(stats->method, "buffered") == 0)
            told->method = "buffered, from device";
        else if (strcmp(stats->method, "direct") == 0)
            told->method = "direct, from device";
        return;
    }
    if (!why_copied || atomic_load(&tally->zero_copy_nbytes) >= moved_nbytes / 2)
        return;
    if (strcmp(stats->method, "buffered") == 0)
        told->method = "buffered, copied";
    else if (strcmp(stats->method, "direct") == 0)
        told->method = "direct, copied";
    else
        return;
    told->reason = why_copied;
}

void bth_storage_stats_report(const bth_storage_stats *storage_stats, const berth_plan *plan,
                              const berth_stats *stats, berth_storage_stats *told, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < plan->n_records && at < n; i++)
        if (strncmp(bth_plan_name(plan, i), "data/", 5) == 0)
            tell(storage_stats ? &storage_stats[i] : NULL, plan, i, stats, &told[at++]);
}
