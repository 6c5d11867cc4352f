/* SPDX-License-Identifier: BSD-3-Clause */
/* The locks of a checkpoint, and what they protect in a child that was forked (X11). */
#include "load/checkpoint.h"

/*
 * A thread of the parent was changing something, maybe one of these; it is left where it is, as
 * nobody can tell which parts are whole, and made anew when it is needed. All else under the lock
 * changes by one store, which either was made or was not.
 */
static void begin_anew(berth_checkpoint *checkpoint)
{
    if (!checkpoint->contents.container.known)
        checkpoint->contents.container = (bth_container){0};
    checkpoint->contents.counts.known = false;
    bth_access_forget(&checkpoint->source.access);
    checkpoint->shown_name = (bth_name_text){0};
    checkpoint->shown_path = (bth_name_text){0};
}

static void forget_memory(berth_checkpoint *checkpoint, const bth_kept_region *kept)
{
    for (size_t i = 0; checkpoint->storages.stored && i < checkpoint->storages.n; i++) {
        bth_stored *stored = &checkpoint->storages.stored[i];
        uintptr_t memory = (uintptr_t)atomic_load(&stored->memory);
        if (memory - (uintptr_t)kept->region.bytes < kept->nbytes)
            atomic_store(&stored->memory, NULL);
    }
}

/* What was read, past the page cache, while this process was forked: it is brought again. */
static void forget_latest(berth_checkpoint *checkpoint)
{
    uint64_t n_forks = bth_forks();

    for (const bth_kept_region *kept = checkpoint->storages.regions;
         kept && kept->n_forks == n_forks; kept = kept->next)
        forget_memory(checkpoint, kept);
}

/* Nobody is here who brings storages, or waits for them. */
static void forget_others(berth_checkpoint *checkpoint)
{
    (void)pthread_cond_init(&checkpoint->storages.settled, NULL);
    for (size_t i = 0; checkpoint->storages.stored && i < checkpoint->storages.n; i++) {
        checkpoint->storages.stored[i].is_coming = false;
        checkpoint->storages.stored[i].n_waiting = 0;
    }
}

void bth_checkpoint_restart(berth_checkpoint *checkpoint, bth_lock_state state)
{
    forget_others(checkpoint);
    forget_latest(checkpoint);
    if (state == BTH_LOCK_TORN)
        begin_anew(checkpoint);
    atomic_store(&checkpoint->process, bth_process());
}

void bth_checkpoint_make_good(berth_checkpoint *checkpoint)
{
    if (atomic_load_explicit(&checkpoint->process, memory_order_acquire) == bth_process())
        return;
    bth_checkpoint_lock(checkpoint);
    bth_checkpoint_unlock(checkpoint);
}

const uint8_t *bth_storage_found(berth_checkpoint *checkpoint, size_t index)
{
    bth_checkpoint_make_good(checkpoint);
    return atomic_load(&checkpoint->storages.stored[index].memory);
}
