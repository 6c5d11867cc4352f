/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rows a request needs, and which reads bring them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "load/rows/rows_plan.h"

Test(rows_plan, the_first_id_that_is_no_row)
{
    static const int64_t ids[] = {0, 9, 3, 10, -1};
    static const int64_t negative[] = {0, -1}, least[] = {INT64_MIN};

    cr_expect_eq(bth_rows_find_bad_id(ids, 3, 10), 3, "all are rows");
    cr_expect_eq(bth_rows_find_bad_id(ids, 5, 10), 3, "one behind the last");
    cr_expect_eq(bth_rows_find_bad_id(negative, 2, 10), 1);
    cr_expect_eq(bth_rows_find_bad_id(least, 1, UINT64_C(1) << 48), 0);
    cr_expect_eq(bth_rows_find_bad_id(ids, 1, 0), 0, "a table without rows");
    cr_expect_eq(bth_rows_find_bad_id(NULL, 0, 0), 0);
}

Test(rows_plan, row_and_position_must_fit_one_word)
{
    cr_expect(bth_rows_are_sortable(1, UINT64_C(1) << 48));
    cr_expect(bth_rows_are_sortable((size_t)1 << 16, UINT64_C(1) << 48));
    cr_expect_not(bth_rows_are_sortable(((size_t)1 << 16) + 1, UINT64_C(1) << 48));
    cr_expect(bth_rows_are_sortable(((size_t)1 << 16) + 1, UINT64_C(1) << 47));
    cr_expect(bth_rows_are_sortable(0, 0));
}

struct unique {
    size_t n;
    uint64_t *rows, *spare;
    uint32_t *index;
};

/* With the index where the spare keys were, as it is used. */
static struct unique unique_of(const int64_t *ids, size_t n, uint64_t n_rows)
{
    struct unique unique;

    unique.rows = malloc((n + 1) * sizeof *unique.rows);
    unique.spare = malloc((n + 1) * sizeof *unique.spare);
    unique.index = (uint32_t *)(void *)unique.spare;
    unique.n = bth_rows_find_distinct(ids, n, n_rows, unique.rows, unique.spare, unique.index);
    for (size_t i = 1; i < unique.n; i++)
        cr_assert_lt(unique.rows[i - 1], unique.rows[i], "ascending, each once");
    for (size_t i = 0; i < n; i++) {
        cr_assert_lt(unique.index[i], unique.n);
        cr_assert_eq(unique.rows[unique.index[i]], (uint64_t)ids[i], "id %zu", i);
    }
    return unique;
}

static void free_unique(struct unique *unique)
{
    free(unique->rows);
    free(unique->spare);
}

Test(rows_plan, distinct_rows_ascending_and_where_each_id_is_among_them)
{
    static const int64_t ids[] = {7, 3, 7, 7, 0, 3};
    struct unique unique = unique_of(ids, 6, 8);

    cr_expect_eq(unique.n, 3);
    cr_expect_eq(unique.rows[0], 0);
    cr_expect_eq(unique.rows[2], 7);
    free_unique(&unique);
}

Test(rows_plan, nothing_one_and_the_same_again)
{
    static const int64_t same[] = {5, 5, 5, 5};
    struct unique none = unique_of(NULL, 0, 8), one = unique_of(same, 1, 6),
                  again = unique_of(same, 4, 6);
    static const int64_t only[] = {0, 0};
    struct unique single = unique_of(only, 2, 1);

    cr_expect_eq(none.n, 0);
    cr_expect_eq(one.n, 1);
    cr_expect_eq(again.n, 1);
    cr_expect_eq(single.n, 1, "a table of one row: its rows have no bits");
    free_unique(&none), free_unique(&one), free_unique(&again), free_unique(&single);
}

/* Digits of every number of bytes, with an even and an odd number of moves. */
Test(rows_plan, many_ids_of_tables_of_any_size)
{
    enum { N = 20000 };
    int64_t *ids = malloc(N * sizeof *ids);
    uint64_t state = 12345;

    for (unsigned bits = 1; bits <= 48; bits++) {
        uint64_t n_rows = UINT64_C(1) << bits;
        for (size_t i = 0; i < N; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ids[i] = (int64_t)((state >> 16) % n_rows);
        }
        ids[N - 1] = (int64_t)n_rows - 1;
        struct unique unique = unique_of(ids, N, n_rows);
        cr_assert_eq(unique.rows[unique.n - 1], n_rows - 1);
        free_unique(&unique);
    }
    free(ids);
}

/* ---- reads ---- */

static size_t merge(uint64_t row_nbytes, uint64_t gap_nbytes, uint64_t max_nbytes,
                    const uint64_t *rows, size_t n)
{
    static const uint32_t which[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const bth_rows_reads reads = {
        .row_nbytes = row_nbytes, .gap_nbytes = gap_nbytes, .max_nbytes = max_nbytes};

    return bth_rows_count_for_one_read(&reads, rows, which, n);
}

Test(rows_plan, neighbours_come_together_up_to_the_gap)
{
    static const uint64_t rows[] = {10, 11, 14, 18, 19};

    cr_expect_eq(merge(100, 0, 100000, rows, 5), 2, "no gap");
    cr_expect_eq(merge(100, 199, 100000, rows, 5), 2, "two rows lie between");
    cr_expect_eq(merge(100, 200, 100000, rows, 5), 3);
    cr_expect_eq(merge(100, 300, 100000, rows, 5), 5);
    cr_expect_eq(merge(100, 300, 100000, rows, 4), 4, "no more than there are");
    cr_expect_eq(merge(100, 300, 100000, rows, 1), 1);
}

Test(rows_plan, a_read_is_no_longer_than_its_buffer)
{
    static const uint64_t rows[] = {10, 11, 12, 13, 20};

    cr_expect_eq(merge(100, 1000, 400, rows, 5), 4);
    cr_expect_eq(merge(100, 1000, 399, rows, 5), 3);
    cr_expect_eq(merge(100, 1000, 1099, rows, 5), 4);
    cr_expect_eq(merge(100, 1000, 1100, rows, 5), 5, "the gap counts");
    cr_expect_eq(merge(100, 1000, 100, rows, 5), 1);
    cr_expect_eq(merge(100, 1000, 0, rows, 5), 1, "one row needs no buffer");
}

Test(rows_plan, only_the_rows_that_are_missing)
{
    static const uint64_t rows[] = {1, 2, 3, 9};
    static const uint32_t which[] = {0, 2, 3};
    const bth_rows_reads reads = {.row_nbytes = 8, .gap_nbytes = 8, .max_nbytes = 1000};

    cr_expect_eq(bth_rows_count_for_one_read(&reads, rows, which, 3), 2);
    cr_expect_eq(bth_rows_count_for_one_read(&reads, rows, which + 1, 2), 1);
}
