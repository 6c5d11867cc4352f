/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows that a request needs, and the reads for them. Pure arithmetic on lists. */
#ifndef BTH_LOAD_ROWS_ROWS_PLAN_H
#define BTH_LOAD_ROWS_ROWS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An id that stands for no row, in requests that allow it. */
#define BTH_ROWS_PRUNED (-1)

/* The ids of a request, as the caller has them. */
typedef struct bth_row_ids {
    const void *items; /* int64_t, or int32_t */
    size_t n;
    bool are_32_bit;
    bool may_be_pruned;
} bth_row_ids;

static inline int64_t bth_row_ids_get(const bth_row_ids *ids, size_t i)
{
    return ids->are_32_bit ? ((const int32_t *)ids->items)[i] : ((const int64_t *)ids->items)[i];
}

/* The index of the first id that is not a row of a table of n_rows; ids->n: none. */
size_t bth_rows_find_bad_id(const bth_row_ids *ids, uint64_t n_rows);

/* The maximum of ids whose positions and rows fit into the keys of one list: 65,536 or more. */
size_t bth_rows_max_list_ids(uint64_t n_rows);

/*
 * Distinct rows, and the positions in a request at which each is wanted. A key is the row and, in
 * its low bits, the first of the row's positions in `order`; they end where the next row's begin.
 */
typedef struct bth_row_list {
    uint64_t *keys;  /* of n_rows, ascending */
    uint32_t *order; /* positions, by row; of one row: ascending */
    unsigned start_bits;
    size_t n_rows;
    size_t n_order; /* where the last row's positions end */
} bth_row_list;

static inline uint64_t bth_row_list_row(const bth_row_list *list, size_t i)
{
    return list->keys[i] >> list->start_bits;
}

/* Where the positions of row i begin; i = n_rows: where they end. */
static inline size_t bth_row_list_start(const bth_row_list *list, size_t i)
{
    return i < list->n_rows ? (size_t)(list->keys[i] & ((UINT64_C(1) << list->start_bits) - 1))
                            : list->n_order;
}

/* The ids that a list takes. */
typedef struct bth_row_selection {
    uint64_t first_row, end_row;
    size_t first_id; /* bth_row_list_fill sets it to the first id that it has not seen */
} bth_row_selection;

/*
 * Fills a list with at most max_ids of the selected ids: distinct rows, ascending. The ids are rows
 * of the table, and at most bth_rows_max_list_ids. list->keys and `spare` have room for max_ids
 * words; list->order may begin at the same address as `spare`.
 */
void bth_row_list_fill(bth_row_list *list, const bth_row_ids *ids, bth_row_selection *selection,
                       size_t max_ids, uint64_t *spare);

/* Limits of one read. */
typedef struct bth_rows_reads {
    uint64_t row_nbytes;
    uint64_t gap_nbytes; /* the largest gap between two requested rows */
    uint64_t max_nbytes; /* the longest read of several rows */
} bth_rows_reads;

/* The number of rows for one read, beginning with row which[0] of the list: 1 to n. */
size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const bth_row_list *list,
                                   const uint32_t *which, size_t n);

#endif
