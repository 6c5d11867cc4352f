/* SPDX-License-Identifier: BSD-3-Clause */
/* Live requests for rows: their tickets, from prefetch to release. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "load/rows/rows.h"

/* Low bits of a ticket's number: its place; the others count, so that no number comes twice. */
#define PLACE_BITS 20
#define MOST_TICKETS ((size_t)1 << PLACE_BITS)
#define FIRST_TICKETS 16

typedef unsigned long long ull;

/* ---- making ---- */

/* Lists of n ids, behind the ticket: 20 bytes an id. */
static bth_row_ticket *make(size_t n, berth_error *error)
{
    const size_t id_nbytes = 2 * sizeof(uint64_t) + sizeof(uint32_t);
    bth_row_ticket *ticket = NULL;

    if (n <= (PTRDIFF_MAX - sizeof *ticket) / id_nbytes)
        ticket = bth_allocate(sizeof *ticket + n * id_nbytes);
    if (!ticket) {
        (void)bth_fail_memory(error, n * id_nbytes);
        return NULL;
    }
    memset(ticket, 0, sizeof *ticket);
    bth_error_clear(&ticket->error);
    ticket->n_ids = n;
    ticket->rows = (uint64_t *)(void *)(ticket + 1);
    ticket->index = (uint32_t *)(void *)(ticket->rows + n); /* after sorting there: spare keys */
    ticket->places = ticket->index + n;
    ticket->missing = ticket->places + n;
    return ticket;
}

static int fail_table(const bth_row_ticket *ticket, const int64_t *ids, size_t bad,
                      berth_error *error)
{
    char name[128];

    bth_row_table_name(&ticket->table, name, sizeof name);
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                    "id %lld, number %zu of the request, is no row of %s, which has %llu",
                    (long long)ids[bad], bad, name, (ull)ticket->table.n_rows);
}

/* What can be done without the lock: checks the ids, and finds the distinct ones. */
static int plan(bth_row_ticket *ticket, const int64_t *ids, berth_error *error)
{
    size_t n = ticket->n_ids;
    size_t bad = bth_rows_first_bad(ids, n, ticket->table.n_rows);

    if (bad < n)
        return fail_table(ticket, ids, bad, error);
    if (!bth_rows_are_sortable(n, ticket->table.n_rows))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%zu ids are too many for one request", n);
    ticket->n_rows = bth_rows_unique(ids, n, ticket->table.n_rows, ticket->rows,
                                     (uint64_t *)(void *)ticket->index, ticket->index);
    return 0;
}

/* ---- under the lock ---- */

static bth_row_ticket *find(const berth_rows *rows, berth_ticket number, berth_error *error)
{
    size_t place = number & (MOST_TICKETS - 1);

    if (place < rows->n_places && rows->tickets[place] && rows->tickets[place]->number == number)
        return rows->tickets[place];
    (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                   "ticket %llu is none of the live ones: unknown, or released", (ull)number);
    return NULL;
}

/* Twice as many places for tickets. */
static int grow(berth_rows *rows, berth_error *error)
{
    size_t n = rows->n_places ? 2 * rows->n_places : FIRST_TICKETS;

    if (n > MOST_TICKETS)
        return bth_fail(error, BERTH_E_BUSY, NULL, BERTH_NO_OFFSET,
                        "%zu tickets are live, more than that cannot be", rows->n_places);
    bth_row_ticket **more = bth_reallocate(rows->tickets, n * sizeof(*more));
    if (!more)
        return bth_fail_memory(error, n * sizeof(*more));
    memset(more + rows->n_places, 0, (n - rows->n_places) * sizeof(*more));
    rows->tickets = more;
    rows->n_places = n;
    return 0;
}

static int give_number(berth_rows *rows, bth_row_ticket *ticket, size_t *place, berth_error *error)
{
    *place = 0;
    while (*place < rows->n_places && rows->tickets[*place])
        (*place)++;
    if (*place == rows->n_places && grow(rows, error) < 0)
        return error->code;
    ticket->number = ++rows->n_numbers << PLACE_BITS | *place;
    return 0;
}

static void count(berth_rows_stats *stats, const bth_row_ticket *ticket, const bth_row_taken *taken)
{
    stats->n_requests++;
    stats->n_tickets++;
    stats->n_ids += ticket->n_ids;
    stats->n_unique += ticket->n_rows;
    stats->n_hits += ticket->n_rows - taken->n_missing;
    stats->n_awaited += taken->n_awaited;
    stats->n_misses += taken->n_missing;
    stats->n_conflicts += taken->n_conflicts;
    stats->n_evictions += taken->n_evicted;
    stats->asked_nbytes += taken->n_missing * ticket->table.row_nbytes;
}

/* Takes places for all rows, or changes nothing; *n_short rows find none. */
static int admit(berth_rows *rows, bth_row_ticket *ticket, size_t *n_short, berth_error *error)
{
    bth_row_taken taken;
    size_t place;

    if (give_number(rows, ticket, &place, error) < 0)
        return error->code;
    bth_row_cache_take(&rows->cache, ticket->table_number + 1, ticket->rows, ticket->n_rows,
                       ticket->places, ticket->missing, &taken);
    *n_short = taken.n_short;
    if (taken.n_short > 0) {
        rows->stats.n_refused++;
        return 0;
    }
    ticket->n_missing = taken.n_missing;
    if (taken.n_awaited == 0)
        ticket->awaited_at = ticket->n_rows;
    rows->tickets[place] = ticket;
    count(&rows->stats, ticket, &taken);
    bth_rows_enqueue(rows, ticket);
    return 0;
}

