/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A table in a file in memory, behind a source that counts, waits or fails, and a row cache that
 * reads from it.
 */
#ifndef TESTS_SUPPORT_ROWS_SCENE_H
#define TESTS_SUPPORT_ROWS_SCENE_H

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "config/options.h"
#include "load/rows/rows.h"
#include "tests/support/load/describe.h"
#include "tests/support/opened.h"

/* A table's element: row, then column. */
float table_element(int64_t row, int64_t column);

/* ---- a file in memory, behind a source that counts, waits or fails ---- */

struct source {
    uint8_t *bytes;
    size_t nbytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut; /* who reads waits */
    bool is_broken;
    bool is_slow;
    unsigned n_at_once, most_at_once;
    unsigned n_reads;
    uint64_t read_nbytes;
};
void set_shut(struct source *source, bool is_shut);

/* ---- one table, one cache ---- */

struct scene {
    struct source source;
    berth_checkpoint *checkpoint;
    berth_rows *rows;
    size_t table;
    int64_t n_columns;
};
void make_source(struct source *source, int64_t n_rows, int64_t n_columns, const char *options);
berth_checkpoint *open_source(struct source *source);
extern struct scene *scene; /* of a test: the last one that was begun */

void begin_rows_with(const berth_rows_limits *limits, int64_t n_rows, int64_t n_columns,
                     const char *saved_with, const char *options);
void begin_rows(unsigned ways, unsigned n_slots, const char *options);
void end_rows(void);
berth_ticket prefetch_rows(struct scene *of, const int64_t *ids, size_t n);
void expect_rows(struct scene *of, berth_ticket ticket, const int64_t *ids, size_t n);
void release_rows(struct scene *of, berth_ticket ticket);
void use_rows(struct scene *of, const int64_t *ids, size_t n);
berth_rows_stats rows_stats_of(struct scene *of);

#endif
