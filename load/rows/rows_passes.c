/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/rows/rows_passes.h"

#include <assert.h>
#include <string.h>

static uint64_t round_up_quotient(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

void bth_row_passes_choose(bth_row_passes *passes, uint64_t n_ids,
                           const bth_row_pass_limits *limits)
{
    uint64_t pass_ids = limits->n_passes ? round_up_quotient(n_ids, limits->n_passes)
                                         : limits->memory_nbytes / BTH_ROWS_PASS_ID_NBYTES;

    if (pass_ids < limits->min_pass_ids)
        pass_ids = limits->min_pass_ids;
    if (pass_ids > n_ids)
        pass_ids = n_ids;
    if (pass_ids == 0)
        pass_ids = 1;
    *passes = (bth_row_passes){.pass_ids = pass_ids, .n_passes = 1, .list_ids = pass_ids};
    if (pass_ids < n_ids) {
        passes->n_passes = round_up_quotient(n_ids, pass_ids);
        passes->list_ids += pass_ids / 4;
    }
    passes->nbytes = passes->list_ids * BTH_ROWS_LIST_ID_NBYTES;
}

void bth_row_buckets_count(bth_row_buckets *buckets, const bth_row_ids *ids, uint64_t n_rows)
{
    memset(buckets, 0, sizeof *buckets);
    while ((n_rows - 1) >> buckets->row_bits >= BTH_ROWS_BUCKETS)
        buckets->row_bits++;
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id = bth_row_ids_get(ids, i);
        if ((uint64_t)id < n_rows) /* not pruned; nor changed by the caller since it was checked */
            buckets->counts[(uint64_t)id >> buckets->row_bits]++;
    }
}

bool bth_row_buckets_select_next(bth_row_buckets *buckets, const bth_row_passes *passes,
                                 bth_row_selection *selection)
{
    uint32_t end = buckets->next;
    uint64_t n = 0;

    while (end < BTH_ROWS_BUCKETS && n < passes->pass_ids &&
           (n == 0 || n + buckets->counts[end] <= passes->list_ids))
        n += buckets->counts[end++];
    *selection = (bth_row_selection){.first_row = (uint64_t)buckets->next << buckets->row_bits,
                                     .end_row = (uint64_t)end << buckets->row_bits};
    buckets->next = end;
    return n > 0;
}
