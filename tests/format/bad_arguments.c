/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What makers of values are never given by a pickle, but may be by a program: NULL, values of
 * another tree or another kind, counts that no memory holds. Each is refused by its sentence (F5).
 */
#include "format/names/names.h"
#include "format/pickle/pickle.h"
#include "format/values/node.h"
#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

static berth_tree *other;
static berth_value *foreign_dict, *foreign_text;
static const float numbers[64];

static void set_up(void)
{
    begin_tree();
    other = berth_tree_new(NULL);
    foreign_dict = berth_make_dict(other, BERTH_KIND_DICT);
    foreign_text = berth_make_str(other, "a", 1);
}

static void tear_down(void)
{
    end_tree();
    berth_tree_free(other);
}

TestSuite(bad_arguments, .init = set_up, .fini = tear_down);

#define REFUSED(made, message) expect_tree_failure(made, BERTH_E_ARGUMENT, message)
#define TREE_FAILS(result, message)                                                                \
    do {                                                                                           \
        cr_expect_eq(result, BERTH_E_ARGUMENT, "%s", message);                                     \
        expect_tree_failure(NULL, BERTH_E_ARGUMENT, message);                                      \
    } while (0)

static berth_value *tensor_of(berth_dtype dtype, int32_t rank, const int64_t *shape)
{
    return test_tensor(tree, dtype, numbers, rank, shape);
}

static berth_value *floats(int64_t n)
{
    return test_vector(tree, BERTH_FLOAT32, numbers, n);
}

static berth_value *longs(int64_t n)
{
    return test_vector(tree, BERTH_INT64, numbers, n);
}

static berth_value *long_table(int64_t rows, int64_t columns)
{
    return tensor_of(BERTH_INT64, 2, (const int64_t[]){rows, columns});
}

/* tests/api/nothing.c: what is public. */
Test(bad_arguments, of_nothing_there_is_no_id_nor_phrase)
{
    cr_expect_eq(bth_value_id(NULL), SIZE_MAX);
    cr_expect_str_eq(bth_kind_phrase((berth_kind)99), "unknown");
}

Test(bad_arguments, nothing_added_is_no_failure)
{
    berth_value *list = berth_make_list(tree), *call;

    call = bth_call_new(tree, bth_global_new(tree, "a", 1, "B", 1, false),
                        berth_make_tuple(tree, NULL, 0), false);
    cr_expect_eq(bth_list_extend(list, NULL, 0), 0);
    cr_expect_eq(bth_call_extend(call, NULL, 0, false), 0);
    cr_expect_eq(bth_call_extend(call, NULL, 0, true), 0);
    cr_expect_null(berth_value_part(call, BERTH_PART_LIST_ITEMS));
    cr_expect_null(berth_value_part(call, BERTH_PART_DICT_ITEMS));
}

