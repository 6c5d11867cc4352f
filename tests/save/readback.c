/* SPDX-License-Identifier: BSD-3-Clause */
/* debug: what is read back is compared with what was meant; a wrong byte never becomes the file. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/error.h"
#include "io/syscalls.h"
#include "save/run.h"
#include "tests/support/save/records.h"

/* Memory where one byte is stored wrongly. */
struct spoiled {
    uint8_t *memory;
    uint64_t at;                /* UINT64_MAX: none */
    unsigned fails_at, n_reads; /* the nth read; 0: none */
};

static int write_spoiled(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                         berth_error *error)
{
    struct spoiled *spoiled = context;

    (void)error;
    cr_assert_eq(n_pieces, 1);
    memcpy(spoiled->memory + offset, pieces->iov_base, pieces->iov_len);
    if (spoiled->at >= offset && spoiled->at - offset < pieces->iov_len)
        spoiled->memory[spoiled->at] ^= 0x40;
    return 0;
}

static int read_spoiled(void *context, void *buffer, size_t nbytes, uint64_t offset,
                        berth_error *error)
{
    struct spoiled *spoiled = context;

    if (++spoiled->n_reads == spoiled->fails_at)
        return bth_fail_system(error, EIO, "cannot be read back");
    memcpy(buffer, spoiled->memory + offset, nbytes);
    return 0;
}

static berth_plan *sample_plan(const uint8_t *bytes)
{
    berth_new_record records[N_SAMPLES];
    struct berth_config config;
    berth_error error;

    sample_records(bytes, records);
    bth_error_clear(&error);
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    berth_plan *plan = bth_plan_make("archive", OF_RECORDS(records, N_SAMPLES, 0), &config, &error);
    cr_assert(plan);
    return plan;
}

/* *n_reads: one that fails; set to how many there were. */
static int run_failing(const berth_plan *plan, uint64_t at, bool read_back, unsigned *n_reads,
                       berth_error *error)
{
    struct spoiled spoiled = {.at = at, .fails_at = *n_reads, .memory = malloc(plan->nbytes)};
    const bth_output output = {.write = write_spoiled, .read = read_spoiled, .context = &spoiled};
    const bth_run_settings settings = {.tile_nbytes = 4096, .read_back = read_back};
    berth_stats facts = {0};

    bth_error_clear(error);
    bth_run(plan, &output, &settings, &facts, error);
    free(spoiled.memory);
    *n_reads = spoiled.n_reads;
    return error->code;
}

static int run_spoiled(const berth_plan *plan, uint64_t at, bool read_back, berth_error *error)
{
    return run_failing(plan, at, read_back, &(unsigned){0}, error);
}

static bool is_data(const berth_plan *plan, uint64_t at)
{
    size_t i = bth_plan_find_record_by_offset(plan, at);

    if (i == plan->n_records)
        return false;
    const bth_layout_entry *place = &plan->records[i].layout;
    return at >= place->data_offset && at < place->data_offset + place->nbytes;
}

Test(readback, every_wrong_byte_of_headers_descriptors_and_directory_is_found)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_plan *plan = sample_plan(bytes);
    unsigned n_points = 0;
    berth_error error;

    cr_assert_eq(run_spoiled(plan, UINT64_MAX, true, &error), 0, "%s", error.message);
    for (uint64_t at = 0; at < plan->nbytes; at++) {
        if (is_data(plan, at))
            continue;
        n_points++;
        cr_assert_eq(run_spoiled(plan, at, false, &error), 0);
        cr_assert_lt(run_spoiled(plan, at, true, &error), 0, "byte %llu", (unsigned long long)at);
    }
    printf("wrong bytes tried: %u\n", n_points);
    cr_assert_geq(n_points, 1500);
    berth_plan_free(plan);
    free(bytes);
}

Test(readback, every_read_that_fails_is_told)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_plan *plan = sample_plan(bytes);
    unsigned n_reads = 0;
    berth_error error;

    for (unsigned nth = 1; n_reads >= nth - 1; nth++) {
        n_reads = nth;
        int code = run_failing(plan, UINT64_MAX, true, &n_reads, &error);
        cr_expect_eq(code, n_reads < nth ? 0 : BERTH_E_SYSTEM, "%u: %s", nth, error.message);
        cr_expect(code == 0 || strstr(error.message, "cannot be read back"), "%s", error.message);
    }
    cr_expect_gt(n_reads, 10);
    berth_plan_free(plan);
    free(bytes);
}

static ssize_t pwrite_wrongly(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    uint8_t first = (uint8_t) ~*(const uint8_t *)buffer;

    return offset == 0 ? pwrite(fd, &first, 1, 0) : pwrite(fd, buffer, nbytes, offset);
}

Test(readback, with_debug_on_a_file_that_reads_back_wrongly_does_not_replace_the_old_one)
{
    char *folder = test_folder_new(), *path = test_path(folder, "model.pt");
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."}};
    berth_error error;
    char old[4] = "";

    test_write_file(path, "old", 3);
    cr_assert_eq(berth_config_patch("debug=on", &error), 0);
    bth_system.pwrite = pwrite_wrongly;
    int status = berth_save_to(TO_PATH(path), OF_RECORDS(records, 1, 0), NULL, &error);
    bth_system_restore();
    cr_assert_lt(status, 0);
    FILE *file = fopen(path, "rb");
    cr_assert_eq(fread(old, 1, 4, file), 3);
    fclose(file);
    cr_assert_str_eq(old, "old");
    cr_assert_eq(test_folder_count(folder), 1);
    free(path);
    test_folder_remove(folder);
}
