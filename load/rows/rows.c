/* SPDX-License-Identifier: BSD-3-Clause */
/* The row cache as a whole: its memory, the parts of it, its tables, and the tickets of live
 * requests. */
#include "load/rows/rows.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "io/file_system.h"
#include "io/thread_pool.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"

/* limits.ways = 0, and limits.scratch_nbytes = 0: an eighth of cache_nbytes. */
#define DEFAULT_WAYS 16
#define SCRATCH_PART 8
/* The longest read of several rows. */
#define BUFFER_MAX_NBYTES (UINT64_C(128) << 10)
#define LINE_ALIGNMENT 64
#define LINE_MIN_NBYTES 8
/* The low bits of a ticket's number are its index; the others count, so each number is unique. */
#define INDEX_BITS 20
#define TICKETS_MAX ((size_t)1 << INDEX_BITS)
#define FIRST_TICKETS 16

typedef unsigned long long ull;

/* ---- the parts of the memory ---- */

static uint32_t rows_count_slots(uint64_t nbytes, uint64_t slot_nbytes)
{
    return (uint32_t)bth_min(nbytes / slot_nbytes, BTH_ROWS_SLOTS_MAX / 2);
}

static int rows_fail_limit(const bth_row_table *table, const char *limit, uint64_t nbytes,
                           uint64_t needed_nbytes, berth_error *error)
{
    return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                    "it has rows of %llu bytes: %s=%llu is too small, %llu bytes are missing",
                    (ull)table->row_nbytes, limit, (ull)nbytes, (ull)(needed_nbytes - nbytes));
}

/* Divides the memory so that lines hold the table's rows: whole cache lines of the processor, or a
 * power of two below. */
static int rows_divide_memory_into_lines(const berth_rows *rows, const bth_row_table *table,
                                         bth_row_layout *layout, berth_error *error)
{
    const berth_rows_limits *limits = &rows->limits;
    uint64_t line_nbytes = LINE_MIN_NBYTES, set_nbytes;
    uint32_t ways = (uint32_t)limits->ways;

    if (table->row_nbytes >= LINE_ALIGNMENT)
        line_nbytes = (table->row_nbytes + LINE_ALIGNMENT - 1) / LINE_ALIGNMENT * LINE_ALIGNMENT;
    while (line_nbytes < table->row_nbytes)
        line_nbytes *= 2;
    uint64_t with_notes = line_nbytes + BTH_ROWS_LINE_NOTES;
    uint32_t n_lines = rows_count_slots(limits->cache_nbytes, with_notes);
    if (ways == 0) /* a small cache is one set */
        ways = n_lines == 0 ? 1 : n_lines < DEFAULT_WAYS ? n_lines : DEFAULT_WAYS;
    if (!bth_try_multiply(with_notes, ways, &set_nbytes))
        set_nbytes = UINT64_MAX;
    *layout = (bth_row_layout){.line_nbytes = line_nbytes, .ways = ways, .n_sets = n_lines / ways};
    if (layout->n_sets == 0)
        return rows_fail_limit(table, "cache_nbytes", limits->cache_nbytes, set_nbytes, error);
    /* Of the scratch, up to half is for read buffers, the rest for rows without a line. */
    uint64_t slot_nbytes = line_nbytes + BTH_ROWS_SCRATCH_NOTES;
    uint64_t buffer_nbytes =
        bth_min(limits->scratch_nbytes / 2 / rows->n_readers, rows->chunk_nbytes);
    layout->buffer_nbytes = buffer_nbytes - buffer_nbytes % LINE_ALIGNMENT;
    layout->n_scratch = rows_count_slots(
        limits->scratch_nbytes - layout->buffer_nbytes * rows->n_readers, slot_nbytes);
    if (layout->n_scratch == 0) {
        layout->buffer_nbytes = 0;
        layout->n_scratch = rows_count_slots(limits->scratch_nbytes, slot_nbytes);
    }
    if (layout->n_scratch == 0)
        return rows_fail_limit(table, "scratch_nbytes", limits->scratch_nbytes, slot_nbytes, error);
    return 0;
}

/* ---- tables ---- */

/* For messages: the tensor's name, or its storage's. Not under the lock: it may be slow. */
static void row_table_name(const bth_row_table *table, char *name, size_t name_nbytes)
{
    if (!bth_tensor_find_name(table->checkpoint, NULL, table->storage, table->offset, name,
                              name_nbytes))
        (void)snprintf(name, name_nbytes, "the tensor of storage %s", table->storage->key);
}

