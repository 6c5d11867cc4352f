/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/prefetch/prefetch_plan.h"

#include <stdlib.h>

/* Windows that nobody asked for are shorter than passes, but not less than this. */
#define LEAST_WINDOW_NBYTES (UINT64_C(128) << 10)
#define WINDOWS_PER_PASS 4
/* However little memory the machine says it has: less than this is no pass worth its name. */
#define LEAST_MEASURED_NBYTES (UINT64_C(4) << 20)

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t round_down(uint64_t n, uint64_t page_nbytes)
{
    return n - n % page_nbytes;
}

/* Saturates: at the last page that a number has. */
static uint64_t round_up(uint64_t n, uint64_t page_nbytes)
{
    uint64_t more = (page_nbytes - n % page_nbytes) % page_nbytes;

    return more > UINT64_MAX - n ? round_down(UINT64_MAX, page_nbytes) : n + more;
}

static uint64_t divide(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

/* ---- ranges ---- */

static int compare(const void *a, const void *b)
{
    const bth_prefetch_range *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

static uint64_t end_of(const bth_prefetch_range *range)
{
    return range->offset + range->nbytes;
}

/* The whole pages of a range, as far as the file has them. */
static bth_prefetch_range widen(const bth_prefetch_range *range, uint64_t page_nbytes,
                                uint64_t file_nbytes)
{
    uint64_t begin = round_down(least_of(range->offset, file_nbytes), page_nbytes);
    uint64_t nbytes = least_of(range->nbytes, UINT64_MAX - range->offset);
    uint64_t end = least_of(round_up(range->offset + nbytes, page_nbytes), file_nbytes);

    if (range->nbytes == 0 || end <= begin)
        return (bth_prefetch_range){0};
    return (bth_prefetch_range){.offset = begin, .nbytes = end - begin};
}

void bth_prefetch_line_up(bth_prefetch_plan *plan, bth_prefetch_range *ranges, size_t n,
                          uint64_t page_nbytes, uint64_t file_nbytes)
{
    size_t n_kept = 0;

    if (n > 1)
        qsort(ranges, n, sizeof *ranges, compare);
    for (size_t i = 0; i < n; i++) {
        bth_prefetch_range range = widen(&ranges[i], page_nbytes, file_nbytes);
        bth_prefetch_range *last = n_kept > 0 ? &ranges[n_kept - 1] : NULL;
        if (range.nbytes == 0)
            continue;
        if (!last || range.offset > end_of(last))
            ranges[n_kept++] = range;
        else if (end_of(&range) > end_of(last))
            last->nbytes = end_of(&range) - last->offset;
    }
    plan->ranges = ranges;
    plan->n_ranges = n_kept;
    plan->nbytes = 0;
    for (size_t i = 0; i < n_kept; i++) {
        ranges[i].position = plan->nbytes;
        plan->nbytes += ranges[i].nbytes;
    }
}

/* ---- passes and windows ---- */

/* The most that may lie ahead, in whole pages. */
static uint64_t budget_of(const bth_prefetch_limits *limits)
{
    uint64_t measured = most_of(limits->available_nbytes / 2, LEAST_MEASURED_NBYTES);
    uint64_t nbytes = limits->memory_nbytes ? limits->memory_nbytes : measured;

    return most_of(round_down(nbytes, limits->page_nbytes), limits->page_nbytes);
}

/*
 * As many passes as asked for, or as few as fit; none under the least that a pass should be: a pass
 * costs its begin, and many short ones gain nothing. Memory goes before all else.
 */
static uint64_t pass_of(uint64_t nbytes, const bth_prefetch_limits *limits)
{
    uint64_t budget = budget_of(limits);
    uint64_t n = limits->n_passes ? limits->n_passes : divide(nbytes, budget);
    uint64_t pass = most_of(divide(nbytes, n), limits->min_pass_nbytes);

    pass = round_up(least_of(pass, nbytes), limits->page_nbytes);
    return limits->memory_nbytes || !limits->n_passes ? least_of(pass, budget) : pass;
}

static uint64_t window_of(uint64_t pass_nbytes, const bth_prefetch_limits *limits)
{
    uint64_t asked = limits->window_nbytes;
    uint64_t part = most_of(pass_nbytes / WINDOWS_PER_PASS, LEAST_WINDOW_NBYTES);
    uint64_t nbytes = asked ? asked : least_of(limits->natural_window_nbytes, part);

    nbytes = round_up(most_of(nbytes, 1), limits->page_nbytes);
    return least_of(nbytes, pass_nbytes);
}

bool bth_prefetch_divide(bth_prefetch_plan *plan, const bth_prefetch_limits *limits,
                         uint64_t *missing_nbytes)
{
    uint64_t asked = round_up(most_of(limits->window_nbytes, 1), limits->page_nbytes);
    uint64_t needed = least_of(asked, round_up(plan->nbytes, limits->page_nbytes));

    *missing_nbytes = 0;
    if (plan->nbytes == 0)
        return true;
    if (limits->memory_nbytes && limits->memory_nbytes < needed) {
        *missing_nbytes = needed - limits->memory_nbytes;
        return false;
    }
    plan->pass_nbytes = pass_of(plan->nbytes, limits);
    plan->n_passes = divide(plan->nbytes, plan->pass_nbytes);
    plan->window_nbytes = window_of(plan->pass_nbytes, limits);
    return true;
}

/* ---- positions ---- */

/* The range that a byte of the file lies in, or the first behind it: n_ranges if there is none. */
static size_t range_at(const bth_prefetch_plan *plan, uint64_t offset)
{
    size_t low = 0, high = plan->n_ranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (end_of(&plan->ranges[middle]) <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t bth_prefetch_position(const bth_prefetch_plan *plan, uint64_t offset)
{
    size_t i = range_at(plan, offset);

    if (i == plan->n_ranges)
        return plan->nbytes;
    const bth_prefetch_range *range = &plan->ranges[i];
    return range->position + (offset > range->offset ? offset - range->offset : 0);
}

bth_prefetch_range bth_prefetch_window(const bth_prefetch_plan *plan, uint64_t position,
                                       uint64_t limit)
{
    size_t low = 0, high = plan->n_ranges;

    if (position >= least_of(limit, plan->nbytes))
        return (bth_prefetch_range){.position = position};
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (plan->ranges[middle].position <= position)
            low = middle;
        else
            high = middle;
    }
    const bth_prefetch_range *range = &plan->ranges[low];
    uint64_t before = position - range->position;
    uint64_t nbytes = least_of(least_of(limit, plan->nbytes) - position, plan->window_nbytes);
    return (bth_prefetch_range){.offset = range->offset + before,
                                .nbytes = least_of(nbytes, range->nbytes - before),
                                .position = position};
}