/* Nobody finds it any more: it ends when its reads have ended, and who waits for it has gone. */
static void withdraw(berth_rows *rows, bth_row_ticket *ticket)
{
    rows->tickets[ticket->number & (MOST_TICKETS - 1)] = NULL;
    ticket->is_released = true;
    ticket->awaited_at = ticket->n_rows; /* what others read is theirs */
    (void)pthread_cond_broadcast(&rows->done);
    bth_rows_complete(rows, ticket);
    while (ticket->n_users > 0)
        (void)pthread_cond_wait(&rows->done, &rows->lock.mutex);
    bth_row_cache_give(&rows->cache, ticket->places, ticket->n_rows);
    rows->stats.n_tickets--;
}

/* The ticket, when all its rows are there; it stays until `leave`. NULL, and why. */
static bth_row_ticket *await(berth_rows *rows, berth_ticket number, berth_error *error)
{
    (void)bth_lock_take(&rows->lock);
    bth_row_ticket *ticket = find(rows, number, error);
    if (ticket) {
        ticket->n_users++;
        bth_rows_complete(rows, ticket);
        *error = ticket->error;
    }
    bth_lock_give(&rows->lock);
    return ticket;
}

static void leave(berth_rows *rows, bth_row_ticket *ticket)
{
    if (!ticket)
        return;
    (void)bth_lock_take(&rows->lock);
    if (--ticket->n_users == 0 && ticket->is_released)
        (void)pthread_cond_broadcast(&rows->done);
    bth_lock_give(&rows->lock);
}

/* ---- public ---- */

static int fail_argument(berth_error *error, const char *text)
{
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "%s", text);
}

static int check(const berth_rows *rows, berth_error *error)
{
    return rows ? bth_rows_check(rows, error) : fail_argument(error, "there is no cache");
}

/* A copy of a table: the list may grow meanwhile. */
static int look_up_table(berth_rows *rows, size_t number, bth_row_ticket *ticket,
                         berth_error *error)
{
    (void)bth_lock_take(&rows->lock);
    if (number < rows->n_tables) {
        ticket->table = rows->tables[number];
        ticket->table_number = (uint32_t)number;
    } else {
        (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                       "there is no table %zu, the cache has %u", number, rows->n_tables);
    }
    bth_lock_give(&rows->lock);
    return error->code;
}

/* Not all rows find a place: because others hold them, or because there are not as many. */
static int fail_short(const bth_row_ticket *ticket, size_t n_short, uint64_t line_nbytes,
                      bool is_busy, berth_error *error)
{
    char name[128];

    bth_row_table_name(&ticket->table, name, sizeof name);
    return bth_fail(error, is_busy ? BERTH_E_BUSY : BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                    "%zu of %zu rows of %s find no place, %llu bytes are missing: %s", n_short,
                    ticket->n_rows, name, (ull)n_short * line_nbytes,
                    is_busy ? "live tickets hold the others"
                            : "cache and scratch are too small for one request of so many");
}

static int prefetch(berth_rows *rows, size_t table, const int64_t *ids, bth_row_ticket *ticket,
                    berth_error *error)
{
    size_t n_short = 0;

    if (look_up_table(rows, table, ticket, error) < 0)
        return error->code;
    if (plan(ticket, ids, error) == 0) {
        (void)bth_lock_take(&rows->lock);
        bool is_busy = rows->stats.n_tickets > 0;
        uint64_t line_nbytes = rows->layout.line_nbytes;
        (void)admit(rows, ticket, &n_short, error);
        bth_lock_give(&rows->lock);
        if (n_short > 0)
            (void)fail_short(ticket, n_short, line_nbytes, is_busy, error);
    }
    return error->code < 0 ? bth_error_prefix(error, ticket->table.checkpoint->source.reader.name)
                           : 0;
}

int berth_rows_prefetch(berth_rows *rows, size_t table, const int64_t *ids, size_t n,
                        berth_ticket *ticket, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!ticket)
        return fail_argument(error, "the place for the ticket is NULL");
    *ticket = 0;
    if (!rows || (!ids && n > 0))
        return fail_argument(error, "there is no cache, or there are no ids");
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    if (n > UINT32_MAX)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%zu ids are too many for one request", n);
    bth_row_ticket *made = make(n, error);
    if (!made)
        return error->code;
    if (prefetch(rows, table, ids, made, error) < 0) {
        bth_release(made);
        return error->code;
    }
    *ticket = made->number;
    return 0;
}

int berth_rows_wait(berth_rows *rows, berth_ticket ticket, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (check(rows, error) < 0)
        return error->code;
    leave(rows, await(rows, ticket, error));
    return error->code;
}

int berth_rows_lookup(berth_rows *rows, berth_ticket ticket, const void **pointers,
                      berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (check(rows, error) < 0)
        return error->code;
    bth_row_ticket *found = await(rows, ticket, error);
    size_t n = found && error->code == BERTH_OK ? found->n_ids : 0;
    if (!pointers && n > 0)
        (void)fail_argument(error, "the place for the pointers is NULL");
    for (size_t i = 0; pointers && i < n; i++)
        pointers[i] = bth_row_at(rows, found->places[found->index[i]]);
    leave(rows, found);
    return error->code;
}

int berth_rows_release(berth_rows *rows, berth_ticket ticket, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (check(rows, error) < 0)
        return error->code;
    (void)bth_lock_take(&rows->lock);
    bth_row_ticket *found = find(rows, ticket, error);
    if (found)
        withdraw(rows, found);
    bth_lock_give(&rows->lock);
    bth_release(found);
    return error->code;
}
