/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files of the other byte order are swapped by what their elements are, untyped ones too, or
 * refused (T5); and any range of a storage can be read, for saving it again.
 */
#include "format/values/value.h"
#include "tests/support/load/archive.h"

TestSuite(byteorder, .init = begin_sample, .fini = end_sample);

static uint8_t swapped[N_SAMPLE_STORAGES][24];

/* The sample as a machine of the other byte order would have written it. */
static void begin_foreign_sample(void)
{
    static const size_t units[] = {4, 8, 2};

    begin_sample();
    set_text("byteorder", OTHER_BYTEORDER);
    for (size_t i = 0; i < N_SAMPLE_STORAGES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "data/%zu", i);
        struct record *record = find_record(name);
        bth_swap_bytes(swapped[i], record->bytes, record->nbytes, units[i]);
        record->bytes = swapped[i];
    }
    build(NULL);
}

static const char *const foreign_options[] = {"debug=on", "load.calculate_storage_offsets=off",
                                              "load.check=none", "load.mmap=off"};

Test(byteorder, of_the_other_byte_order_are_swapped_untyped_ones_too)
{
    begin_foreign_sample();
    for (size_t i = 0; i < sizeof foreign_options / sizeof *foreign_options; i++)
        expect_sample(foreign_options[i]);
    expect_clean_failing_allocations("", 10);
}

/* As torch.save(_disable_byteorder_record=True) writes it. Z11: it counts there as well. */
Test(byteorder, that_is_told_behind_the_storages_counts)
{
    static const char *const options[] = {
        "load.check=none",    "load.check=directory",
        "load.check=headers", "load.check=data",
        "debug=on",           "load.calculate_storage_offsets=off load.check=none"};

    begin_foreign_sample();
    remove_record("byteorder");
    add_text("byteorder", OTHER_BYTEORDER);
    build(NULL);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(options[i]);
    set_text("byteorder", "middle");
    build(NULL);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(
            options[i], BERTH_E_ARCHIVE,
            "memory: byteorder at byte 1472: 'middle' (6 bytes) is neither 'little' nor 'big'");
}

Test(byteorder, without_byteorder_load_endianness_decides)
{
    remove_record("byteorder");
    build(NULL);
    expect_sample("load.endianness=native");
    expect_sample("load.endianness=" NATIVE_BYTEORDER);
    begin_foreign_sample();
    remove_record("byteorder");
    build(NULL);
    expect_sample("load.endianness=" OTHER_BYTEORDER);
}

/* What save/ does with a loaded tree: any range through the hook, before and after memory is made.
 */
static void expect_ranges(const char *name, const void *expected)
{
    const berth_storage *storage = berth_find_tensor(checkpoint, name, NULL)->storage;
    uint8_t buffer[32];

    error = (berth_error){0};
    for (size_t offset = 0; offset <= storage->nbytes; offset++)
        for (size_t n = 0; n <= storage->nbytes - offset; n++) {
            memset(buffer, 0xee, sizeof buffer);
            assert_ok(storage->read(storage, buffer, n, offset, &error));
            cr_expect_arr_eq(buffer, (const uint8_t *)expected + offset, n, "%s %zu %zu", name,
                             offset, n);
            cr_expect_eq(buffer[n], 0xee);
        }
    for (size_t beyond = 0; beyond < 2; beyond++)
        cr_expect_eq(storage->read(storage, buffer, 1, storage->nbytes + beyond, &error),
                     BERTH_E_ARGUMENT);
}

Test(byteorder, any_range_can_be_read_for_saving_again)
{
    for (int is_foreign = 0; is_foreign < 2; is_foreign++) {
        if (is_foreign)
            begin_foreign_sample();
        open_file("");
        for (size_t round = 0; round < 2; round++) {
            expect_ranges("weight", sample_weight);
            expect_ranges("bias", sample_bias);
            expect_ranges("words", sample_words);
            expect_sample_values();
        }
    }
}

/* Larger than what is swapped at a time. */
Test(byteorder, long_ones_of_the_other_byte_order)
{
    enum { N = 30000 };
    static uint16_t elements[N], other[N];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    for (size_t i = 0; i < N; i++)
        elements[i] = (uint16_t)i;
    bth_swap_bytes(other, elements, sizeof elements, 2);
    berth_dict_set(root, "words", test_vector(tree, BERTH_UINT16, elements, N));
    begin_records(tree, root, OTHER_BYTEORDER);
    add_record("data/0", other, sizeof other);
    add_text("version", "3");
    build(NULL);
    open_file("io.chunk_nbytes=65536 io.threads=3");
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "words", NULL);
    static uint16_t got[N];
    cr_expect_eq(tensor->storage->read(tensor->storage, got, sizeof got - 1, 1, &error), 0);
    cr_expect_arr_eq(got, (const uint8_t *)elements + 1, sizeof got - 1);
    const void *data = berth_tensor_data(checkpoint, tensor, &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_arr_eq(data, elements, sizeof elements);
}

/* What no list names: a tensor in another's Python attributes. */
Test(byteorder, attributes_are_swapped_too)
{
    static const float zero[1];
    static const uint16_t words[2] = {1, 0x0203};
    uint8_t other[sizeof words];
    static const int64_t one[] = {1}, two[] = {2};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *state = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(state, "words", test_tensor(tree, BERTH_UINT16, words, 1, two));
    berth_dict_set(
        root, "outer",
        berth_make_subclass(
            tree, berth_make_parameter(tree, test_tensor(tree, BERTH_FLOAT32, zero, 1, one), true),
            state));
    begin_records(tree, root, OTHER_BYTEORDER);
    bth_swap_bytes(other, words, sizeof words, sizeof *words);
    add_record("data/0", zero, 4);
    add_record("data/1", other, 4);
    add_text("version", "3");
    build(NULL);
    open_file("");
    const berth_value *outer = berth_dict_get(berth_root(checkpoint), "outer");
    const berth_value *inner = berth_dict_get(berth_value_part(outer, BERTH_PART_STATE), "words");
    const uint16_t *got = berth_tensor_data(checkpoint, berth_as_tensor(inner), &error);
    cr_assert_not_null(got, "%s", error.message);
    cr_expect_arr_eq(got, words, sizeof words);
}

Test(byteorder, bytes_viewed_as_elements_of_two_widths_are_not_guessed)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    static const uint8_t eight[8];
    static const int64_t four[] = {4}, two[] = {2};
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, eight, 8, NULL);

    berth_dict_set(
        root, "words",
        berth_make_tensor(
            tree,
            &(berth_tensor){.dtype = BERTH_UINT16, .rank = 1, .shape = four, .storage = storage}));
    berth_dict_set(
        root, "double",
        berth_make_tensor(
            tree,
            &(berth_tensor){.dtype = BERTH_UINT32, .rank = 1, .shape = two, .storage = storage}));
    begin_records(tree, root, OTHER_BYTEORDER);
    add_record("data/0", eight, 8);
    add_text("version", "3");
    build(NULL);
    open_file("");
    cr_expect_null(data_of("words"));
    cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(error.message,
                     "memory: \"words\": data/0 at byte 704: it is in the other byte order, and "
                     "viewed as elements of different width: which bytes to swap is not known");
    uint16_t words[4];
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "words", &error);
    const berth_destination to = {.tensor = tensor, .address = words, .nbytes = sizeof words};
    cr_expect_eq(berth_tensor_read(checkpoint, tensor, 0, 4, words, &error), BERTH_E_UNSUPPORTED);
    cr_expect_eq(berth_load_into(checkpoint, &to, 1, NULL, &error), BERTH_E_UNSUPPORTED);
}
