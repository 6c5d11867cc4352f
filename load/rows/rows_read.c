/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows that a request needs, and the reads for them. Then reads missing rows: threads and
 * waiting calls run tasks of one queue. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "io/thread_pool.h"
#include "load/rows/rows.h"
#include "load/storage_state.h"

#define DIGIT_BITS 8
#define N_DIGITS (1 << DIGIT_BITS)
/* Rows of one task. More would leave threads idle, fewer would lock too often. While reads wait for
 * a device, tasks are smaller. */
#define TASK_ROWS_MAX 64
#define WAITING_ROWS_MAX 8
/* Reading a gap of this many bytes costs less than another request. */
#define GAP_NBYTES 4096
/* If a read takes longer, it waited for a device; others can wait at the same time. */
#define SLOW_SECONDS 20e-6

/* ---- lists: pure arithmetic ---- */

size_t bth_rows_find_bad_id(const bth_row_ids *ids, uint64_t n_rows)
{
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id = bth_row_ids_get(ids, i);
        if ((uint64_t)id >= n_rows && !(ids->may_be_pruned && id == BTH_ROWS_PRUNED))
            return i; /* also negative ids */
    }
    return ids->n;
}

/* The number of bits that 0 … n - 1 need. */
static unsigned row_key_needed_bits(uint64_t n)
{
    return n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 0;
}

size_t bth_rows_max_list_ids(uint64_t n_rows)
{
    unsigned free_bits = 64 - row_key_needed_bits(n_rows);

    return free_bits < 32 ? (size_t)1 << free_bits : UINT32_MAX;
}

static unsigned row_key_digit(uint64_t key, unsigned shift)
{
    return (unsigned)(key >> shift) & (N_DIGITS - 1);
}

/* Sorts keys by their bits from `shift` on, digit by digit; they end in `keys`. Equal keys keep
 * their order. */
static void row_keys_sort(uint64_t *keys, uint64_t *spare, size_t n, unsigned shift,
                          unsigned n_bits)
{
    uint64_t *from = keys, *to = spare;

    for (unsigned end = shift + n_bits; shift < end; shift += DIGIT_BITS) {
        size_t next[N_DIGITS] = {0}, at = 0;
        for (size_t i = 0; i < n; i++)
            next[row_key_digit(from[i], shift)]++;
        if (next[row_key_digit(from[0], shift)] == n) /* this digit is the same in all */
            continue;
        for (size_t i = 0; i < N_DIGITS; i++) {
            size_t count = next[i];
            next[i] = at;
            at += count;
        }
        for (size_t i = 0; i < n; i++)
            to[next[row_key_digit(from[i], shift)]++] = from[i];
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != keys)
        memcpy(keys, from, n * sizeof *keys);
}

/* Sets the keys of the selected ids: row and position. Writes every key and keeps those that are
 * selected, because a branch that is hard to predict costs more. */
static inline void row_list_select(bth_row_list *list, const bth_row_ids ids,
                                   bth_row_selection *selection, size_t max_ids)
{
    uint64_t first_row = selection->first_row, n_rows = selection->end_row - first_row;
    size_t i = selection->first_id, n = 0;

    for (; i < ids.n && n < max_ids; i++) {
        uint64_t row = (uint64_t)bth_row_ids_get(&ids, i);
        list->keys[n] = row << list->start_bits | i;
        n += row - first_row < n_rows;
    }
    selection->first_id = i;
    list->n_order = n;
}

void bth_row_list_fill(bth_row_list *list, const bth_row_ids *ids, bth_row_selection *selection,
                       size_t max_ids, uint64_t *spare)
{
    assert(ids->n <= bth_rows_max_list_ids(selection->end_row));
    list->n_rows = 0;
    list->start_bits = row_key_needed_bits(ids->n);
    if (ids->are_32_bit) /* a loop for each width */
        row_list_select(list, (bth_row_ids){.items = ids->items, .n = ids->n, .are_32_bit = true},
                        selection, max_ids);
    else
        row_list_select(list, (bth_row_ids){.items = ids->items, .n = ids->n}, selection, max_ids);
    if (list->n_order == 0)
        return;
    /* The low bits are the position, which is already sorted. */
    row_keys_sort(list->keys, spare, list->n_order, list->start_bits,
                  row_key_needed_bits(selection->end_row));
    /* The key of a row's first id stays, with its index. */
    uint64_t last = 0, mask = (UINT64_C(1) << list->start_bits) - 1;
    for (size_t i = 0; i < list->n_order; i++) {
        uint64_t row = list->keys[i] >> list->start_bits;
        list->order[i] = (uint32_t)(list->keys[i] & mask);
        if (list->n_rows == 0 || row != last)
            list->keys[list->n_rows++] = row << list->start_bits | i; /* never ahead of i */
        last = row;
    }
}

size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const bth_row_list *list,
                                   const uint32_t *which, size_t n)
{
    uint64_t max_rows = reads->max_nbytes / reads->row_nbytes;
    uint64_t gap_rows = reads->gap_nbytes / reads->row_nbytes;
    uint64_t first = bth_row_list_row(list, which[0]), last = first;
    size_t merged = 1;

    for (; merged < n; merged++) {
        uint64_t row = bth_row_list_row(list, which[merged]);
        if (row - last - 1 > gap_rows || row - first >= max_rows)
            break;
        last = row;
    }
    return merged;
}

/* ---- one task, without the lock ---- */

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

