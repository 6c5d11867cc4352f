/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which rows a request needs, and which reads bring them: arithmetic on lists, no file, no thread.
 */
#ifndef BTH_LOAD_ROWS_ROWS_PLAN_H
#define BTH_LOAD_ROWS_ROWS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first of the ids that is no row of a table of n_rows, or n. */
size_t bth_rows_first_bad(const int64_t *ids, size_t n, uint64_t n_rows);

/* Whether a row of n_rows and a position of n fit one word together: what sorting needs. */
bool bth_rows_are_sortable(size_t n, uint64_t n_rows);

/*
 * The distinct rows of the ids, ascending: rows[0 … result). index[i], i < n, tells which of them
 * ids[i] is. `rows` and `spare` have room for n words, and `index` may begin where `spare` does.
 * The ids are rows of the table, n < 2^32, and sortable.
 */
size_t bth_rows_unique(const int64_t *ids, size_t n, uint64_t n_rows, uint64_t *rows,
                       uint64_t *spare, uint32_t *index);

/* What one read may bring. */
typedef struct bth_rows_reads {
    uint64_t row_nbytes;
    uint64_t gap_nbytes;  /* of rows not asked for, between two that are */
    uint64_t most_nbytes; /* of a read of more than one row */
} bth_rows_reads;

/* How many of the rows rows[which[0 … n)], ascending, one read brings, from the first on: 1 or
 * more. */
size_t bth_rows_merge(const bth_rows_reads *reads, const uint64_t *rows, const uint32_t *which,
                      size_t n);

#endif
