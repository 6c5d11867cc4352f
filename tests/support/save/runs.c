/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/save/runs.h"

berth_plan *plan_of_records(const berth_new_record *records, size_t n_records, uint32_t flags,
                            const char *assignments)
{
    struct berth_config config = config_of(assignments);
    berth_error error;

    bth_error_clear(&error);
    berth_plan *plan =
        bth_plan_make("archive", OF_RECORDS(records, n_records, flags), &config, &error);
    cr_assert(plan, "%s", error.message);
    return plan;
}

uint8_t *run_into_memory(const berth_plan *plan, const bth_run_settings *settings)
{
    uint8_t *memory = malloc(plan->nbytes);
    bth_output output = bth_output_of_memory(memory);
    berth_stats stats = {0};
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(bth_run(plan, &output, settings, &stats, &error), 0, "%s", error.message);
    return memory;
}

void check_samples(uint32_t alignment, bool compute_crc32,
                   void (*check)(const berth_plan *plan, const uint8_t *expected))
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    char assignments[128];
    composed file;

    sample_records(bytes, records);
    compose(&file, records, N_SAMPLES, alignment, compute_crc32);
    snprintf(assignments, sizeof assignments, "save.storage_alignment=%u save.compute_crc32=%s",
             alignment, compute_crc32 ? "on" : "off");
    berth_plan *plan = plan_of_records(records, N_SAMPLES, BERTH_RECORDS_COMPLETE, assignments);
    cr_assert_eq(plan->nbytes, file.nbytes);
    check(plan, file.bytes);
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
}
