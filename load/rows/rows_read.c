/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads missing rows: threads and waiting calls run tasks of one queue. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "io/thread_pool.h"
#include "load/rows/rows.h"

/* Rows of one task. More would leave threads idle, fewer would lock too often. While reads wait for
 * a device, tasks are smaller. */
#define TASK_ROWS_MAX 64
#define WAITING_ROWS_MAX 8
/* Reading a gap of this many bytes costs less than another request. */
#define GAP_NBYTES 4096
/* If a read takes longer, it waited for a device; others can wait at the same time. */
#define SLOW_SECONDS 20e-6

/* Missing rows [from, to) of a ticket, and the result of reading them. */
typedef struct row_task {
    bth_row_ticket *ticket;
    size_t from, to;
    size_t filled; /* those before it are read */
    unsigned buffer;
    uint64_t n_requests, n_merged, read_nbytes;
    uint64_t n_slow; /* requests that waited for a device */
    double seconds;  /* clock time at the last request's end */
    berth_error error;
} row_task;

/* ---- without the lock ---- */

static uint8_t *rows_buffer_address(const berth_rows *rows, unsigned number)
{
    return bth_rows_slot_address(rows, rows->cache.n_lines + rows->cache.n_scratch) +
           number * rows->layout.buffer_nbytes;
}

void bth_row_ticket_copy_to_output(const bth_row_ticket *ticket, size_t i, const uint8_t *row)
{
    size_t end = bth_row_list_start(&ticket->list, i + 1);

    for (size_t k = bth_row_list_start(&ticket->list, i); k < end; k++) {
        uint8_t *to = ticket->output + ticket->list.order[k] * ticket->stride_nbytes;
        if (to != row) /* it was read there */
            memcpy(to, row, ticket->table.row_nbytes);
    }
}

/* Where to read row i alone: its slot, or the first of its positions in the output. */
static uint8_t *row_ticket_row_address(const berth_rows *rows, const bth_row_ticket *ticket,
                                       size_t i)
{
    if (ticket->slots[i] != BTH_ROWS_NO_SLOT)
        return bth_rows_slot_address(rows, ticket->slots[i]);
    return ticket->output +
           ticket->list.order[bth_row_list_start(&ticket->list, i)] * ticket->stride_nbytes;
}

/* Brings row i from where it was read to its slot and to the output. */
static void row_ticket_deliver_row(const berth_rows *rows, const bth_row_ticket *ticket, size_t i,
                                   const uint8_t *row)
{
    uint8_t *to = row_ticket_row_address(rows, ticket, i);

    if (to != row)
        memcpy(to, row, ticket->table.row_nbytes);
    if (ticket->output)
        bth_row_ticket_copy_to_output(ticket, i, to);
}

/* One read of `n` rows, from task->filled on. */
static int row_task_read_range(const berth_rows *rows, row_task *task, size_t n)
{
    const bth_row_ticket *ticket = task->ticket;
    const bth_row_table *table = &ticket->table;
    const uint32_t *which = ticket->missing + task->filled;
    uint64_t first = bth_row_list_row(&ticket->list, which[0]);
    uint64_t nbytes =
        (bth_row_list_row(&ticket->list, which[n - 1]) - first + 1) * table->row_nbytes;
    uint8_t *bytes = n == 1 ? row_ticket_row_address(rows, ticket, which[0])
                            : rows_buffer_address(rows, task->buffer);

    if (bth_storage_read(table->checkpoint, table->storage, bytes, nbytes,
                         table->offset + first * table->row_nbytes, &task->error) < 0)
        return bth_error_prefix(&task->error, table->checkpoint->source.reader.name);
    for (size_t k = 0; k < n; k++)
        row_ticket_deliver_row(rows, ticket, which[k],
                               bytes + (bth_row_list_row(&ticket->list, which[k]) - first) *
                                           table->row_nbytes);
    task->filled += n;
    task->n_requests++;
    task->n_merged += n > 1;
    task->read_nbytes += nbytes;
    double seconds = bth_seconds();
    task->n_slow += seconds - task->seconds > SLOW_SECONDS;
    task->seconds = seconds;
    return 0;
}

static void row_task_read(const berth_rows *rows, row_task *task)
{
    const bth_row_ticket *ticket = task->ticket;
    const bth_rows_reads reads = {.row_nbytes = ticket->table.row_nbytes,
                                  .gap_nbytes = GAP_NBYTES,
                                  .max_nbytes = rows->layout.buffer_nbytes};

    task->seconds = bth_seconds();
    while (task->filled < task->to &&
           row_task_read_range(rows, task,
                               bth_rows_count_for_one_read(&reads, &ticket->list,
                                                           ticket->missing + task->filled,
                                                           task->to - task->filled)) == 0)
        continue;
}

/* ---- under the lock ---- */

static void rows_pop_queue(berth_rows *rows)
{
    rows->first = rows->first->next;
    if (!rows->first)
        rows->last = NULL;
}

/*
 * If the bytes are already in memory, more threads than processors would only disturb each other.
 * If reads wait for a device, the processors are free; but the head of a disk that rotates should
 * not move to and fro.
 */
static unsigned rows_max_tasks(const berth_rows *rows)
{
    return rows->is_waiting ? rows->max_waiting_tasks : rows->n_processors;
}

static bool rows_may_begin_task(const berth_rows *rows)
{
    return rows->first && rows->n_readers - rows->n_free_buffers < rows_max_tasks(rows);
}

/* Wakes one thread. It wakes the next one if more tasks are left. */
static void rows_wake_reader(berth_rows *rows)
{
    if (rows_may_begin_task(rows))
        (void)pthread_cond_signal(&rows->work);
}

