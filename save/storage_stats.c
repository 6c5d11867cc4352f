/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "save/image.h"

void bth_storage_stats_add_tile(bth_storage_stats *stats, const berth_plan *plan,
                                const bth_tile *tile)
{
    uint64_t end = tile->offset + tile->nbytes;
    bth_range share;

    for (size_t i = bth_plan_find_record_by_offset(plan, tile->offset);
         bth_plan_begins_before(plan, i, end); i++)
        if (bth_tile_intersect_range(tile, bth_plan_data_range(plan, i), &share))
            atomic_fetch_add(&stats[i].moved_nbytes, share.nbytes);
    for (size_t i = 0; i < tile->n_zero_copies; i++) {
        const bth_range *range = &tile->zero_copies[i].range;
        atomic_fetch_add(
            &stats[bth_plan_find_record_by_offset(plan, range->offset)].zero_copy_nbytes,
            range->nbytes);
    }
}

/* `direct` or `buffered`, by the save's method. NULL: any other method. */
static const char *stats_choose_text_by_save_method(const berth_stats *save, const char *direct,
                                                    const char *buffered)
{
    if (strcmp(save->method, "direct") == 0)
        return direct;
    return strcmp(save->method, "buffered") == 0 ? buffered : NULL;
}

/* Copies at the ends of a record do not count if most of it was zero-copy. */
static void stats_fill_report(const bth_storage_stats *stats, const berth_plan *plan, size_t i,
                              const berth_stats *save, berth_storage_stats *out)
{
    const bth_plan_record *record = &plan->records[i];
    uint64_t moved_nbytes = stats ? atomic_load(&stats->moved_nbytes) : 0;

    *out = (berth_storage_stats){.method = "none",
                                 .reason = record->layout.nbytes == 0 ? "it is empty"
                                                                      : "nothing was written",
                                 .nbytes = record->layout.nbytes,
                                 .moved_nbytes = moved_nbytes};
    if (moved_nbytes == 0)
        return;
    const char *why_copied = atomic_load(&stats->why_copied), *method = NULL;
    if (record->device)
        method =
            stats_choose_text_by_save_method(save, "direct, from device", "buffered, from device");
    else if (why_copied && atomic_load(&stats->zero_copy_nbytes) < moved_nbytes / 2)
        method = stats_choose_text_by_save_method(save, "direct, copied", "buffered, copied");
    out->crc32 = plan->compute_crc32 && !record->no_crc32 ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
    out->method = method ? method : save->method;
    out->reason = method && !record->device ? why_copied : save->reason;
}

void bth_storage_stats_fill_reports(const bth_storage_stats *stats, const berth_plan *plan,
                                    const berth_stats *save, berth_storage_stats *reports, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < plan->n_records && at < n; i++)
        if (bth_plan_record_is_storage(plan, i))
            stats_fill_report(stats ? &stats[i] : NULL, plan, i, save, &reports[at++]);
}
