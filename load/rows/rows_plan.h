/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows that a request needs, and the reads for them. Pure arithmetic on lists. */
#ifndef BTH_LOAD_ROWS_ROWS_PLAN_H
#define BTH_LOAD_ROWS_ROWS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The index of the first id that is not a row of a table of n_rows; n: none. */
size_t bth_rows_find_bad_id(const int64_t *ids, size_t n, uint64_t n_rows);

/* Sorting needs a row and a position in one word: whether n_rows and n are small enough. */
bool bth_rows_are_sortable(size_t n, uint64_t n_rows);

/*
 * Finds the distinct rows of the ids, ascending: rows[0 … result). rows[index[i]] is ids[i]. The
 * ids are rows of the table and sortable, and n < 2^32. `rows` and `spare` have room for n words;
 * `index` may begin at the same address as `spare`.
 */
size_t bth_rows_find_distinct(const int64_t *ids, size_t n, uint64_t n_rows, uint64_t *rows,
                              uint64_t *spare, uint32_t *index);

/* Limits of one read. */
typedef struct bth_rows_reads {
    uint64_t row_nbytes;
    uint64_t gap_nbytes; /* the largest gap between two requested rows */
    uint64_t max_nbytes; /* the longest read of several rows */
} bth_rows_reads;

/* The number of rows for one read, beginning with rows[which[0]]: 1 to n. They are ascending. */
size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const uint64_t *rows,
                                   const uint32_t *which, size_t n);

#endif
