/* SPDX-License-Identifier: BSD-3-Clause */
/* Which row lies where: sets, stamps, holders, slots; nothing here has bytes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "load/rows/rows.h"

#define MAX_ROWS 4096
#define TABLE 1

static bth_row_cache cache;
static void *notes;

/* What a request took, to be given back. */
struct request {
    size_t n;
    uint32_t slots[MAX_ROWS];
    uint32_t missing[MAX_ROWS];
    bth_row_result result;
};

static void begin(uint32_t n_sets, uint32_t ways, uint32_t n_scratch)
{
    notes =
        malloc((size_t)n_sets * ways * BTH_ROWS_LINE_NOTES + n_scratch * BTH_ROWS_SCRATCH_NOTES);
    bth_row_cache_initialize(&cache, n_sets, ways, n_scratch, notes);
}

static void end(void)
{
    free(notes);
}

TestSuite(rows_cache, .fini = end);

static void take_of(uint32_t table, struct request *request, const uint64_t *rows, size_t n)
{
    const bth_row_list list = {.keys = (uint64_t *)(uintptr_t)rows, .n_rows = n};
    const bth_row_hold hold = {.table = table, .list = &list};

    request->n = n;
    bth_row_cache_hold_rows(&cache, &hold, request->slots, request->missing, &request->result);
}

/* Takes what finds a line; the rest streams past. */
static void take_and_stream(struct request *request, uint64_t stamp, const uint64_t *rows, size_t n)
{
    const bth_row_list list = {.keys = (uint64_t *)(uintptr_t)rows, .n_rows = n};
    const bth_row_hold hold = {.table = TABLE, .list = &list, .stamp = stamp, .may_stream = true};

    request->n = n;
    bth_row_cache_hold_rows(&cache, &hold, request->slots, request->missing, &request->result);
}

static void take(struct request *request, const uint64_t *rows, size_t n)
{
    take_of(TABLE, request, rows, n);
}

static void fill(const struct request *request)
{
    for (size_t k = 0; k < request->result.n_missing; k++)
        bth_row_cache_finish_slot(&cache, request->slots[request->missing[k]], true);
}

static void give(const struct request *request)
{
    bth_row_cache_release_slots(&cache, request->slots, request->n);
}

/* Takes, fills and gives back. */
static void touch(uint64_t row)
{
    struct request request;

    take(&request, &row, 1);
    fill(&request);
    give(&request);
}

static bool is_there(uint64_t row)
{
    struct request request;
    bth_row_cache before = cache;
    size_t notes_nbytes = cache.n_lines * BTH_ROWS_LINE_NOTES;
    void *kept = malloc(notes_nbytes);

    memcpy(kept, notes, notes_nbytes);
    take(&request, &row, 1);
    give(&request);
    memcpy(notes, kept, notes_nbytes); /* as if nobody had asked */
    free(kept);
    cache = before;
    return request.result.n_missing == 0;
}

static void range(uint64_t *rows, size_t n, uint64_t first)
{
    for (size_t i = 0; i < n; i++)
        rows[i] = first + i;
}

Test(rows_cache, a_row_that_was_read_is_found_where_it_is)
{
    static const uint64_t rows[] = {3, 5, 8};
    struct request first, second;

    begin(4, 2, 4);
    take(&first, rows, 3);
    cr_expect_eq(first.result.n_missing, 3);
    cr_expect_eq(first.missing[2], 2);
    fill(&first);
    take(&second, rows, 3);
    cr_expect_eq(second.result.n_missing, 0);
    cr_expect_eq(second.result.n_awaited, 0);
    cr_expect_arr_eq(second.slots, first.slots, 3 * sizeof *first.slots);
}

Test(rows_cache, tables_do_not_share_rows)
{
    static const uint64_t row = 7;
    struct request one, other;

    begin(1, 4, 1);
    take_of(1, &one, &row, 1);
    fill(&one);
    take_of(2, &other, &row, 1);
    cr_expect_eq(other.result.n_missing, 1);
    cr_expect_neq(other.slots[0], one.slots[0]);
}

Test(rows_cache, what_was_touched_longest_ago_makes_room)
{
    begin(1, 4, 1);
    for (uint64_t row = 0; row < 4; row++)
        touch(row);
    touch(0); /* now 1 is the oldest */
    touch(4);
    cr_expect_not(is_there(1));
    for (uint64_t row = 0; row < 5; row++)
        cr_expect(row == 1 || is_there(row), "row %d", (int)row);
    touch(5);
    cr_expect_not(is_there(2));
    cr_expect(is_there(0));
}

Test(rows_cache, an_empty_line_is_taken_before_any_row_makes_room)
{
    static const uint64_t rows[] = {0, 1, 2, 3};
    struct request request;

    begin(1, 4, 1);
    take(&request, rows, 2);
    fill(&request), give(&request);
    take(&request, rows + 2, 2);
    cr_expect_eq(request.result.n_evicted, 0);
    fill(&request), give(&request);
    touch(4);
    cr_expect_eq(is_there(0) + is_there(1), 1);
}

