/* SPDX-License-Identifier: BSD-3-Clause */
/* Z12: files whose storages are deflated, as `zip -r` makes them: what can be read of them. */
#include <berth/prefetch.h>

#include "tests/support/load/deflated_scene.h"

TestSuite(deflated, .init = begin_deflated, .fini = end_sample);

/* ---- what can be read ---- */

Test(deflated, storages_are_inflated_when_they_are_asked_for)
{
    static const char *const options[] = {"",
                                          "load.check=none",
                                          "load.check=headers",
                                          "load.check=data",
                                          "load.calculate_storage_offsets=off",
                                          "load.method=map",
                                          "load.method=direct",
                                          "load.mmap=off io.threads=1",
                                          "load.prefetch=populate"};
    static const char *const which[] = {"data/", "data", "data/1", ""};

    for (size_t k = 0; k < sizeof which / sizeof *which; k++) {
        zip_again(which[k]);
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            berth_storage_stats stats;
            berth_info info;
            open_file(options[i]);
            assert_ok(berth_get_info(checkpoint, &info, &error));
            cr_expect_eq(info.n_deflated, k == 2 ? 1 : N_SAMPLE_STORAGES, "%s", options[i]);
            cr_expect(info.repacked && !info.calculated_offsets);
            expect_sample_values();
            cr_assert_not_null(data_of("bias"));
            assert_ok(
                berth_storage_get_stats(checkpoint, tensor_named("bias")->storage, &stats, &error));
            cr_expect_str_eq(stats.method, "read");
            cr_expect_str_eq(stats.reason, "it is deflated");
            cr_expect_eq(stats.crc32, BERTH_CRC_GOOD, "%s", options[i]);
        }
    }
}

Test(deflated, all_of_them_are_loaded_at_once)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4", "load.check=data"};

    for (size_t i = 0; i < 3; i++) {
        berth_stats stats;
        open_file("");
        assert_ok(berth_load(checkpoint, NULL, only(options[i], &stats), &error));
        cr_expect_eq(stats.n_storages, N_SAMPLE_STORAGES);
        expect_floats("weight", sample_weight, 6);
        expect_sample_values();
    }
}

/* T5 */
Test(deflated, storages_of_the_other_byte_order_are_swapped)
{
    set_text("byteorder", OTHER_BYTEORDER);
    zip_again("data/");
    open_file("");
    const uint16_t *words = data_of("words");
    cr_assert_not_null(words);
    cr_expect_eq(words[0], 256);
    cr_expect_eq(words[1], 65535);
    uint16_t read[2];
    open_file("");
    assert_ok(berth_tensor_read(checkpoint, tensor_named("words"), 0, 2, read, &error));
    cr_expect_eq(read[0], 256);
    open_file("");
    assert_ok(berth_tensor_read(checkpoint, tensor_named("words"), 1, 1, read, &error));
    cr_expect_eq(read[0], 65535);
    open_file("");
    berth_destination into = {
        .tensor = tensor_named("words"), .address = read, .nbytes = sizeof read};
    assert_ok(berth_load_into(checkpoint, &into, 1, NULL, &error));
    cr_expect_eq(read[0], 256);
}

/* T1: FORMAT.md 6 */
Test(deflated, a_record_may_be_longer_than_its_elements)
{
    uint8_t longer[25] = {0};

    memcpy(longer, sample_bias, sizeof sample_bias);
    longer[24] = 7;
    set_record("data/1", longer, sizeof longer);
    for (int i = 0; i < 2; i++) {
        zip_again(i == 0 ? "data/" : "data/1");
        open_file(i == 0 ? "" : "load.check=data");
        expect_sample_values();
        cr_expect_eq(try_file("debug=on"), BERTH_E_OFFSETS);
    }
}

Test(deflated, an_empty_one_is_no_work)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "none", test_vector(tree, BERTH_UINT8, "", 0));
    begin_records(tree, root, "little");
    add_record("data/0", "", 0);
    add_text("version", "3\n");
    zip_again("data/");
    open_file("load.check=data");
    cr_expect_not_null(data_of("none"));
    cr_expect_eq(
        berth_verify(FROM_MEMORY(file, file_nbytes), only("", NULL), NULL, NULL, NULL, &error), 0);
}