Test(bad_arguments, null_pointers_are_refused)
{
    int64_t one = 1;

    REFUSED(berth_make_str(tree, NULL, 1), "the text is NULL");
    REFUSED(berth_make_bytes(tree, BERTH_KIND_BYTES, NULL, 1), "the bytes are NULL");
    REFUSED(berth_make_bytes(tree, BERTH_KIND_STR, "a", 1), "str (5) is not made of bytes");
    REFUSED(berth_make_dict(tree, BERTH_KIND_LIST), "list (8) is no kind of dict");
    REFUSED(berth_make_bytes(tree, BERTH_KIND_INT, NULL, 4), "an integer of 4 bytes (1 to 255)");
    REFUSED(berth_make_bytes(tree, BERTH_KIND_INT, (const uint8_t[1]){0}, 0),
            "an integer of 0 bytes (1 to 255)");
    REFUSED(berth_make_bytes(tree, BERTH_KIND_INT, (const uint8_t *)numbers, 256),
            "an integer of 256 bytes (1 to 255)");
    REFUSED(berth_make_device(tree, NULL, 0), "\"\" is not a device type");
    REFUSED(berth_make_storage(tree, NULL), "the storage is NULL");
    REFUSED(berth_make_tensor(tree, NULL), "the tensor is NULL");
    REFUSED(berth_make_size(tree, NULL, 1), "a torch.Size of 1 items (0 to 64)");
    REFUSED(berth_make_size(tree, &one, -1), "a torch.Size of -1 items (0 to 64)");
    REFUSED(berth_make_size(tree, &one, 65), "a torch.Size of 65 items (0 to 64)");
    REFUSED(berth_make_sparse(tree, BERTH_SPARSE_COO, &one, 1, NULL, false),
            "a sparse tensor of rank 1 without parts or shape");
    REFUSED(berth_make_sparse(tree, BERTH_SPARSE_COO, NULL, 1, &foreign_text, false),
            "a sparse tensor of rank 1 without parts or shape");
    REFUSED(berth_make_sparse(tree, BERTH_SPARSE_COO, &one, -1, &foreign_text, false),
            "a sparse tensor of rank -1 without parts or shape");
    REFUSED(berth_make_sparse(tree, BERTH_SPARSE_COO, &one, 65, &foreign_text, false),
            "a sparse tensor of rank 65 without parts or shape");
    TREE_FAILS(berth_dict_set(berth_make_dict(tree, BERTH_KIND_DICT), NULL, NULL),
               "the key is NULL");
    TREE_FAILS(berth_value_set_state(berth_make_dict(tree, BERTH_KIND_ORDERED_DICT), NULL),
               "the state is NULL");
    TREE_FAILS(berth_set_add(berth_make_set(tree), NULL), "an item of a set is NULL");
    TREE_FAILS(
        berth_dict_set_value(berth_make_dict(tree, BERTH_KIND_DICT), NULL, berth_make_none(tree)),
        "a dict's key is NULL");
    REFUSED(berth_make_parameter(tree, NULL, true), "the tensor of a Parameter is NULL");
    REFUSED(berth_make_subclass(tree, NULL, berth_make_dict(tree, BERTH_KIND_DICT)),
            "the tensor with attributes is NULL");
}

Test(bad_arguments, values_of_another_tree_are_refused_everywhere)
{
    berth_storage *storage = berth_storage_new(other, BERTH_FLOAT32, numbers, 4, NULL);
    int64_t one = 1;
    berth_value *tensor =
        berth_make_tensor(other, &(berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage});

    REFUSED(berth_make_storage(tree, storage), "the storage is of another tree");
    REFUSED(berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage}),
            "the storage is of another tree");
    REFUSED(berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .flags = 16 | 64}),
            "unknown flags 0x50 of a tensor");
    REFUSED(berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .scales = tensor}),
            "scales is of another tree");
    REFUSED(berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .zero_points = tensor}),
            "zero points is of another tree");
    REFUSED(berth_make_parameter(tree, tensor, true),
            "the tensor of a Parameter is of another tree");
    REFUSED(berth_make_subclass(tree, tensor, foreign_dict),
            "the tensor with attributes is of another tree");
    REFUSED(berth_make_subclass(tree, floats(1), foreign_dict),
            "the attributes of a tensor is of another tree");
    REFUSED(
        berth_make_sparse(tree, BERTH_SPARSE_COO, &one, 1, (berth_value *[]){tensor, tensor}, true),
        "[0]: a part of a tensor is of another tree");
    REFUSED(berth_make_nested(tree, (berth_value *[]){tensor, tensor, tensor, tensor}),
            "[0]: a part of a tensor is of another tree");
    TREE_FAILS(berth_value_set_state(berth_make_dict(tree, BERTH_KIND_ORDERED_DICT), foreign_dict),
               "the state is of another tree");
    TREE_FAILS(berth_dict_set_value(berth_make_dict(tree, BERTH_KIND_DICT), foreign_text,
                                    berth_make_int(tree, 1)),
               "a dict's key is of another tree");
    TREE_FAILS(berth_set_add(berth_make_set(tree), foreign_text),
               "an item of a set is of another tree");
    TREE_FAILS(berth_list_append(berth_make_list(tree), foreign_text),
               "[0]: an item of a list is of another tree");
    REFUSED(berth_make_tuple(tree, &foreign_text, 1), "[0]: an item of a tuple is of another tree");
}

