/* SPDX-License-Identifier: BSD-3-Clause */
/* The image is the same for any tile size and any number of workers. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "format/values/value.h"
#include "tests/support/save/runs.h"

static const uint64_t tile_sizes[] = {1,  2,   3,   7,   16,   30,   63,    64,
                                      65, 100, 127, 512, 4096, 5000, 20001, 1u << 20};
#define N_TILE_SIZES (sizeof tile_sizes / sizeof *tile_sizes)

/* Runs into memory and compares. */
static void check_run(const berth_plan *plan, const uint8_t *expected, unsigned n_workers,
                      uint64_t tile_nbytes, bool in_order)
{
    uint8_t *memory = malloc(plan->nbytes);
    bth_output output = bth_output_of_memory(memory);
    const bth_run_settings settings = {
        .n_workers = n_workers, .tile_nbytes = tile_nbytes, .read_back = true};
    berth_stats facts = {0};
    berth_error error;

    memset(memory, 0xEE, plan->nbytes);
    output.in_order = in_order;
    bth_error_clear(&error);
    cr_assert_eq(bth_run(plan, &output, &settings, &facts, &error), 0, "%s", error.message);
    cr_assert_eq(facts.moved_nbytes, plan->nbytes, "every byte is written exactly once");
    for (uint64_t i = 0; i < plan->nbytes; i++)
        cr_assert_eq(memory[i], expected[i],
                     "byte %llu of %llu, tiles of %llu, %u workers, in order: %d",
                     (unsigned long long)i, (unsigned long long)plan->nbytes,
                     (unsigned long long)tile_nbytes, n_workers, in_order);
    free(memory);
}

static void check_all_runs(const berth_plan *plan, const uint8_t *expected)
{
    static const unsigned workers[] = {0, 1, 2, 3, 4, 8};

    for (size_t i = 0; i < N_TILE_SIZES; i++) {
        for (size_t j = 0; j < sizeof workers / sizeof *workers; j++)
            check_run(plan, expected, workers[j], tile_sizes[i], false);
        check_run(plan, expected, 4, tile_sizes[i], true);
    }
}

Test(tiles, any_size_and_any_number_of_workers_give_the_composed_file)
{
    check_samples(64, true, check_all_runs);
}

typedef struct slow_record {
    const uint8_t *bytes;
    uint8_t *memory;
    uint64_t until; /* its first bytes are given when this byte of the file is written */
    _Atomic uint64_t reached;
} slow_record;

static int read_slowly(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    slow_record *slow = context;

    while (offset == 0 && atomic_load(&slow->reached) < slow->until)
        usleep(100);
    memcpy(buffer, slow->bytes + offset, nbytes);
    return 0;
}

static int write_reached(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                         berth_error *error)
{
    slow_record *slow = context;

    (void)error;
    cr_assert_eq(n_pieces, 1);
    memcpy(slow->memory + offset, pieces->iov_base, pieces->iov_len);
    uint64_t end = offset + pieces->iov_len, reached = atomic_load(&slow->reached);
    while (reached < end && !atomic_compare_exchange_weak(&slow->reached, &reached, end))
        continue;
    return 0;
}

/* Side by side, the first tile is rendered when the bytes behind its record are written. */
Test(tiles, a_descriptor_waits_for_a_tile_before_it, .timeout = 60)
{
    uint8_t *bytes = sample_bytes(2000);
    berth_new_record records[] = {{.name = "data.pkl", .nbytes = 1000, .read = read_slowly},
                                  {.name = "data/0", .nbytes = 1000, .data = bytes}};
    composed file;

    records[0].data = bytes;
    compose(&file, records, 2, 64, true);
    records[0].data = NULL;
    for (unsigned n_workers = 0; n_workers <= 4; n_workers++) {
        bool side_by_side = n_workers > 1;
        slow_record slow = {.bytes = bytes, .memory = malloc(file.nbytes)};
        if (side_by_side)
            slow.until = file.places[1].data_offset;
        records[0].context = &slow;
        berth_plan *plan = plan_of_records(records, 2, BERTH_RECORDS_COMPLETE, "");
        const bth_output output = {.write = write_reached, .context = &slow};
        const bth_run_settings settings = {.n_workers = n_workers, .tile_nbytes = 70};
        berth_stats stats = {0};
        berth_error error;
        bth_error_clear(&error);
        cr_assert_eq(bth_run(plan, &output, &settings, &stats, &error), 0, "%s", error.message);
        cr_expect_arr_eq(slow.memory, file.bytes, file.nbytes);
        cr_expect_eq(stats.moved_nbytes, file.nbytes);
        free(slow.memory);
        berth_plan_free(plan);
    }
    free(file.bytes);
    free(bytes);
}

Test(tiles, the_same_without_crcs)
{
    check_samples(64, false, check_all_runs);
}