/* ---- parts ---- */

Test(deflated, a_part_loads_the_storage)
{
    static const int64_t starts[] = {1, 0}, lengths[] = {1, 2};
    float read[2];
    int64_t bias[2];

    open_file("");
    assert_ok(
        berth_tensor_read_slice(checkpoint, tensor_named("weight"), starts, lengths, read, &error));
    cr_expect_arr_eq(read, ((float[]){3, 4}), sizeof read);
    assert_ok(berth_tensor_read(checkpoint, tensor_named("bias"), 1, 2, bias, &error));
    cr_expect_arr_eq(bias, sample_bias + 1, sizeof bias);
    char expected[300];
    open_file("io.memory_nbytes=1");
    cr_expect_eq(berth_tensor_read(checkpoint, tensor_named("bias"), 1, 2, bias, &error),
                 BERTH_E_MEMORY);
    (void)snprintf(expected, sizeof expected,
                   "memory: \"bias\": data/1 at byte %zu: io.memory_nbytes=1 is too small to "
                   "inflate its 24 bytes, beside 0 bytes of other storages: 23 are missing",
                   data_of_record("data/1"));
    expect_error(BERTH_E_MEMORY, expected);
}

Test(deflated, whole_ones_go_straight_to_the_callers_memory)
{
    static const char *const options[] = {"", "load.check=data", "io.threads=1", "load.method=map"};
    float weight[6];
    int64_t bias[3];

    for (size_t i = 0; i < 4; i++) {
        open_file("io.memory_nbytes=1");
        berth_destination into[] = {
            {.tensor = tensor_named("bias"), .address = bias, .nbytes = sizeof bias},
            {.tensor = tensor_named("weight"), .address = weight, .nbytes = sizeof weight}};
        assert_ok(berth_load_into(checkpoint, into, 2, only(options[i], NULL), &error));
        cr_expect_arr_eq(weight, sample_weight, sizeof weight);
        cr_expect_arr_eq(bias, sample_bias, sizeof bias);
        memset(bias, 0, sizeof bias);
        assert_ok(berth_tensor_read(checkpoint, tensor_named("bias"), 0, 3, bias, &error));
        cr_expect_arr_eq(bias, sample_bias, sizeof bias);
        open_file("");
        berth_tensor part = *tensor_named("bias"); /* not straight: it is inflated before */
        static const int64_t two[] = {2};
        part.shape = two, part.storage_offset = 1;
        into[0] = (berth_destination){.tensor = &part, .address = bias, .nbytes = 16};
        assert_ok(berth_load_into(checkpoint, into, 1, only(options[i], NULL), &error));
        cr_expect_arr_eq(bias, sample_bias + 1, 16);
    }
}

Test(deflated, records_of_an_archive_are_read_in_parts)
{
    berth_archive *archive;
    berth_record record;
    uint8_t read[24];

    assert_ok(
        berth_archive_open(FROM_MEMORY(file, file_nbytes), only("", NULL), &archive, NULL, &error));
    assert_ok(berth_archive_find(archive, "data/1", &record, &error));
    cr_expect_eq(record.method, 8);
    for (size_t from = 0; from <= 24; from++)
        for (size_t to = from; to <= 24; to++) {
            memset(read, 0x5a, sizeof read);
            assert_ok(berth_archive_read(archive, &record, read, to - from, from, &error));
            cr_expect_arr_eq(read, (const uint8_t *)sample_bias + from, to - from);
            cr_expect(to - from == 24 || read[to - from] == 0x5a);
        }
    berth_archive_close(archive);
}