Test(rows_cache, a_row_that_is_held_stays)
{
    static const uint64_t held[] = {0, 1, 2}, more[] = {3, 4, 5, 6};
    struct request holder, other;

    begin(1, 4, 3);
    take(&holder, held, 3);
    fill(&holder);
    for (uint64_t row = 10; row < 20; row++)
        touch(row);
    take(&other, more, 4);
    cr_expect_eq(other.result.n_evicted, 1, "19 is the only one that may go");
    cr_expect_eq(other.result.n_conflicts, 3);
    for (uint64_t row = 0; row < 3; row++)
        cr_expect(is_there(row));
    give(&holder);
    give(&other);
    cr_expect_eq(cache.n_free_scratch, 3, "slots come back");
    for (size_t i = 0; i < cache.n_lines; i++)
        cr_expect_eq(cache.holders[i] & INT32_MAX, 0);
}

Test(rows_cache, held_twice_is_free_after_both_gave_it_back)
{
    static const uint64_t row = 1, other = 2;
    struct request first, second, third;

    begin(1, 1, 1);
    take(&first, &row, 1);
    fill(&first);
    take(&second, &row, 1);
    give(&first);
    take(&third, &other, 1);
    cr_expect_eq(third.result.n_conflicts, 1, "the second still holds it");
    give(&third), give(&second);
    take(&third, &other, 1);
    cr_expect_eq(third.result.n_conflicts, 0);
    cr_expect_eq(third.result.n_evicted, 1);
}

Test(rows_cache, conflicts_go_to_slots_which_nobody_finds)
{
    static const uint64_t rows[] = {0, 1, 2};
    struct request first, second;

    begin(1, 2, 8);
    take(&first, rows, 3);
    cr_expect_eq(first.result.n_conflicts, 1);
    cr_expect_geq(first.slots[2], cache.n_lines);
    fill(&first);
    take(&second, rows, 3);
    cr_expect_eq(second.result.n_missing, 1, "a slot is its request's alone");
    cr_expect_neq(second.slots[2], first.slots[2]);
    cr_expect_not(bth_row_cache_slot_is_filling(&cache, second.slots[2]));
    cr_expect_not(bth_row_cache_slot_is_lost(&cache, second.slots[2]));
}

/* A request evicts nothing that it asks for itself, though that is the oldest. */
Test(rows_cache, what_is_asked_for_makes_no_room_for_the_rest_of_its_request)
{
    static const uint64_t rows[] = {0, 7};
    struct request request;

    begin(1, 2, 1);
    touch(7);
    touch(9);
    take(&request, rows, 2);
    cr_expect_eq(request.result.n_missing, 1);
    cr_expect_eq(request.missing[0], 0);
    cr_expect_eq(request.result.n_evicted, 1, "9");
    cr_expect_eq(request.result.n_conflicts, 0);
}

Test(rows_cache, short_of_places_nothing_is_taken_evicted_or_touched)
{
    static const uint64_t old[] = {0, 1, 2}, new[] = {1, 2, 10, 11, 12, 13, 14};
    struct request holder, request;
    size_t nbytes;

    begin(1, 4, 2);
    touch(2); /* in the cache, held by nobody */
    take(&holder, old, 2);
    fill(&holder);
    nbytes = cache.n_lines * BTH_ROWS_LINE_NOTES + cache.n_scratch * BTH_ROWS_SCRATCH_NOTES;
    void *before = malloc(nbytes);
    memcpy(before, notes, nbytes);
    uint64_t stamp = cache.stamp;
    take(&request, new, 7);
    cr_expect_eq(request.result.n_short, 2, "one line and two slots for five rows");
    cr_expect_eq(memcmp(before, notes, nbytes), 0,
                 "lines, stamps, holders and slots are as before");
    cr_expect_eq(cache.stamp, stamp);
    cr_expect_eq(cache.n_free_scratch, 2);
    cr_expect(is_there(2));
    free(before);
}

Test(rows_cache, a_row_that_is_being_read_is_awaited_and_not_read_again)
{
    static const uint64_t row = 3;
    struct request first, second, third;

    begin(1, 2, 1);
    take(&first, &row, 1);
    take(&second, &row, 1);
    cr_expect_eq(second.result.n_missing, 0);
    cr_expect_eq(second.result.n_awaited, 1);
    cr_expect_eq(second.slots[0], first.slots[0]);
    cr_expect(bth_row_cache_slot_is_filling(&cache, first.slots[0]));
    give(&second); /* also before it is there */
    cr_expect(bth_row_cache_slot_is_filling(&cache, first.slots[0]));
    fill(&first);
    cr_expect_not(bth_row_cache_slot_is_filling(&cache, first.slots[0]));
    give(&first);
    take(&third, &row, 1);
    cr_expect_eq(third.result.n_awaited + third.result.n_missing, 0);
    cr_expect_eq(cache.holders[third.slots[0]], 1);
}

