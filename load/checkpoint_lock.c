/* SPDX-License-Identifier: BSD-3-Clause */
/* The lock of a checkpoint, and the state that it protects, in a child that was forked (X11). */
#include "load/checkpoint.h"

/*
 * A thread of the parent was changing something, maybe one of these. No one knows which parts are
 * whole: all are dropped, not freed, and made again when they are needed. All other state under the
 * lock changes by one store, which was done or not.
 */
static void checkpoint_drop_torn_state(berth_checkpoint *checkpoint)
{
    if (!checkpoint->contents.container.known)
        checkpoint->contents.container = (bth_container){0};
    checkpoint->contents.counts.known = false;
    bth_access_forget_all(&checkpoint->source.access);
    checkpoint->shown_name = (bth_name_text){0};
    checkpoint->shown_path = (bth_name_text){0};
}

static void storages_forget_region(berth_checkpoint *checkpoint, const bth_kept_region *kept)
{
    for (size_t i = 0; checkpoint->storages.stored && i < checkpoint->storages.n; i++) {
        bth_storage_state *stored = &checkpoint->storages.stored[i];
        uintptr_t memory = (uintptr_t)atomic_load(&stored->memory);
        if (memory - (uintptr_t)kept->region.bytes < kept->nbytes)
            atomic_store(&stored->memory, NULL);
    }
}

/* Direct reads that ended while the process was forked may be missing here: they are done again. */
static void storages_forget_regions_at_fork(berth_checkpoint *checkpoint)
{
    uint64_t n_forks = bth_fork_count();

    for (const bth_kept_region *kept = checkpoint->storages.regions;
         kept && kept->n_forks == n_forks; kept = kept->next)
        storages_forget_region(checkpoint, kept);
}

/* No thread of the child loads storages or waits for them. */
static void storages_forget_threads(berth_checkpoint *checkpoint)
{
    (void)pthread_cond_init(&checkpoint->storages.finished, NULL);
    for (size_t i = 0; checkpoint->storages.stored && i < checkpoint->storages.n; i++) {
        checkpoint->storages.stored[i].is_loading = false;
        checkpoint->storages.stored[i].n_waiting = 0;
    }
}

void bth_checkpoint_reset_after_fork(berth_checkpoint *checkpoint, bth_lock_state state)
{
    storages_forget_threads(checkpoint);
    storages_forget_regions_at_fork(checkpoint);
    bth_access_forget_direct(&checkpoint->source.access);
    if (state == BTH_LOCK_TORN)
        checkpoint_drop_torn_state(checkpoint);
    atomic_store(&checkpoint->process, bth_process_unique_number());
}