Test(tiles, the_same_at_other_alignments)
{
    check_samples(1, true, check_all_runs);
    check_samples(512, true, check_all_runs);
}

/* The id and its CRC are known last; a run of one tile is the measure for all others. */
Test(tiles, the_id_does_not_depend_on_how_it_was_run)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];

    sample_records(bytes, records);
    for (size_t i = 0; i < N_SAMPLES; i++) /* the id has 4 more bytes of these */
        if (records[i].nbytes >= 8)
            memcpy(bytes + ((const uint8_t *)records[i].data - bytes), "PK\7\10", 4);
    berth_plan *plan =
        plan_of_records(records, N_SAMPLES, 0, "save.compute_crc32=on save.storage_alignment=1");
    uint8_t *written = run_into_memory(plan, &(bth_run_settings){.tile_nbytes = plan->nbytes});
    check_all_runs(plan, written);
    const uint8_t *id = written + plan->records[plan->id_index].layout.data_offset;
    for (size_t i = 0; i < BTH_ID_NBYTES; i++)
        cr_assert(id[i] >= '0' && id[i] <= '9');
    free(written);
    berth_plan_free(plan);
    free(bytes);
}

static void save_id(const uint8_t *bytes, const char *last_name, const char *assignments,
                    char id[BTH_ID_NBYTES])
{
    berth_new_record records[N_SAMPLES];

    sample_records(bytes, records);
    records[N_SAMPLES - 1].name = last_name;
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, assignments);
    uint8_t *written = run_into_memory(plan, &(bth_run_settings){.tile_nbytes = 4096});
    memcpy(id, written + plan->records[plan->id_index].layout.data_offset, BTH_ID_NBYTES);
    free(written);
    berth_plan_free(plan);
}

Test(tiles, the_id_depends_on_names_and_crcs_without_crcs_on_names_only)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    char first[BTH_ID_NBYTES], second[BTH_ID_NBYTES], plain[BTH_ID_NBYTES];

    save_id(bytes, "data/7", "save.compute_crc32=on", first);
    save_id(bytes, "data/8", "save.compute_crc32=on", second);
    cr_assert_neq(memcmp(first, second, 20), 0);
    cr_assert_eq(memcmp(first + 20, second + 20, 20), 0);
    save_id(bytes, "data/7", "save.compute_crc32=off", plain);
    bytes[5000]++;
    save_id(bytes, "data/7", "save.compute_crc32=on", second);
    cr_assert_eq(memcmp(first, second, 20), 0);
    cr_assert_neq(memcmp(first + 20, second + 20, 20), 0);
    save_id(bytes, "data/7", "save.compute_crc32=off", second);
    cr_assert_eq(memcmp(plain, second, 40), 0);
    free(bytes);
}

/* ---- content from callbacks ---- */

static int read_sample(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return 0;
}

static int refuse_to_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    memset(buffer, 0, nbytes);
    return offset == 0 ? EIO : 0; /* in one tile: another worker's would be as good */
}

Test(tiles, records_read_by_callback_give_the_same_file)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    composed file;

    sample_records(bytes, records);
    compose(&file, records, N_SAMPLES, 64, true);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        records[i].context = (void *)(uintptr_t)records[i].data;
        records[i].data = NULL;
        records[i].read = read_sample;
    }
    berth_plan *plan = plan_of_records(records, N_SAMPLES, BERTH_RECORDS_COMPLETE, "");
    check_all_runs(plan, file.bytes);
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
}

Test(tiles, a_callback_that_fails_is_told_with_record_and_byte)
{
    const berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
        {.name = "data/0", .nbytes = 100, .read = refuse_to_read},
    };
    berth_plan *plan = plan_of_records(records, 2, 0, "");
    uint8_t *memory = malloc(plan->nbytes);
    bth_output output = bth_output_of_memory(memory);
    const bth_run_settings settings = {.n_workers = 2, .tile_nbytes = 64};
    berth_stats facts = {0};
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(bth_run(plan, &output, &settings, &facts, &error), BERTH_E_CALLBACK);
    char expected[128];
    snprintf(expected, sizeof expected,
             "data/0 at byte %llu: the caller's read failed: Input/output error",
             (unsigned long long)plan->records[4].layout.data_offset);
    cr_assert_str_eq(error.message, expected);
    cr_assert_eq(error.system_errno, EIO);
    free(memory);
    berth_plan_free(plan);
}

Test(tiles, a_record_may_go_without_its_crc)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    composed with, without;

    sample_records(bytes, records);
    compose(&with, records, N_SAMPLES, 64, true);
    compose(&without, records, N_SAMPLES, 64, false);
    for (size_t i = 0; i < N_SAMPLES; i++)
        records[i].no_crc32 = true;
    berth_plan *plan =
        plan_of_records(records, N_SAMPLES, BERTH_RECORDS_COMPLETE, "save.compute_crc32=on");
    check_all_runs(plan, without.bytes);
    cr_assert_neq(memcmp(with.bytes, without.bytes, with.nbytes), 0);
    berth_plan_free(plan);
    free(with.bytes);
    free(without.bytes);
    free(bytes);
}

