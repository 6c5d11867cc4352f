/* SPDX-License-Identifier: BSD-3-Clause */
/* Live requests for rows: their tickets, from admission to release. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "load/rows/rows.h"

/* The low bits of a ticket's number are its index; the others count, so each number is unique. */
#define INDEX_BITS 20
#define TICKETS_MAX ((size_t)1 << INDEX_BITS)
#define FIRST_TICKETS 16

typedef unsigned long long ull;

int bth_row_table_check_ids(const bth_row_table *table, const bth_row_ids *ids, const char *request,
                            berth_error *error)
{
    size_t bad = bth_rows_find_bad_id(ids, table->n_rows);
    char name[128];

    if (bad >= ids->n)
        return 0;
    bth_row_table_name(table, name, sizeof name);
    return bth_fail_argument(error, "id %lld, number %zu of %s, is no row of %s, which has %llu",
                             (long long)bth_row_ids_get(ids, bad), bad, request, name,
                             (ull)table->n_rows);
}

int bth_rows_find_table(berth_rows *rows, size_t number, bth_row_table *table, berth_error *error)
{
    (void)bth_lock_acquire(&rows->lock);
    uint32_t n_tables = rows->n_tables;
    if (number < n_tables)
        *table = rows->tables[number];
    bth_lock_release(&rows->lock);
    return number < n_tables ? 0
                             : bth_fail_argument(error, "there is no table %zu, the cache has %u",
                                                 number, n_tables);
}

/* ---- under the lock ---- */

static bth_row_ticket *rows_find_ticket(const berth_rows *rows, berth_ticket number,
                                        berth_error *error)
{
    size_t i = number & (TICKETS_MAX - 1);

    if (i < rows->n_tickets && rows->tickets[i] && rows->tickets[i]->number == number)
        return rows->tickets[i];
    (void)bth_fail_argument(error, "ticket %llu is not live: unknown, or released", (ull)number);
    return NULL;
}

int bth_rows_admit_ticket(berth_rows *rows, bth_row_ticket *ticket, size_t *n_short,
                          berth_error *error)
{
    const bth_row_hold hold = {.table = ticket->table_number + 1,
                               .list = &ticket->list,
                               .stamp = ticket->stamp,
                               .may_stream = ticket->output != NULL};
    bth_row_result result;
    size_t n_rows = ticket->list.n_rows, i = 0;

    while (i < rows->n_tickets && rows->tickets[i])
        i++;
    if (i == rows->n_tickets) { /* doubles the list of tickets */
        size_t n = i ? 2 * i : FIRST_TICKETS;
        if (n > TICKETS_MAX)
            return bth_fail(error, BERTH_E_BUSY, NULL, BERTH_NO_OFFSET,
                            "%zu tickets are live, which is the maximum", i);
        bth_row_ticket **more = bth_reallocate(rows->tickets, n * sizeof(*more));
        if (!more)
            return bth_fail_memory(error, n * sizeof(*more));
        memset(more + i, 0, (n - i) * sizeof(*more));
        rows->tickets = more;
        rows->n_tickets = n;
    }
    bth_row_cache_hold_rows(&rows->cache, &hold, ticket->slots, ticket->missing, &result);
    *n_short = result.n_short;
    if (result.n_short > 0) {
        rows->stats.n_refused++;
        return 0;
    }
    ticket->n_missing = result.n_missing;
    if (result.n_awaited == 0)
        ticket->awaited_at = n_rows;
    ticket->number = ++rows->n_numbers << INDEX_BITS | i;
    rows->tickets[i] = ticket;
    rows->stats.n_requests += !ticket->output; /* a gather counts itself */
    rows->stats.n_tickets++;
    rows->stats.n_ids += ticket->list.n_order - bth_row_list_start(&ticket->list, 0);
    rows->stats.n_unique += n_rows;
    rows->stats.n_hits += n_rows - result.n_missing;
    rows->stats.n_awaited += result.n_awaited;
    rows->stats.n_misses += result.n_missing;
    rows->stats.n_conflicts += result.n_conflicts;
    rows->stats.n_streamed += result.n_streamed;
    rows->stats.n_evictions += result.n_evicted;
    rows->stats.requested_nbytes += result.n_missing * ticket->table.row_nbytes;
    bth_rows_enqueue(rows, ticket);
    return 0;
}

void bth_rows_remove_ticket_and_wait(berth_rows *rows, bth_row_ticket *ticket)
{
    rows->tickets[ticket->number & (TICKETS_MAX - 1)] = NULL;
    ticket->is_released = true;
    ticket->awaited_at = ticket->list.n_rows; /* it awaits no rows of others any more */
    (void)pthread_cond_broadcast(&rows->done);
    bth_rows_read_and_wait_for_ticket(rows, ticket);
    while (ticket->n_users > 0)
        (void)pthread_cond_wait(&rows->done, &rows->lock.mutex);
    bth_row_cache_release_slots(&rows->cache, ticket->slots, ticket->list.n_rows);
    rows->stats.n_tickets--;
}

/* ---- public ---- */

