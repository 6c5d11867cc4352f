/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call into the system and every allocation that a row cache makes fails in turn, once and
 * for ever (W6, W8): each is a clean error, or did not matter; nothing leaks, no row is wrong, and
 * a cache that has seen a read fail gives the right rows afterwards.
 */
#include <berth/config.h>
#include <berth/rows.h>

#include "tests/support/faults/save_scene.h"

enum { N_ROWS = 3000, N_COLUMNS = 100, N_IDS = 200 };

static float *elements;
static int64_t ids[2][N_IDS];
static berth_checkpoint *checkpoint;
static const berth_tensor *tensor;

static void set_up(void)
{
    static const int64_t shape[] = {N_ROWS, N_COLUMNS};
    static const char *const names[] = {"table"};

    begin_faults();
    elements = save_elements(2, shape, 1, names);
    /* Neighbours and rows far apart; the second half of the one is the first of the other. */
    for (int64_t i = 0; i < N_IDS; i++) {
        ids[0][i] = i % 3 ? i * 14 : i;
        ids[1][i] = i < N_IDS / 2 ? ids[0][N_IDS / 2 + i] : 2999 - i;
    }
}

static void tear_down(void)
{
    free(elements);
    end_faults();
}

TestSuite(rows_faults, .init = set_up, .fini = tear_down, .timeout = 600);

static const struct {
    const char *options;
    uint64_t cache_nbytes; /* from the allocator, and mapped */
} ways[] = {{"io.threads=1", 300000},
            {"io.threads=3", 300000},
            {"io.numa=interleave io.threads=4", 4u << 20}};
#define N_WAYS (sizeof ways / sizeof *ways)

