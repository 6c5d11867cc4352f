/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which row lies where: sets of lines, who holds them, and since when. Pure: the bytes of lines are
 * somebody else's, and so is the lock around all this.
 *
 * A row belongs to one set, by its hash, and lies in one of the set's lines. A place is a line's
 * number or, from n_lines on, a slot's of the scratch: there go rows whose set is full of lines
 * that are held. Every live request holds the places of its rows; what is held is not evicted.
 */
#ifndef BTH_LOAD_ROWS_ROWS_CACHE_H
#define BTH_LOAD_ROWS_ROWS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows and tables share a word. */
#define BTH_ROWS_ROW_BITS 48
#define BTH_ROWS_MOST_TABLES 65535
#define BTH_ROWS_MOST_WAYS 64
#define BTH_ROWS_MOST_PLACES INT32_MAX
/* In a place that was taken: another request is reading the row. */
#define BTH_ROWS_AWAITED (UINT32_C(1) << 31)

typedef struct bth_row_cache {
    uint64_t *tags;    /* of each line: table and row, 0: none */
    uint64_t *stamps;  /* of each line: the last request that touched it */
    uint32_t *holders; /* of each line: how many requests hold it; with a bit: it is being read */
    uint32_t *slots;   /* those that are free: a stack of n_free_slots */
    uint32_t ways, n_sets, n_lines;
    uint32_t n_slots, n_free_slots;
    uint64_t stamp;
} bth_row_cache;

/* Bytes that are noted of a line, and of a slot. */
#define BTH_ROWS_LINE_NOTES (2 * sizeof(uint64_t) + sizeof(uint32_t))
#define BTH_ROWS_SLOT_NOTES sizeof(uint32_t)

/*
 * An empty cache of n_sets x ways lines and n_slots slots. `notes`: n_lines x BTH_ROWS_LINE_NOTES
 * + n_slots x BTH_ROWS_SLOT_NOTES bytes, aligned to 8. No more places than
 * BTH_ROWS_MOST_PLACES.
 */
void bth_row_cache_begin(bth_row_cache *cache, uint32_t n_sets, uint32_t ways, uint32_t n_slots,
                         void *notes);

/* What a request came to. */
typedef struct bth_row_taken {
    size_t n_missing;   /* to be read */
    size_t n_conflicts; /* of these, into slots */
    size_t n_awaited;   /* being read for others */
    size_t n_evicted;
    size_t n_short; /* found no place: then nothing was taken, and nothing changed */
} bth_row_taken;

/*
 * Takes places for n distinct rows of a table (0 < table <= BTH_ROWS_MOST_TABLES), all or none:
 * places[i], with BTH_ROWS_AWAITED where it applies, and which of them are to be read:
 * missing[0 … n_missing), ascending. Lines to be read have their row's tag at once, and whoever
 * asks for them until bth_row_cache_filled awaits them.
 */
void bth_row_cache_take(bth_row_cache *cache, uint32_t table, const uint64_t *rows, size_t n,
                        uint32_t *places, uint32_t *missing, bth_row_taken *taken);
/* Gives them back. */
void bth_row_cache_give(bth_row_cache *cache, const uint32_t *places, size_t n);

/* A missing row was read into its place. */
void bth_row_cache_filled(bth_row_cache *cache, uint32_t place);
/* It was not: nobody finds it there any more, whoever awaits it has lost it. */
void bth_row_cache_lost(bth_row_cache *cache, uint32_t place);
/* Of a place that is held. */
bool bth_row_cache_is_filling(const bth_row_cache *cache, uint32_t place);
bool bth_row_cache_is_lost(const bth_row_cache *cache, uint32_t place);

#endif
