/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a gather divides its ids into passes, so that its lists fit the memory. Pure arithmetic.
 *
 * Passes divide the rows, not the ids: each pass takes the ids of a range of rows. So a row is read
 * in one pass, however many passes there are, and neighbours are read together.
 */
#ifndef BTH_LOAD_ROWS_ROWS_PASSES_H
#define BTH_LOAD_ROWS_ROWS_PASSES_H

#include "load/rows/rows_plan.h"

/* Bytes of the lists of a pass, for one of its ids: those of a prefetch ticket have as many. */
#define BTH_ROWS_PASS_ID_NBYTES 20
/* Of these, bytes for an id in a list. So a pass has room for a quarter more than its share. */
#define BTH_ROWS_LIST_ID_NBYTES (2 * sizeof(uint64_t))

typedef struct bth_row_pass_limits {
    uint64_t n_passes; /* 0: as few as fit memory_nbytes */
    uint64_t min_pass_ids;
    uint64_t memory_nbytes; /* for lists */
} bth_row_pass_limits;

typedef struct bth_row_passes {
    uint64_t n_passes;
    uint64_t pass_ids; /* share of one pass */
    uint64_t list_ids; /* the most that it has room for */
    uint64_t nbytes;   /* of the lists */
} bth_row_passes;

/* The passes of a gather of n ids, which have at least one. */
void bth_row_passes_choose(bth_row_passes *passes, uint64_t n_ids,
                           const bth_row_pass_limits *limits);

#define BTH_ROWS_BUCKETS 4096

/* Divides the ids of one table: how many belong to each of 4096 ranges of rows. */
typedef struct bth_row_buckets {
    unsigned row_bits; /* a range has 2^row_bits rows */
    uint32_t next;     /* the first range of the next selection */
    uint32_t counts[BTH_ROWS_BUCKETS];
} bth_row_buckets;

/* Counts. The ids are rows of the table, at most bth_rows_max_list_ids. */
void bth_row_buckets_count(bth_row_buckets *buckets, const bth_row_ids *ids, uint64_t n_rows);
/*
 * Selects the ids of the next pass: rows with about pass_ids ids, and with more than list_ids only
 * if one range has more. Then the list is filled several times. False: there are no more rows.
 */
bool bth_row_buckets_select_next(bth_row_buckets *buckets, const bth_row_passes *passes,
                                 bth_row_selection *selection);

#endif
