/* SPDX-License-Identifier: BSD-3-Clause */
/* What a prefetch brings and in which steps: ranges, passes, windows, positions. */
#include "load/prefetch/prefetch.h"

#include <criterion/criterion.h>

#define PAGE 4096
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static bth_prefetch_plan lined_up(bth_prefetch_range *ranges, size_t n, uint64_t file_nbytes)
{
    bth_prefetch_plan plan = {0};

    bth_prefetch_take_ranges(&plan, ranges, n, PAGE, file_nbytes);
    return plan;
}

static void expect_range(const bth_prefetch_plan *plan, size_t i, uint64_t offset, uint64_t nbytes,
                         uint64_t position)
{
    cr_assert_lt(i, plan->n_ranges);
    cr_expect_eq(plan->ranges[i].offset, offset);
    cr_expect_eq(plan->ranges[i].nbytes, nbytes);
    cr_expect_eq(plan->ranges[i].position, position);
}

Test(prefetch_plan, widens_ranges_to_pages_and_sorts_them)
{
    bth_prefetch_range ranges[] = {{.offset = 50000, .nbytes = 10}, {.offset = 4100, .nbytes = 1}};
    bth_prefetch_plan plan = lined_up(ranges, 2, MIB);

    cr_assert_eq(plan.n_ranges, 2);
    expect_range(&plan, 0, 4096, 4096, 0);
    expect_range(&plan, 1, 49152, 4096, 4096);
    cr_expect_eq(plan.nbytes, 8192);
}

Test(prefetch_plan, joins_what_overlaps_touches_or_shares_a_page)
{
    bth_prefetch_range ranges[] = {{.offset = 20000, .nbytes = 100},
                                   {.offset = 0, .nbytes = 5000},
                                   {.offset = 100, .nbytes = 50},
                                   {.offset = 8000, .nbytes = 1000},
                                   {.offset = 12288, .nbytes = 1}};
    bth_prefetch_plan plan = lined_up(ranges, 5, MIB);

    cr_assert_eq(plan.n_ranges, 1);
    expect_range(&plan, 0, 0, 20480, 0);
}

Test(prefetch_plan, leaves_out_what_is_empty_or_beyond_the_file)
{
    bth_prefetch_range ranges[] = {{.offset = 100, .nbytes = 0},
                                   {.offset = 9000, .nbytes = 5000},
                                   {.offset = 20000, .nbytes = 5},
                                   {.offset = UINT64_MAX - 1, .nbytes = UINT64_MAX}};
    bth_prefetch_plan plan = lined_up(ranges, 4, 10000);

    cr_assert_eq(plan.n_ranges, 1);
    expect_range(&plan, 0, 8192, 1808, 0);
    cr_expect_eq(plan.nbytes, 1808);
    plan = lined_up(NULL, 0, 10000);
    cr_expect_eq(plan.nbytes, 0);
}

Test(prefetch_plan, tells_positions_of_bytes_inside_before_and_behind_ranges)
{
    bth_prefetch_range ranges[] = {{.offset = 8192, .nbytes = 8192},
                                   {.offset = 40960, .nbytes = 4096}};
    bth_prefetch_plan plan = lined_up(ranges, 2, MIB);

    cr_expect_eq(bth_prefetch_position(&plan, 0), 0);
    cr_expect_eq(bth_prefetch_position(&plan, 8192), 0);
    cr_expect_eq(bth_prefetch_position(&plan, 8200), 8);
    cr_expect_eq(bth_prefetch_position(&plan, 16384), 8192);
    cr_expect_eq(bth_prefetch_position(&plan, 30000), 8192);
    cr_expect_eq(bth_prefetch_position(&plan, 40961), 8193);
    cr_expect_eq(bth_prefetch_position(&plan, 45056), 12288);
    cr_expect_eq(bth_prefetch_position(&plan, UINT64_MAX), 12288);
}

/* ---- passes ---- */

static const bth_prefetch_limits plenty = {
    .page_nbytes = PAGE, .natural_window_nbytes = 4 * MIB, .available_nbytes = UINT64_MAX};

static bth_prefetch_plan divided(uint64_t nbytes, const bth_prefetch_limits *limits)
{
    bth_prefetch_plan plan = {.nbytes = nbytes};
    uint64_t missing_nbytes;

    cr_assert(bth_prefetch_choose_pass_and_window(&plan, limits, &missing_nbytes));
    cr_expect_eq(missing_nbytes, 0);
    return plan;
}

Test(prefetch_plan, divides_into_the_passes_asked_for)
{
    for (uint64_t n = 1; n <= 12; n++) {
        bth_prefetch_limits limits = plenty;
        limits.n_passes = n;
        bth_prefetch_plan plan = divided(27720 * PAGE, &limits);
        cr_expect_eq(plan.n_passes, n);
        cr_expect_eq(plan.pass_nbytes, 27720 * PAGE / n);
    }
}

Test(prefetch_plan, whose_bytes_do_not_divide_has_a_shorter_last_pass)
{
    bth_prefetch_limits limits = plenty;

    limits.n_passes = 3;
    bth_prefetch_plan plan = divided(10 * PAGE + 17, &limits);
    cr_expect_eq(plan.pass_nbytes, 4 * PAGE);
    cr_expect_eq(plan.n_passes, 3);
}