Test(bad_arguments, values_of_another_kind_are_refused)
{
    REFUSED(berth_make_subclass(tree, berth_make_dict(tree, BERTH_KIND_DICT),
                                berth_make_dict(tree, BERTH_KIND_DICT)),
            "a tensor with attributes around a dict");
    expect_tree_failure(
        berth_make_nested(
            tree, (berth_value *[]){floats(1), berth_make_int(tree, 1), floats(1), floats(1)}),
        BERTH_E_TENSOR, "part 1 of a nested tensor is an int, not a tensor");
    TREE_FAILS(berth_list_append(berth_make_set(tree), berth_make_int(tree, 1)),
               "a set is not a list");
    TREE_FAILS(berth_set_add(berth_make_list(tree), berth_make_int(tree, 1)),
               "a list is not a dict, nor a set");
    TREE_FAILS(berth_dict_set(berth_make_list(tree), "a", berth_make_int(tree, 1)),
               "a list is not a dict");
    TREE_FAILS(berth_value_set_state(berth_make_list(tree), berth_make_dict(tree, BERTH_KIND_DICT)),
               "a list has no attributes");
}

/* P3: what something was built from keeps its items. */
Test(bad_arguments, a_dict_that_was_used_does_not_grow)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_error error;

    cr_assert_not_null(bth_counter_from_dict(tree, dict));
    cr_expect_eq(berth_dict_set(dict, "a", dict), BERTH_E_UNSUPPORTED);
    (void)berth_tree_error(tree, &error);
    cr_expect_str_eq(error.message, "a dict grows after another object was built from it");
}

Test(bad_arguments, facts_that_are_none_are_refused)
{
    REFUSED(berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_DTYPE_NONE),
            "no torch.dtype has the number 0");
    REFUSED(berth_make_constant(tree, BERTH_KIND_DTYPE, -1), "no torch.dtype has the number -1");
    REFUSED(berth_make_constant(tree, BERTH_KIND_QSCHEME, BERTH_NOT_QUANTIZED),
            "no torch.qscheme has the number 0");
    REFUSED(berth_make_constant(tree, BERTH_KIND_QSCHEME, (berth_qscheme)77),
            "no torch.qscheme has the number 77");
    REFUSED(berth_make_constant(tree, BERTH_KIND_LAYOUT, (berth_layout_kind)0),
            "no torch.layout has the number 0");
    REFUSED(berth_make_constant(tree, BERTH_KIND_LAYOUT, (berth_layout_kind)99),
            "no torch.layout has the number 99");
    REFUSED(berth_storage_new(tree, (berth_dtype)99, numbers, 4, NULL), "invalid dtype 99");
    REFUSED(berth_storage_new(tree, BERTH_UINT8, numbers, UINT64_MAX, NULL),
            "a storage of 18446744073709551615 bytes does not hold a whole number of uint8");
    REFUSED(berth_make_device(tree, "", 0), "\"\" is not a device type");
    REFUSED(berth_make_device(tree, "a_type_of_thirty_two_characters_", 0),
            "\"a_type_of_thirty_two_characters_\" is not a device type");
}

/* Nothing is allocated, nor looked at, before a count is known to fit. */
Test(bad_arguments, counts_that_no_memory_holds_are_refused)
{
    size_t huge = (size_t)((uint64_t)UINT32_MAX + 1);

    if (huge == 0)
        cr_skip_test("in 32 bits no count is so large");
    berth_value *list = berth_make_list(tree), *dict = berth_make_dict(tree, BERTH_KIND_DICT),
                *item = berth_make_int(tree, 1);

    expect_tree_failure(bth_tuple_of(tree, &item, huge), BERTH_E_UNSUPPORTED,
                        "a tuple of 4294967296 items (at most 4294967295)");
    expect_tree_failure(berth_make_tuple(tree, NULL, huge), BERTH_E_UNSUPPORTED,
                        "a tuple of 4294967296 items (at most 4294967295)");
    expect_tree_failure(berth_make_bytes(tree, BERTH_KIND_BYTES, numbers, huge),
                        BERTH_E_UNSUPPORTED, "bytes of 4294967296 bytes (at most 4294967295)");
    expect_tree_failure(bth_global_new(tree, "a", huge, "b", 1, false), BERTH_E_UNSUPPORTED,
                        "a global's name of 1 bytes");
    expect_tree_failure(bth_global_new(tree, "a", 1, "b", huge, false), BERTH_E_UNSUPPORTED,
                        "a global's name of 4294967296 bytes");
    list = berth_make_list(tree);
    cr_expect_eq(bth_list_extend(list, &item, huge), BERTH_E_UNSUPPORTED);
    expect_tree_failure(NULL, BERTH_E_UNSUPPORTED,
                        "one list or table has more than 4294967295 items");
    dict = berth_make_dict(tree, BERTH_KIND_DICT);
    cr_expect_eq(bth_dict_extend(dict, &item, UINT32_MAX / 4 + 1), BERTH_E_UNSUPPORTED);
    expect_tree_failure(NULL, BERTH_E_UNSUPPORTED,
                        "one list or table has more than 1073741823 items");
}

