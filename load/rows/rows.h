/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Private to load/rows/. rows_cache.c knows the slot of each row, rows_plan.c the reads of a
 * request; both are pure. The other files have the bytes, the tickets and the threads.
 */
#ifndef BTH_LOAD_ROWS_ROWS_H
#define BTH_LOAD_ROWS_ROWS_H

#include <pthread.h>

#include "config/lock.h"
#include "io/memory_region.h"
#include "load/checkpoint.h"
#include "load/rows/rows_cache.h"
#include "load/rows/rows_plan.h"

/* A tensor whose rows can be requested. */
typedef struct bth_row_table {
    berth_checkpoint *checkpoint;
    const berth_storage *storage;
    uint64_t offset; /* of row 0, in the storage */
    uint64_t row_nbytes;
    uint64_t n_rows;
} bth_row_table;

/* The parts of the memory. */
typedef struct bth_row_layout {
    uint64_t line_nbytes; /* of a line or scratch slot: the longest row, rounded up */
    uint32_t ways, n_sets, n_scratch;
    uint64_t buffer_nbytes; /* of each task, for reads of several rows */
} bth_row_layout;

/* A live request. The lists follow it in one block of memory. */
typedef struct bth_row_ticket {
    struct bth_row_ticket *next; /* in the queue */
    berth_ticket number;
    uint32_t table_number;
    bth_row_table table;
    size_t n_ids, n_rows, n_missing;
    uint64_t *rows;    /* the distinct ones, ascending */
    uint32_t *index;   /* for each id: the index of its row */
    uint32_t *slots;   /* for each row: its slot */
    uint32_t *missing; /* indices of the rows that this ticket reads */

    /* Under the lock: */
    size_t n_begun;    /* missing rows before this one were claimed by tasks */
    unsigned n_tasks;  /* running */
    size_t awaited_at; /* rows before this one are no longer awaited */
    unsigned n_users;  /* threads that wait for it */
    bool is_released;  /* its number is no longer valid */
    berth_error error; /* the first */
} bth_row_ticket;

struct berth_rows {
    berth_rows_limits limits;
    uint64_t chunk_nbytes; /* the longest read of several rows */
    unsigned n_readers;    /* the maximum of running tasks, each with its buffer */
    unsigned n_processors; /* the same while no read waits for a device */
    pthread_t *threads;
    unsigned n_threads;
    bth_region memory; /* lines, slots, buffers, notes */

    bth_lock lock;       /* of all fields below; only in the process that has the threads (X11) */
    pthread_cond_t work; /* wakes threads: there is work, or a free buffer */
    pthread_cond_t done; /* wakes waiting calls: a task has ended */
    bool stop;
    bool is_waiting; /* the last task waited for its bytes */
    bth_row_table *tables;
    uint32_t n_tables;
    bth_row_layout layout; /* of the tables so far */
    bth_row_cache cache;
    bth_row_ticket **tickets;     /* live ones, by the low bits of their numbers; or NULL */
    size_t n_tickets;             /* length of that list */
    uint64_t n_numbers;           /* tickets so far */
    bth_row_ticket *first, *last; /* the queue: tickets with unclaimed rows */
    unsigned *free_buffers;       /* a stack */
    unsigned n_free_buffers;
    berth_rows_stats stats;
};

/* The bytes of a slot. */
static inline uint8_t *bth_rows_slot_address(const berth_rows *rows, uint32_t slot)
{
    return rows->memory.bytes + slot * rows->layout.line_nbytes;
}

/* For messages: the tensor's name, or its storage's. Not under the lock: it may be slow. */
void bth_row_table_name(const bth_row_table *table, char *name, size_t name_nbytes);

/* Fails if the cache is NULL, or in a child, which does not have the threads (X11). */
int bth_rows_check(const berth_rows *rows, berth_error *error);

/* ---- rows_read.c ---- */

/* Starts n_readers threads. With 1 it starts none: then waiting calls read. */
int bth_rows_start(berth_rows *rows, berth_error *error);
/* Ends them. Rows that no task has claimed are not read. */
void bth_rows_stop(berth_rows *rows);

/* Call these under the lock. They release it while they read or wait. */

/* Queues the missing rows of a ticket for reading. */
void bth_rows_enqueue(berth_rows *rows, bth_row_ticket *ticket);
/* Helps to read. Returns when all rows of the ticket are read or failed. */
void bth_rows_read_and_wait_for_ticket(berth_rows *rows, bth_row_ticket *ticket);

#endif
