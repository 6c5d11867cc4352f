/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files of the other byte order are swapped by what their elements are, untyped ones too, or
 * refused (T5); and any range of a storage can be read, for saving it again.
 */
#include "format/values/value.h"
#include "tests/support/load/archive.h"
#include "tests/support/sources.h"

static uint8_t swapped[N_SAMPLE_STORAGES][24];

/* The sample as a machine of the other byte order would have written it. */
static struct archive foreign_sample(void)
{
    static const size_t units[] = {4, 8, 2};
    struct archive archive = sample();
    bool is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

    *find_record(&archive, "byteorder") =
        is_big ? (struct record){"byteorder", "little", 6} : (struct record){"byteorder", "big", 3};
    for (size_t i = 0; i < N_SAMPLE_STORAGES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "data/%zu", i);
        struct record *record = find_record(&archive, name);
        bth_swap_bytes(swapped[i], record->bytes, record->nbytes, units[i]);
        record->bytes = swapped[i];
    }
    return archive;
}

static const char *const foreign_options[] = {"debug=on", "load.calculate_storage_offsets=off",
                                              "load.check=none", "load.mmap=off"};

Test(byteorder, of_the_other_byte_order_are_swapped_untyped_ones_too)
{
    struct archive archive = foreign_sample();
    size_t nbytes;
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);

    for (size_t i = 0; i < sizeof foreign_options / sizeof *foreign_options; i++)
        expect_sample(bytes, nbytes, foreign_options[i]);
    free(bytes);
    free_archive(&archive);
}

/* As torch.save(_disable_byteorder_record=True) writes it. Z11: it counts there as well. */
Test(byteorder, that_is_told_behind_the_storages_counts)
{
    static const char *const options[] = {
        "load.check=none",    "load.check=directory",
        "load.check=headers", "load.check=data",
        "debug=on",           "load.calculate_storage_offsets=off load.check=none"};
    struct archive archive = foreign_sample();
    size_t nbytes;

    remove_record(&archive, "byteorder");
    add_text(&archive, "byteorder", OTHER_BYTEORDER);
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(bytes, nbytes, options[i]);
    free(bytes);
    find_record(&archive, "byteorder")->bytes = "middle";
    find_record(&archive, "byteorder")->nbytes = 6;
    bytes = build(&archive, 64, true, NULL, &nbytes);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(bytes, nbytes, options[i], BERTH_E_ARCHIVE,
                       "memory: byteorder at byte 1472: 'middle' (6 bytes) is neither 'little' nor "
                       "'big'");
    free(bytes);
    free_archive(&archive);
}

Test(byteorder, without_byteorder_load_endianness_decides)
{
    struct archive archive = sample();
    size_t nbytes;

    remove_record(&archive, "byteorder");
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);
    expect_sample(bytes, nbytes, "load.endianness=native");
    expect_sample(bytes, nbytes, "load.endianness=" NATIVE_BYTEORDER);
    free(bytes);
    free_archive(&archive);
    archive = foreign_sample();
    remove_record(&archive, "byteorder");
    bytes = build(&archive, 64, true, NULL, &nbytes);
    expect_sample(bytes, nbytes, "load.endianness=" OTHER_BYTEORDER);
    free(bytes);
    free_archive(&archive);
}

/* What save/ does with a loaded tree: any range through the hook, before and after memory is made.
 */
static void expect_ranges(berth_checkpoint *checkpoint, const char *name, const void *expected)
{
    const berth_storage *storage = berth_find_tensor(checkpoint, name, NULL)->storage;
    uint8_t buffer[32];
    berth_error error = {0};

    for (size_t offset = 0; offset <= storage->nbytes; offset++)
        for (size_t n = 0; n <= storage->nbytes - offset; n++) {
            memset(buffer, 0xee, sizeof buffer);
            cr_assert_eq(storage->read(storage, buffer, n, offset, &error), 0, "%s", error.message);
            cr_expect_arr_eq(buffer, (const uint8_t *)expected + offset, n, "%s %zu %zu", name,
                             offset, n);
            cr_expect_eq(buffer[n], 0xee);
        }
    cr_expect_eq(storage->read(storage, buffer, 1, storage->nbytes, &error), BERTH_E_ARGUMENT);
}

Test(byteorder, any_range_can_be_read_for_saving_again)
{
    struct archive archives[] = {sample(), foreign_sample()};

    for (size_t i = 0; i < 2; i++) {
        size_t nbytes;
        uint8_t *bytes = build(&archives[i], 64, true, NULL, &nbytes);
        berth_checkpoint *checkpoint;
        cr_assert_eq(test_open_memory(bytes, nbytes, NULL, &checkpoint, NULL), 0);
        for (size_t round = 0; round < 2; round++) {
            expect_ranges(checkpoint, "weight", sample_weight);
            expect_ranges(checkpoint, "bias", sample_bias);
            expect_ranges(checkpoint, "words", sample_words);
            expect_sample_values(checkpoint);
        }
        berth_close(checkpoint);
        free(bytes);
        free_archive(&archives[i]);
    }
}