/* As if so many values had been made. */
Test(bad_arguments, a_tree_is_full_when_its_ids_are_used_up)
{
    (void)berth_make_list(tree);
    tree->n_ids = BTH_NO_ID;
    expect_tree_failure(berth_make_list(tree), BERTH_E_UNSUPPORTED,
                        "more than 4294967295 values in one tree");
    (void)berth_make_list(tree);
    tree->n_ids = BTH_NO_ID;
    expect_tree_failure(berth_make_dict(tree, BERTH_KIND_DICT), BERTH_E_UNSUPPORTED,
                        "more than 4294967295 values in one tree");
#if SIZE_MAX > UINT32_MAX /* 32 bits cannot address so many */
    struct storage_items full = {.size = {.count = UINT32_MAX - 1, .capacity = UINT32_MAX - 1}};
    uint64_t slots[32] = {0};
    tree->storages.items = &full;
    tree->storages.slots = (struct slots){.slots = slots, .mask = 31};
    expect_tree_failure(bth_tree_find_or_add_storage(tree, "a", 1, BERTH_UINT8, 1, "cpu", 3),
                        BERTH_E_UNSUPPORTED, "one list or table has more than 4294967294 items");
#endif
}

/* ---- tensors (T1, T2, T4) ---- */

Test(bad_arguments, tensors_without_what_they_need_are_refused)
{
    int64_t one = 1;

    expect_tree_failure(tensor_of(BERTH_FLOAT32, 1, NULL), BERTH_E_TENSOR,
                        "a tensor without a shape");
    expect_tree_failure(tensor_of(BERTH_FLOAT32, -1, &one), BERTH_E_TENSOR,
                        "a tensor of rank -1 (0 to 64)");
    expect_tree_failure(tensor_of(BERTH_FLOAT32, 65, &one), BERTH_E_TENSOR,
                        "a tensor of rank 65 (0 to 64)");
    expect_tree_failure(tensor_of(BERTH_DTYPE_NONE, 1, &one), BERTH_E_TENSOR,
                        "a tensor without a dtype");
    expect_tree_failure(tensor_of((berth_dtype)99, 1, &one), BERTH_E_TENSOR,
                        "a tensor with the invalid dtype 99");
    REFUSED(
        berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1, .shape = &one}),
        "a tensor of 4 bytes without data or storage");
    expect_tree_failure(berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_QINT8,
                                                                .rank = 1,
                                                                .shape = &one,
                                                                .data = numbers,
                                                                .qscheme = (berth_qscheme)77}),
                        BERTH_E_TENSOR, "a tensor with an unknown quantization scheme");
    cr_expect_null(tensor_of(BERTH_DTYPE_NONE, 1, &one));
    cr_expect_eq(bth_tree_n_storages(tree), 0, "what is refused leaves no storage");
    end_tree();
    begin_tree();
    berth_value *empty = berth_make_tensor(
        tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1, .shape = &(int64_t){0}});
    cr_expect_not_null(empty, "without elements, no data are needed");
}

static berth_value *sparse(berth_layout_kind layout, const int64_t *shape, int32_t rank,
                           berth_value *a, berth_value *b, berth_value *c)
{
    return berth_make_sparse(tree, layout, shape, rank, (berth_value *[]){a, b, c}, false);
}

#define DO_NOT_FIT "the parts of a sparse tensor do not fit its shape"

