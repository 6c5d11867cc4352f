/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The row cache in its rooms: rows_cache.c knows which row lies where, rows_plan.c what a request
 * reads; here are their bytes, the tickets of live requests, and the threads that read.
 */
#ifndef BTH_LOAD_ROWS_ROWS_H
#define BTH_LOAD_ROWS_ROWS_H

#include <pthread.h>

#include "config/lock.h"
#include "io/region.h"
#include "load/checkpoint.h"
#include "load/rows/rows_cache.h"
#include "load/rows/rows_plan.h"

/* A tensor that rows are asked of. */
typedef struct bth_row_table {
    berth_checkpoint *checkpoint;
    const berth_storage *storage;
    uint64_t offset; /* of row 0, in the storage */
    uint64_t row_nbytes;
    uint64_t n_rows;
} bth_row_table;

/* What a line's memory is divided into. */
typedef struct bth_row_layout {
    uint64_t line_nbytes; /* of a line, and of a slot: the longest row, and up to its alignment */
    uint32_t ways, n_sets, n_slots;
    uint64_t buffer_nbytes; /* of each reader: what rows are read to that were merged */
} bth_row_layout;

/* A live request. One block, with its lists behind it. */
typedef struct bth_row_ticket {
    struct bth_row_ticket *next; /* in the queue */
    berth_ticket number;
    uint32_t table_number;
    bth_row_table table;
    size_t n_ids, n_rows, n_missing;
    uint64_t *rows;    /* distinct ones, ascending */
    uint32_t *index;   /* of each id among them */
    uint32_t *places;  /* of each of them */
    uint32_t *missing; /* which of them are read for this ticket */

    /* Under the lock: */
    size_t n_begun;    /* of the missing: in order, tasks have them, or had */
    unsigned n_tasks;  /* under way */
    size_t awaited_at; /* places before it are not awaited any more */
    unsigned n_users;  /* threads that wait for it */
    bool is_released;  /* nobody finds it any more */
    berth_error error; /* the first */
} bth_row_ticket;

struct berth_rows {
    berth_rows_limits limits;
    uint64_t chunk_nbytes; /* most of one read of merged rows */
    unsigned n_readers;    /* tasks under way at most, each with its buffer */
    unsigned n_processors; /* the same while no read waits for a device */
    pthread_t *threads;
    unsigned n_threads;
    bth_region memory; /* lines, slots, buffers, notes */

    bth_lock lock;       /* of all that follows; only in the process that has the threads (X11) */
    pthread_cond_t work; /* for threads: the queue or a buffer has come */
    pthread_cond_t done; /* for who waits: a task has ended */
    bool stop;
    bool is_waiting; /* the last task has waited for its bytes */
    bth_row_table *tables;
    uint32_t n_tables;
    bth_row_layout layout; /* of the tables so far */
    bth_row_cache cache;
    bth_row_ticket **tickets;     /* live ones, at the low bits of their numbers; or NULL */
    size_t n_places;              /* of them */
    uint64_t n_numbers;           /* given so far */
    bth_row_ticket *first, *last; /* the queue: rows to be read that no task has */
    unsigned *free_buffers;       /* a stack */
    unsigned n_free_buffers;
    berth_rows_stats stats;
};

/* Where a place's bytes are. */
static inline uint8_t *bth_row_at(const berth_rows *rows, uint32_t place)
{
    return rows->memory.bytes + (place & ~BTH_ROWS_AWAITED) * rows->layout.line_nbytes;
}

/* For messages: the tensor's name, or its storage's. Not under the lock: it may take its time. */
void bth_row_table_name(const bth_row_table *table, char *name, size_t name_nbytes);

/* X11: an error in a child, which has no threads of it. */
int bth_rows_check(const berth_rows *rows, berth_error *error);

/* ---- rows_read.c ---- */

/* Starts the threads: n_readers, or none where that is one: then who waits reads. */
int bth_rows_start(berth_rows *rows, berth_error *error);
/* Ends them; what no task has is not read any more. */
void bth_rows_stop(berth_rows *rows);

/* All under the lock, which they let go of while they read or wait. */

/* Lets the missing rows of a ticket be read. */
void bth_rows_enqueue(berth_rows *rows, bth_row_ticket *ticket);
/* Helps to read, and waits, until all of the ticket's rows are there, or lost. */
void bth_rows_complete(berth_rows *rows, bth_row_ticket *ticket);

#endif