Test(rows_cache, a_row_that_was_lost_is_no_row_of_the_cache)
{
    static const uint64_t row = 3, others[] = {4, 5};
    struct request first, second, third;

    begin(1, 2, 1);
    take(&first, &row, 1);
    take(&second, &row, 1);
    bth_row_cache_finish_slot(&cache, first.slots[0], false);
    cr_expect(bth_row_cache_slot_is_lost(&cache, first.slots[0]));
    cr_expect_not(bth_row_cache_slot_is_filling(&cache, first.slots[0]));
    take(&third, others, 2);
    cr_expect_eq(third.result.n_conflicts, 1, "its line is held until both gave it back");
    give(&third), give(&first), give(&second);
    take(&third, &row, 1);
    cr_expect_eq(third.result.n_missing, 1, "it is read again");
}

Test(rows_cache, rows_without_a_line_stream_past_it)
{
    static const uint64_t rows[] = {0, 1, 2, 3, 4};
    struct request request;

    begin(1, 3, 8);
    take_and_stream(&request, ++cache.stamp, rows, 5);
    cr_expect_eq(request.result.n_missing, 5);
    cr_expect_eq(request.result.n_streamed, 2);
    cr_expect_eq(request.result.n_conflicts + request.result.n_short, 0,
                 "the scratch is for others");
    cr_expect_eq(request.slots[4], BTH_ROWS_NO_SLOT);
    cr_expect_not(bth_row_cache_slot_is_filling(&cache, request.slots[4]));
    cr_expect_not(bth_row_cache_slot_is_lost(&cache, request.slots[4]));
    fill(&request), give(&request);
    cr_expect(is_there(0) && is_there(1) && is_there(2));
    cr_expect_eq(cache.n_free_scratch, 8);
    for (size_t i = 0; i < cache.n_lines; i++)
        cr_expect_eq(cache.holders[i], 0);
}

/* The later passes of a gather leave the rows of the earlier ones; older rows make room. */
Test(rows_cache, a_stamp_evicts_only_what_is_older)
{
    static const uint64_t first[] = {0, 1}, second[] = {2, 3, 4};
    struct request request;

    begin(1, 4, 0);
    touch(7);
    uint64_t stamp = ++cache.stamp;
    take_and_stream(&request, stamp, first, 2);
    fill(&request), give(&request);
    touch(8); /* another request, later */
    take_and_stream(&request, stamp, second, 3);
    cr_expect_eq(request.result.n_evicted, 1, "7");
    cr_expect_eq(request.result.n_streamed, 2);
    fill(&request), give(&request);
    cr_expect(is_there(0) && is_there(1) && is_there(2) && is_there(8));
    take_and_stream(&request, stamp, (const uint64_t[]){8}, 1);
    give(&request);
    take_and_stream(&request, ++cache.stamp, second + 1, 2);
    cr_expect_eq(request.result.n_evicted, 2);
    fill(&request), give(&request);
    cr_expect(is_there(8), "an old stamp does not make a row older");
}

/* Rows of any order spread: with half of all lines held, hardly one row finds its set full. */
Test(rows_cache, rows_spread_over_all_sets)
{
    static const uint64_t strides[] = {1, 2, 7, 64, 1000, 65536, UINT64_C(1) << 32};
    static uint64_t rows[MAX_ROWS];
    static struct request request;

    begin(512, 16, MAX_ROWS);
    for (size_t k = 0; k < sizeof strides / sizeof *strides; k++) {
        for (size_t i = 0; i < MAX_ROWS; i++)
            rows[i] = i * strides[k];
        take(&request, rows, MAX_ROWS);
        cr_expect_lt(request.result.n_conflicts, MAX_ROWS / 50, "stride %llu: %zu conflicts",
                     (unsigned long long)strides[k], request.result.n_conflicts);
        fill(&request), give(&request);
    }
}

/* Against a plain model of one set: a list in the order of use. */
Test(rows_cache, any_history_gives_what_a_list_in_order_of_use_gives)
{
    enum { WAYS = 6, N_ROWS = 10 };
    uint64_t list[WAYS] = {0}, state = 99;
    size_t n = 0;

    begin(1, WAYS, 1);
    for (int step = 0; step < 20000; step++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t row = (state >> 33) % N_ROWS;
        size_t at = 0;
        while (at < n && list[at] != row)
            at++;
        struct request request;
        take(&request, &row, 1);
        cr_assert_eq(request.result.n_missing, at == n, "step %d", step);
        fill(&request), give(&request);
        if (at == n && n < WAYS)
            n++;
        if (at == n)
            at = n - 1; /* the last of the list makes room */
        memmove(list + 1, list, at * sizeof *list);
        list[0] = row;
    }
}

Test(rows_cache, all_lines_and_slots_can_be_held)
{
    static uint64_t rows[MAX_ROWS];
    static struct request request;

    begin(1, 64, 36);
    range(rows, 101, 0);
    take(&request, rows, 101);
    cr_expect_eq(request.result.n_short, 1);
    take(&request, rows, 100);
    cr_expect_eq(request.result.n_short, 0);
    cr_expect_eq(request.result.n_conflicts, 36);
    static bool used[100];
    for (size_t i = 0; i < 100; i++) {
        cr_assert_lt(request.slots[i], 100);
        cr_assert_not(used[request.slots[i]], "no slot twice");
        used[request.slots[i]] = true;
    }
}
