/* SPDX-License-Identifier: BSD-3-Clause */
/* Each kind of value: what was made is what is asked. */
#include "format/values/value.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support/tree_scene.h"

TestSuite(value, .init = begin_tree, .fini = end_tree);

static berth_value *text(const char *string)
{
    return berth_make_str(tree, string, strlen(string));
}

static void expect_int(const berth_value *value, int64_t expected)
{
    int64_t integer;
    cr_assert(berth_as_int(value, &integer));
    cr_assert_eq(integer, expected);
}

Test(value, singletons_are_one_node_a_tree)
{
    cr_assert_eq(berth_make_none(tree), berth_make_none(tree));
    cr_assert_eq(berth_make_bool(tree, true), berth_make_bool(tree, true));
    cr_assert_neq(berth_make_bool(tree, true), berth_make_bool(tree, false));
    cr_assert_eq(berth_make_tuple(tree, NULL, 0), berth_make_tuple(tree, NULL, 0));
    cr_assert_eq(berth_make_constant(tree, BERTH_KIND_LAYOUT, BERTH_STRIDED),
                 berth_make_constant(tree, BERTH_KIND_LAYOUT, BERTH_STRIDED));
    cr_assert_eq(berth_value_kind(berth_make_none(tree)), BERTH_KIND_NONE);
    bool result;
    cr_assert(berth_as_bool(berth_make_bool(tree, true), &result) && result);
    cr_assert(berth_as_bool(berth_make_bool(tree, false), &result) && !result);
    cr_assert(!berth_as_bool(berth_make_int(tree, 1), &result) && !result);
}

Test(value, ints_of_any_size)
{
    static const uint8_t small[12] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff,
                                      0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t large[12] = {[8] = 1};
    static const uint8_t above[9] = {[7] = 0x80};
    size_t nbytes;
    expect_int(berth_make_int(tree, INT64_MIN), INT64_MIN);
    expect_int(berth_make_bytes(tree, BERTH_KIND_INT, small, 12), -2);
    expect_int(berth_make_bytes(tree, BERTH_KIND_INT, above, 8), INT64_MIN);
    cr_assert_null(berth_as_bytes(berth_make_int(tree, 1), &nbytes));
    cr_assert_eq(nbytes, 0);
    berth_value *value = berth_make_bytes(tree, BERTH_KIND_INT, large, 12);
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    cr_assert_eq(nbytes, 9); /* the shortest form */
    cr_assert_arr_eq(bytes, large, 9);
    cr_assert_arr_eq(berth_as_bytes(value, NULL), large, 9);
    cr_assert_eq(berth_value_kind(value), BERTH_KIND_INT);
    int64_t integer;
    cr_assert_not(berth_as_int(value, &integer));
    berth_as_bytes(berth_make_bytes(tree, BERTH_KIND_INT, above, 9), &nbytes);
    cr_assert_eq(nbytes, 9); /* 2^63 needs its sign */
    uint8_t most[255] = {[254] = 1};
    cr_assert_not_null(berth_make_bytes(tree, BERTH_KIND_INT, most, 255));
}

Test(value, floats_keep_their_bits)
{
    uint64_t bits = UINT64_C(0x7ff0dead00000001), kept; /* a signalling NaN with a payload */
    double nan_value;
#ifdef __i386__
    cr_skip_test("a double that is returned goes through the x87, and a signalling NaN gets quiet");
#endif
    memcpy(&nan_value, &bits, 8);
    double value, imaginary;
    cr_assert(berth_as_float(berth_make_float(tree, nan_value), &value));
    memcpy(&kept, &value, 8);
    cr_assert_eq(kept, bits);
    cr_assert(berth_as_float(berth_make_float(tree, -0.0), &value) && signbit(value));
    berth_value *z = berth_make_complex(tree, 1.5, -2.5);
    cr_assert(berth_as_complex(z, &value, &imaginary));
    cr_assert_eq(value, 1.5);
    cr_assert_eq(imaginary, -2.5);
    cr_assert(!berth_as_float(z, &value) && value == 0);
    cr_assert(!berth_as_complex(berth_make_float(tree, 1), &value, &imaginary) && value == 0);
}