/* Rows near each other are read together. Each is brought to its slot and to the output. */
static void row_task_read(const berth_rows *rows, row_task *task)
{
    const bth_row_ticket *ticket = task->ticket;
    const bth_row_table *table = &ticket->table;
    const uint64_t row_nbytes = table->row_nbytes;
    const bth_rows_reads reads = {.row_nbytes = row_nbytes,
                                  .gap_nbytes = GAP_NBYTES,
                                  .max_nbytes = rows->layout.buffer_nbytes};
    uint8_t *buffer = bth_rows_slot_address(rows, rows->cache.n_lines + rows->cache.n_scratch) +
                      task->buffer * rows->layout.buffer_nbytes;

    task->seconds = bth_seconds();
    while (task->filled < task->to) {
        const uint32_t *which = ticket->missing + task->filled;
        size_t n =
            bth_rows_count_for_one_read(&reads, &ticket->list, which, task->to - task->filled);
        uint64_t first = bth_row_list_row(&ticket->list, which[0]);
        uint64_t nbytes = (bth_row_list_row(&ticket->list, which[n - 1]) - first + 1) * row_nbytes;
        uint8_t *bytes = n == 1 ? row_ticket_row_address(rows, ticket, which[0]) : buffer;
        if (bth_storage_read(table->checkpoint, table->storage, bytes, nbytes,
                             table->offset + first * row_nbytes, &task->error) < 0) {
            (void)bth_error_prefix(&task->error, table->checkpoint->source.reader.name);
            return;
        }
        for (size_t k = 0; k < n; k++) {
            const uint8_t *row =
                bytes + (bth_row_list_row(&ticket->list, which[k]) - first) * row_nbytes;
            uint8_t *to = row_ticket_row_address(rows, ticket, which[k]);
            if (to != row)
                memcpy(to, row, row_nbytes);
            if (ticket->output)
                bth_row_ticket_copy_to_output(ticket, which[k], to);
        }
        task->filled += n;
        task->n_requests++;
        task->n_merged += n > 1;
        task->read_nbytes += nbytes;
        double seconds = bth_seconds();
        task->n_slow += seconds - task->seconds > SLOW_SECONDS;
        task->seconds = seconds;
    }
}

/* ---- under the lock ---- */

static void rows_pop_queue(berth_rows *rows)
{
    rows->first = rows->first->next;
    if (!rows->first)
        rows->last = NULL;
}

/* If the bytes are already in memory, more threads than processors would only disturb each other.
 * Else the processors are free; but the head of a disk that rotates should not move to and fro. */
static unsigned rows_max_tasks(const berth_rows *rows)
{
    return rows->is_waiting ? rows->max_waiting_tasks : rows->n_processors;
}

/* Wakes one thread. It wakes the next one if more tasks are left. */
static void rows_wake_reader(berth_rows *rows)
{
    if (rows->first && rows->n_readers - rows->n_free_buffers < rows_max_tasks(rows))
        (void)pthread_cond_signal(&rows->work);
}

/* False: nothing to read, or enough tasks are running. */
static bool rows_claim_and_run_task(berth_rows *rows)
{
    bth_row_ticket *ticket = rows->first;
    unsigned max_tasks = rows_max_tasks(rows);

    if (!ticket || rows->n_readers - rows->n_free_buffers >= max_tasks)
        return false;
    size_t share = ticket->n_missing / (max_tasks > 1 ? 2 * (size_t)max_tasks : 1) + 1;
    size_t max = rows->is_waiting ? WAITING_ROWS_MAX : TASK_ROWS_MAX;
    size_t n = (size_t)bth_min(bth_min(share, max), ticket->n_missing - ticket->n_begun);
    row_task task = {.ticket = ticket,
                     .from = ticket->n_begun,
                     .to = ticket->n_begun + n,
                     .filled = ticket->n_begun,
                     .buffer = rows->free_buffers[--rows->n_free_buffers]};
    bth_error_clear(&task.error);
    ticket->n_begun += n;
    ticket->n_tasks++;
    if (ticket->n_begun == ticket->n_missing)
        rows_pop_queue(rows);
    rows_wake_reader(rows);
    bth_lock_release(&rows->lock);
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, rows->trace, "read rows", NULL);
    row_task_read(rows, &task);
    bth_trace_leave_lazily(&traced);
    (void)bth_lock_acquire(&rows->lock);
    for (size_t k = task.from; k < task.to; k++)
        bth_row_cache_finish_slot(&rows->cache, ticket->slots[ticket->missing[k]], k < task.filled);
    if (task.error.code < 0) {
        /* W8: the ticket fails. Its unclaimed rows are not read; tickets that await them fail, too.
         */
        if (rows->first == ticket) /* tasks come only from the first ticket */
            rows_pop_queue(rows);
        for (; ticket->n_begun < ticket->n_missing; ticket->n_begun++)
            bth_row_cache_finish_slot(&rows->cache, ticket->slots[ticket->missing[ticket->n_begun]],
                                      false);
        if (ticket->error.code == BERTH_OK)
            ticket->error = task.error;
        for (size_t i = 0; i < rows->n_tickets; i++) {
            bth_row_ticket *other = rows->tickets[i];
            size_t row = other ? other->awaited_at : 0;
            if (!other || other->error.code != BERTH_OK)
                continue;
            while (row < other->list.n_rows &&
                   !bth_row_cache_slot_is_lost(&rows->cache, other->slots[row]))
                row++;
            if (row < other->list.n_rows)
                other->error = task.error;
        }
    }
    ticket->n_tasks--;
    rows->free_buffers[rows->n_free_buffers++] = task.buffer;
    rows->stats.n_reads += task.n_requests;
    rows->stats.n_merged += task.n_merged;
    rows->stats.read_nbytes += task.read_nbytes;
    rows->is_waiting = task.n_slow > task.n_requests / 2;
    (void)pthread_cond_broadcast(&rows->done);
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
