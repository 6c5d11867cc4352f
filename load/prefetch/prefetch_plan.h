/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The ranges and steps of a prefetch. Pure arithmetic. The bytes of all ranges, one after the
 * other, form a line. Positions on that line measure the progress of a prefetch and its consumer.
 */
#ifndef BTH_LOAD_PREFETCH_PREFETCH_PLAN_H
#define BTH_LOAD_PREFETCH_PREFETCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bth_prefetch_range {
    uint64_t offset; /* in the file */
    uint64_t nbytes;
    uint64_t position; /* of its first byte on the line */
} bth_prefetch_range;

typedef struct bth_prefetch_plan {
    bth_prefetch_range *ranges; /* in the file's order, with gaps */
    size_t n_ranges;
    uint64_t nbytes;        /* the line's length */
    uint64_t pass_nbytes;   /* at most this many lie ahead of the consumer */
    uint64_t n_passes;      /* the last one may be shorter */
    uint64_t window_nbytes; /* of one request */
} bth_prefetch_plan;

/* Limits of the steps. */
typedef struct bth_prefetch_limits {
    uint64_t page_nbytes;
    uint64_t n_passes;        /* 0: as few as fit */
    uint64_t min_pass_nbytes; /* no pass is shorter, if memory allows it */
    uint64_t window_nbytes;   /* 0: natural_window_nbytes, or less if passes are short */
    uint64_t natural_window_nbytes;
    uint64_t memory_nbytes;    /* for bytes ahead; 0: no bound */
    uint64_t available_nbytes; /* of the machine; half of it is used where nothing else is set */
} bth_prefetch_limits;

/*
 * The plan owns the ranges from now on. They may overlap, be empty, and have any order. Extends
 * them to whole pages of the file, joins ranges that touch, and sets their positions.
 */
void bth_prefetch_coalesce_ranges(bth_prefetch_plan *plan, bth_prefetch_range *ranges, size_t n,
                                  uint64_t page_nbytes, uint64_t file_nbytes);

/* Sets passes and windows. False: memory_nbytes is too small for a window by *missing_nbytes. */
bool bth_prefetch_choose_pass_and_window(bth_prefetch_plan *plan, const bth_prefetch_limits *limits,
                                         uint64_t *missing_nbytes);

/* The number of bytes of the plan that lie before this byte of the file. */
uint64_t bth_prefetch_position(const bth_prefetch_plan *plan, uint64_t offset);

/* The next request from a position on: within one range and a window, before the limit. */
bth_prefetch_range bth_prefetch_find_next_window(const bth_prefetch_plan *plan, uint64_t position,
                                                 uint64_t limit);

#endif
