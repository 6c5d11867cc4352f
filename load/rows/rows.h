/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Private to load/rows/. Lists of rows, and the slots of rows in the cache, are pure arithmetic:
 * the caller has the bytes, and locks. The tickets and the threads come after them.
 */
#ifndef BTH_LOAD_ROWS_ROWS_H
#define BTH_LOAD_ROWS_ROWS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/trace.h"
#include "berth/rows.h"
#include "io/memory_region.h"
#include "load/checkpoint.h"

/* ---- rows_read.c: the rows that a request needs, and the reads for them ---- */

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

/* Distinct rows, and the positions in a request at which each is wanted. A key is the row and, in
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

/* Fills a list with at most max_ids of the selected ids, which are rows of the table, and at most
 * bth_rows_max_list_ids. list->keys and `spare` have room for max_ids words; list->order may begin
 * at the same address as `spare`. */
void bth_row_list_fill(bth_row_list *list, const bth_row_ids *ids, bth_row_selection *selection,
                       size_t max_ids, uint64_t *spare);

typedef struct bth_rows_reads {
    uint64_t row_nbytes;
    uint64_t gap_nbytes; /* the largest gap between two requested rows */
    uint64_t max_nbytes; /* the longest read of several rows */
} bth_rows_reads;

/* The number of rows for one read, beginning with row which[0] of the list: 1 to n. */
size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const bth_row_list *list,
                                   const uint32_t *which, size_t n);

/* ---- rows_cache.c: the slot of each row ---- */

/* The hash of a row selects its set of lines. The row is in one of them or, if live requests hold
 * all of them, in the scratch. A slot is the number of a line or, from n_lines on, of a part of the
 * scratch. A live request holds the slots of its rows; they are not evicted. */

/* A row and its table share one word. */
#define BTH_ROWS_ROW_BITS 48
#define BTH_ROWS_TABLES_MAX 65535
#define BTH_ROWS_WAYS_MAX 64
#define BTH_ROWS_SLOTS_MAX INT32_MAX
/* A row that streams past the cache. */
#define BTH_ROWS_NO_SLOT UINT32_MAX

typedef struct bth_row_cache {
    uint64_t *tags;         /* of each line: table and row; 0: none */
    uint64_t *stamps;       /* of each line: the last request that used it */
    uint32_t *holders;      /* of each line: how many requests hold it; one bit: it is being read */
    uint32_t *free_scratch; /* a stack of n_free_scratch */
    uint32_t ways, n_sets, n_lines;
    uint32_t n_scratch, n_free_scratch;
    uint64_t stamp;
} bth_row_cache;

/* Bytes of notes for a line, and for a part of the scratch. */
#define BTH_ROWS_LINE_NOTES (2 * sizeof(uint64_t) + sizeof(uint32_t))
#define BTH_ROWS_SCRATCH_NOTES sizeof(uint32_t)

/* Makes an empty cache of n_sets x ways lines and n_scratch parts of scratch; together at most
 * BTH_ROWS_SLOTS_MAX. The notes of all of them are at `notes`, aligned to 8. */
void bth_row_cache_initialize(bth_row_cache *cache, uint32_t n_sets, uint32_t ways,
                              uint32_t n_scratch, void *notes);

/* Rows that a request wants to hold. */
typedef struct bth_row_hold {
    uint32_t table; /* 1 to BTH_ROWS_TABLES_MAX */
    const bth_row_list *list;
    uint64_t stamp;  /* of the request; 0: a new one. It evicts only rows with older stamps */
    bool may_stream; /* rows without a line get no slot, else one of the scratch */
} bth_row_hold;

typedef struct bth_row_result {
    size_t n_missing;   /* to be read */
    size_t n_conflicts; /* of these: in the scratch */
    size_t n_streamed;  /* of these: without a slot */
    size_t n_awaited;   /* being read for others */
    size_t n_evicted;
    size_t n_short; /* without a slot: if not 0, nothing changed */
} bth_row_result;

/* Holds slots for the rows of a list, all or none. missing[0 … n_missing), ascending, are the rows
 * to be read. Other requests find those with a line now, and await them until they are finished. */
void bth_row_cache_hold_rows(bth_row_cache *cache, const bth_row_hold *hold, uint32_t *slots,
                             uint32_t *missing, bth_row_result *result);
void bth_row_cache_release_slots(bth_row_cache *cache, const uint32_t *slots, size_t n);
/* A missing row was read into its slot (is_good), or could not be read. Then no request finds it
 * there any more, and it is lost for requests that await it. */
void bth_row_cache_finish_slot(bth_row_cache *cache, uint32_t slot, bool is_good);
/* For slots that are held. */
bool bth_row_cache_slot_is_filling(const bth_row_cache *cache, uint32_t slot);
bool bth_row_cache_slot_is_lost(const bth_row_cache *cache, uint32_t slot);

/* ---- the cache as a whole ---- */

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

static inline uint8_t *bth_rows_slot_address(const berth_rows *rows, uint32_t slot)
{
    return rows->memory.bytes + slot * rows->layout.line_nbytes;
}

/* Fails if the cache is NULL, or in a child, which does not have the threads (X11). */
int bth_rows_check(const berth_rows *rows, berth_error *error);

/* ---- rows.c ---- */

/* Fails for the first id of `request` ("the request") that is no row of the table. */
int bth_row_table_check_ids(const bth_row_table *table, const bth_row_ids *ids, const char *request,
                            berth_error *error);

/* Copies the table of this number, because the list of tables can move. */
int bth_rows_find_table(berth_rows *rows, size_t number, bth_row_table *table, berth_error *error);

/* Call these under the lock. */

/* Holds slots for all rows of a ticket, and queues those to be read; or changes nothing. *n_short:
 * rows without a slot, never of a gather. The lists stay where they are until it is removed. */
int bth_rows_admit_ticket(berth_rows *rows, bth_row_ticket *ticket, size_t *n_short,
                          berth_error *error);
/* Releases it as soon as its reads have ended and no call waits for it. */
void bth_rows_remove_ticket_and_wait(berth_rows *rows, bth_row_ticket *ticket);

/* ---- rows_read.c: tasks ---- */

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

/* ---- rows_gather.c ---- */

/* A gather divides its ids into passes, so that its lists fit the memory: each takes the ids of a
 * range of rows. So a row is read in one pass, and neighbours are read together. Pure arithmetic.
 */

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
/* Selects the ids of the next pass: rows with about pass_ids ids, and with more than list_ids only
 * if one range has more. Then the list is filled several times. False: there are no more rows. */
bool bth_row_buckets_select_next(bth_row_buckets *buckets, const bth_row_passes *passes,
                                 bth_row_selection *selection);

#endif
