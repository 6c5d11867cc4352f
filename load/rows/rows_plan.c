/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/rows/rows_plan.h"

#include <assert.h>
#include <string.h>

#define DIGIT_BITS 8
#define N_DIGITS (1 << DIGIT_BITS)

size_t bth_rows_find_bad_id(const int64_t *ids, size_t n, uint64_t n_rows)
{
    for (size_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= n_rows) /* also negative ids */
            return i;
    return n;
}

/* The number of bits that 0 … n - 1 need. */
static unsigned row_key_needed_bits(uint64_t n)
{
    return n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 0;
}

bool bth_rows_are_sortable(size_t n, uint64_t n_rows)
{
    return row_key_needed_bits(n) + row_key_needed_bits(n_rows) <= 64;
}

static unsigned row_key_digit(uint64_t key, unsigned shift)
{
    return (unsigned)(key >> shift) & (N_DIGITS - 1);
}

/* Sorts by one digit; equal keys keep their order. False: all are equal, nothing was moved. */
static bool row_keys_sort_digit(const uint64_t *from, uint64_t *to, size_t n, unsigned shift)
{
    size_t next[N_DIGITS] = {0};
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        next[row_key_digit(from[i], shift)]++;
    if (next[row_key_digit(from[0], shift)] == n)
        return false;
    for (size_t i = 0; i < N_DIGITS; i++) {
        size_t count = next[i];
        next[i] = at;
        at += count;
    }
    for (size_t i = 0; i < n; i++)
        to[next[row_key_digit(from[i], shift)]++] = from[i];
    return true;
}

/* Sorts keys by their bits from `shift` on; they end in `keys`. */
static void row_keys_sort(uint64_t *keys, uint64_t *spare, size_t n, unsigned shift,
                          unsigned n_bits)
{
    uint64_t *from = keys, *to = spare;

    for (unsigned done = 0; done < n_bits; done += DIGIT_BITS) {
        if (!row_keys_sort_digit(from, to, n, shift + done))
            continue;
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != keys)
        memcpy(keys, from, n * sizeof *keys);
}

size_t bth_rows_find_distinct(const int64_t *ids, size_t n, uint64_t n_rows, uint64_t *rows,
                              uint64_t *spare, uint32_t *index)
{
    unsigned shift = row_key_needed_bits(n);
    size_t n_unique = 0;

    assert(bth_rows_are_sortable(n, n_rows) && bth_rows_find_bad_id(ids, n, n_rows) == n);
    if (n == 0)
        return 0;
    /* The low bits are the position, which is already sorted. */
    for (size_t i = 0; i < n; i++)
        rows[i] = ((uint64_t)ids[i] << shift) | i;
    row_keys_sort(rows, spare, n, shift, row_key_needed_bits(n_rows));
    uint64_t last = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t row = rows[i] >> shift;
        size_t position = (size_t)(rows[i] - (row << shift));
        if (n_unique == 0 || row != last)
            rows[n_unique++] = last = row; /* never ahead of the keys still to be read */
        index[position] = (uint32_t)(n_unique - 1);
    }
    return n_unique;
}

size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const uint64_t *rows,
                                   const uint32_t *which, size_t n)
{
    uint64_t max_rows = reads->max_nbytes / reads->row_nbytes;
    uint64_t gap_rows = reads->gap_nbytes / reads->row_nbytes;
    size_t merged = 1;

    while (merged < n && rows[which[merged]] - rows[which[merged - 1]] - 1 <= gap_rows &&
           rows[which[merged]] - rows[which[0]] < max_rows)
        merged++;
    return merged;
}