Test(value, text_is_utf8_with_surrogates_and_nul_terminated)
{
    static const char *const good[] = {"",
                                       "abc",
                                       "\xc3\xa9",
                                       "\xe0\xa0\x80",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x98\x80",
                                       "\xed\xa0\x80",
                                       "\xed\xbf\xbf",
                                       "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        size_t nbytes;
        cr_assert_str_eq(berth_as_text(text(good[i]), &nbytes), good[i]);
        cr_assert_eq(nbytes, strlen(good[i]));
    }
    size_t nbytes;
    const char *held = berth_as_text(berth_make_str(tree, "a\0b", 3), &nbytes);
    cr_assert_eq(nbytes, 3);
    cr_assert_arr_eq(held, "a\0b", 4);
    cr_assert_str_eq(berth_as_text(berth_make_str(tree, NULL, 0), &nbytes), "");
    cr_assert_eq(nbytes, 0);
    cr_assert_null(berth_as_text(berth_make_none(tree), &nbytes));
}

Test(value, text_that_is_no_utf8_is_refused)
{
    static const char *const bad[] = {"ab\x80",
                                      "ab\xc0\x80",
                                      "ab\xc1\xbf",
                                      "ab\xc3",
                                      "ab\xe0\x9f\xbf",
                                      "ab\xe2\x82",
                                      "ab\xf0\x8f\xbf",
                                      "ab\xf0\x8f\xbf\xbf",
                                      "ab\xf4\x90\x80\x80",
                                      "ab\xf5\x80\x80",
                                      "ab\xff",
                                      "ab\xed\xc0\x80",
                                      "ab\xed\xa0 ",
                                      "ab\xe2\x28\xa1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        expect_tree_failure(text(bad[i]), BERTH_E_ARGUMENT, "text that is not UTF-8 at its byte 2");
}

Test(value, bytes_and_bytearrays)
{
    uint8_t all[256];
    size_t nbytes;
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    berth_value *bytes = berth_make_bytes(tree, BERTH_KIND_BYTES, all, 256),
                *array = berth_make_bytes(tree, BERTH_KIND_BYTEARRAY, all, 256);
    cr_assert_arr_eq(berth_as_bytes(bytes, &nbytes), all, 256);
    cr_assert_eq(nbytes, 256);
    cr_assert_arr_eq(berth_as_bytes(array, &nbytes), all, 256);
    cr_assert_eq(nbytes, 256);
    cr_assert_eq(berth_value_kind(array), BERTH_KIND_BYTEARRAY);
    cr_assert_not_null(berth_as_bytes(berth_make_bytes(tree, BERTH_KIND_BYTES, NULL, 0), &nbytes));
    cr_assert_eq(nbytes, 0);
    cr_assert_null(berth_as_bytes(text("a"), &nbytes));
}

/* P3: decoded once, then shared; each is an object of its own. */
Test(value, bytes_from_latin1_text)
{
    berth_value *string = text("a\xc2\x80\xc3\xbfz");
    size_t nbytes;
    berth_value *first = bth_bytes_from_latin1(tree, string);
    berth_value *second = bth_bytes_from_latin1(tree, string);
    cr_assert_arr_eq(berth_as_bytes(first, &nbytes), "a\x80\xffz", 5);
    cr_assert_eq(nbytes, 4);
    cr_assert_neq(first, second);
    cr_assert_eq(berth_as_bytes(second, &nbytes), berth_as_bytes(first, NULL));
    cr_assert_eq(nbytes, 4);
    berth_value *array = bth_bytearray_from_bytes(tree, second);
    cr_assert_eq(berth_as_bytes(array, &nbytes), berth_as_bytes(first, NULL));
    cr_assert_not_null(berth_as_bytes(bth_bytearray_from_bytes(tree, NULL), &nbytes));
    cr_assert_eq(nbytes, 0);
    expect_tree_failure(bth_bytes_from_latin1(tree, text("\xc4\x80")), BERTH_E_PICKLE,
                        "latin1 text with a character above 255");
}

Test(value, lists_and_tuples_keep_their_items)
{
    berth_value *list = berth_make_list(tree), *items[100];
    for (int i = 0; i < 100; i++) {
        items[i] = berth_make_int(tree, i);
        cr_assert_eq(berth_list_append(list, items[i]), 0);
    }
    cr_assert_eq(bth_list_extend(list, items, 100), 0);
    cr_assert_eq(berth_value_count(list), 200);
    berth_value *tuple = berth_make_tuple(tree, items, 100);
    for (size_t i = 0; i < 100; i++) {
        cr_assert_eq(bth_value_item(list, i), items[i]);
        cr_assert_eq(bth_value_item(list, i + 100), items[i]);
        cr_assert_eq(bth_value_item(tuple, i), items[i]);
    }
    cr_assert_null(bth_value_item(list, 200));
    cr_assert_null(bth_value_item(tuple, 100));
    cr_assert_lt(berth_list_append(tuple, items[0]), 0);
}

Test(value, sets_counters_and_ordered_dicts_are_made_of_their_argument_once)
{
    berth_value *list = berth_make_list(tree), *dict = berth_make_dict(tree, BERTH_KIND_DICT),
                *pairs = berth_make_list(tree);
    berth_list_append(list, text("a"));
    berth_list_append(list, text("a"));
    berth_dict_set(dict, "k", berth_make_int(tree, 3));
    berth_value *pair[2] = {text("x"), berth_make_none(tree)};
    berth_list_append(pairs, berth_make_tuple(tree, pair, 2));
    berth_value *set = bth_set_from_list(tree, list);
    cr_assert_eq(berth_value_count(set), 1);
    cr_assert_eq(berth_value_count(list), 2); /* keeps its items */
    berth_value *counter = bth_counter_from_dict(tree, dict);
    expect_int(berth_dict_get(counter, "k"), 3);
    cr_assert_eq(berth_value_kind(counter), BERTH_KIND_COUNTER);
    berth_value *ordered = bth_ordered_dict_from_pairs(tree, pairs);
    cr_assert_eq(berth_dict_get(ordered, "x"), berth_make_none(tree));
    cr_assert_eq(berth_value_count(bth_set_from_list(tree, NULL)), 0);
    cr_assert_eq(berth_value_count(bth_counter_from_dict(tree, NULL)), 0);
    cr_assert_eq(berth_value_count(bth_ordered_dict_from_pairs(tree, NULL)), 0);
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
    expect_tree_failure(bth_set_from_list(tree, list), BERTH_E_PICKLE,
                        "a list is used by set after another object was built from it");
}

Test(value, an_argument_is_used_once)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT), *list = berth_make_list(tree);
    bth_counter_from_dict(tree, dict);
    expect_tree_failure(bth_counter_from_dict(tree, dict), BERTH_E_PICKLE,
                        "a dict is used by Counter after another object was built from it");
    list = berth_make_list(tree);
    bth_ordered_dict_from_pairs(tree, list);
    expect_tree_failure(bth_ordered_dict_from_pairs(tree, list), BERTH_E_PICKLE,
                        "a list is used by OrderedDict after another object was built from it");
    list = berth_make_list(tree);
    bth_set_from_list(tree, list);
    cr_assert_lt(berth_list_append(list, berth_make_none(tree)), 0);
    expect_tree_failure(NULL, BERTH_E_UNSUPPORTED,
                        "a list grows after another object was built from it");
    list = berth_make_list(tree);
    berth_list_append(list, berth_make_none(tree));
    expect_tree_failure(bth_ordered_dict_from_pairs(tree, list), BERTH_E_PICKLE,
                        "an OrderedDict made from an item that is not a pair");
}

