/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans of records, and runs of them, for tests of what is written. */
#ifndef TESTS_SUPPORT_RUNS_H
#define TESTS_SUPPORT_RUNS_H

#include "save/run.h"
#include "tests/support/save/records.h"

berth_plan *plan_of_records(const berth_new_record *records, size_t n_records, uint32_t flags,
                            const char *assignments);

/* What a run that must go well writes. Allocated. */
uint8_t *run_into_memory(const berth_plan *plan, const bth_run_settings *settings);

/* The samples' plan and the file that it must give are checked. */
void check_samples(uint32_t alignment, bool compute_crc32,
                   void (*check)(const berth_plan *plan, const uint8_t *expected));

#endif
