/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rows a request needs, and which reads bring them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "load/rows/rows.h"

static bth_row_ids ids_of(const int64_t *items, size_t n)
{
    return (bth_row_ids){.items = items, .n = n};
}

static size_t bad_id_of(const int64_t *items, size_t n, uint64_t n_rows)
{
    const bth_row_ids ids = ids_of(items, n);

    return bth_rows_find_bad_id(&ids, n_rows);
}

Test(rows_plan, the_first_id_that_is_no_row)
{
    static const int64_t ids[] = {0, 9, 3, 10, -1};
    static const int64_t negative[] = {0, -1}, least[] = {INT64_MIN};

    cr_expect_eq(bad_id_of(ids, 3, 10), 3, "all are rows");
    cr_expect_eq(bad_id_of(ids, 5, 10), 3, "one behind the last");
    cr_expect_eq(bad_id_of(negative, 2, 10), 1);
    cr_expect_eq(bad_id_of(least, 1, UINT64_C(1) << 48), 0);
    cr_expect_eq(bad_id_of(ids, 1, 0), 0, "a table without rows");
    cr_expect_eq(bad_id_of(NULL, 0, 0), 0);
}

Test(rows_plan, ids_of_32_bits_and_pruned_ones)
{
    static const int32_t items[] = {5, -1, 9, -2, INT32_MIN};
    bth_row_ids ids = {.items = items, .n = 5, .are_32_bit = true};

    cr_expect_eq(bth_rows_find_bad_id(&ids, 10), 1);
    ids.may_be_pruned = true;
    cr_expect_eq(bth_rows_find_bad_id(&ids, 10), 3, "-2 is not pruned");
    cr_expect_eq(bth_rows_find_bad_id(&ids, 0), 0);
    ids.n = 3;
    cr_expect_eq(bth_rows_find_bad_id(&ids, 9), 2);
    cr_expect_eq(bth_rows_find_bad_id(&ids, 10), 3);
}

Test(rows_plan, row_and_position_must_fit_one_word)
{
    cr_expect_eq(bth_rows_max_list_ids(UINT64_C(1) << 48), (size_t)1 << 16);
    cr_expect_eq(bth_rows_max_list_ids((UINT64_C(1) << 47) + 1), (size_t)1 << 16);
    cr_expect_eq(bth_rows_max_list_ids(UINT64_C(1) << 47), (size_t)1 << 17);
    cr_expect_eq(bth_rows_max_list_ids(UINT64_C(1) << 33), (size_t)1 << 31);
    cr_expect_eq(bth_rows_max_list_ids(UINT64_C(1) << 32), UINT32_MAX);
    cr_expect_eq(bth_rows_max_list_ids(0), UINT32_MAX);
}

struct unique {
    bth_row_list list;
    uint64_t *spare;
    size_t n;
};

static uint64_t row_of(const struct unique *unique, size_t i)
{
    return bth_row_list_row(&unique->list, i);
}

/* Checks a list of the selected ids: rows ascending, each with its positions. */
static void check_list(const bth_row_list *list, const bth_row_ids *ids, size_t n_selected)
{
    size_t k = 0;

    for (size_t i = 0; i < list->n_rows; i++) {
        cr_assert(i == 0 || bth_row_list_row(list, i - 1) < bth_row_list_row(list, i),
                  "ascending, each once");
        cr_assert_eq(bth_row_list_start(list, i), k);
        cr_assert_lt(k, bth_row_list_start(list, i + 1), "a row that nobody wants");
        for (size_t begin = k; k < bth_row_list_start(list, i + 1); k++) {
            cr_assert(k == begin || list->order[k - 1] < list->order[k]);
            cr_assert_eq(bth_row_ids_get(ids, list->order[k]), (int64_t)bth_row_list_row(list, i));
        }
    }
    cr_assert_eq(k, n_selected);
}

static struct unique unique_with(const bth_row_ids *ids, bth_row_selection *selection, size_t max)
{
    struct unique unique = {.spare = malloc((ids->n + 1) * sizeof *unique.spare)};

    /* With the order where the spare keys were, as it is used. */
    unique.list.keys = malloc((ids->n + 1) * sizeof *unique.list.keys);
    unique.list.order = (uint32_t *)(void *)unique.spare;
    bth_row_list_fill(&unique.list, ids, selection, max, unique.spare);
    unique.n = unique.list.n_rows;
    return unique;
}

static struct unique unique_of(const int64_t *items, size_t n, uint64_t n_rows)
{
    const bth_row_ids ids = ids_of(items, n);
    bth_row_selection all = {.end_row = n_rows};
    struct unique unique = unique_with(&ids, &all, n);

