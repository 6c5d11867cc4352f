/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/rows/rows_plan.h"

#include <assert.h>
#include <string.h>

#define DIGIT_BITS 8
#define N_DIGITS (1 << DIGIT_BITS)

size_t bth_rows_find_bad_id(const bth_row_ids *ids, uint64_t n_rows)
{
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id = bth_row_ids_get(ids, i);
        if ((uint64_t)id >= n_rows && !(ids->may_be_pruned && id == BTH_ROWS_PRUNED))
            return i; /* also negative ids */
    }
    return ids->n;
}

/* The number of bits that 0 … n - 1 need. */
static unsigned row_key_needed_bits(uint64_t n)
{
    return n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 0;
}

size_t bth_rows_max_list_ids(uint64_t n_rows)
{
    unsigned free_bits = 64 - row_key_needed_bits(n_rows);

    return free_bits < 32 ? (size_t)1 << free_bits : UINT32_MAX;
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

/*
 * Sets the keys of the selected ids: row and position. Each pass looks at all ids: it writes every
 * key and keeps those that are selected, because a branch that is hard to predict costs more.
 */
static inline void row_list_select(bth_row_list *list, const bth_row_ids ids,
                                   bth_row_selection *selection, size_t max_ids)
{
    uint64_t first_row = selection->first_row, n_rows = selection->end_row - first_row;
    size_t i = selection->first_id, n = 0;

    for (; i < ids.n && n < max_ids; i++) {
        uint64_t row = (uint64_t)bth_row_ids_get(&ids, i);
        list->keys[n] = row << list->start_bits | i;
        n += row - first_row < n_rows;
    }
    selection->first_id = i;
    list->n_order = n;
}

/* Sorted keys become the list: the key of a row's first id stays, with its index. */
static void row_list_merge_equal_rows(bth_row_list *list)
{
    uint64_t last = 0, mask = (UINT64_C(1) << list->start_bits) - 1;

    for (size_t i = 0; i < list->n_order; i++) {
        uint64_t row = list->keys[i] >> list->start_bits;
        list->order[i] = (uint32_t)(list->keys[i] & mask);
        if (list->n_rows == 0 || row != last)
            list->keys[list->n_rows++] = row << list->start_bits | i; /* never ahead of i */
        last = row;
    }
}

void bth_row_list_fill(bth_row_list *list, const bth_row_ids *ids, bth_row_selection *selection,
                       size_t max_ids, uint64_t *spare)
{
    assert(ids->n <= bth_rows_max_list_ids(selection->end_row));
    list->n_rows = 0;
    list->start_bits = row_key_needed_bits(ids->n);
    if (ids->are_32_bit) /* a loop for each width */
        row_list_select(list, (bth_row_ids){.items = ids->items, .n = ids->n, .are_32_bit = true},
                        selection, max_ids);
    else
        row_list_select(list, (bth_row_ids){.items = ids->items, .n = ids->n}, selection, max_ids);
    if (list->n_order == 0)
        return;
    /* The low bits are the position, which is already sorted. */
    row_keys_sort(list->keys, spare, list->n_order, list->start_bits,
                  row_key_needed_bits(selection->end_row));
    row_list_merge_equal_rows(list);
}

size_t bth_rows_count_for_one_read(const bth_rows_reads *reads, const bth_row_list *list,
                                   const uint32_t *which, size_t n)
{
    uint64_t max_rows = reads->max_nbytes / reads->row_nbytes;
    uint64_t gap_rows = reads->gap_nbytes / reads->row_nbytes;
    uint64_t first = bth_row_list_row(list, which[0]), last = first;
    size_t merged = 1;

    for (; merged < n; merged++) {
        uint64_t row = bth_row_list_row(list, which[merged]);
        if (row - last - 1 > gap_rows || row - first >= max_rows)
            break;
        last = row;
    }
    return merged;
}
