/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rows a request needs, and which reads get them. Pure arithmetic on lists. */
#ifndef BTH_LOAD_ROWS_ROWS_PLAN_H
#define BTH_LOAD_ROWS_ROWS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first id that is no row of a table of n_rows; n: there is none. */
size_t bth_rows_first_bad(const int64_t *ids, size_t n, uint64_t n_rows);

/* Whether a row of n_rows and a position of n fit one word together, which sorting needs. */
bool bth_rows_are_sortable(size_t n, uint64_t n_rows);

/*
 * Finds the distinct rows of the ids, ascending: rows[0 … result). index[i], i < n, says which of
 * them ids[i] is. The ids are rows of the table and sortable, and n < 2^32. `rows` and `spare` have
 * room for n words; `index` may begin where `spare` does.
 */
size_t bth_rows_unique(const int64_t *ids, size_t n, uint64_t n_rows, uint64_t *rows,
                       uint64_t *spare, uint32_t *index);

/* What one read may get. */
typedef struct bth_rows_reads {
    uint64_t row_nbytes;
    uint64_t gap_nbytes; /* at most, of other rows between two requested ones */
    uint64_t max_nbytes; /* of a read of more than one row */
} bth_rows_reads;

/* How many of the rows rows[which[0 … n)], ascending, one read gets, from the first on: at least 1.
 */
size_t bth_rows_merge(const bth_rows_reads *reads, const uint64_t *rows, const uint32_t *which,
                      size_t n);

#endif
