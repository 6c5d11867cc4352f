/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/run_state.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* A descriptor may begin with the last byte of a block. */
static uint64_t deferred_block_nbytes(uint32_t block_nbytes)
{
    return block_nbytes > 1 ? 2 * (uint64_t)block_nbytes : BTH_MAX_DESCRIPTOR_NBYTES;
}

uint64_t bth_deferred_worker_nbytes(uint32_t block_nbytes)
{
    return BTH_DEFERRED_PER_WORKER * deferred_block_nbytes(block_nbytes);
}

uint64_t bth_deferred_nbytes(unsigned n_workers, uint32_t block_nbytes)
{
    return n_workers * bth_deferred_worker_nbytes(block_nbytes) + block_nbytes;
}

int bth_deferred_begin(bth_deferred *deferred, unsigned n_workers, uint32_t block_nbytes,
                       uint8_t *memory, berth_error *error)
{
    size_t n = (size_t)n_workers * BTH_DEFERRED_PER_WORKER;

    assert(block_nbytes == 1 || block_nbytes >= BTH_MAX_DESCRIPTOR_NBYTES);
    *deferred = (bth_deferred){.n_blocks = n};
    deferred->blocks = bth_allocate_zeroed((n + 1) * sizeof *deferred->blocks);
    if (!deferred->blocks)
        return bth_fail_memory(error, (n + 1) * sizeof *deferred->blocks);
    for (size_t i = 0; i < n; i++) {
        deferred->blocks[i].record = BTH_NO_RECORD;
        deferred->blocks[i].bytes = memory + i * deferred_block_nbytes(block_nbytes);
    }
    deferred->tail.bytes = memory + n * deferred_block_nbytes(block_nbytes);
    pthread_mutex_init(&deferred->lock, NULL);
    return 0;
}

void bth_deferred_free_all(bth_deferred *deferred)
{
    if (!deferred->blocks)
        return;
    pthread_mutex_destroy(&deferred->lock);
    bth_release(deferred->blocks);
    *deferred = (bth_deferred){0};
}

/* Under the lock. */
static bth_deferred_block *deferred_find_block_of_record(const bth_deferred *deferred,
                                                         size_t record)
{
    for (size_t i = 0; i < deferred->n_blocks; i++)
        if (deferred->blocks[i].record == record)
            return &deferred->blocks[i];
    return NULL;
}

static void deferred_block_copy_from_tile(bth_deferred_block *block, const bth_tile *tile,
                                          bth_range range)
{
    block->range = range;
    memcpy(block->bytes, tile->bytes + (range.offset - tile->offset), (size_t)range.nbytes);
}

static void deferred_put_descriptors(const bth_deferred_block *block, const bth_image *image)
{
    bth_tile tile = {.offset = block->range.offset,
                     .nbytes = (size_t)block->range.nbytes,
                     .bytes = block->bytes};

    bth_image_put_descriptors(image, &tile);
}

/* The tile's blocks before `end` that hold a share of record i's descriptor. */
static bth_range deferred_find_descriptor_blocks(const bth_image *image, const bth_tile *tile,
                                                 size_t i, uint64_t end)
{
    uint64_t mask = image->constraints.block_nbytes - 1;
    bth_range share;

    if (!bth_tile_intersect_range(tile, bth_plan_descriptor_range(image->plan, i), &share) ||
        share.offset >= end)
        return (bth_range){.offset = end};
    uint64_t begin = share.offset & ~mask;
    uint64_t last = (share.offset + share.nbytes + mask) & ~mask;
    return (bth_range){.offset = begin, .nbytes = (last < end ? last : end) - begin};
}

int bth_deferred_add_descriptor_blocks(bth_deferred *deferred, const bth_image *image,
                                       bth_tile *tile, uint64_t end, bth_range *range,
                                       berth_error *error)
{
    size_t i = tile->incomplete;
    bth_deferred_block *block = NULL;

    *range = deferred_find_descriptor_blocks(image, tile, i, end);
    if (range->nbytes == 0)
        return 0;
    /* Under the lock: the worker that completes the CRC has done so, or will find the block. */
    pthread_mutex_lock(&deferred->lock);
    bool is_complete = bth_image_crc32_is_complete(image, i);
    if (!is_complete)
        block = deferred_find_block_of_record(deferred, BTH_NO_RECORD);
    if (block) {
        block->record = i;
        deferred_block_copy_from_tile(block, tile, *range);
    }
    pthread_mutex_unlock(&deferred->lock);
    if (block)
        return 0;
    if (!is_complete) /* BTH_DEFERRED_PER_WORKER is wrong */
        return bth_fail(error, BERTH_E_MEMORY, bth_plan_record_name(image->plan, i), tile->offset,
                        "more than %zu deferred blocks", deferred->n_blocks);
    bth_image_put_descriptor(image, tile, i);
    *range = (bth_range){.offset = end};
    return 0;
}

bth_deferred_block *bth_deferred_claim_and_complete_block(bth_deferred *deferred,
                                                          const bth_image *image, size_t i)
{
    pthread_mutex_lock(&deferred->lock);
    bth_deferred_block *block = deferred_find_block_of_record(deferred, i);
    if (block)
        block->record = image->plan->n_records;
    pthread_mutex_unlock(&deferred->lock);
    if (block)
        deferred_put_descriptors(block, image);
    return block;
}

void bth_deferred_release_block(bth_deferred *deferred, bth_deferred_block *block)
{
    pthread_mutex_lock(&deferred->lock);
    block->record = BTH_NO_RECORD;
    pthread_mutex_unlock(&deferred->lock);
}

void bth_deferred_add_last_data_block(bth_deferred *deferred, const bth_tile *tile, uint64_t begin)
{
    uint64_t end = tile->offset + tile->nbytes;

    deferred_block_copy_from_tile(&deferred->tail, tile,
                                  (bth_range){.offset = begin, .nbytes = end - begin});
}

size_t bth_deferred_copy_last_data_block_to_tile(const bth_deferred *deferred,
                                                 const bth_image *image, bth_tile *tile)
{
    const bth_deferred_block *tail = &deferred->tail;

    if (tail->range.nbytes == 0 || tail->range.offset != tile->offset)
        return 0;
    assert(tail->range.nbytes <= tile->nbytes); /* equal: a safetensors file has no tail */
    deferred_put_descriptors(tail, image);
    memcpy(tile->bytes, tail->bytes, (size_t)tail->range.nbytes);
    return (size_t)tail->range.nbytes;
}