Test(value, dicts_of_every_kind)
{
    berth_value *dicts[3] = {berth_make_dict(tree, BERTH_KIND_DICT),
                             berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                             berth_make_dict(tree, BERTH_KIND_COUNTER)};
    berth_value *key, *item;
    for (int i = 0; i < 3; i++) {
        berth_value *items[4] = {text("b"), berth_make_int(tree, 1), text("a"),
                                 berth_make_int(tree, 2)};
        cr_assert_eq(bth_dict_extend(dicts[i], items, 2), 0);
        cr_assert_eq(berth_value_count(dicts[i]), 2);
        cr_assert_eq(bth_value_key(dicts[i], 1), items[2]);
        cr_assert_eq(bth_value_item(dicts[i], 1), items[3]);
        cr_assert_eq(berth_dict_get(dicts[i], "a"), items[3]);
        cr_assert_null(berth_dict_get(dicts[i], "c"));
        cr_assert_null(bth_value_key(dicts[i], 2));
        cr_assert(berth_dict_at(dicts[i], 1, &key, &item) && key == items[2] && item == items[3]);
        cr_assert(berth_dict_at(dicts[i], 1, NULL, NULL));
        cr_assert_null(berth_value_at(dicts[i], 0), "a dict has keys and values");
    }
    cr_assert_lt(berth_dict_set(berth_make_list(tree), "a", berth_make_none(tree)), 0);
    expect_tree_failure(NULL, BERTH_E_ARGUMENT, "a list is not a dict");
}

