/* SPDX-License-Identifier: BSD-3-Clause */
/* What `berth bench rows` measures: batches of rows of one table, taken in one of several ways. */
#ifndef BERTH_TOOLS_BENCH_ROWS_H
#define BERTH_TOOLS_BENCH_ROWS_H

#include "tools/bench.h"

/* The table, and the rows that are asked for: n_batches times n_ids. */
typedef struct rows_subject {
    const char *path;
    berth_checkpoint *checkpoint;
    const berth_tensor *tensor;
    uint64_t offset; /* of its first row, in the file */
    int64_t n_rows;
    size_t row_nbytes;
    uint64_t cache_nbytes; /* allowed for rows */
    int64_t *ids;
    size_t n_ids, n_batches;
} rows_subject;

enum { ROWS_ASK, ROWS_WAIT, ROWS_USE, ROWS_N_PHASES };

typedef struct rows_round {
    double phases[ROWS_N_PHASES];
    uint64_t sum; /* of all bytes of all rows: the same whichever way they are taken */
    berth_rows_stats stats;
} rows_round;

/* One way to take all batches. 0, or an exit code after telling. */
typedef int (*rows_way)(const rows_subject *subject, const berth_params *call, rows_round *round);

/* The way of that name: cache, pread, map, random (a map that is told so); NULL: there is none. */
rows_way find_rows_way(const char *name);

#endif
