/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/rows/rows_cache.h"

#include <string.h>

#define NONE UINT32_MAX
#define FILLING (UINT32_C(1) << 31)
/* How many rows ahead their sets' tags are asked for: several misses of a processor's cache at a
 * time. */
#define AHEAD 8

void bth_row_cache_begin(bth_row_cache *cache, uint32_t n_sets, uint32_t ways, uint32_t n_slots,
                         void *notes)
{
    size_t n_lines = (size_t)n_sets * ways;

    memset(notes, 0, n_lines * BTH_ROWS_LINE_NOTES);
    *cache = (bth_row_cache){.ways = ways,
                             .n_sets = n_sets,
                             .n_lines = (uint32_t)n_lines,
                             .n_slots = n_slots,
                             .n_free_slots = n_slots};
    cache->tags = notes;
    cache->stamps = cache->tags + n_lines;
    cache->holders = (uint32_t *)(void *)(cache->stamps + n_lines);
    cache->slots = cache->holders + n_lines;
    for (uint32_t i = 0; i < n_slots; i++)
        cache->slots[i] = n_slots - 1 - i; /* the first comes off the stack first */
}

static uint64_t tag_of(uint32_t table, uint64_t row)
{
    return (uint64_t)table << BTH_ROWS_ROW_BITS | row;
}

/* The first line of a row's set. Neighbours, and rows at any distance, spread over all sets. */
static uint32_t set_of(const bth_row_cache *cache, uint64_t tag)
{
    uint64_t hash = (tag ^ tag >> 29) * UINT64_C(0xBF58476D1CE4E5B9);

    hash = (hash ^ hash >> 32) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((hash >> 32) * cache->n_sets >> 32) * cache->ways;
}

static uint32_t find(const bth_row_cache *cache, uint64_t tag)
{
    uint32_t first = set_of(cache, tag);

    for (uint32_t line = first; line < first + cache->ways; line++)
        if (cache->tags[line] == tag)
            return line;
    return NONE;
}

/* The line of a set that nobody holds and that was touched longest ago; an empty one first. */
static uint32_t find_victim(const bth_row_cache *cache, uint32_t first)
{
    uint64_t oldest = UINT64_MAX;
    uint32_t victim = NONE;

    for (uint32_t line = first; line < first + cache->ways; line++)
        if (cache->holders[line] == 0 && cache->stamps[line] < oldest) {
            oldest = cache->stamps[line];
            victim = line;
        }
    return victim;
}

/* Holds the rows that are there, and lists the others. */
static void take_present(bth_row_cache *cache, uint32_t table, const uint64_t *rows, size_t n,
                         uint32_t *places, uint32_t *missing, bth_row_taken *taken)
{
    for (size_t i = 0; i < n; i++) {
        if (n - i > AHEAD)
            __builtin_prefetch(cache->tags + set_of(cache, tag_of(table, rows[i + AHEAD])));
        uint32_t line = find(cache, tag_of(table, rows[i]));
        places[i] = line;
        if (line == NONE) {
            missing[taken->n_missing++] = (uint32_t)i;
            continue;
        }
        if (cache->holders[line]++ & FILLING) {
            places[i] |= BTH_ROWS_AWAITED;
            taken->n_awaited++;
        }
    }
}

/*
 * Holds a line or a slot for each row that is missing. Lines keep their rows for now: none of them
 * is one that was asked for, and it may be that all is given back.
 */
static void take_places(bth_row_cache *cache, uint32_t table, const uint64_t *rows,
                        uint32_t *places, const uint32_t *missing, bth_row_taken *taken)
{
    for (size_t k = 0; k < taken->n_missing; k++) {
        uint32_t i = missing[k];
        uint32_t line = find_victim(cache, set_of(cache, tag_of(table, rows[i])));
        if (line != NONE) {
            cache->holders[line] = 1;
            places[i] = line;
        } else if (cache->n_free_slots > 0) {
            places[i] = cache->n_lines + cache->slots[--cache->n_free_slots];
            taken->n_conflicts++;
        } else {
            taken->n_short++;
        }
    }
}

/* From here on the rows are found. */
static void settle(bth_row_cache *cache, uint32_t table, const uint64_t *rows, size_t n,
                   const uint32_t *places, const uint32_t *missing, bth_row_taken *taken)
{
    cache->stamp++;
    for (size_t i = 0; i < n; i++) {
        uint32_t place = places[i] & ~BTH_ROWS_AWAITED;
        if (place < cache->n_lines)
            cache->stamps[place] = cache->stamp;
    }
    for (size_t k = 0; k < taken->n_missing; k++) {
        uint32_t line = places[missing[k]];
        if (line >= cache->n_lines)
            continue;
        taken->n_evicted += cache->tags[line] != 0;
        cache->tags[line] = tag_of(table, rows[missing[k]]);
        cache->holders[line] |= FILLING;
    }
}

void bth_row_cache_take(bth_row_cache *cache, uint32_t table, const uint64_t *rows, size_t n,
                        uint32_t *places, uint32_t *missing, bth_row_taken *taken)
{
    *taken = (bth_row_taken){0};
    take_present(cache, table, rows, n, places, missing, taken);
    take_places(cache, table, rows, places, missing, taken);
    if (taken->n_short > 0)
        bth_row_cache_give(cache, places, n);
    else
        settle(cache, table, rows, n, places, missing, taken);
}

void bth_row_cache_give(bth_row_cache *cache, const uint32_t *places, size_t n)
{
    for (size_t i = n; i-- > 0;) { /* slots in the order that they had */
        uint32_t place = places[i] & ~BTH_ROWS_AWAITED;
        if (places[i] == NONE)
            continue;
        if (place < cache->n_lines)
            cache->holders[place]--;
        else
            cache->slots[cache->n_free_slots++] = place - cache->n_lines;
    }
}

void bth_row_cache_filled(bth_row_cache *cache, uint32_t place)
{
    if (place < cache->n_lines)
        cache->holders[place] &= ~FILLING;
}

void bth_row_cache_lost(bth_row_cache *cache, uint32_t place)
{
    if (place >= cache->n_lines)
        return;
    cache->holders[place] &= ~FILLING;
    cache->tags[place] = 0;
    cache->stamps[place] = 0;
}

bool bth_row_cache_is_filling(const bth_row_cache *cache, uint32_t place)
{
    return place < cache->n_lines && cache->holders[place] & FILLING;
}

bool bth_row_cache_is_lost(const bth_row_cache *cache, uint32_t place)
{
    return place < cache->n_lines && cache->tags[place] == 0;
}
