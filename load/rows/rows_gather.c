/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Gathers: rows of any number of ids, copied to the caller's memory, through a cache of any size.
 *
 * A pass makes lists of distinct rows. A few tickets at a time take their rows from there. Rows
 * that find a line of the cache are kept in it; the others go from the file to the output.
 */
#include "load/rows/rows.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

void bth_row_passes_choose(bth_row_passes *passes, uint64_t n_ids,
                           const bth_row_pass_limits *limits)
{
    uint64_t pass_ids = limits->n_passes ? bth_divide_up(n_ids, limits->n_passes)
                                         : limits->memory_nbytes / BTH_ROWS_PASS_ID_NBYTES;

    pass_ids = bth_max(bth_min(bth_max(pass_ids, limits->min_pass_ids), n_ids), 1);
    *passes = (bth_row_passes){.pass_ids = pass_ids, .n_passes = 1, .list_ids = pass_ids};
    if (pass_ids < n_ids) {
        passes->n_passes = bth_divide_up(n_ids, pass_ids);
        passes->list_ids += pass_ids / 4;
    }
    passes->nbytes = passes->list_ids * BTH_ROWS_LIST_ID_NBYTES;
}

void bth_row_buckets_count(bth_row_buckets *buckets, const bth_row_ids *ids, uint64_t n_rows)
{
    memset(buckets, 0, sizeof *buckets);
    while ((n_rows - 1) >> buckets->row_bits >= BTH_ROWS_BUCKETS)
        buckets->row_bits++;
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id = bth_row_ids_get(ids, i);
        if ((uint64_t)id < n_rows) /* not pruned; nor changed by the caller since it was checked */
            buckets->counts[(uint64_t)id >> buckets->row_bits]++;
    }
}

bool bth_row_buckets_select_next(bth_row_buckets *buckets, const bth_row_passes *passes,
                                 bth_row_selection *selection)
{
    uint32_t end = buckets->next;
    uint64_t n = 0;

    while (end < BTH_ROWS_BUCKETS && n < passes->pass_ids &&
           (n == 0 || n + buckets->counts[end] <= passes->list_ids))
        n += buckets->counts[end++];
    *selection = (bth_row_selection){.first_row = (uint64_t)buckets->next << buckets->row_bits,
                                     .end_row = (uint64_t)end << buckets->row_bits};
    buckets->next = end;
    return n > 0;
}

/* Limits of the tickets that are live at the same time: so long does one hold the lock at most. */
#define GATHER_TICKETS 256
#define GATHER_ROWS 65536
/* load.rows_passes = 0: the lists of a pass. More passes cost nothing up to about 12. */
#define GATHER_LISTS_NBYTES (UINT64_C(64) << 20)

typedef unsigned long long ull;

typedef struct row_gather {
    berth_rows *rows;
    const berth_rows_part *parts;
    size_t n_parts;
    const berth_params *params;
    uint64_t total_nbytes, done_nbytes; /* of the rows in the output, for progress */
    /* The plan: */
    bth_row_passes passes;
    uint64_t n_ids;
    size_t max_tickets, max_rows;
    /* The memory: */
    bth_pages pages;
    bth_region region;
    bth_row_ticket *tickets;
    bth_row_buckets *buckets;
    uint64_t *keys, *spare; /* of the lists of one pass */
    uint32_t *slots, *missing;
    /* Now: */
    const berth_rows_part *part;
    bth_row_table table; /* of the part */
    uint64_t stride_nbytes;
    bth_row_ids ids; /* of the part; later those that fit one list */
    uint8_t *output; /* where the row of the first of them goes */
    uint64_t stamp;
    uint64_t n_passes;         /* begun */
    size_t n_list_ids;         /* of keys: used by lists of this pass */
    size_t n_tickets, n_slots; /* live, and their slots */
} row_gather;

/* ---- checks and plan ---- */

static int row_gather_begin_part(row_gather *gather, const berth_rows_part *part,
                                 berth_error *error)
{
    if (bth_rows_find_table(gather->rows, part->table, &gather->table, error) < 0)
        return error->code;
    gather->part = part;
    gather->stride_nbytes = part->stride_nbytes ? part->stride_nbytes : gather->table.row_nbytes;
    gather->ids = (bth_row_ids){.items = part->ids,
                                .n = part->n,
                                .are_32_bit = part->ids_are_32_bit,
                                .may_be_pruned = part->pruned_to_zero};
    gather->output = part->output;
    return 0;
}

