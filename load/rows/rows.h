/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Private to load/rows/. rows_cache.c knows the slot of each row, rows_plan.c the reads of a
 * request; both are pure. The other files have the bytes, the tickets and the threads.
 */
#ifndef BTH_LOAD_ROWS_ROWS_H
#define BTH_LOAD_ROWS_ROWS_H

#include <pthread.h>

#include "base/lock.h"
#include "berth/rows.h"
#include "io/memory_region.h"
#include "io/trace/trace.h"
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

/* A live request; or a part of a gather, whose rows are copied to its output. */
typedef struct bth_row_ticket {
    struct bth_row_ticket *next; /* in the queue */
    berth_ticket number;
    uint32_t table_number;
    bth_row_table table;
    bth_row_list list;
    uint32_t *slots;   /* for each row of the list: its slot */
    uint32_t *missing; /* indices of the rows that this ticket reads */
    size_t n_missing;
    uint8_t *output;        /* where the row of position 0 goes; NULL: not part of a gather */
    uint64_t stride_nbytes; /* from one position of the output to the next */
    uint64_t stamp;         /* of the gather, in the cache */

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
    bool is_count_given;   /* io.threads: then the disk does not matter */
    int64_t trace;         /* the option */
    pthread_t *threads;
    unsigned n_threads;
    bth_region memory; /* lines, slots, buffers, notes */

    bth_lock lock;       /* of all fields below; only in the process that has the threads (X11) */
    pthread_cond_t work; /* wakes threads: there is work, or a free buffer */
    pthread_cond_t done; /* wakes waiting calls: a task has ended */
    bool stop;
    bool is_waiting;            /* the last task waited for its bytes */
    unsigned max_waiting_tasks; /* n_readers; 1 if a table is on a disk that rotates */
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

/* ---- rows_ticket.c ---- */

/* Fails with the sentence for the id at `position` of `request` ("the request"), which is no row.
 */
int bth_row_table_fail_id(const bth_row_table *table, int64_t id, size_t position,
                          const char *request, berth_error *error);

/* Call these under the lock. */

/* Copies the table of this number, because the list of tables can move. */
int bth_rows_find_table(const berth_rows *rows, size_t number, bth_row_table *table,
                        berth_error *error);
/*
 * Holds slots for all rows of a ticket, and queues those to be read; or changes nothing. *n_short:
 * rows without a slot, never of a gather. The lists stay where they are until it is removed.
 */
int bth_rows_admit_ticket(berth_rows *rows, bth_row_ticket *ticket, size_t *n_short,
                          berth_error *error);
/* Releases it as soon as its reads have ended and no call waits for it. */
void bth_rows_remove_ticket_and_wait(berth_rows *rows, bth_row_ticket *ticket);

/* ---- rows_read.c ---- */

/* Copies row i of a ticket's list to each of its positions in the output. */
void bth_row_ticket_copy_to_output(const bth_row_ticket *ticket, size_t i, const uint8_t *row);

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