static int row_table_make(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                          bth_row_table *table, berth_error *error)
{
    if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) < 0)
        return error->code;
    if (tensor->rank != 2)
        return bth_fail_argument(error, "a table of rows has 2 dimensions, this tensor has %d",
                                 tensor->rank);
    if (bth_dtype_elements_per_item(tensor->dtype) > 1)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                        "rows of %s elements are not supported", berth_dtype_name(tensor->dtype));
    if (!berth_tensor_is_contiguous(tensor))
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                        "it is not contiguous: its rows do not follow each other");
    if (tensor->shape[1] == 0)
        return bth_fail_argument(error, "the rows have no elements");
    if (bth_storage_check_may_inflate(checkpoint, bth_storage_root(tensor->storage),
                                      "its rows cannot be read one by one", error) < 0)
        return error->code;
    size_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    *table = (bth_row_table){.checkpoint = checkpoint,
                             .storage = tensor->storage,
                             .row_nbytes = (uint64_t)tensor->shape[1] * item_nbytes,
                             .n_rows = (uint64_t)tensor->shape[0]};
    if (table->n_rows > 0) /* T2: the offset of an empty tensor may lie outside */
        table->offset = (uint64_t)tensor->storage_offset * item_nbytes;
    if (table->n_rows >> BTH_ROWS_ROW_BITS || table->row_nbytes > PTRDIFF_MAX / 2)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                        "too large: %llu rows of %llu bytes", (ull)table->n_rows,
                        (ull)table->row_nbytes);
    return 0;
}

/* Under the lock. If the row is longer than the lines, makes them longer, which empties them. */
static int rows_add_table(berth_rows *rows, const bth_row_table *table, size_t *number,
                          berth_error *error)
{
    bth_row_layout layout = rows->layout;

    if (rows->n_tables == BTH_ROWS_TABLES_MAX)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                        "a cache has at most %d tables", BTH_ROWS_TABLES_MAX);
    if (table->row_nbytes > layout.line_nbytes &&
        rows_divide_memory_into_lines(rows, table, &layout, error) < 0)
        return error->code;
    if (layout.line_nbytes != rows->layout.line_nbytes && rows->stats.n_tickets > 0)
        return bth_fail(error, BERTH_E_BUSY, NULL, BERTH_NO_OFFSET,
                        "the table's rows are longer than the cache's lines, and %llu live "
                        "tickets hold rows",
                        (ull)rows->stats.n_tickets);
    bth_row_table *more = rows->tables;
    if ((rows->n_tables & (rows->n_tables - 1)) == 0) { /* 0, 1, 2, 4, ... tables fill the list */
        size_t nbytes = (rows->n_tables ? 2 * rows->n_tables : 1) * sizeof *more;
        more = bth_reallocate(rows->tables, nbytes);
        if (!more)
            return bth_fail_memory(error, nbytes);
    }
    if (layout.line_nbytes != rows->layout.line_nbytes) {
        uint64_t n_slots = (uint64_t)layout.n_sets * layout.ways + layout.n_scratch;
        uint64_t notes_at = n_slots * layout.line_nbytes + layout.buffer_nbytes * rows->n_readers;
        bth_row_cache_initialize(&rows->cache, layout.n_sets, layout.ways, layout.n_scratch,
                                 rows->memory.bytes + notes_at);
        rows->layout = layout;
        rows->stats.n_lines = rows->cache.n_lines;
        rows->stats.line_nbytes = layout.line_nbytes;
    }
    rows->tables = more;
    rows->tables[rows->n_tables] = *table;
    *number = rows->n_tables++;
    return 0;
}

int bth_rows_check(const berth_rows *rows, berth_error *error)
{
    if (!rows)
        return bth_fail_argument(error, "the cache is NULL");
    return bth_lock_is_of_this_process(&rows->lock) ? 0 : bth_fail_forked(error, "row cache");
}

int berth_rows_add(berth_rows *rows, berth_checkpoint *checkpoint, const berth_tensor *tensor,
                   size_t *table, berth_error *error)
{
    bth_row_table made = {0};

    BTH_ERROR_BEGIN(error);
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    if (!checkpoint || !table)
        return bth_fail_argument(error, "the checkpoint, or the pointer for the table, is NULL");
    if (row_table_make(checkpoint, tensor, &made, error) == 0) {
        int fd = checkpoint->source.reader.fd;
        bool is_rotating = !rows->is_count_given && fd >= 0 && bth_disk_is_rotating(fd, "");
        (void)bth_lock_acquire(&rows->lock);
        if (rows_add_table(rows, &made, table, error) == 0 && is_rotating)
            rows->max_waiting_tasks = 1;
        bth_lock_release(&rows->lock);
    }
    (void)bth_error_in_tensor(checkpoint, tensor, error);
    return bth_error_in_checkpoint(checkpoint, error);
}

