/* SPDX-License-Identifier: BSD-3-Clause */
/* How the ids of a gather are divided into passes. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "load/rows/rows.h"

Test(rows_passes, are_as_many_as_asked_for_or_as_few_as_fit)
{
    static const struct {
        uint64_t n_ids;
        bth_row_pass_limits limits;
        uint64_t n_passes, pass_ids, list_ids;
    } cases[] = {
        {100, {1, 1, 0}, 1, 100, 100},
        {100, {4, 1, 0}, 4, 25, 31},
        {100, {3, 1, 0}, 3, 34, 42},
        {100, {4096, 1, 0}, 100, 1, 1},
        {100, {12, 50, 0}, 2, 50, 62},
        {100, {12, 99, 0}, 2, 99, 123},
        {100, {12, 1000, 0}, 1, 100, 100},
        {100, {0, 1, 100 * 20}, 1, 100, 100},
        {100, {0, 1, 100 * 20 - 1}, 2, 99, 123},
        {100, {0, 1, 0}, 100, 1, 1},
        {100, {0, 30, 0}, 4, 30, 37},
        {1, {12, 1, 0}, 1, 1, 1},
        {0, {12, 1, 0}, 1, 1, 1},
        {UINT64_C(1) << 40, {4096, 65536, 0}, 4096, UINT64_C(1) << 28, UINT64_C(5) << 26},
        {UINT64_C(1) << 40, {0, 1, UINT64_MAX}, 1, UINT64_C(1) << 40, UINT64_C(1) << 40},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bth_row_passes passes;
        bth_row_passes_choose(&passes, cases[i].n_ids, &cases[i].limits);
        cr_expect_eq(passes.n_passes, cases[i].n_passes, "case %zu: %llu passes", i,
                     (unsigned long long)passes.n_passes);
        cr_expect_eq(passes.pass_ids, cases[i].pass_ids, "case %zu", i);
        cr_expect_eq(passes.list_ids, cases[i].list_ids, "case %zu: %llu", i,
                     (unsigned long long)passes.list_ids);
        cr_expect_eq(passes.nbytes, 16 * cases[i].list_ids, "case %zu", i);
    }
}

#define N_IDS 24000

/* Every id is in one selection; the selections are in order; returns how many lists they fill. */
static size_t count_lists(const int64_t *items, uint64_t n_rows, uint64_t n_passes)
{
    static bth_row_buckets buckets;
    const bth_row_ids ids = {.items = items, .n = N_IDS, .may_be_pruned = true};
    const bth_row_pass_limits limits = {.n_passes = n_passes, .min_pass_ids = 1};
    bth_row_selection selection;
    bth_row_passes passes;
    size_t n_lists = 0, n_seen = 0, n_pruned = 0;
    uint64_t end_row = 0;

    bth_row_passes_choose(&passes, N_IDS, &limits);
    bth_row_buckets_count(&buckets, &ids, n_rows);
    while (bth_row_buckets_select_next(&buckets, &passes, &selection)) {
        uint64_t n = 0, first = UINT64_MAX, last = 0;
        cr_assert_eq(selection.first_row, end_row);
        cr_assert_eq(selection.first_id, 0);
        end_row = selection.end_row;
        for (size_t i = 0; i < N_IDS; i++) {
            uint64_t row = (uint64_t)items[i];
            if (items[i] < 0 || row < selection.first_row || row >= end_row)
                continue;
            n++;
            first = row < first ? row : first;
            last = row > last ? row : last;
        }
        cr_assert(n <= passes.list_ids || first >> buckets.row_bits == last >> buckets.row_bits);
        n_lists += (n + passes.list_ids - 1) / passes.list_ids;
        n_seen += n;
    }
    for (size_t i = 0; i < N_IDS; i++)
        n_pruned += items[i] < 0;
    cr_expect_eq(n_seen + n_pruned, N_IDS);
    return n_lists;
}

Test(rows_passes, divide_the_rows_so_that_each_takes_its_share)
{
    static int64_t ids[N_IDS];
    static const uint64_t n_rows[] = {1, 5, 4095, 4096, 4097, 1000000, UINT64_C(1) << 48};
    static const uint64_t n_passes[] = {1, 2, 4, 12, 100};
    uint64_t state = 7;

    for (size_t r = 0; r < sizeof n_rows / sizeof *n_rows; r++) {
        for (size_t i = 0; i < N_IDS; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ids[i] = (int64_t)((state >> 16) % n_rows[r]);
        }
        ids[0] = (int64_t)n_rows[r] - 1;
        for (size_t p = 0; p < sizeof n_passes / sizeof *n_passes; p++) {
            size_t n = count_lists(ids, n_rows[r], n_passes[p]);
            cr_expect_leq(n, 2 * n_passes[p], "%zu lists", n);
            if (n_rows[r] > 4000)
                cr_expect_leq(n, n_passes[p], "%zu lists of evenly spread ids", n);
        }
    }
}

/* Many ids of one row: its passes are cut by positions. Pruned ids are in none. */
Test(rows_passes, of_ids_that_are_all_the_same)
{
    static int64_t ids[N_IDS];

    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = i % 3 ? 77777 : BTH_ROWS_PRUNED;
    cr_expect_eq(count_lists(ids, 1000000, 10), 6, "16,000 ids in lists of 3,000");
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = BTH_ROWS_PRUNED;
    cr_expect_eq(count_lists(ids, 1000000, 10), 0);
    cr_expect_eq(count_lists(ids, 0, 10), 0, "a table without rows");
}