static size_t row_task_choose_n_rows(const berth_rows *rows, const bth_row_ticket *ticket)
{
    size_t left = ticket->n_missing - ticket->n_begun;
    size_t n_tasks = rows_max_tasks(rows) > 1 ? 2 * (size_t)rows_max_tasks(rows) : 1;
    size_t share = ticket->n_missing / n_tasks + 1;
    size_t max = rows->is_waiting ? WAITING_ROWS_MAX : TASK_ROWS_MAX;

    if (share < max)
        max = share;
    return left < max ? left : max;
}

/* False: nothing to read, or enough tasks are running. */
static bool row_task_claim(berth_rows *rows, row_task *task)
{
    bth_row_ticket *ticket = rows->first;

    if (!rows_may_begin_task(rows))
        return false;
    size_t n = row_task_choose_n_rows(rows, ticket);
    *task = (row_task){.ticket = ticket,
                       .from = ticket->n_begun,
                       .to = ticket->n_begun + n,
                       .filled = ticket->n_begun,
                       .buffer = rows->free_buffers[--rows->n_free_buffers]};
    bth_error_clear(&task->error);
    ticket->n_begun += n;
    ticket->n_tasks++;
    if (ticket->n_begun == ticket->n_missing)
        rows_pop_queue(rows);
    rows_wake_reader(rows);
    return true;
}

/* Whether the ticket awaits a row that was lost. */
static bool row_ticket_has_lost(const berth_rows *rows, const bth_row_ticket *ticket)
{
    for (size_t i = ticket->awaited_at; i < ticket->list.n_rows; i++)
        if (bth_row_cache_slot_is_lost(&rows->cache, ticket->slots[i]))
            return true;
    return false;
}

static void row_ticket_set_first_error(bth_row_ticket *ticket, const berth_error *error)
{
    if (ticket->error.code == BERTH_OK)
        ticket->error = *error;
}

/* W8: the ticket fails. Its unclaimed rows are not read; tickets that await them fail, too. */
static void row_task_fail_tickets(berth_rows *rows, row_task *task)
{
    bth_row_ticket *ticket = task->ticket;

    if (rows->first == ticket) /* tasks come only from the first ticket */
        rows_pop_queue(rows);
    for (; ticket->n_begun < ticket->n_missing; ticket->n_begun++)
        bth_row_cache_finish_slot(&rows->cache, ticket->slots[ticket->missing[ticket->n_begun]],
                                  false);
    row_ticket_set_first_error(ticket, &task->error);
    for (size_t i = 0; i < rows->n_tickets; i++)
        if (rows->tickets[i] && rows->tickets[i] != ticket &&
            row_ticket_has_lost(rows, rows->tickets[i]))
            row_ticket_set_first_error(rows->tickets[i], &task->error);
}

static void row_task_finish(berth_rows *rows, row_task *task)
{
    bth_row_ticket *ticket = task->ticket;

    for (size_t k = task->from; k < task->to; k++)
        bth_row_cache_finish_slot(&rows->cache, ticket->slots[ticket->missing[k]],
                                  k < task->filled);
    if (task->error.code < 0)
        row_task_fail_tickets(rows, task);
    ticket->n_tasks--;
    rows->free_buffers[rows->n_free_buffers++] = task->buffer;
    rows->stats.n_reads += task->n_requests;
    rows->stats.n_merged += task->n_merged;
    rows->stats.read_nbytes += task->read_nbytes;
    rows->is_waiting = task->n_slow > task->n_requests / 2;
    (void)pthread_cond_broadcast(&rows->done);
}

/* False: no task could be claimed. */
static bool rows_claim_and_run_task(berth_rows *rows)
{
    row_task task;

    if (!row_task_claim(rows, &task))
        return false;
    bth_lock_release(&rows->lock);
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, rows->trace, "read rows", NULL);
    row_task_read(rows, &task);
    bth_trace_leave_lazily(&traced);
    (void)bth_lock_acquire(&rows->lock);
    row_task_finish(rows, &task);
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
    rows_wake_reader(rows);
}

static bool row_ticket_is_complete(const berth_rows *rows, bth_row_ticket *ticket)
{
    if (ticket->n_begun < ticket->n_missing || ticket->n_tasks > 0)
        return false;
    for (; ticket->awaited_at < ticket->list.n_rows; ticket->awaited_at++)
        if (bth_row_cache_slot_is_filling(&rows->cache, ticket->slots[ticket->awaited_at]))
            return false;
    return true;
}

void bth_rows_read_and_wait_for_ticket(berth_rows *rows, bth_row_ticket *ticket)
{
    while (!row_ticket_is_complete(rows, ticket))
        if (!rows_claim_and_run_task(rows))
            (void)pthread_cond_wait(&rows->done, &rows->lock.mutex);
    rows_wake_reader(rows); /* this thread runs no more tasks */
}

/* ---- threads ---- */

static void *rows_reader_run(void *argument)
{
    berth_rows *rows = argument;

    bth_thread_disable_cancel();
    (void)bth_lock_acquire(&rows->lock);
    while (!rows->stop)
        if (!rows_claim_and_run_task(rows))
            (void)pthread_cond_wait(&rows->work, &rows->lock.mutex);
    bth_lock_release(&rows->lock);
    return NULL;
}

int bth_rows_start(berth_rows *rows, berth_error *error)
{
    while (rows->n_readers > 1 && rows->n_threads < rows->n_readers) {
        int failure = bth_thread_start(&rows->threads[rows->n_threads], rows_reader_run, rows);
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
