/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/held.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"

static size_t n_slots_of(unsigned n_workers)
{
    return (size_t)n_workers * BTH_HELD_SLOTS_PER_WORKER;
}

uint64_t bth_held_nbytes(unsigned n_workers, uint32_t block_nbytes)
{
    return (uint64_t)n_slots_of(n_workers) * BTH_HELD_BLOCKS_PER_SLOT * block_nbytes;
}

int bth_held_begin(bth_held *held, unsigned n_workers, uint32_t block_nbytes, uint8_t *memory,
                   berth_error *error)
{
    size_t n_slots = n_slots_of(n_workers);

    *held = (bth_held){0};
    if (n_slots == 0)
        return 0;
    held->slots = bth_allocate_zeroed(n_slots * sizeof *held->slots);
    if (!held->slots)
        return bth_fail_memory(error, n_slots * sizeof *held->slots);
    held->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) {
        held->slots[i].record = BTH_NO_RECORD;
        held->slots[i].bytes = memory + i * BTH_HELD_BLOCKS_PER_SLOT * block_nbytes;
    }
    pthread_mutex_init(&held->lock, NULL);
    return 0;
}

void bth_held_end(bth_held *held)
{
    if (!held->slots)
        return;
    pthread_mutex_destroy(&held->lock);
    bth_release(held->slots);
    *held = (bth_held){0};
}

/* Under the lock. */
static bth_held_slot *find(bth_held *held, size_t record)
{
    for (size_t i = 0; i < held->n_slots; i++)
        if (held->slots[i].record == record && !held->slots[i].taken)
            return &held->slots[i];
    return NULL;
}

/* The blocks of the tile that hold the tile's share of record i's descriptor. */
static bth_range blocks_of(const bth_image *image, const bth_tile *tile, size_t i)
{
    bth_range range = bth_seam_range(image->plan, i);
    uint64_t mask = image->demand.block_nbytes - 1;
    bth_range share = {0};

    (void)bth_tile_share(tile, range.offset, range.offset + range.nbytes, &share);
    uint64_t begin = share.offset & ~mask;
    uint64_t end = (share.offset + share.nbytes + mask) & ~mask;
    return (bth_range){.offset = begin, .nbytes = end - begin};
}

/* Under the lock, so that who completes the CRC comes either before, or finds the slot. */
static int keep(bth_held *held, const bth_image *image, const bth_tile *tile, bth_range *kept,
                berth_error *error)
{
    size_t i = tile->waits_for;

    *kept = (bth_range){.offset = tile->offset};
    if (bth_image_is_complete(image, i))
        return 0;
    bth_held_slot *slot = find(held, BTH_NO_RECORD);
    if (!slot) /* the bound above is wrong */
        return bth_fail(error, BERTH_E_MEMORY, bth_plan_name(image->plan, i), tile->offset,
                        "more than %zu blocks wait for a CRC", held->n_slots);
    *kept = blocks_of(image, tile, i);
    slot->record = i;
    slot->range = *kept;
    memcpy(slot->bytes, tile->bytes + (kept->offset - tile->offset), (size_t)kept->nbytes);
    held->n_kept++;
    held->n_used++;
    if (held->n_used > held->n_used_most)
        held->n_used_most = held->n_used;
    return 0;
}

int bth_held_keep(bth_held *held, const bth_image *image, bth_tile *tile, bth_range *kept,
                  berth_error *error)
{
    pthread_mutex_lock(&held->lock);
    int status = keep(held, image, tile, kept, error);
    pthread_mutex_unlock(&held->lock);
    if (status == 0 && kept->nbytes == 0)
        bth_seam_put(image, tile, tile->waits_for);
    return status;
}

bth_held_slot *bth_held_take(bth_held *held, const bth_image *image, size_t i)
{
    pthread_mutex_lock(&held->lock);
    bth_held_slot *slot = find(held, i);
    if (slot)
        slot->taken = true;
    pthread_mutex_unlock(&held->lock);
    if (!slot)
        return NULL;
    bth_tile block = {
        .offset = slot->range.offset, .nbytes = (size_t)slot->range.nbytes, .bytes = slot->bytes};
    bth_seam_put(image, &block, i);
    return slot;
}

void bth_held_free(bth_held *held, bth_held_slot *slot)
{
    pthread_mutex_lock(&held->lock);
    slot->record = BTH_NO_RECORD;
    slot->taken = false;
    held->n_used--;
    pthread_mutex_unlock(&held->lock);
}
