/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/held.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"

static size_t n_slots_of(unsigned n_workers)
{
    return (size_t)n_workers * BERTH_HELD_SLOTS_PER_WORKER;
}

uint64_t berth_held_nbytes(unsigned n_workers, uint32_t block_nbytes)
{
    return (uint64_t)n_slots_of(n_workers) * BERTH_HELD_BLOCKS_PER_SLOT * block_nbytes;
}

int berth_held_begin(berth_held *held, unsigned n_workers, uint32_t block_nbytes, uint8_t *memory,
                     berth_error *error)
{
    size_t n_slots = n_slots_of(n_workers);

    *held = (berth_held){0};
    if (n_slots == 0)
        return 0;
    held->slots = berth_allocate_zeroed(n_slots * sizeof *held->slots);
    if (!held->slots)
        return berth_fail_memory(error, n_slots * sizeof *held->slots);
    held->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) {
        held->slots[i].record = BERTH_NO_RECORD;
        held->slots[i].bytes = memory + i * BERTH_HELD_BLOCKS_PER_SLOT * block_nbytes;
    }
    pthread_mutex_init(&held->lock, NULL);
    return 0;
}

void berth_held_end(berth_held *held)
{
    if (!held->slots)
        return;
    pthread_mutex_destroy(&held->lock);
    berth_release(held->slots);
    *held = (berth_held){0};
}

/* Under the lock. */
static berth_held_slot *find(berth_held *held, size_t record)
{
    for (size_t i = 0; i < held->n_slots; i++)
        if (held->slots[i].record == record && !held->slots[i].taken)
            return &held->slots[i];
    return NULL;
}

/* The blocks of the tile that hold the tile's share of record i's descriptor. */
static berth_range blocks_of(const berth_image *image, const berth_tile *tile, size_t i)
{
    berth_range range = berth_seam_range(image->plan, i);
    uint64_t mask = image->demand.block_nbytes - 1;
    berth_range share = {0};

    (void)berth_tile_share(tile, range.offset, range.offset + range.nbytes, &share);
    uint64_t begin = share.offset & ~mask;
    uint64_t end = (share.offset + share.nbytes + mask) & ~mask;
    return (berth_range){.offset = begin, .nbytes = end - begin};
}

/* Under the lock, so that who completes the CRC comes either before, or finds the slot. */
static int keep(berth_held *held, const berth_image *image, const berth_tile *tile,
                berth_range *kept, berth_error *error)
{
    size_t i = tile->waits_for;

    *kept = (berth_range){.offset = tile->offset};
    if (berth_image_is_complete(image, i))
        return 0;
    berth_held_slot *slot = find(held, BERTH_NO_RECORD);
    if (!slot) /* the bound above is wrong */
        return berth_fail(error, BERTH_E_MEMORY, berth_plan_name(image->plan, i), tile->offset,
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

int berth_held_keep(berth_held *held, const berth_image *image, berth_tile *tile, berth_range *kept,
                    berth_error *error)
{
    pthread_mutex_lock(&held->lock);
    int status = keep(held, image, tile, kept, error);
    pthread_mutex_unlock(&held->lock);
    if (status == 0 && kept->nbytes == 0)
        berth_seam_put(image, tile, tile->waits_for);
    return status;
}

berth_held_slot *berth_held_take(berth_held *held, const berth_image *image, size_t i)
{
    pthread_mutex_lock(&held->lock);
    berth_held_slot *slot = find(held, i);
    if (slot)
        slot->taken = true;
    pthread_mutex_unlock(&held->lock);
    if (!slot)
        return NULL;
    berth_tile block = {
        .offset = slot->range.offset, .nbytes = (size_t)slot->range.nbytes, .bytes = slot->bytes};
    berth_seam_put(image, &block, i);
    return slot;
}

void berth_held_free(berth_held *held, berth_held_slot *slot)
{
    pthread_mutex_lock(&held->lock);
    slot->record = BERTH_NO_RECORD;
    slot->taken = false;
    held->n_used--;
    pthread_mutex_unlock(&held->lock);
}
