/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows that are missing are read: tasks of one queue, taken by the threads and by who waits. */
#include <string.h>

#include "config/error.h"
#include "io/clock.h"
#include "io/thread.h"
#include "load/rows/rows.h"

/* Rows of one task: enough to be worth the lock, few enough to be shared among threads; and while
 * each of them is waited for. */
#define MOST_TASK_ROWS 64
#define MOST_WAITING_ROWS 8
/* A gap of as many bytes costs less to read than another request. */
#define GAP_NBYTES 4096
/* A read that takes longer has waited for a device, and others can wait beside it. */
#define SLOW_SECONDS 20e-6

/* Missing rows [from, to) of a ticket, and what came of them. */
typedef struct task {
    bth_row_ticket *ticket;
    size_t from, to;
    size_t filled; /* those before it are read */
    unsigned buffer;
    uint64_t n_requests, n_merged, read_nbytes;
    uint64_t n_slow; /* of the requests */
    double seconds;  /* of the clock, at the last request's end */
    berth_error error;
} task;

/* ---- without the lock ---- */

static uint8_t *buffer_of(const berth_rows *rows, unsigned number)
{
    return bth_row_at(rows, rows->cache.n_lines + rows->cache.n_slots) +
           number * rows->layout.buffer_nbytes;
}