/* Of the gather's memory; as long as the passes are not chosen, without their lists. */
static uint64_t row_gather_nbytes(const row_gather *gather)
{
    uint64_t nbytes = gather->max_tickets * sizeof *gather->tickets +
                      gather->max_rows * (sizeof *gather->slots + sizeof *gather->missing);

    return gather->passes.nbytes + nbytes +
           (gather->passes.n_passes > 1 ? sizeof *gather->buckets : 0);
}

/* Checks everything but the ids; then how many passes, and their memory. */
static int row_gather_plan(row_gather *gather, berth_error *error)
{
    struct berth_config config;

    if (bth_rows_check(gather->rows, error) < 0 ||
        bth_config_copy_for_operation(gather->params, &config, error) < 0)
        return error->code;
    if (!gather->parts && gather->n_parts > 0)
        return bth_fail_argument(error, "the parts are NULL");
    for (size_t i = 0; i < gather->n_parts; i++) {
        const berth_rows_part *part = &gather->parts[i];
        uint64_t row_nbytes = 0, part_nbytes;
        if (BTH_CHECK_RESERVED(berth_rows_part, part, error) == 0 &&
            row_gather_begin_part(gather, part, error) == 0)
            row_nbytes = gather->table.row_nbytes;
        if (error->code == 0 && gather->stride_nbytes < row_nbytes)
            (void)bth_fail_argument(error, "stride_nbytes=%llu, but the rows have %llu bytes",
                                    (ull)part->stride_nbytes, (ull)row_nbytes);
        else if (error->code == 0 &&
                 (!bth_try_multiply(part->n, gather->stride_nbytes, &part_nbytes) ||
                  part_nbytes > PTRDIFF_MAX))
            (void)bth_fail_argument(error, "%zu rows of %llu bytes are too many", part->n,
                                    (ull)row_nbytes);
        if (error->code < 0)
            return bth_error_prefix_index(error, "part", i);
        gather->n_ids += part->n;
        gather->total_nbytes += part->n * row_nbytes;
    }
    const berth_rows_limits *limits = &gather->rows->limits;
    uint64_t limit_nbytes = (uint64_t)config.io_memory_nbytes;
    uint64_t cache_nbytes = limits->cache_nbytes + limits->scratch_nbytes;
    uint64_t left_nbytes = limit_nbytes > cache_nbytes ? limit_nbytes - cache_nbytes : 0;
    gather->pages.wanted = config.io_large_pages;
    gather->max_rows = (size_t)bth_min(gather->n_ids, GATHER_ROWS);
    gather->max_tickets = (size_t)bth_min(gather->n_parts, GATHER_TICKETS - 1) + 1;
    uint64_t fixed_nbytes = row_gather_nbytes(gather) + sizeof *gather->buckets;
    bth_row_pass_limits allowed = {.n_passes = (uint64_t)config.load_rows_passes,
                                   .min_pass_ids = (uint64_t)config.load_rows_min_pass_ids,
                                   .memory_nbytes = GATHER_LISTS_NBYTES};
    if (limit_nbytes && left_nbytes < fixed_nbytes + GATHER_LISTS_NBYTES)
        allowed.memory_nbytes = left_nbytes > fixed_nbytes ? left_nbytes - fixed_nbytes : 0;
    bth_row_passes_choose(&gather->passes, gather->n_ids, &allowed);
    uint64_t nbytes = row_gather_nbytes(gather);
    if (limit_nbytes == 0 || nbytes <= left_nbytes)
        return 0;
    return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                    "a pass of %llu of %llu ids needs %llu bytes, but io.memory_nbytes=%llu leaves "
                    "%llu beside the cache: %llu bytes are missing; set load.rows_passes or "
                    "load.rows_min_pass_ids so that passes are smaller",
                    (ull)gather->passes.pass_ids, (ull)gather->n_ids, (ull)nbytes,
                    (ull)limit_nbytes, (ull)left_nbytes, (ull)(nbytes - left_nbytes));
}

/* ---- live tickets ---- */

static int row_gather_report_progress(row_gather *gather, uint64_t nbytes, berth_error *error)
{
    const berth_params *params = gather->params;

    gather->done_nbytes += nbytes;
    if (nbytes > 0 && params && params->progress && error->code == BERTH_OK &&
        params->progress(params->progress_context, gather->done_nbytes, gather->total_nbytes) != 0)
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    return error->code;
}

