/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads missing rows: tasks of one queue, done by the threads and by calls that wait. */
#include <string.h>

#include "config/error.h"
#include "io/clock.h"
#include "io/pool.h"
#include "load/rows/rows.h"

/* Rows of one task: enough to be worth the lock, few enough to be shared among threads. Fewer while
 * reads wait for a device. */
#define TASK_ROWS_MAX 64
#define WAITING_ROWS_MAX 8
/* Reading a gap of so many bytes costs less than another request. */
#define GAP_NBYTES 4096
/* A read that takes longer waited for a device; others can wait at the same time. */
#define SLOW_SECONDS 20e-6

/* Missing rows [from, to) of a ticket, and what became of them. */
typedef struct row_task {
    bth_row_ticket *ticket;
    size_t from, to;
    size_t filled; /* those before it are read */
    unsigned buffer;
    uint64_t n_requests, n_merged, read_nbytes;
    uint64_t n_slow; /* of the requests: waited for a device */
    double seconds;  /* of the clock, at the last request's end */
    berth_error error;
} row_task;

/* ---- without the lock ---- */

static uint8_t *reader_buffer(const berth_rows *rows, unsigned number)
{
    return bth_row_at(rows, rows->cache.n_lines + rows->cache.n_scratch) +
           number * rows->layout.buffer_nbytes;
}

/* One read of `n` rows, from task->filled on. */
static int task_read_range(const berth_rows *rows, row_task *job, size_t n)
{
    const bth_row_ticket *ticket = job->ticket;
    const bth_row_table *table = &ticket->table;
    const uint32_t *which = ticket->missing + job->filled;
    uint64_t first = ticket->rows[which[0]];
    uint64_t nbytes = (ticket->rows[which[n - 1]] - first + 1) * table->row_nbytes;
    uint8_t *slot = bth_row_at(rows, ticket->slots[which[0]]);
    uint8_t *bytes = n == 1 ? slot : reader_buffer(rows, job->buffer);

    if (bth_storage_read(table->checkpoint, table->storage, bytes, nbytes,
                         table->offset + first * table->row_nbytes, &job->error) < 0)
        return bth_error_prefix(&job->error, table->checkpoint->source.reader.name);
    for (size_t k = 0; n > 1 && k < n; k++)
        memcpy(bth_row_at(rows, ticket->slots[which[k]]),
               bytes + (ticket->rows[which[k]] - first) * table->row_nbytes, table->row_nbytes);
    job->filled += n;
    job->n_requests++;
    job->n_merged += n > 1;
    job->read_nbytes += nbytes;
    double seconds = bth_seconds();
    job->n_slow += seconds - job->seconds > SLOW_SECONDS;
    job->seconds = seconds;
    return 0;
}

static void task_read(const berth_rows *rows, row_task *job)
{
    const bth_row_ticket *ticket = job->ticket;
    const bth_rows_reads reads = {.row_nbytes = ticket->table.row_nbytes,
                                  .gap_nbytes = GAP_NBYTES,
                                  .max_nbytes = rows->layout.buffer_nbytes};

    job->seconds = bth_seconds();
    while (job->filled < job->to &&
           task_read_range(rows, job,
                           bth_rows_merge(&reads, ticket->rows, ticket->missing + job->filled,
                                          job->to - job->filled)) == 0)
        continue;
}

/* ---- under the lock ---- */

static void queue_pop(berth_rows *rows)
{
    rows->first = rows->first->next;
    if (!rows->first)
        rows->last = NULL;
}

/*
 * If the bytes are in memory already, more threads than processors would only get in each other's
 * way. If reads wait for a device, the processors are free.
 */
static unsigned tasks_max(const berth_rows *rows)
{
    return rows->is_waiting ? rows->n_readers : rows->n_processors;
}

static bool task_may_begin(const berth_rows *rows)
{
    return rows->first && rows->n_readers - rows->n_free_buffers < tasks_max(rows);
}

/* Wakes one thread, which wakes the next if there is more to do. */
static void reader_wake(berth_rows *rows)
{
    if (task_may_begin(rows))
        (void)pthread_cond_signal(&rows->work);
}

static size_t task_size(const berth_rows *rows, const bth_row_ticket *ticket)
{
    size_t left = ticket->n_missing - ticket->n_begun;
    size_t n_tasks = tasks_max(rows) > 1 ? 2 * (size_t)tasks_max(rows) : 1;
    size_t share = ticket->n_missing / n_tasks + 1;
    size_t max = rows->is_waiting ? WAITING_ROWS_MAX : TASK_ROWS_MAX;

    if (share < max)
        max = share;
    return left < max ? left : max;
}

/* False: there is nothing to read, or enough tasks are running. */
static bool task_claim(berth_rows *rows, row_task *job)
{
    bth_row_ticket *ticket = rows->first;

    if (!task_may_begin(rows))
        return false;
    size_t n = task_size(rows, ticket);
    *job = (row_task){.ticket = ticket,
                      .from = ticket->n_begun,
                      .to = ticket->n_begun + n,
                      .filled = ticket->n_begun,
                      .buffer = rows->free_buffers[--rows->n_free_buffers]};
    bth_error_clear(&job->error);
    ticket->n_begun += n;
    ticket->n_tasks++;
    if (ticket->n_begun == ticket->n_missing)
        queue_pop(rows);
    reader_wake(rows);
    return true;
}