/* Checks the ids, finds the distinct rows, and holds slots for them. */
static int row_ticket_fill_and_admit(bth_row_ticket *ticket, berth_rows *rows, size_t table,
                                     const bth_row_ids *ids, berth_error *error)
{
    size_t n_short = 0;
    char name[128];

    if (bth_rows_find_table(rows, table, &ticket->table, error) < 0)
        return error->code;
    ticket->table_number = (uint32_t)table;
    uint64_t n_rows = ticket->table.n_rows;
    bth_row_selection all = {.end_row = n_rows};
    if (bth_row_table_check_ids(&ticket->table, ids, "the request", error) < 0)
        return error->code;
    if (ids->n > bth_rows_max_list_ids(n_rows))
        return bth_fail_argument(error, "%zu ids are too many for one request", ids->n);
    bth_row_list_fill(&ticket->list, ids, &all, ids->n, (uint64_t *)(void *)ticket->list.order);
    (void)bth_lock_acquire(&rows->lock);
    bool is_busy = rows->stats.n_tickets > 0;
    uint64_t line_nbytes = rows->layout.line_nbytes;
    (void)bth_rows_admit_ticket(rows, ticket, &n_short, error);
    bth_lock_release(&rows->lock);
    if (n_short == 0)
        return error->code;
    /* Some rows have no slot: other tickets hold them, or the cache is too small. */
    bth_row_table_name(&ticket->table, name, sizeof name);
    return bth_fail(error, is_busy ? BERTH_E_BUSY : BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                    "%zu of %zu rows of %s find no room, %llu bytes are missing: %s", n_short,
                    ticket->list.n_rows, name, (ull)n_short * line_nbytes,
                    is_busy ? "live tickets hold the others"
                            : "cache and scratch are too small for one request of so many");
}

int berth_rows_prefetch(berth_rows *rows, size_t table, const int64_t *ids, size_t n,
                        berth_ticket *ticket, berth_error *error)
{
    const bth_row_ids all = {.items = ids, .n = n};

    BTH_ERROR_BEGIN(error);
    if (!ticket)
        return bth_fail_argument(error, "the pointer for the ticket is NULL");
    *ticket = 0;
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    if (!ids && n > 0)
        return bth_fail_argument(error, "the ids are NULL");
    if (n > UINT32_MAX)
        return bth_fail_argument(error, "%zu ids are too many for one request", n);
    /* The lists for n ids follow the ticket in memory: 20 bytes an id. */
    bth_row_ticket *made = NULL;
    if (n <= (PTRDIFF_MAX - sizeof *made) / BTH_ROWS_PASS_ID_NBYTES)
        made = bth_allocate(sizeof *made + n * BTH_ROWS_PASS_ID_NBYTES);
    if (!made)
        return bth_fail_memory(error, n * BTH_ROWS_PASS_ID_NBYTES);
    *made = (bth_row_ticket){.list = {.keys = (uint64_t *)(void *)(made + 1)}};
    made->list.order = (uint32_t *)(void *)(made->list.keys + n);
    made->slots = made->list.order + n; /* sorting uses order and slots for spare keys */
    made->missing = made->slots + n;
    if (row_ticket_fill_and_admit(made, rows, table, &all, error) < 0) {
        if (made->table.checkpoint)
            (void)bth_error_prefix(error, made->table.checkpoint->source.reader.name);
        bth_release(made);
        return error->code;
    }
    *ticket = made->number;
    return 0;
}

int berth_rows_wait(berth_rows *rows, berth_ticket number, const void **pointers,
                    berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, rows->trace, "wait for rows", NULL);
    (void)bth_lock_acquire(&rows->lock);
    bth_row_ticket *ticket = rows_find_ticket(rows, number, error);
    if (ticket) {
        ticket->n_users++;
        bth_rows_read_and_wait_for_ticket(rows, ticket);
        *error = ticket->error;
    }
    bth_lock_release(&rows->lock);
    bth_trace_leave_lazily(&traced);
    if (!ticket)
        return error->code;
    /* The address of each position's row. Without the lock: the ticket stays until n_users is 0. */
    const bth_row_list *list = &ticket->list;
    if (pointers && error->code == BERTH_OK)
        for (size_t i = 0, k = 0; i < list->n_rows; i++)
            for (size_t end = bth_row_list_start(list, i + 1); k < end; k++)
                pointers[list->order[k]] = bth_rows_slot_address(rows, ticket->slots[i]);
    (void)bth_lock_acquire(&rows->lock);
    if (--ticket->n_users == 0 && ticket->is_released)
        (void)pthread_cond_broadcast(&rows->done);
    bth_lock_release(&rows->lock);
    return error->code;
}

int berth_rows_release(berth_rows *rows, berth_ticket number, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    (void)bth_lock_acquire(&rows->lock);
    bth_row_ticket *ticket = rows_find_ticket(rows, number, error);
    if (ticket)
        bth_rows_remove_ticket_and_wait(rows, ticket);
    bth_lock_release(&rows->lock);
    bth_release(ticket);
    return error->code;
}