/* Waits for the rows of all live tickets, and releases them. An error that is set stays. */
static int row_gather_finish_tickets(row_gather *gather, berth_error *error)
{
    berth_rows *rows = gather->rows;
    uint64_t nbytes = 0;

    for (size_t i = 0; i < gather->n_tickets; i++) {
        bth_row_ticket *ticket = &gather->tickets[i];
        (void)bth_lock_acquire(&rows->lock);
        bth_rows_read_and_wait_for_ticket(rows, ticket);
        bth_lock_release(&rows->lock);
        if (ticket->error.code < 0 && error->code == BERTH_OK)
            *error = ticket->error;
        /* Copies the rows that were in the cache. Tasks have copied those that they read. */
        size_t n_rows = ticket->error.code == BERTH_OK ? ticket->list.n_rows : 0;
        for (size_t i_row = 0, k = 0; i_row < n_rows; i_row++)
            if (k < ticket->n_missing && ticket->missing[k] == i_row)
                k++;
            else
                bth_row_ticket_copy_to_output(ticket, i_row,
                                              bth_rows_slot_address(rows, ticket->slots[i_row]));
        size_t n_ids = ticket->list.n_order - bth_row_list_start(&ticket->list, 0);
        nbytes += n_ids * ticket->table.row_nbytes;
        (void)bth_lock_acquire(&rows->lock);
        bth_rows_remove_ticket_and_wait(rows, ticket);
        bth_lock_release(&rows->lock);
    }
    gather->n_tickets = gather->n_slots = 0;
    return row_gather_report_progress(gather, nbytes, error);
}

/*
 * Fills a list with selected ids, in the memory that this pass has left, and requests its rows by
 * tickets: each for as many rows as have slots. Some may still be read when this returns.
 */
static int row_gather_request_rows(row_gather *gather, bth_row_selection *selection,
                                   berth_error *error)
{
    uint64_t *spare = gather->spare + gather->n_list_ids;
    bth_row_list list = {.keys = gather->keys + gather->n_list_ids,
                         .order = (uint32_t *)(void *)spare};
    size_t n_short;

    bth_row_list_fill(&list, &gather->ids, selection, gather->passes.list_ids - gather->n_list_ids,
                      spare);
    gather->n_list_ids += list.n_order;
    for (size_t from = 0, n; from < list.n_rows; from += n) {
        if ((gather->n_tickets == gather->max_tickets || gather->n_slots == gather->max_rows) &&
            row_gather_finish_tickets(gather, error) < 0)
            return error->code;
        bth_row_ticket *ticket = &gather->tickets[gather->n_tickets];
        n = (size_t)bth_min(gather->max_rows - gather->n_slots, list.n_rows - from);
        *ticket = (bth_row_ticket){.table_number = (uint32_t)gather->part->table,
                                   .table = gather->table,
                                   .list = list,
                                   .slots = gather->slots + gather->n_slots,
                                   .missing = gather->missing + gather->n_slots,
                                   .output = gather->output,
                                   .stride_nbytes = gather->stride_nbytes,
                                   .stamp = gather->stamp};
        ticket->list.keys += from;
        ticket->list.n_rows = n;
        ticket->list.n_order = bth_row_list_start(&list, from + n);
        (void)bth_lock_acquire(&gather->rows->lock);
        int code = bth_rows_admit_ticket(gather->rows, ticket, &n_short, error);
        bth_lock_release(&gather->rows->lock);
        if (code < 0)
            return code;
        gather->n_tickets++;
        gather->n_slots += n;
    }
    return 0;
}

/* ---- passes ---- */

/* The lists begin anew: no live ticket needs the old ones. */
static int row_gather_begin_pass(row_gather *gather, berth_error *error)
{
    gather->n_list_ids = 0;
    gather->n_passes++;
    return row_gather_finish_tickets(gather, error);
}