/* Whether a row that the ticket awaits was lost. */
static bool ticket_has_lost(const berth_rows *rows, const bth_row_ticket *ticket)
{
    for (size_t i = ticket->awaited_at; i < ticket->n_rows; i++)
        if (ticket->slots[i] & BTH_ROWS_AWAITED &&
            bth_row_cache_is_lost(&rows->cache, ticket->slots[i] & ~BTH_ROWS_AWAITED))
            return true;
    return false;
}

static void ticket_set_error(bth_row_ticket *ticket, const berth_error *error)
{
    if (ticket->error.code == BERTH_OK)
        ticket->error = *error;
}

/* W8: the ticket fails. Rows that no task has are not read; tickets that await them fail too. */
static void task_fail(berth_rows *rows, row_task *job)
{
    bth_row_ticket *ticket = job->ticket;

    for (size_t k = job->filled; k < job->to; k++)
        bth_row_cache_lost(&rows->cache, ticket->slots[ticket->missing[k]]);
    if (rows->first == ticket) /* tasks are taken from the first only */
        queue_pop(rows);
    for (; ticket->n_begun < ticket->n_missing; ticket->n_begun++)
        bth_row_cache_lost(&rows->cache, ticket->slots[ticket->missing[ticket->n_begun]]);
    ticket_set_error(ticket, &job->error);
    for (size_t i = 0; i < rows->n_tickets; i++)
        if (rows->tickets[i] && rows->tickets[i] != ticket &&
            ticket_has_lost(rows, rows->tickets[i]))
            ticket_set_error(rows->tickets[i], &job->error);
}

static void task_finish(berth_rows *rows, row_task *job)
{
    bth_row_ticket *ticket = job->ticket;

    for (size_t k = job->from; k < job->filled; k++)
        bth_row_cache_filled(&rows->cache, ticket->slots[ticket->missing[k]]);
    if (job->error.code < 0)
        task_fail(rows, job);
    ticket->n_tasks--;
    rows->free_buffers[rows->n_free_buffers++] = job->buffer;
    rows->stats.n_reads += job->n_requests;
    rows->stats.n_merged += job->n_merged;
    rows->stats.read_nbytes += job->read_nbytes;
    rows->is_waiting = job->n_slow > job->n_requests / 2;
    (void)pthread_cond_broadcast(&rows->done);
}

/* False: no task could be claimed. */
static bool task_do(berth_rows *rows)
{
    row_task job;

    if (!task_claim(rows, &job))
        return false;
    bth_lock_release(&rows->lock);
    task_read(rows, &job);
    (void)bth_lock_acquire(&rows->lock);
    task_finish(rows, &job);
    return true;
}

void bth_rows_enqueue(berth_rows *rows, bth_row_ticket *ticket)
{
    if (ticket->n_missing == 0)
        return;
    if (rows->last)
        rows->last->next = ticket;
    else
        rows->first = ticket;
    rows->last = ticket;
    reader_wake(rows);
}

static bool ticket_is_complete(const berth_rows *rows, bth_row_ticket *ticket)
{
    if (ticket->n_begun < ticket->n_missing || ticket->n_tasks > 0)
        return false;
    for (; ticket->awaited_at < ticket->n_rows; ticket->awaited_at++) {
        uint32_t slot = ticket->slots[ticket->awaited_at];
        if (slot & BTH_ROWS_AWAITED &&
            bth_row_cache_is_filling(&rows->cache, slot & ~BTH_ROWS_AWAITED))
            return false;
    }
    return true;
}

void bth_rows_complete(berth_rows *rows, bth_row_ticket *ticket)
{
    while (!ticket_is_complete(rows, ticket))
        if (!task_do(rows))
            (void)pthread_cond_wait(&rows->done, &rows->lock.mutex);
    reader_wake(rows); /* this thread does no more tasks */
}

/* ---- threads ---- */

static void *reader_run(void *argument)
{
    berth_rows *rows = argument;

    bth_thread_begin();
    (void)bth_lock_acquire(&rows->lock);
    while (!rows->stop)
        if (!task_do(rows))
            (void)pthread_cond_wait(&rows->work, &rows->lock.mutex);
    bth_lock_release(&rows->lock);
    return NULL;
}

int bth_rows_start(berth_rows *rows, berth_error *error)
{
    while (rows->n_readers > 1 && rows->n_threads < rows->n_readers) {
        int failure = bth_thread_start(&rows->threads[rows->n_threads], reader_run, rows);
        if (failure != 0)
            return bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                                  "thread %u of %u that reads rows cannot be started",
                                  rows->n_threads + 1, rows->n_readers);
        rows->n_threads++;
    }
    return 0;
}

void bth_rows_stop(berth_rows *rows)
{
    (void)bth_lock_acquire(&rows->lock);
    rows->stop = true;
    rows->first = rows->last = NULL;
    (void)pthread_cond_broadcast(&rows->work);
    bth_lock_release(&rows->lock);
    for (unsigned i = 0; i < rows->n_threads; i++)
        (void)pthread_join(rows->threads[i], NULL);
}