/* Larger than what is swapped at a time. */
Test(byteorder, long_ones_of_the_other_byte_order)
{
    enum { N = 30000 };
    static uint16_t elements[N], other[N];
    const int64_t shape[] = {N};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    struct archive archive = {0};
    berth_error error = {0};
    size_t nbytes;

    for (size_t i = 0; i < N; i++)
        elements[i] = (uint16_t)i;
    bth_swap_bytes(other, elements, sizeof elements, 2);
    berth_dict_set(root, "words", test_tensor(tree, BERTH_UINT16, elements, 1, shape));
    cr_assert_eq(bth_pickle_write(root, false, &archive.pickled, &error), 0);
    archive.tree = tree;
    add_record(&archive, "data.pkl", archive.pickled.bytes, archive.pickled.nbytes);
    add_text(&archive, ".format_version", "1");
    add_text(&archive, "byteorder", OTHER_BYTEORDER);
    add_record(&archive, "data/0", other, sizeof other);
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);
    berth_checkpoint *checkpoint;
    cr_assert_eq(
        open_with(bytes, nbytes, "io.chunk_nbytes=65536 io.threads=3", NULL, &checkpoint, &error),
        0, "%s", error.message);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "words", NULL);
    static uint16_t got[N];
    cr_expect_eq(tensor->storage->read(tensor->storage, got, sizeof got - 1, 1, &error), 0);
    cr_expect_arr_eq(got, (const uint8_t *)elements + 1, sizeof got - 1);
    const void *data = berth_tensor_data(checkpoint, tensor, &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_arr_eq(data, elements, sizeof elements);
    berth_close(checkpoint);
    free(bytes);
    free_archive(&archive);
}

/* What no list names: a tensor in another's Python attributes. */
Test(byteorder, attributes_are_swapped_too)
{
    static const float zero[1];
    static const uint16_t words[2] = {1, 0x0203};
    uint8_t other[sizeof words];
    static const int64_t one[] = {1}, two[] = {2};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree), *state = berth_make_dict(tree);
    struct archive archive = {.tree = tree};
    berth_error error = {0};
    size_t nbytes;
    berth_checkpoint *checkpoint;

    berth_dict_set(state, "words", test_tensor(tree, BERTH_UINT16, words, 1, two));
    berth_dict_set(
        root, "outer",
        berth_make_subclass(
            tree, berth_make_parameter(tree, test_tensor(tree, BERTH_FLOAT32, zero, 1, one), true),
            state));
    cr_assert_eq(bth_pickle_write(root, false, &archive.pickled, &error), 0, "%s", error.message);
    add_record(&archive, "data.pkl", archive.pickled.bytes, archive.pickled.nbytes);
    add_text(&archive, ".format_version", "1");
    add_text(&archive, "byteorder", OTHER_BYTEORDER);
    bth_swap_bytes(other, words, sizeof words, sizeof *words);
    add_record(&archive, "data/0", zero, 4);
    add_record(&archive, "data/1", other, 4);
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);
    cr_assert_eq(open_with(bytes, nbytes, "", NULL, &checkpoint, &error), 0, "%s", error.message);
    const berth_value *outer = berth_dict_get(berth_root(checkpoint), "outer");
    const berth_value *inner = berth_dict_get(berth_value_part(outer, BERTH_PART_STATE), "words");
    const uint16_t *got = berth_tensor_data(checkpoint, berth_as_tensor(inner), &error);
    cr_assert_not_null(got, "%s", error.message);
    cr_expect_arr_eq(got, words, sizeof words);
    berth_close(checkpoint);
    free(bytes);
    free_archive(&archive);
}

Test(byteorder, bytes_viewed_as_elements_of_two_widths_are_not_guessed)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    static const uint8_t eight[8];
    static const int64_t four[] = {4}, two[] = {2};
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, eight, 8, NULL);
    struct archive archive = {.tree = tree};
    berth_error error = {0};
    size_t nbytes;
    berth_checkpoint *checkpoint;

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
    cr_assert_eq(bth_pickle_write(root, false, &archive.pickled, &error), 0, "%s", error.message);
    add_record(&archive, "data.pkl", archive.pickled.bytes, archive.pickled.nbytes);
    add_text(&archive, ".format_version", "1");
    add_text(&archive, "byteorder", OTHER_BYTEORDER);
    add_record(&archive, "data/0", eight, 8);
    uint8_t *bytes = build(&archive, 64, true, NULL, &nbytes);
    cr_assert_eq(open_with(bytes, nbytes, "", NULL, &checkpoint, &error), 0, "%s", error.message);
    cr_expect_null(
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "words", NULL), &error));
    cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(
        error.message,
        "memory: \"words\": data/0 at byte 704: it is in the other byte order, and viewed as "
        "elements of different width: which bytes to swap is not known",
        "%s", error.message);
    berth_close(checkpoint);
    free(bytes);
    free_archive(&archive);
}
