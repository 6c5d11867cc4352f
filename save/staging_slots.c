/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/staging_slots.h"

#include "base/memory.h"

/* Staging slots of a single worker: while it writes one, the next ones are copied. */
#define SLOTS_OF_SINGLE 3

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_slot_functions bth_wing_slots;

bool bth_staging_slot_can_copy(const berth_plan *plan, size_t i, uint64_t nbytes, uint64_t at)
{
    const bth_plan_record *record = &plan->records[i];
    uint64_t unit = record->swap_nbytes > 1 ? record->swap_nbytes : 1;

    return record->device && at % unit == 0 && nbytes % unit == 0;
}

bth_staging_need bth_staging_slots_compute_need(const bth_run_settings *settings,
                                                unsigned n_workers, uint64_t max_nbytes)
{
    const uint64_t page = BTH_LARGE_PAGE_NBYTES;
    uint64_t room = max_nbytes > 0 ? max_nbytes : UINT64_MAX;
    uint64_t buffer_nbytes = bth_round_up(settings->tile_nbytes, page);
    uint64_t n = n_workers > 1 ? n_workers : SLOTS_OF_SINGLE;

    if (settings->n_staging > 0 && (n_workers == 1 || settings->n_staging < n))
        n = settings->n_staging;
    if (room / buffer_nbytes < 2)
        buffer_nbytes = room / 2 >= page ? room / 2 & ~(page - 1) : page;
    if (n > room / buffer_nbytes)
        n = room / buffer_nbytes > 0 ? room / buffer_nbytes : 1;
    return (bth_staging_need){.buffer_nbytes = (size_t)buffer_nbytes,
                              .n_buffers = (unsigned)n,
                              .max_nbytes = max_nbytes,
                              .large_pages = settings->large_pages,
                              .is_pinned = settings->is_pinned};
}