Test(value, attributes)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT),
                *ordered = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    cr_assert_null(berth_value_part(ordered, BERTH_PART_STATE));
    cr_assert_eq(berth_value_set_state(ordered, state), 0);
    cr_assert_eq(berth_value_part(ordered, BERTH_PART_STATE), state);
    cr_assert_eq(berth_value_count(ordered), 0);
    for (int i = 0; i < 100; i++)
        berth_dict_set_value(ordered, berth_make_int(tree, i), state);
    cr_assert_eq(berth_value_part(ordered, BERTH_PART_STATE), state);
    cr_assert_lt(berth_value_set_state(state, state), 0);
    expect_tree_failure(NULL, BERTH_E_ARGUMENT, "a dict has no attributes");
}

Test(value, sizes_are_shapes)
{
    static const int64_t shape[3] = {2, 0, INT64_MAX};
    int32_t rank;
    berth_value *size = berth_make_size(tree, shape, 3);
    cr_assert_arr_eq(berth_as_size(size, &rank), shape, sizeof(shape));
    cr_assert_eq(rank, 3);
    expect_int(bth_value_item(size, 2), INT64_MAX);
    cr_assert_not_null(berth_as_size(berth_make_size(tree, NULL, 0), &rank));
    cr_assert_eq(rank, 0);
    const int64_t *first, *second;
    berth_value *item = berth_make_int(tree, 5), *tuple = berth_make_tuple(tree, &item, 1);
    cr_assert(bth_value_as_shape(tuple, &first, &rank));
    cr_assert(bth_value_as_shape(bth_size_from_tuple(tree, tuple), &second, &rank));
    cr_assert_eq(first, second); /* P3: made once, shared */
    cr_assert_eq(rank, 1);
    cr_assert_eq(*first, 5);
    berth_value *list = berth_make_list(tree);
    berth_list_append(list, item);
    cr_assert(bth_value_as_shape(list, &first, &rank) && rank == 1);
    berth_list_append(list, item);
    cr_assert(bth_value_as_shape(list, &first, &rank) && rank == 2 && first[1] == 5);
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
}

Test(value, shapes_that_are_none_are_refused)
{
    static const uint8_t big[9] = {[8] = 1};
    berth_value *items[65];
    const int64_t *shape;
    int32_t rank;
    for (int i = 0; i < 65; i++)
        items[i] = berth_make_int(tree, 1);
    cr_assert_not(bth_value_as_shape(berth_make_tuple(tree, items, 65), &shape, &rank));
    expect_tree_failure(NULL, BERTH_E_TENSOR, "a shape of 65 items (at most 64)");
    berth_value *item = berth_make_float(tree, 1);
    cr_assert_not(bth_value_as_shape(berth_make_tuple(tree, &item, 1), &shape, &rank));
    expect_tree_failure(NULL, BERTH_E_TENSOR, "item 0 of a shape is a float, not an int");
    item = berth_make_bytes(tree, BERTH_KIND_INT, big, 9);
    expect_tree_failure(bth_size_from_tuple(tree, berth_make_tuple(tree, &item, 1)), BERTH_E_TENSOR,
                        "item 0 of a shape is beyond 64 bits");
    cr_assert_not(bth_value_as_shape(berth_make_none(tree), &shape, &rank));
    expect_tree_failure(NULL, BERTH_E_TENSOR, "None for a shape, not a tuple of ints");
}

Test(value, devices)
{
    int64_t index;
    berth_value *device = berth_make_device(tree, "cuda", 1);
    cr_assert_str_eq(berth_as_text(device, NULL), "cuda:1");
    cr_assert_str_eq(bth_value_device_type_and_index(device, &index), "cuda");
    cr_assert_eq(index, 1);
    device = berth_make_device(tree, "meta", -5);
    cr_assert_str_eq(berth_as_text(device, NULL), "meta");
    bth_value_device_type_and_index(device, &index);
    cr_assert_eq(index, -1);
    cr_assert_null(bth_value_device_type_and_index(berth_make_none(tree), &index));
    expect_tree_failure(berth_make_device(tree, "cuda:1", 0), BERTH_E_ARGUMENT,
                        "\"cuda:1\" is not a device type");
    expect_tree_failure(berth_make_device(tree, "cpu", 128), BERTH_E_ARGUMENT,
                        "device index 128 (at most 127)");
}