int bth_row_table_check_ids(const bth_row_table *table, const bth_row_ids *ids, const char *request,
                            berth_error *error)
{
    size_t bad = bth_rows_find_bad_id(ids, table->n_rows);
    char name[128];

    if (bad >= ids->n)
        return 0;
    row_table_name(table, name, sizeof name);
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

/* ---- the cache as a whole ---- */

/* Allocates all memory now, so that adding tables later needs none. */
static int rows_initialize(berth_rows *rows, uint64_t nbytes, const struct berth_config *config,
                           berth_error *error)
{
    bth_pages pages = {.wanted = config->io_large_pages};
    bool spread = config->io_numa == BTH_NUMA_INTERLEAVE;
    size_t each_nbytes = sizeof *rows->threads + sizeof *rows->free_buffers;

    rows->chunk_nbytes = BUFFER_MAX_NBYTES;
    if (config->io_chunk_nbytes)
        rows->chunk_nbytes = bth_min((uint64_t)config->io_chunk_nbytes, BUFFER_MAX_NBYTES);
    rows->n_readers = bth_workers_choose_count(config, BTH_WORKERS_ROWS, UINT64_MAX, 0);
    rows->is_count_given = config->io_threads != 0;
    rows->trace = config->trace;
    rows->max_waiting_tasks = rows->n_readers;
    rows->is_waiting = true; /* until a task did not wait */
    rows->n_processors = (unsigned)bth_min(bth_processors_count_capped(), rows->n_readers);
    bth_lock_initialize(&rows->lock);
    (void)pthread_cond_init(&rows->work, NULL);
    (void)pthread_cond_init(&rows->done, NULL);
    if (bth_region_new(nbytes, LINE_ALIGNMENT, spread, &pages, &rows->memory, error) < 0)
        return error->code;
    rows->threads = bth_allocate(rows->n_readers * each_nbytes);
    if (!rows->threads)
        return bth_fail_memory(error, rows->n_readers * each_nbytes);
    rows->free_buffers = (unsigned *)(void *)(rows->threads + rows->n_readers);
    for (unsigned i = 0; i < rows->n_readers; i++)
        rows->free_buffers[rows->n_free_buffers++] = i;
    return 0;
}

int berth_rows_new(const berth_rows_limits *given, const berth_params *params, berth_rows **made,
                   berth_error *error)
{
    berth_rows_limits limits = given ? *given : (berth_rows_limits){0};
    struct berth_config config;
    uint64_t nbytes;

    BTH_ERROR_BEGIN(error);
    if (!made)
        return bth_fail_argument(error, "the pointer for the cache is NULL");
    *made = NULL;
    if (bth_config_copy_for_operation(params, &config, error) < 0 ||
        bth_check_reserved("berth_rows_limits", limits.reserved,
                           sizeof limits.reserved / sizeof *limits.reserved, error) < 0)
        return error->code;
    if (limits.scratch_nbytes == 0)
        limits.scratch_nbytes = limits.cache_nbytes / SCRATCH_PART;
    if (limits.cache_nbytes == 0)
        return bth_fail_argument(error, "the limits are NULL, or cache_nbytes is 0");
    if (limits.ways > BTH_ROWS_WAYS_MAX)
        return bth_fail_argument(error, "a row can be in at most %d lines, not %llu",
                                 BTH_ROWS_WAYS_MAX, (ull)limits.ways);
    uint64_t max_nbytes = config.io_memory_nbytes ? (uint64_t)config.io_memory_nbytes : UINT64_MAX;
    if (!bth_try_add(limits.cache_nbytes, limits.scratch_nbytes, &nbytes))
        nbytes = UINT64_MAX;
    if (nbytes > max_nbytes)
        return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                        "a cache of %llu bytes and a scratch of %llu, but io.memory_nbytes=%llu: "
                        "%llu bytes are missing",
                        (ull)limits.cache_nbytes, (ull)limits.scratch_nbytes, (ull)max_nbytes,
                        (ull)(nbytes - max_nbytes));
    berth_rows *rows = bth_allocate_zeroed(sizeof *rows);
    if (!rows)
        return bth_fail_memory(error, sizeof *rows);
    rows->limits = limits;
    if (rows_initialize(rows, nbytes, &config, error) < 0 || bth_rows_start(rows, error) < 0) {
        berth_rows_free(rows);
        return error->code;
    }
    *made = rows;
    return 0;
}

void berth_rows_free(berth_rows *rows)
{
    BTH_HOLD_CANCEL(true);
    if (!rows)
        return;
    bth_trace_flush(rows->trace);
    bool is_ours = bth_lock_is_of_this_process(&rows->lock);
    /* X11: a child does not touch the lists if its parent was changing them. */
    bool are_lists_good = is_ours || bth_lock_was_free_at_fork(&rows->lock);
    if (is_ours) {
        bth_rows_stop(rows);
        (void)pthread_cond_destroy(&rows->done);
        (void)pthread_cond_destroy(&rows->work);
        bth_lock_destroy(&rows->lock);
    }
    for (size_t i = 0; are_lists_good && i < rows->n_tickets; i++)
        bth_release(rows->tickets[i]);
    if (are_lists_good) {
        bth_release(rows->tickets);
        bth_release(rows->tables);
    }
    bth_release(rows->threads);
    bth_region_free(&rows->memory);
    bth_release(rows);
}

int berth_rows_get_stats(berth_rows *rows, berth_rows_stats *stats, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_rows_check(rows, error) < 0)
        return error->code;
    if (!stats)
        return bth_fail_argument(error, "the pointer for the statistics is NULL");
    (void)bth_lock_acquire(&rows->lock);
    *stats = rows->stats;
    bth_lock_release(&rows->lock);
    return 0;
}

/* ---- tickets, from admission to release: under the lock ---- */

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

/* ---- requests ---- */

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
    row_table_name(&ticket->table, name, sizeof name);
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