/* One read of `n` rows, from task->filled on. */
static int read_range(const berth_rows *rows, task *job, size_t n)
{
    const bth_row_ticket *ticket = job->ticket;
    const bth_row_table *table = &ticket->table;
    const uint32_t *which = ticket->missing + job->filled;
    uint64_t first = ticket->rows[which[0]];
    uint64_t nbytes = (ticket->rows[which[n - 1]] - first + 1) * table->row_nbytes;
    uint8_t *place = bth_row_at(rows, ticket->places[which[0]]);
    uint8_t *bytes = n == 1 ? place : buffer_of(rows, job->buffer);

    if (bth_storage_read(table->checkpoint, table->storage, bytes, nbytes,
                         table->offset + first * table->row_nbytes, &job->error) < 0)
        return bth_error_prefix(&job->error, table->checkpoint->source.reader.name);
    for (size_t k = 0; n > 1 && k < n; k++)
        memcpy(bth_row_at(rows, ticket->places[which[k]]),
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

static void read_task(const berth_rows *rows, task *job)
{
    const bth_row_ticket *ticket = job->ticket;
    const bth_rows_reads reads = {.row_nbytes = ticket->table.row_nbytes,
                                  .gap_nbytes = GAP_NBYTES,
                                  .most_nbytes = rows->layout.buffer_nbytes};

    job->seconds = bth_seconds();
    while (job->filled < job->to &&
           read_range(rows, job,
                      bth_rows_merge(&reads, ticket->rows, ticket->missing + job->filled,
                                     job->to - job->filled)) == 0)
        continue;
}

/* ---- under the lock ---- */

static void pop(berth_rows *rows)
{
    rows->first = rows->first->next;
    if (!rows->first)
        rows->last = NULL;
}

/*
 * Bytes that are in memory already are copied as fast by as many threads as there are processors;
 * more would be in each other's way. Those that wait for a device leave the processors alone.
 */
static unsigned most_tasks(const berth_rows *rows)
{
    return rows->is_waiting ? rows->n_readers : rows->n_processors;
}

static bool may_begin(const berth_rows *rows)
{
    return rows->first && rows->n_readers - rows->n_free_buffers < most_tasks(rows);
}

/* Wakes one thread; which wakes the next if there is still more. */
static void wake(berth_rows *rows)
{
    if (may_begin(rows))
        (void)pthread_cond_signal(&rows->work);
}

static size_t task_rows(const berth_rows *rows, const bth_row_ticket *ticket)
{
    size_t left = ticket->n_missing - ticket->n_begun;
    size_t n_tasks = most_tasks(rows) > 1 ? 2 * (size_t)most_tasks(rows) : 1;
    size_t share = ticket->n_missing / n_tasks + 1;
    size_t most = rows->is_waiting ? MOST_WAITING_ROWS : MOST_TASK_ROWS;

    if (share < most)
        most = share;
    return left < most ? left : most;
}

/* False: there is nothing to read, or as much is being read as should be. */
static bool claim(berth_rows *rows, task *job)
{
    bth_row_ticket *ticket = rows->first;

    if (!may_begin(rows))
        return false;
    size_t n = task_rows(rows, ticket);
    *job = (task){.ticket = ticket,
                  .from = ticket->n_begun,
                  .to = ticket->n_begun + n,
                  .filled = ticket->n_begun,
                  .buffer = rows->free_buffers[--rows->n_free_buffers]};
    bth_error_clear(&job->error);
    ticket->n_begun += n;
    ticket->n_tasks++;
    if (ticket->n_begun == ticket->n_missing)
        pop(rows);
    wake(rows);
    return true;
}

/* Whether a row that the ticket awaits was lost. */
static bool has_lost(const berth_rows *rows, const bth_row_ticket *ticket)
{
    for (size_t i = ticket->awaited_at; i < ticket->n_rows; i++)
        if (ticket->places[i] & BTH_ROWS_AWAITED &&
            bth_row_cache_is_lost(&rows->cache, ticket->places[i] & ~BTH_ROWS_AWAITED))
            return true;
    return false;
}

static void set_error(bth_row_ticket *ticket, const berth_error *error)
{
    if (ticket->error.code == BERTH_OK)
        ticket->error = *error;
}

/* W8: the ticket fails; what no task has is not read; others that await its rows fail with it. */
static void fail(berth_rows *rows, task *job)
{
    bth_row_ticket *ticket = job->ticket;

    for (size_t k = job->filled; k < job->to; k++)
        bth_row_cache_lost(&rows->cache, ticket->places[ticket->missing[k]]);
    if (rows->first == ticket) /* tasks are taken from the first only */
        pop(rows);
    for (; ticket->n_begun < ticket->n_missing; ticket->n_begun++)
        bth_row_cache_lost(&rows->cache, ticket->places[ticket->missing[ticket->n_begun]]);
    set_error(ticket, &job->error);
    for (size_t i = 0; i < rows->n_places; i++)
        if (rows->tickets[i] && rows->tickets[i] != ticket && has_lost(rows, rows->tickets[i]))
            set_error(rows->tickets[i], &job->error);
}

static void end_task(berth_rows *rows, task *job)
{
    bth_row_ticket *ticket = job->ticket;

    for (size_t k = job->from; k < job->filled; k++)
        bth_row_cache_filled(&rows->cache, ticket->places[ticket->missing[k]]);
    if (job->error.code < 0)
        fail(rows, job);
    ticket->n_tasks--;
    rows->free_buffers[rows->n_free_buffers++] = job->buffer;
    rows->stats.n_reads += job->n_requests;
    rows->stats.n_merged += job->n_merged;
    rows->stats.read_nbytes += job->read_nbytes;
    rows->is_waiting = job->n_slow > job->n_requests / 2;
    (void)pthread_cond_broadcast(&rows->done);
}

/* False: there is none. */
static bool do_task(berth_rows *rows)
{
    task job;

    if (!claim(rows, &job))
        return false;
    bth_lock_give(&rows->lock);
    read_task(rows, &job);
    (void)bth_lock_take(&rows->lock);
    end_task(rows, &job);
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
    wake(rows);
}

static bool is_complete(const berth_rows *rows, bth_row_ticket *ticket)
{
    if (ticket->n_begun < ticket->n_missing || ticket->n_tasks > 0)
        return false;
    for (; ticket->awaited_at < ticket->n_rows; ticket->awaited_at++) {
        uint32_t place = ticket->places[ticket->awaited_at];
        if (place & BTH_ROWS_AWAITED &&
            bth_row_cache_is_filling(&rows->cache, place & ~BTH_ROWS_AWAITED))
            return false;
    }
    return true;
}

void bth_rows_complete(berth_rows *rows, bth_row_ticket *ticket)
{
    while (!is_complete(rows, ticket))
        if (!do_task(rows))
            (void)pthread_cond_wait(&rows->done, &rows->lock.mutex);
    wake(rows); /* threads that have ended a task take the next one; who waited goes */
}

/* ---- threads ---- */

static void *work(void *argument)
{
    berth_rows *rows = argument;

    bth_thread_begin();
    (void)bth_lock_take(&rows->lock);
    while (!rows->stop)
        if (!do_task(rows))
            (void)pthread_cond_wait(&rows->work, &rows->lock.mutex);
    bth_lock_give(&rows->lock);
    return NULL;
}

int bth_rows_start(berth_rows *rows, berth_error *error)
{
    while (rows->n_readers > 1 && rows->n_threads < rows->n_readers) {
        int failure = bth_thread_start(&rows->threads[rows->n_threads], work, rows);
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
    (void)bth_lock_take(&rows->lock);
    rows->stop = true;
    rows->first = rows->last = NULL;
    (void)pthread_cond_broadcast(&rows->work);
    bth_lock_give(&rows->lock);
    for (unsigned i = 0; i < rows->n_threads; i++)
        (void)pthread_join(rows->threads[i], NULL);
}