/* Every row of the table that a row cache calls, and what it can give. */
static const fault_kind faults[] = {
    {FAULT_pread, {EAGAIN, EINTR, EINVAL, EIO, EISDIR, FAULT_SHORT}},
    {FAULT_poll, {EINTR, ENOMEM}},
    {FAULT_mmap, {EAGAIN, EINVAL, ENOMEM}},
    {FAULT_munmap, {EINVAL}},
    {FAULT_madvise, {EAGAIN, EINVAL, ENOMEM}},
    {FAULT_mincore, {EAGAIN, ENOMEM}},
    {FAULT_get_mempolicy, {EFAULT, EINVAL}},
    {FAULT_mbind, {EINVAL, EIO, ENOMEM}},
    {FAULT_pthread_create, {EAGAIN, EINVAL, EPERM}},
    {FAULT_sched_getaffinity, {EINVAL, EPERM}},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

static void open_table(void)
{
    berth_error error;

    cr_assert_eq(berth_open(path, NULL, &checkpoint, &error), 0, "%s", error.message);
    tensor = berth_find_tensor(checkpoint, "table", NULL);
    cr_assert(tensor);
}

static void check_rows(berth_rows *rows, berth_ticket ticket, int which)
{
    const void *pointers[N_IDS];
    berth_error error;

    cr_assert_eq(berth_rows_wait(rows, ticket, pointers, &error), 0, "%s", error.message);
    for (int i = 0; i < N_IDS; i++)
        cr_assert_eq(
            memcmp(pointers[i], elements + ids[which][i] * N_COLUMNS, N_COLUMNS * sizeof *elements),
            0, "row %d", (int)ids[which][i]);
}

/* Two tickets that share rows: 0, or the first status. Whoever has no error has the right rows. */
static int use_tickets(berth_rows *rows, berth_error *error)
{
    berth_ticket tickets[2] = {0};
    berth_error last;

    for (int i = 0; i < 2; i++)
        if (berth_rows_prefetch(rows, 0, ids[i], N_IDS, &tickets[i], error) < 0)
            break;
    for (int i = 1; i >= 0; i--) {
        if (!tickets[i])
            continue;
        if (berth_rows_wait(rows, tickets[i], NULL, &last) == 0)
            check_rows(rows, tickets[i], i);
        else if (error->code == 0)
            *error = last;
        cr_assert_eq(berth_rows_release(rows, tickets[i], NULL), 0);
    }
    return error->code;
}

static int use_rows(size_t way, berth_error *error)
{
    const berth_rows_limits limits = {.cache_nbytes = ways[way].cache_nbytes};
    berth_rows *rows;
    size_t table;

    if (berth_rows_new(&limits, NULL, &rows, error) < 0)
        return error->code;
    if (berth_rows_add(rows, checkpoint, tensor, &table, error) == 0 &&
        use_tickets(rows, error) < 0) {
        /* What failed left nothing that is taken for rows. */
        berth_error again = {0};
        unsigned nth = fault.nth;
        fault.nth = 0;
        test_memory_refuse(0, false);
        cr_assert_eq(use_tickets(rows, &again), 0, "%s", again.message);
        fault.nth = nth;
    }
    berth_rows_free(rows);
    return error->code;
}

static bool must_fail(enum fault_row row, int system_errno)
{
    return row == FAULT_mmap || row == FAULT_pthread_create ||
           (row == FAULT_pread && system_errno != EINTR && system_errno != EAGAIN &&
            system_errno != FAULT_SHORT);
}

/* False: the fault was not reached any more. */
static bool fails_cleanly(size_t way, enum fault_row row, unsigned nth, int system_errno,
                          bool for_ever)
{
    char about[150];
    berth_error error = {0};

    snprintf(about, sizeof about, "%s, %s, call %u, errno %d%s", ways[way].options,
             fault_row_names[row], nth, system_errno, for_ever ? ", for ever" : "");
    test_memory_watch();
    open_table();
    fault_set(row, nth, system_errno, for_ever);
    int status = use_rows(way, &error);
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    berth_close(checkpoint);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s: memory leaks", about);
    test_memory_unwatch();
    cr_assert_eq(status, error.code);
    cr_assert_eq(status < 0, hit && must_fail(row, system_errno), "%s: %s", about, error.message);
    if (status < 0 && row == FAULT_pread)
        cr_assert(names_path(&error, path) && strcmp(error.record, "data/0") == 0 &&
                      error.offset != BERTH_NO_OFFSET,
                  "%s: %s", about, error.message);
    n_points += hit;
    return hit;
}

/* W6, W8 */
Test(rows_faults, any_fault_is_a_clean_error_or_does_not_matter)
{
    for (size_t way = 0; way < N_WAYS; way++) {
        cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
        for (size_t j = 0; j < N_FAULTS; j++)
            for (const int *each = faults[j].errnos; *each; each++)
                for (int for_ever = 0; for_ever < 2; for_ever++)
                    for (unsigned nth = 1; (!for_ever || must_fail(faults[j].row, *each)) &&
                                           nth < 20 &&
                                           fails_cleanly(way, faults[j].row, nth, *each, for_ever);)
                        nth++;
        berth_config_unpatch(NULL);
    }
    check_points(6, n_points, 400);
}

/* A row that is called has its errnos above. */
Test(rows_faults, no_row_is_forgotten)
{
    for (size_t way = 0; way < N_WAYS; way++) {
        cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
        cr_assert_not(fails_cleanly(way, FAULT_pread, 0, EIO, false));
        berth_config_unpatch(NULL);
        check_no_row_is_forgotten(faults, N_FAULTS);
    }
}

/* W6 */
Test(rows_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (size_t way = 0; way < N_WAYS; way++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            bool reached = true;
            cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
            for (unsigned nth = 1; reached; nth++) {
                berth_error error = {0};
                test_memory_watch();
                open_table();
                uint64_t before = test_memory_seen().n_allocations;
                test_memory_refuse(nth, for_ever);
                int status = use_rows(way, &error);
                reached = test_memory_seen().n_allocations >= before + nth;
                test_memory_refuse(0, false);
                berth_close(checkpoint);
                cr_assert_eq(test_memory_seen().live_nbytes, 0);
                test_memory_unwatch();
                cr_assert_eq(status, reached ? BERTH_E_MEMORY : 0, "allocation %u: %s", nth,
                             error.message);
                n_points += reached;
            }
            berth_config_unpatch(NULL);
        }
    check_points(6, n_points, 20);
}