/* Shapes of parts: sparse_parts_agree in tensor_values.c. */
Test(bad_arguments, parts_of_sparse_tensors_of_another_dtype_or_layout_are_refused)
{
    const int64_t shape[] = {4, 5}, negative[] = {4, -5};
    const int64_t huge[] = {INT64_MAX, INT64_MAX};
    berth_layout_kind coo = BERTH_SPARSE_COO;

    cr_assert_not_null(sparse(coo, shape, 2, long_table(2, 3), floats(3), NULL));
    expect_tree_failure(sparse((berth_layout_kind)0, shape, 2, NULL, NULL, NULL), BERTH_E_TENSOR,
                        "a sparse tensor of layout 0 and rank 2");
    expect_tree_failure(sparse(BERTH_STRIDED, shape, 2, NULL, NULL, NULL), BERTH_E_TENSOR,
                        "a sparse tensor of layout 6 and rank 2");
    expect_tree_failure(sparse(coo, negative, 2, long_table(2, 3), floats(3), NULL), BERTH_E_TENSOR,
                        "a sparse tensor with the negative size -5");
    expect_tree_failure(sparse(coo, huge, 2, long_table(2, 3), floats(3), NULL), BERTH_E_TENSOR,
                        DO_NOT_FIT);
    expect_tree_failure(sparse(coo, shape, 2, tensor_of(BERTH_FLOAT32, 2, (const int64_t[]){2, 3}),
                               floats(3), NULL),
                        BERTH_E_TENSOR, DO_NOT_FIT);
    expect_tree_failure(sparse(BERTH_SPARSE_CSR, shape, 2, longs(5), floats(3), floats(3)),
                        BERTH_E_TENSOR, DO_NOT_FIT);
    expect_tree_failure(sparse(BERTH_SPARSE_CSR, shape, 2, floats(5), longs(3), floats(3)),
                        BERTH_E_TENSOR, DO_NOT_FIT);
}

static berth_value *nested(berth_value *sizes, berth_value *strides, berth_value *offsets)
{
    return berth_make_nested(tree, (berth_value *[]){floats(1), sizes, strides, offsets});
}

Test(bad_arguments, parts_of_nested_tensors_that_do_not_agree_are_refused)
{
    static const char sentence[] = "the parts of a nested tensor do not agree";
    const int64_t cube[] = {2, 1, 1};

    cr_assert_not_null(nested(long_table(2, 1), long_table(2, 1), longs(2)));
    cr_assert_not_null(nested(longs(0), longs(0), longs(0)));
    expect_tree_failure(nested(floats(2), long_table(2, 1), longs(2)), BERTH_E_TENSOR, sentence);
    expect_tree_failure(
        nested(long_table(2, 1), tensor_of(BERTH_FLOAT32, 2, (const int64_t[]){2, 1}), longs(2)),
        BERTH_E_TENSOR, sentence);
    expect_tree_failure(
        nested(tensor_of(BERTH_FLOAT32, 2, (const int64_t[]){2, 1}), long_table(2, 1), longs(2)),
        BERTH_E_TENSOR, sentence);
    expect_tree_failure(nested(long_table(2, 1), long_table(2, 1), floats(2)), BERTH_E_TENSOR,
                        sentence);
    expect_tree_failure(nested(long_table(2, 1), longs(2), longs(2)), BERTH_E_TENSOR, sentence);
    expect_tree_failure(
        nested(tensor_of(BERTH_INT64, 3, cube), tensor_of(BERTH_INT64, 3, cube), longs(2)),
        BERTH_E_TENSOR, sentence);
    expect_tree_failure(nested(long_table(2, 1), long_table(2, 2), longs(2)), BERTH_E_TENSOR,
                        sentence);
    expect_tree_failure(nested(long_table(2, 1), long_table(2, 1), longs(3)), BERTH_E_TENSOR,
                        sentence);
    expect_tree_failure(nested(long_table(2, 1), long_table(2, 1), long_table(2, 1)),
                        BERTH_E_TENSOR, sentence);
}

/* T2: of no element, a tensor may lie anywhere; its place in the root of a view is then 0. */
Test(bad_arguments, the_place_of_an_empty_tensor_far_away)
{
    berth_storage *root = berth_storage_new(tree, BERTH_FLOAT32, numbers, sizeof numbers, NULL);
    berth_storage *view = berth_storage_new(tree, BERTH_FLOAT32, numbers, 4, NULL);
    berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                           .rank = 1,
                           .shape = (const int64_t[]){0},
                           .storage = view,
                           .storage_offset = INT64_MAX};
    int64_t at;

    view->root = root;
    view->root_offset = 8;
    cr_expect_eq(bth_tensor_saved_storage(&tensor, &at), root);
    cr_expect_eq(at, 0);
    tensor.storage_offset = 5;
    cr_expect_eq(bth_tensor_saved_storage(&tensor, &at), root);
    cr_expect_eq(at, 7);
    view->root_offset = 6; /* no whole item */
    cr_expect_eq(bth_tensor_saved_storage(&tensor, &at), view);
    cr_expect_eq(at, 5);
}

