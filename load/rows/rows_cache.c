/* SPDX-License-Identifier: BSD-3-Clause */
/* The slot of each row. Pure: the caller locks around each call. */
#include "load/rows/rows.h"

#include <string.h>

#define FILLING (UINT32_C(1) << 31)
/* Prefetches tags this many rows ahead, so that several cache misses overlap. */
#define AHEAD_ROWS 8

void bth_row_cache_initialize(bth_row_cache *cache, uint32_t n_sets, uint32_t ways,
                              uint32_t n_scratch, void *notes)
{
    size_t n_lines = (size_t)n_sets * ways;

    memset(notes, 0, n_lines * BTH_ROWS_LINE_NOTES);
    *cache = (bth_row_cache){.ways = ways,
                             .n_sets = n_sets,
                             .n_lines = (uint32_t)n_lines,
                             .n_scratch = n_scratch,
                             .n_free_scratch = n_scratch};
    cache->tags = notes;
    cache->stamps = cache->tags + n_lines;
    cache->holders = (uint32_t *)(void *)(cache->stamps + n_lines);
    cache->free_scratch = cache->holders + n_lines;
    for (uint32_t i = 0; i < n_scratch; i++)
        cache->free_scratch[i] = n_scratch - 1 - i; /* the first one is on top */
}

/* The first line of a row's set. Rows at any distance spread over all sets. */
static uint32_t row_cache_first_line(const bth_row_cache *cache, uint64_t tag)
{
    uint64_t hash = (tag ^ tag >> 29) * UINT64_C(0xBF58476D1CE4E5B9);

    hash = (hash ^ hash >> 32) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((hash >> 32) * cache->n_sets >> 32) * cache->ways;
}

static uint64_t row_hold_tag(const bth_row_hold *hold, size_t i)
{
    return (uint64_t)hold->table << BTH_ROWS_ROW_BITS | bth_row_list_row(hold->list, i);
}

void bth_row_cache_hold_rows(bth_row_cache *cache, const bth_row_hold *hold, uint32_t *slots,
                             uint32_t *missing, bth_row_result *result)
{
    const size_t n = hold->list->n_rows;
    uint64_t stamp = hold->stamp ? hold->stamp : cache->stamp + 1;

    *result = (bth_row_result){0};
    /* Holds the present rows, and lists the others. */
    for (size_t i = 0; i < n; i++) {
        if (n - i > AHEAD_ROWS)
            __builtin_prefetch(cache->tags +
                               row_cache_first_line(cache, row_hold_tag(hold, i + AHEAD_ROWS)));
        uint64_t tag = row_hold_tag(hold, i);
        uint32_t line = row_cache_first_line(cache, tag), behind = line + cache->ways;
        while (line < behind && cache->tags[line] != tag)
            line++;
        if (line < behind) {
            slots[i] = line;
            result->n_awaited += (cache->holders[line]++ & FILLING) != 0;
        } else {
            slots[i] = BTH_ROWS_NO_SLOT;
            missing[result->n_missing++] = (uint32_t)i;
        }
    }
    /* A slot for each missing row. Lines keep their old rows for now, because a failure releases
     * all slots again. None of these old rows is requested. */
    for (size_t k = 0; k < result->n_missing; k++) {
        uint32_t i = missing[k];
        uint32_t first = row_cache_first_line(cache, row_hold_tag(hold, i));
        uint32_t victim = BTH_ROWS_NO_SLOT;
        /* The least recently used line that is older and not held; empty lines first. */
        uint64_t oldest = stamp;
        for (uint32_t line = first; line < first + cache->ways; line++)
            if (cache->holders[line] == 0 && cache->stamps[line] < oldest) {
                oldest = cache->stamps[line];
                victim = line;
            }
        if (victim != BTH_ROWS_NO_SLOT) {
            cache->holders[victim] = 1;
            slots[i] = victim;
        } else if (hold->may_stream) {
            result->n_streamed++;
        } else if (cache->n_free_scratch > 0) {
            slots[i] = cache->n_lines + cache->free_scratch[--cache->n_free_scratch];
            result->n_conflicts++;
        } else {
            result->n_short++;
        }
    }
    if (result->n_short > 0) {
        bth_row_cache_release_slots(cache, slots, n);
        return;
    }
    /* From now on other requests find the rows. */
    if (!hold->stamp)
        cache->stamp = stamp;
    for (size_t i = 0; i < n; i++)
        if (slots[i] < cache->n_lines && cache->stamps[slots[i]] < stamp)
            cache->stamps[slots[i]] = stamp;
    for (size_t k = 0; k < result->n_missing; k++) {
        uint32_t line = slots[missing[k]];
        if (line >= cache->n_lines)
            continue;
        result->n_evicted += cache->tags[line] != 0;
        cache->tags[line] = row_hold_tag(hold, missing[k]);
        cache->holders[line] |= FILLING;
    }
}

void bth_row_cache_release_slots(bth_row_cache *cache, const uint32_t *slots, size_t n)
{
    for (size_t i = n; i-- > 0;) { /* keeps the order of the scratch */
        if (slots[i] == BTH_ROWS_NO_SLOT)
            continue;
        if (slots[i] < cache->n_lines)
            cache->holders[slots[i]]--;
        else
            cache->free_scratch[cache->n_free_scratch++] = slots[i] - cache->n_lines;
    }
}

void bth_row_cache_finish_slot(bth_row_cache *cache, uint32_t slot, bool is_good)
{
    if (slot >= cache->n_lines)
        return;
    cache->holders[slot] &= ~FILLING;
    if (!is_good)
        cache->tags[slot] = cache->stamps[slot] = 0;
}

bool bth_row_cache_slot_is_filling(const bth_row_cache *cache, uint32_t slot)
{
    return slot < cache->n_lines && cache->holders[slot] & FILLING;
}

bool bth_row_cache_slot_is_lost(const bth_row_cache *cache, uint32_t slot)
{
    return slot < cache->n_lines && cache->tags[slot] == 0;
}