Test(value, globals_and_calls)
{
    const char *module, *name;
    size_t nbytes;
    berth_value *global = bth_global_new(tree, "a.b", 3, "Class", 5, false),
                *item = berth_make_int(tree, 1);
    cr_assert_str_eq(berth_as_text(global, &nbytes), "a.b Class");
    cr_assert_eq(nbytes, 9);
    bth_value_global_module_and_name(global, &module, &name);
    cr_assert_str_eq(module, "a.b");
    cr_assert_str_eq(name, "Class");
    berth_value *arguments = berth_make_tuple(tree, &item, 1),
                *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *call = bth_call_new(tree, global, arguments, true);
    cr_assert(bth_value_is_new_object(call));
    cr_assert_not(bth_value_is_new_object(bth_call_new(tree, global, arguments, false)));
    cr_assert_eq(berth_value_part(call, BERTH_PART_INNER), global);
    cr_assert_eq(bth_value_arguments(call), arguments);
    cr_assert_eq(berth_value_count(call), 1);
    cr_assert_eq(bth_value_item(call, 0), item);
    cr_assert_eq(berth_value_set_state(call, state), 0);
    cr_assert_eq(berth_value_part(call, BERTH_PART_STATE), state);
}

Test(value, facts_of_one_word)
{
    static const struct {
        berth_kind kind;
        int number;
    } constants[] = {{BERTH_KIND_DTYPE, BERTH_FLOAT8_E5M2},
                     {BERTH_KIND_QSCHEME, BERTH_PER_CHANNEL_SYMMETRIC},
                     {BERTH_KIND_LAYOUT, BERTH_JAGGED}};
    for (int i = 0; i < 3; i++) {
        int number;
        berth_value *made = berth_make_constant(tree, constants[i].kind, constants[i].number);
        cr_assert(berth_as_constant(made, constants[i].kind, &number));
        cr_assert_eq(number, constants[i].number);
        cr_assert_not(berth_as_constant(made, constants[(i + 1) % 3].kind, &number));
        cr_assert_eq(number, 0);
    }
    berth_storage *storage = berth_storage_new(tree, BERTH_INT8, "abc", 3, "cpu");
    cr_assert_eq(berth_as_storage(berth_make_storage(tree, storage)), storage);
}

/* Every asker is defined for every kind: what it is not for gives 0, NULL or false. */
Test(value, askers_of_other_kinds_give_nothing)
{
    berth_value *values[] = {NULL, berth_make_none(tree), berth_make_int(tree, 1), text("a")};
    berth_value *key, *item;
    int64_t integer;
    int32_t rank;
    int number;
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        cr_assert_eq(berth_value_count(values[i]), 0);
        cr_assert_null(berth_value_at(values[i], 0));
        cr_assert_not(berth_dict_at(values[i], 0, &key, &item) || key || item);
        cr_assert_null(berth_dict_get(values[i], "a"));
        cr_assert_not(berth_as_constant(values[i], BERTH_KIND_DTYPE, &number));
        cr_assert_not(berth_as_constant(values[i], BERTH_KIND_INT, &number));
        cr_assert_null(berth_as_storage(values[i]));
        cr_assert_null(bth_value_arguments(values[i]));
        cr_assert_null(berth_as_tensor(values[i]));
        cr_assert_null(berth_as_size(values[i], &rank));
        for (int part = BERTH_PART_INNER; part <= BERTH_PART_TYPE + 1; part++)
            cr_assert_null(berth_value_part(values[i], (berth_part)part));
        cr_assert_null(berth_as_bytes(values[i], NULL));
        cr_assert_eq(berth_value_flags(values[i]), 0);
        cr_assert_eq(bth_value_real(values[i]), 0);
        cr_assert_eq(berth_as_int(values[i], &integer), i == 2);
    }
    berth_storage *storage = berth_storage_new(tree, BERTH_INT8, "abc", 3, "cpu");
    cr_assert_not(
        berth_as_constant(berth_make_storage(tree, storage), BERTH_KIND_STORAGE, &number));
    cr_assert(berth_as_constant(berth_make_storage(tree, storage), BERTH_KIND_DTYPE, &number));
    cr_assert_eq(number, BERTH_INT8);
    /* What keeps a bool of another meaning. */
    const int64_t one = 1;
    const berth_tensor tensor = {.dtype = BERTH_INT8, .rank = 1, .shape = &one, .data = &one};
    berth_value *parameter = berth_make_parameter(tree, berth_make_tensor(tree, &tensor), true);
    cr_assert(berth_value_flags(parameter) & BERTH_REQUIRES_GRAD);
    cr_assert_not(bth_value_bool(parameter));
    cr_assert_not(bth_value_is_new_object(parameter));
    cr_assert_not(bth_value_is_new_object(berth_make_bool(tree, true)));
    cr_assert_eq(berth_value_kind(NULL), BERTH_KIND_NONE);
    cr_assert_str_eq(berth_kind_name(BERTH_KIND_ORDERED_DICT), "OrderedDict");
}