static void check_sums_are_refused(const berth_plan *plan, uint64_t tile_nbytes, unsigned n_workers)
{
    uint8_t *memory = malloc(plan->nbytes);
    bth_output output = bth_output_of_memory(memory);
    const bth_run_settings settings = {.n_workers = n_workers, .tile_nbytes = tile_nbytes};
    berth_stats facts = {0};
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(bth_run(plan, &output, &settings, &facts, &error), BERTH_E_CHECKSUM, "%s",
                 error.message);
    cr_assert(strstr(error.message, "and should have 0x"), "%s", error.message);
    free(memory);
}

/* Bytes whose CRC is known get no other one that fits what became of them. */
Test(tiles, bytes_that_do_not_sum_to_the_crc_that_is_known_are_not_saved)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    composed with;

    sample_records(bytes, records);
    compose(&with, records, N_SAMPLES, 64, true);
    for (size_t i = 0; i < N_SAMPLES; i++)
        if (records[i].data)
            records[i].crc32 = bth_crc32(0, records[i].data, (size_t)records[i].nbytes);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, BERTH_RECORDS_COMPLETE, "");
    check_all_runs(plan, with.bytes);
    for (size_t i = 0; i < plan->n_records; i++) {
        if (plan->records[i].crc32 == 0)
            continue;
        plan->records[i].crc32 ^= 1;
        for (size_t j = 0; j < N_TILE_SIZES; j++) {
            check_sums_are_refused(plan, tile_sizes[j], 0);
            check_sums_are_refused(plan, tile_sizes[j], 4);
        }
        plan->records[i].crc32 ^= 1;
    }
    berth_plan_free(plan);
    free(with.bytes);
    free(bytes);
}

/* ---- byte order ---- */

static int read_storage(const berth_storage *storage, void *buffer, size_t nbytes, uint64_t offset,
                        berth_error *error)
{
    (void)error;
    memcpy(buffer, (const uint8_t *)storage->context + offset, nbytes);
    return 0;
}

/* Storages of 1, 2, 4 and 8 byte units, by pointer and by callback, swapped at every border. */
Test(tiles, elements_are_swapped_whole_wherever_tiles_cut_them)
{
    enum { N = 8, NBYTES = 1000 };
    static const uint8_t units[N] = {1, 2, 4, 8, 1, 2, 4, 8};
    uint8_t *bytes = sample_bytes(NBYTES), *swapped[N];
    berth_storage storages[N] = {{0}};
    berth_new_record expected[N] = {{0}};
    char names[N][16];
    composed file;
    berth_error error;
    struct berth_config config = config_of("");

    bth_error_clear(&error);
    berth_plan *plan = bth_plan_new("archive", &config, 0, &error);
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "data/%zu", i);
        swapped[i] = malloc(NBYTES);
        for (size_t j = 0; j < NBYTES; j++)
            swapped[i][j] = bytes[j - j % units[i] + units[i] - 1u - j % units[i]];
        storages[i].nbytes = NBYTES;
        storages[i].data = i < N / 2 ? bytes : NULL;
        storages[i].read = read_storage;
        storages[i].context = bytes;
        expected[i] = (berth_new_record){.name = names[i], .nbytes = NBYTES, .data = swapped[i]};
        const bth_plan_record content = {.storage = &storages[i], .swap_nbytes = units[i]};
        cr_assert_eq(bth_plan_add(plan, names[i], NBYTES, &content, &error), 0);
    }
    cr_assert_eq(bth_plan_close(plan, &error), 0);
    compose(&file, expected, N, 64, true);
    check_all_runs(plan, file.bytes);
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
    for (size_t i = 0; i < N; i++)
        free(swapped[i]);
}

/* A storage may be a view of another one (streams from before 1.6). */
Test(tiles, a_view_of_a_storage_is_read_through_its_root)
{
    uint8_t *bytes = sample_bytes(100);
    const berth_storage root = {.nbytes = 100, .data = bytes};
    const berth_storage view = {.nbytes = 40, .root = &root, .root_offset = 7};
    const bth_plan_record content = {.storage = &view, .swap_nbytes = 1};
    const berth_new_record expected = {.name = "data/0", .nbytes = 40, .data = bytes + 7};
    struct berth_config config = config_of("");
    composed file;
    berth_error error;

    bth_error_clear(&error);
    berth_plan *plan = bth_plan_new("archive", &config, 0, &error);
    cr_assert_eq(bth_plan_add(plan, "data/0", 40, &content, &error), 0);
    cr_assert_eq(bth_plan_close(plan, &error), 0);
    compose(&file, &expected, 1, 64, true);
    check_all_runs(plan, file.bytes);
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
}
