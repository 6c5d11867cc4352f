/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The slot of each row. Pure: the caller has the bytes, and locks around each call.
 *
 * The hash of a row selects its set of lines. The row is in one line of that set. If live requests
 * hold all lines of the set, it is in the scratch. A slot is the number of a line or, from n_lines
 * on, of a part of the scratch. A live request holds the slots of its rows; they are not evicted.
 */
#ifndef BTH_LOAD_ROWS_ROWS_CACHE_H
#define BTH_LOAD_ROWS_ROWS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "load/rows/rows_plan.h"

/* A row and its table share one word. */
#define BTH_ROWS_ROW_BITS 48
#define BTH_ROWS_TABLES_MAX 65535
#define BTH_ROWS_WAYS_MAX 64
#define BTH_ROWS_SLOTS_MAX INT32_MAX
/* A row that streams past the cache. */
#define BTH_ROWS_NO_SLOT UINT32_MAX

typedef struct bth_row_cache {
    uint64_t *tags;         /* of each line: table and row; 0: none */
    uint64_t *stamps;       /* of each line: the last request that used it */
    uint32_t *holders;      /* of each line: how many requests hold it; one bit: it is being read */
    uint32_t *free_scratch; /* a stack of n_free_scratch */
    uint32_t ways, n_sets, n_lines;
    uint32_t n_scratch, n_free_scratch;
    uint64_t stamp;
} bth_row_cache;

/* Bytes of notes for a line, and for a part of the scratch. */
#define BTH_ROWS_LINE_NOTES (2 * sizeof(uint64_t) + sizeof(uint32_t))
#define BTH_ROWS_SCRATCH_NOTES sizeof(uint32_t)

/*
 * Makes an empty cache of n_sets x ways lines and n_scratch parts of scratch; together at most
 * BTH_ROWS_SLOTS_MAX. notes: n_lines x BTH_ROWS_LINE_NOTES + n_scratch x BTH_ROWS_SCRATCH_NOTES
 * bytes, aligned to 8.
 */
void bth_row_cache_initialize(bth_row_cache *cache, uint32_t n_sets, uint32_t ways,
                              uint32_t n_scratch, void *notes);

/* Rows that a request wants to hold. */
typedef struct bth_row_hold {
    uint32_t table; /* 1 to BTH_ROWS_TABLES_MAX */
    const bth_row_list *list;
    uint64_t stamp;  /* of the request; 0: a new one. It evicts only rows with older stamps */
    bool may_stream; /* rows without a line get no slot, else one of the scratch */
} bth_row_hold;

/* The result of bth_row_cache_hold_rows. */
typedef struct bth_row_result {
    size_t n_missing;   /* to be read */
    size_t n_conflicts; /* of these: in the scratch */
    size_t n_streamed;  /* of these: without a slot */
    size_t n_awaited;   /* being read for others */
    size_t n_evicted;
    size_t n_short; /* without a slot: if not 0, nothing changed */
} bth_row_result;

/*
 * Holds slots for the rows of a list, all or none. missing[0 … n_missing), ascending, are the rows
 * to be read. Other requests find those with a line now, and await them until
 * bth_row_cache_finish_slot.
 */
void bth_row_cache_hold_rows(bth_row_cache *cache, const bth_row_hold *hold, uint32_t *slots,
                             uint32_t *missing, bth_row_result *result);
/* The request no longer holds the slots. */
void bth_row_cache_release_slots(bth_row_cache *cache, const uint32_t *slots, size_t n);

/*
 * Reports that a missing row was read into its slot (is_good), or could not be read. Then no
 * request finds it there any more, and it is lost for requests that await it.
 */
void bth_row_cache_finish_slot(bth_row_cache *cache, uint32_t slot, bool is_good);
/* For slots that are held. */
bool bth_row_cache_slot_is_filling(const bth_row_cache *cache, uint32_t slot);
bool bth_row_cache_slot_is_lost(const bth_row_cache *cache, uint32_t slot);

#endif