static int row_gather_run_part(row_gather *gather, const berth_rows_part *part, berth_error *error)
{
    size_t id_nbytes = part->ids_are_32_bit ? sizeof(int32_t) : sizeof(int64_t);

    if (row_gather_begin_part(gather, part, error) < 0)
        return error->code;
    size_t max = bth_rows_max_list_ids(gather->table.n_rows);
    for (size_t from = 0; from < part->n; from += gather->ids.n) {
        uint64_t n_pruned = 0;
        gather->ids.items = (const uint8_t *)part->ids + from * id_nbytes;
        gather->ids.n = (size_t)bth_min(part->n - from, max);
        gather->output = (uint8_t *)part->output + from * gather->stride_nbytes;
        for (size_t i = 0; part->pruned_to_zero && i < gather->ids.n; i++)
            if (bth_row_ids_get(&gather->ids, i) == BTH_ROWS_PRUNED) {
                memset(gather->output + i * gather->stride_nbytes, 0, gather->table.row_nbytes);
                n_pruned++;
            }
        if (row_gather_report_progress(gather, n_pruned * gather->table.row_nbytes, error) < 0)
            return error->code;
        const bth_row_passes *passes = &gather->passes;
        bth_row_selection selection = {.end_row = gather->table.n_rows};
        if (gather->ids.n <= passes->list_ids) {
            if (((gather->n_passes == 0 || gather->n_list_ids + gather->ids.n > passes->list_ids) &&
                 row_gather_begin_pass(gather, error) < 0) ||
                row_gather_request_rows(gather, &selection, error) < 0)
                return error->code;
            continue;
        }
        /* One pass has no room for all: takes as many as are needed. */
        bth_row_buckets_count(gather->buckets, &gather->ids, gather->table.n_rows);
        while (bth_row_buckets_select_next(gather->buckets, passes, &selection))
            while (selection.first_id < gather->ids.n)
                if (row_gather_begin_pass(gather, error) < 0 ||
                    row_gather_request_rows(gather, &selection, error) < 0)
                    return error->code;
    }
    return 0;
}

/* ---- public ---- */

int berth_rows_gather_or_estimate(berth_rows *rows, const berth_rows_part *parts, size_t n_parts,
                                  const berth_params *params, bool gathers,
                                  berth_rows_gather_estimate *estimate, berth_error *error)
{
    row_gather gather = {.rows = rows, .parts = parts, .n_parts = n_parts, .params = params};

    BTH_ERROR_BEGIN(error);
    if (!gathers && !estimate)
        return bth_fail_argument(error, "the pointer for the estimate is NULL");
    if (estimate)
        *estimate = (berth_rows_gather_estimate){0};
    if (row_gather_plan(&gather, error) < 0)
        return error->code;
    if (estimate)
        *estimate = (berth_rows_gather_estimate){.n_ids = gather.n_ids,
                                                 .n_passes = gather.passes.n_passes,
                                                 .memory_nbytes = row_gather_nbytes(&gather),
                                                 .output_nbytes = gather.total_nbytes};
    for (size_t i = 0; gathers && i < n_parts; i++) { /* all ids, before any byte is written */
        if (parts[i].n > 0 && (!parts[i].ids || !parts[i].output))
            (void)bth_fail_argument(error, "the ids, or the output, are NULL");
        else if (row_gather_begin_part(&gather, &parts[i], error) == 0 &&
                 bth_row_table_check_ids(&gather.table, &gather.ids, "the part", error) < 0)
            (void)bth_error_prefix(error, gather.table.checkpoint->source.reader.name);
        if (error->code < 0)
            return bth_error_prefix_index(error, "part", i);
    }
    if (!gathers || gather.n_ids == 0)
        return 0;
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, rows->trace, "gather rows", NULL);
    if (bth_region_new(row_gather_nbytes(&gather), sizeof(uint64_t), false, &gather.pages,
                       &gather.region, error) == 0) {
        const bth_row_passes *passes = &gather.passes;
        gather.keys = (uint64_t *)(void *)gather.region.bytes;
        gather.spare = gather.keys + passes->list_ids;
        gather.tickets = (bth_row_ticket *)(void *)(gather.spare + passes->list_ids);
        gather.slots = (uint32_t *)(void *)(gather.tickets + gather.max_tickets);
        gather.missing = gather.slots + gather.max_rows;
        if (passes->n_passes > 1)
            gather.buckets = (bth_row_buckets *)(void *)(gather.missing + gather.max_rows);
        (void)bth_lock_acquire(&rows->lock);
        gather.stamp = ++rows->cache.stamp;
        bth_lock_release(&rows->lock);
        for (size_t i = 0; i < n_parts && error->code == 0; i++)
            (void)row_gather_run_part(&gather, &parts[i], error);
        (void)row_gather_finish_tickets(&gather, error); /* also after an error */
        (void)bth_lock_acquire(&rows->lock);
        rows->stats.n_requests++;
        rows->stats.n_passes += gather.n_passes;
        bth_lock_release(&rows->lock);
        bth_region_free(&gather.region);
    }
    bth_trace_leave_lazily(&traced);
    return error->code;
}