/* More than one piece of input, and of output. */
Test(deflated, long_ones_are_inflated_in_pieces)
{
    static uint8_t noise[700001];
    uint32_t state = 1;
    berth_archive *archive;
    berth_record record;
    uint8_t read[1000];

    for (size_t i = 0; i < sizeof noise; i++) {
        state = state * 1664525 + 1013904223;
        noise[i] = (uint8_t)(state >> 24);
    }
    begin_large();
    set_record("data/0", memset(malloc(LARGE_NBYTES), 0, LARGE_NBYTES), LARGE_NBYTES);
    uint8_t *large = (uint8_t *)(uintptr_t)find_record("data/0")->bytes;
    memcpy(large + 5000000, noise, sizeof noise);
    zip_again("data/");
    open_file("");
    const uint8_t *data = data_of("large");
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_eq(memcmp(data, large, LARGE_NBYTES), 0);
    assert_ok(berth_archive_open(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL),
                                 &archive, NULL, &error));
    berth_archive_close(archive);
    assert_ok(
        berth_archive_open(FROM_MEMORY(file, file_nbytes), only("", NULL), &archive, NULL, &error));
    assert_ok(berth_archive_find(archive, "data/0", &record, &error));
    for (uint64_t at = 4999500; at < 5701000; at += 70000) {
        assert_ok(berth_archive_read(archive, &record, read, sizeof read, at, &error));
        cr_expect_eq(memcmp(read, large + at, sizeof read), 0);
    }
    berth_archive_close(archive);
    free(large);
}

/* ---- from a file ---- */

static void begin_deflated_file(void)
{
    begin_sample_file();
    zip_again("data/1");
    test_write_file(path, file, file_nbytes);
}

/* The file's bytes of a deflated one are not its elements: a prefetch leaves it out. */
Test(deflated_file, a_prefetch_leaves_it_out, .init = begin_deflated_file, .fini = end_sample_file)
{
    static const char *const options[] = {"debug=off load.method=map", "debug=off load.mmap=off"};
    static const berth_selection bias = {.pattern = "bias"};
    berth_prefetch_stats stats;
    berth_prefetch *prefetch;

    for (size_t i = 0; i < 2; i++) {
        open_as(options[i]);
        assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
        assert_ok(berth_prefetch_advance(prefetch, tensor_named("bias"), 0, -1, &error));
        assert_ok(berth_prefetch_advance(prefetch, NULL, 0, -1, &error));
        assert_ok(berth_prefetch_get_stats(prefetch, &stats, &error));
        cr_expect_gt(stats.requested_nbytes, 0);
        berth_prefetch_free(prefetch);
        assert_ok(berth_prefetch_begin(checkpoint, &bias, 0, NULL, &prefetch, &error));
        assert_ok(berth_prefetch_advance(prefetch, NULL, 0, -1, &error));
        assert_ok(berth_prefetch_get_stats(prefetch, &stats, &error));
        cr_expect_eq(stats.requested_nbytes, 0);
        berth_prefetch_free(prefetch);
        cr_expect_not_null(data_of("bias"));
    }
    open_as("debug=off load.prefetch=populate");
    cr_expect_not_null(data_of("bias"));
    cr_expect_not_null(berth_storage_data(checkpoint, tensor_named("bias")->storage, &error));
}

Test(deflated_file, methods_of_a_file_fit_it, .init = begin_deflated_file, .fini = end_sample_file)
{
    static const char *const options[] = {"debug=off load.method=direct",
                                          "debug=off load.method=map", "debug=off load.method=read",
                                          "debug=off load.check=data"};

    for (size_t i = 0; i < 4; i++) {
        open_as(options[i]);
        assert_ok(berth_load(checkpoint, NULL, only(options[i], NULL), &error));
        expect_sample_values();
        cr_expect_eq(
            berth_verify(FROM_PATH(path), only(options[i], NULL), NULL, NULL, NULL, &error), 0,
            "%s", error.message);
    }
}

/* ---- files without .format_version ---- */

Test(deflated, an_older_file_is_not_called_repacked)
{
    berth_info info;

    remove_record(".format_version");
    zip_again("data/");
    open_file("debug=on");
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect(!info.repacked);
    cr_expect_eq(info.n_deflated, N_SAMPLE_STORAGES);
    expect_sample_values();
}