    check_list(&unique.list, &ids, n);
    cr_assert_eq(all.first_id, n);
    return unique;
}

static void free_unique(struct unique *unique)
{
    free(unique->list.keys);
    free(unique->spare);
}

Test(rows_plan, distinct_rows_ascending_and_where_each_id_is_among_them)
{
    static const int64_t ids[] = {7, 3, 7, 7, 0, 3};
    struct unique unique = unique_of(ids, 6, 8);

    cr_expect_eq(unique.n, 3);
    cr_expect_eq(row_of(&unique, 0), 0);
    cr_expect_eq(row_of(&unique, 2), 7);
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
        cr_assert_eq(row_of(&unique, unique.n - 1), n_rows - 1);
        free_unique(&unique);
    }
    free(ids);
}

Test(rows_plan, a_selection_takes_a_range_of_rows_as_far_as_there_is_room)
{
    static const int64_t items[] = {7, 3, -1, 7, 0, 5, 3, 6, 3};
    bth_row_ids ids = ids_of(items, 9);
    bth_row_selection selection = {.first_row = 3, .end_row = 7};

    ids.may_be_pruned = true;
    struct unique first = unique_with(&ids, &selection, 3);
    check_list(&first.list, &ids, 3);
    cr_expect_eq(first.n, 2, "3, 5, 3");
    cr_expect_eq(selection.first_id, 7);
    struct unique second = unique_with(&ids, &selection, 3);
    check_list(&second.list, &ids, 2);
    cr_expect_eq(second.n, 2, "6, 3");
    cr_expect_eq(selection.first_id, 9);
    free_unique(&first), free_unique(&second);
    selection = (bth_row_selection){.first_row = 8, .end_row = 9};
    struct unique none = unique_with(&ids, &selection, 3);
    cr_expect_eq(none.n, 0);
    cr_expect_eq(bth_row_list_start(&none.list, 0), 0);
    free_unique(&none);
}

/* ---- reads ---- */

static size_t merge(uint64_t row_nbytes, uint64_t gap_nbytes, uint64_t max_nbytes, uint64_t *rows,
                    size_t n)
{
    static const uint32_t which[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const bth_rows_reads reads = {
        .row_nbytes = row_nbytes, .gap_nbytes = gap_nbytes, .max_nbytes = max_nbytes};

    const bth_row_list list = {.keys = rows, .n_rows = n};

    return bth_rows_count_for_one_read(&reads, &list, which, n);
}

Test(rows_plan, neighbours_come_together_up_to_the_gap)
{
    static uint64_t rows[] = {10, 11, 14, 18, 19};

    cr_expect_eq(merge(100, 0, 100000, rows, 5), 2, "no gap");
    cr_expect_eq(merge(100, 199, 100000, rows, 5), 2, "two rows lie between");
    cr_expect_eq(merge(100, 200, 100000, rows, 5), 3);
    cr_expect_eq(merge(100, 300, 100000, rows, 5), 5);
    cr_expect_eq(merge(100, 300, 100000, rows, 4), 4, "no more than there are");
    cr_expect_eq(merge(100, 300, 100000, rows, 1), 1);
}

Test(rows_plan, a_read_is_no_longer_than_its_buffer)
{
    static uint64_t rows[] = {10, 11, 12, 13, 20};

    cr_expect_eq(merge(100, 1000, 400, rows, 5), 4);
    cr_expect_eq(merge(100, 1000, 399, rows, 5), 3);
    cr_expect_eq(merge(100, 1000, 1099, rows, 5), 4);
    cr_expect_eq(merge(100, 1000, 1100, rows, 5), 5, "the gap counts");
    cr_expect_eq(merge(100, 1000, 100, rows, 5), 1);
    cr_expect_eq(merge(100, 1000, 0, rows, 5), 1, "one row needs no buffer");
}

Test(rows_plan, only_the_rows_that_are_missing)
{
    static uint64_t rows[] = {1, 2, 3, 9};
    static const uint32_t which[] = {0, 2, 3};
    const bth_rows_reads reads = {.row_nbytes = 8, .gap_nbytes = 8, .max_nbytes = 1000};

    const bth_row_list list = {.keys = rows, .n_rows = 4};

    cr_expect_eq(bth_rows_count_for_one_read(&reads, &list, which, 3), 2);
    cr_expect_eq(bth_rows_count_for_one_read(&reads, &list, which + 1, 2), 1);
}
