/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/prefetch/prefetch_plan.h"

#include <stdlib.h>

#include "base/memory.h"

/* If no window size is set, windows are parts of a pass, but not shorter than this. */
#define WINDOW_MIN_NBYTES (UINT64_C(128) << 10)
#define WINDOWS_PER_PASS 4
/* Used even if the machine reports less free memory. */
#define MEASURED_MIN_NBYTES (UINT64_C(4) << 20)

static uint64_t pages_round_down(uint64_t n, uint64_t page_nbytes)
{
    return n - n % page_nbytes;
}

/* Saturates at the last page that fits the number. */
static uint64_t pages_round_up(uint64_t n, uint64_t page_nbytes)
{
    uint64_t more = (page_nbytes - n % page_nbytes) % page_nbytes;

    return more > UINT64_MAX - n ? pages_round_down(UINT64_MAX, page_nbytes) : n + more;
}

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

/* ---- ranges ---- */

static int range_compare(const void *a, const void *b)
{
    const bth_prefetch_range *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

static uint64_t range_end(const bth_prefetch_range *range)
{
    return range->offset + range->nbytes;
}

/* Extends a range to whole pages, within the file. */
static bth_prefetch_range range_round_to_pages(const bth_prefetch_range *range,
                                               uint64_t page_nbytes, uint64_t file_nbytes)
{
    uint64_t begin = pages_round_down(bth_min(range->offset, file_nbytes), page_nbytes);
    uint64_t nbytes = bth_min(range->nbytes, UINT64_MAX - range->offset);
    uint64_t end = bth_min(pages_round_up(range->offset + nbytes, page_nbytes), file_nbytes);

    if (range->nbytes == 0 || end <= begin)
        return (bth_prefetch_range){0};
    return (bth_prefetch_range){.offset = begin, .nbytes = end - begin};
}

void bth_prefetch_coalesce_ranges(bth_prefetch_plan *plan, bth_prefetch_range *ranges, size_t n,
                                  uint64_t page_nbytes, uint64_t file_nbytes)
{
    size_t n_kept = 0;

    if (n > 1)
        qsort(ranges, n, sizeof *ranges, range_compare);
    for (size_t i = 0; i < n; i++) {
        bth_prefetch_range range = range_round_to_pages(&ranges[i], page_nbytes, file_nbytes);
        bth_prefetch_range *last = n_kept > 0 ? &ranges[n_kept - 1] : NULL;
        if (range.nbytes == 0)
            continue;
        if (!last || range.offset > range_end(last))
            ranges[n_kept++] = range;
        else if (range_end(&range) > range_end(last))
            last->nbytes = range_end(&range) - last->offset;
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

/* The maximum of bytes ahead of the consumer, in whole pages. */
static uint64_t pass_max_nbytes(const bth_prefetch_limits *limits)
{
    uint64_t measured = bth_max(limits->available_nbytes / 2, MEASURED_MIN_NBYTES);
    uint64_t nbytes = limits->memory_nbytes ? limits->memory_nbytes : measured;

    return bth_max(pages_round_down(nbytes, limits->page_nbytes), limits->page_nbytes);
}

/*
 * The set number of passes, or as few as fit. No pass is shorter than min_pass_nbytes, because many
 * short passes cost time. The memory limit has priority.
 */
static uint64_t pass_choose_nbytes(uint64_t nbytes, const bth_prefetch_limits *limits)
{
    uint64_t budget = pass_max_nbytes(limits);
    uint64_t n = limits->n_passes ? limits->n_passes : divide_up(nbytes, budget);
    uint64_t pass = bth_max(divide_up(nbytes, n), limits->min_pass_nbytes);

    pass = pages_round_up(bth_min(pass, nbytes), limits->page_nbytes);
    return limits->memory_nbytes || !limits->n_passes ? bth_min(pass, budget) : pass;
}

static uint64_t window_choose(uint64_t pass_nbytes, const bth_prefetch_limits *limits)
{
    uint64_t set = limits->window_nbytes;
    uint64_t part = bth_max(pass_nbytes / WINDOWS_PER_PASS, WINDOW_MIN_NBYTES);
    uint64_t nbytes = set ? set : bth_min(limits->natural_window_nbytes, part);

    nbytes = pages_round_up(bth_max(nbytes, 1), limits->page_nbytes);
    return bth_min(nbytes, pass_nbytes);
}

bool bth_prefetch_choose_pass_and_window(bth_prefetch_plan *plan, const bth_prefetch_limits *limits,
                                         uint64_t *missing_nbytes)
{
    uint64_t window = pages_round_up(bth_max(limits->window_nbytes, 1), limits->page_nbytes);
    uint64_t needed = bth_min(window, pages_round_up(plan->nbytes, limits->page_nbytes));

    *missing_nbytes = 0;
    if (plan->nbytes == 0)
        return true;
    if (limits->memory_nbytes && limits->memory_nbytes < needed) {
        *missing_nbytes = needed - limits->memory_nbytes;
        return false;
    }
    plan->pass_nbytes = pass_choose_nbytes(plan->nbytes, limits);
    plan->n_passes = divide_up(plan->nbytes, plan->pass_nbytes);
    plan->window_nbytes = window_choose(plan->pass_nbytes, limits);
    return true;
}

/* ---- positions ---- */

/* The first range that ends after a byte of the file, or of the line; n_ranges: none. */
static size_t plan_find_range_ending_after(const bth_prefetch_plan *plan, uint64_t at, bool on_line)
{
    size_t low = 0, high = plan->n_ranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const bth_prefetch_range *range = &plan->ranges[middle];
        if ((on_line ? range->position + range->nbytes : range_end(range)) <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t bth_prefetch_position(const bth_prefetch_plan *plan, uint64_t offset)
{
    size_t i = plan_find_range_ending_after(plan, offset, false);

    if (i == plan->n_ranges)
        return plan->nbytes;
    const bth_prefetch_range *range = &plan->ranges[i];
    return range->position + (offset > range->offset ? offset - range->offset : 0);
}

bth_prefetch_range bth_prefetch_find_next_window(const bth_prefetch_plan *plan, uint64_t position,
                                                 uint64_t limit)
{
    uint64_t end = bth_min(limit, plan->nbytes);

    if (position >= end)
        return (bth_prefetch_range){.position = position};
    const bth_prefetch_range *range =
        &plan->ranges[plan_find_range_ending_after(plan, position, true)];
    uint64_t before = position - range->position;
    uint64_t nbytes = bth_min(end - position, plan->window_nbytes);
    return (bth_prefetch_range){.offset = range->offset + before,
                                .nbytes = bth_min(nbytes, range->nbytes - before),
                                .position = position};
}