Test(bad_arguments, no_elements_are_gathered)
{
    const berth_tensor tensor = {.dtype = BERTH_FLOAT32};
    float out = 7;

    bth_tensor_gather(&tensor, numbers, 0, 0, &out);
    bth_tensor_gather(&tensor, numbers, 0, -1, &out);
    cr_expect_eq(out, 7);
}

Test(bad_arguments, what_is_no_global_has_no_name)
{
    const char *module = "a", *name = "b";

    bth_value_global_module_and_name(berth_make_int(tree, 1), &module, &name);
    cr_expect_null(module);
    cr_expect_null(name);
}

/* P4: numbers that begin alike are not the same key. */
Test(bad_arguments, numbers_that_are_alike_are_different_keys)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    uint8_t big[12] = {1, [8] = 1}, longer[12] = {1, [8] = 1, [9] = 1};
    berth_value *keys[] = {
        berth_make_complex(tree, 1, 2),
        berth_make_complex(tree, 1, 3),
        berth_make_complex(tree, 2, 2),
        berth_make_bytes(tree, BERTH_KIND_INT, big, 10),
        berth_make_bytes(tree, BERTH_KIND_INT, longer, 11),
        berth_make_none(tree),
        berth_make_device(tree, "cuda", 1),
    };
    size_t n = sizeof keys / sizeof *keys;

    for (size_t i = 0; i < n; i++)
        cr_assert_eq(berth_dict_set_value(dict, keys[i], keys[i]), 0);
    cr_expect_eq(berth_value_count(dict), n);
    cr_expect_eq(bth_dict_find_int_position(dict, 1), SIZE_MAX);
    cr_expect_eq(bth_dict_find_int_position(berth_make_dict(tree, BERTH_KIND_DICT), 1), SIZE_MAX);
    cr_expect_eq(bth_dict_find_int_position(berth_make_list(tree), 1), SIZE_MAX);
}

/* ---- bytes ---- */

/* After the first step beyond the end nothing is read, also what would be there. */
Test(bad_arguments, a_cursor_beyond_its_end_reads_nothing_any_more)
{
    const uint8_t bytes[5] = {1, 2, 3, 4, 5};
    bth_cursor cursor = bth_cursor_make(bytes, sizeof bytes);

    cr_expect_eq(bth_cursor_u16(&cursor), 0x0201);
    cr_expect_eq(bth_cursor_u32(&cursor), 0);
    cr_expect_not(cursor.good);
    cr_expect_eq(bth_cursor_u16(&cursor), 0);
    cr_expect_eq(bth_cursor_u64(&cursor), 0);
    cr_expect_null(bth_cursor_bytes(&cursor, 1));
    cr_expect_null(bth_cursor_bytes(&cursor, 0));
    cr_expect_eq(bth_cursor_left(&cursor), 3);
}

/* ---- names ---- */

Test(bad_arguments, names_of_nothing_are_refused)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    bth_names *names;
    berth_error error = {0};
    char *name, *path;

    FAILS(bth_names_new(NULL, &names, &error), BERTH_E_ARGUMENT, "no value to name");
    cr_expect_null(names);
    bth_error_clear(&error);
    cr_assert_eq(berth_dict_set(root, "a", floats(1)), 0);
    cr_assert_eq(bth_names_new(root, &names, &error), 0);
    FAILS(bth_names_allocate_tensor_name_and_path(names, 1, &name, &path, &error), BERTH_E_ARGUMENT,
          "no tensor 1 of 1");
    bth_error_clear(&error);
    cr_expect_null(bth_names_tensor_value(names, 1));
    cr_expect_null(bth_names_find_value(names, NULL, &error));
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, "the name is NULL");
    bth_names_free(names);
    bth_names_free(NULL);
}