Test(prefetch_plan, makes_no_pass_shorter_than_the_least_one)
{
    bth_prefetch_limits limits = plenty;

    limits.n_passes = 12;
    limits.min_pass_nbytes = 64 * MIB;
    bth_prefetch_plan plan = divided(256 * MIB, &limits);
    cr_expect_eq(plan.pass_nbytes, 64 * MIB);
    cr_expect_eq(plan.n_passes, 4);
    limits.min_pass_nbytes = GIB;
    plan = divided(256 * MIB, &limits);
    cr_expect_eq(plan.pass_nbytes, 256 * MIB);
    cr_expect_eq(plan.n_passes, 1);
}

Test(prefetch_plan, measures_passes_by_half_of_what_memory_there_is)
{
    bth_prefetch_limits limits = plenty;

    cr_expect_eq(divided(10 * GIB, &limits).n_passes, 1);
    limits.available_nbytes = 4 * GIB;
    bth_prefetch_plan plan = divided(10 * GIB, &limits);
    cr_expect_eq(plan.n_passes, 5);
    cr_expect_eq(plan.pass_nbytes, 2 * GIB);
    limits.available_nbytes = 0;
    cr_expect_eq(divided(GIB, &limits).pass_nbytes, 4 * MIB);
    /* Who says how many, means it. */
    limits.n_passes = 2;
    cr_expect_eq(divided(GIB, &limits).pass_nbytes, GIB / 2);
}

Test(prefetch_plan, keeps_to_the_budget_before_all_else)
{
    bth_prefetch_limits limits = plenty;

    limits.memory_nbytes = 10 * MIB + 5;
    bth_prefetch_plan plan = divided(GIB, &limits);
    cr_expect_eq(plan.n_passes, 103);
    cr_expect_eq(plan.pass_nbytes, (GIB / 103 / PAGE + 1) * PAGE, "all alike");
    limits.n_passes = 2;
    limits.min_pass_nbytes = 64 * MIB;
    cr_expect_eq(divided(GIB, &limits).pass_nbytes, 10 * MIB);
    limits.n_passes = 200;
    limits.min_pass_nbytes = 0;
    plan = divided(GIB, &limits);
    cr_expect_eq(plan.pass_nbytes, (GIB / 200 / PAGE + 1) * PAGE);
}

Test(prefetch_plan, without_room_for_a_window_tells_the_bytes_missing)
{
    bth_prefetch_plan plan = {.nbytes = GIB};
    bth_prefetch_limits limits = plenty;
    uint64_t missing_nbytes;

    limits.memory_nbytes = MIB;
    limits.window_nbytes = MIB + 1;
    cr_expect_not(bth_prefetch_choose_pass_and_window(&plan, &limits, &missing_nbytes));
    cr_expect_eq(missing_nbytes, PAGE);
    limits.window_nbytes = 0; /* measured: a page will do */
    limits.memory_nbytes = PAGE - 1;
    cr_expect_not(bth_prefetch_choose_pass_and_window(&plan, &limits, &missing_nbytes));
    cr_expect_eq(missing_nbytes, 1);
    limits.memory_nbytes = PAGE;
    cr_expect(bth_prefetch_choose_pass_and_window(&plan, &limits, &missing_nbytes));
    cr_expect_eq(plan.window_nbytes, PAGE);
    /* No window is longer than all there is. */
    plan.nbytes = 2 * PAGE;
    limits.memory_nbytes = 2 * PAGE;
    limits.window_nbytes = GIB;
    cr_expect(bth_prefetch_choose_pass_and_window(&plan, &limits, &missing_nbytes));
}

Test(prefetch_plan, has_windows_within_a_pass)
{
    bth_prefetch_limits limits = plenty;

    cr_expect_eq(divided(GIB, &limits).window_nbytes, 4 * MIB);
    limits.n_passes = 128; /* of 8 MiB */
    cr_expect_eq(divided(GIB, &limits).window_nbytes, 2 * MIB);
    limits.window_nbytes = 6 * MIB; /* asked for */
    cr_expect_eq(divided(GIB, &limits).window_nbytes, 6 * MIB);
    limits.window_nbytes = 16 * MIB;
    cr_expect_eq(divided(GIB, &limits).window_nbytes, 8 * MIB);
    cr_expect_eq(divided(0, &limits).n_passes, 0);
}

Test(prefetch_plan, windows_end_at_ranges_and_limits)
{
    bth_prefetch_range ranges[] = {{.offset = 8192, .nbytes = 3 * PAGE},
                                   {.offset = 40960, .nbytes = 10 * PAGE}};
    bth_prefetch_plan plan = lined_up(ranges, 2, MIB);
    bth_prefetch_range window;

    plan.window_nbytes = 2 * PAGE;
    window = bth_prefetch_find_next_window(&plan, 0, UINT64_MAX);
    cr_expect(window.offset == 8192 && window.nbytes == 2 * PAGE && window.position == 0);
    window = bth_prefetch_find_next_window(&plan, 2 * PAGE, UINT64_MAX);
    cr_expect(window.offset == 16384 && window.nbytes == PAGE);
    window = bth_prefetch_find_next_window(&plan, 3 * PAGE, UINT64_MAX);
    cr_expect(window.offset == 40960 && window.nbytes == 2 * PAGE);
    window = bth_prefetch_find_next_window(&plan, 3 * PAGE, 4 * PAGE);
    cr_expect(window.offset == 40960 && window.nbytes == PAGE);
    cr_expect_eq(bth_prefetch_find_next_window(&plan, 4 * PAGE, 4 * PAGE).nbytes, 0);
    cr_expect_eq(bth_prefetch_find_next_window(&plan, 13 * PAGE, UINT64_MAX).nbytes, 0);
    cr_expect_eq(bth_prefetch_find_next_window(&plan, 12 * PAGE, UINT64_MAX).nbytes, PAGE);
}
