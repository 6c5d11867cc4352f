/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of tensors: DESIGN's `ls` names, look-up, and P3: each container is entered once. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/values/value.h"
#include "tests/support/format/names_scene.h"
#include "tests/support/support.h"

static const float data[6] = {0, 1, 2, 3, 4, 5};

TestSuite(names, .init = begin_tree, .fini = end_names);

static berth_value *vector(berth_dtype dtype, int64_t n)
{
    return test_vector(tree, dtype, data, n);
}

static berth_value *matrix(berth_dtype dtype, int64_t rows, int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    return test_tensor(tree, dtype, data, 2, shape);
}

/* Compares the whole list, "name path" a line. */
static void expect_list(const char *expected)
{
    char list[4096] = "";
    for (size_t i = 0; i < bth_names_tensor_count(names); i++) {
        struct told_name told = tell_name(i);
        cr_assert_not_null(berth_as_tensor(bth_names_tensor_value(names, i)));
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s %s\n", told.name, told.path);
    }
    cr_assert_str_eq(list, expected);
}

Test(names, join_dict_keys_and_list_indices_with_dots)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *list = berth_make_list(tree),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *a = tensor(), *b = tensor(), *c = tensor();
    berth_dict_set(root, "model.weight", a);
    berth_dict_set(root, "state", inner);
    berth_dict_set_value(inner, berth_make_int(tree, -7), list);
    berth_list_append(list, berth_make_none(tree));
    berth_list_append(list, b);
    berth_list_append(list, berth_make_tuple(tree, &c, 1));
    berth_dict_set(root, "step", berth_make_int(tree, 3));
    walk(root);
    expect_list("model.weight ['model.weight']\n"
                "state.-7.1 ['state'][-7][1]\n"
                "state.-7.2.0 ['state'][-7][2][0]\n");
    expect_found("model.weight", a);
    expect_found("['model.weight']", a);
    expect_found("state.-7.1", b);
    expect_found("['state'][-7][2][0]", c);
    expect_found("state.-7", list);
    expect_found("step", berth_dict_get(root, "step"));
    expect_found("", root);
}

Test(names, that_two_tensors_share_are_shown_as_paths_and_refused)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *first = tensor(), *second = tensor();
    berth_dict_set(root, "a.b", first);
    berth_dict_set(root, "a", inner);
    berth_dict_set(inner, "b", second);
    berth_dict_set(inner, "c", tensor());
    walk(root);
    expect_list("['a.b'] ['a.b']\n"
                "['a']['b'] ['a']['b']\n"
                "a.c ['a']['c']\n");
    expect_not_found("a.b", BERTH_E_AMBIGUOUS,
                     "\"a.b\" is the name of two values: ['a.b'] and ['a']['b']");
    expect_found("['a.b']", first);
    expect_found("['a']['b']", second);
}

Test(names, of_a_str_and_an_int_key_are_told_apart)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *first = tensor(),
                *second = tensor();
    berth_dict_set(root, "1", first);
    berth_dict_set_value(root, berth_make_int(tree, 1), second);
    walk(root);
    expect_list("['1'] ['1']\n[1] [1]\n");
    expect_not_found("1", BERTH_E_AMBIGUOUS, "\"1\" is the name of two values: ['1'] and [1]");
    expect_found("[1]", second);
    expect_found("['1']", first);
}

/* Written to safetensors under names cut at their NUL, two tensors became one. */
Test(names, that_cannot_be_said_are_shown_as_paths)
{
    static const char surrogate[] = "\xed\xa0\x80";
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *item = tensor(), *nul = tensor();
    berth_dict_set_value(root, berth_make_str(tree, "a\0b", 3), nul);
    berth_dict_set_value(root, berth_make_str(tree, "a\0c", 3), tensor());
    berth_dict_set_value(root, berth_make_str(tree, surrogate, 3), tensor());
    berth_dict_set_value(root, berth_make_str(tree, "\0\xf3\xa0\x80\x81", 5), tensor()); /* a tag */
    berth_dict_set(root, "", tensor());
    berth_dict_set(root, "[0]", tensor());
    berth_dict_set_value(root, berth_make_int(tree, 0), item);
    berth_dict_set(root, ".x", tensor());
    berth_dict_set(root, "\xed\x9f\xbf", tensor()); /* U+D7FF is no surrogate */
    walk(root);
    expect_list("['a\\x00b'] ['a\\x00b']\n"
                "['a\\x00c'] ['a\\x00c']\n"
                "['\\ud800'] ['\\ud800']\n"
                "['\\x00\\U000e0001'] ['\\x00\\U000e0001']\n"
                "[''] ['']\n"
                "['[0]'] ['[0]']\n"
                "0 [0]\n"
                "['.x'] ['.x']\n"
                "\xed\x9f\xbf ['\xed\x9f\xbf']\n");
    expect_found("['a\\x00b']", nul);
    expect_found("[0]", item);
}

Test(names, of_other_values_can_be_ambiguous_too_but_a_tensor_goes_first)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT), *listed = tensor();
    berth_dict_set(root, "a.b", berth_make_int(tree, 1));
    berth_dict_set(root, "a", inner);
    berth_dict_set(inner, "b", berth_make_int(tree, 2));
    berth_dict_set(root, "x.y", berth_make_int(tree, 1));
    berth_dict_set(root, "x", inner = berth_make_dict(tree, BERTH_KIND_DICT));
    berth_dict_set(inner, "y", listed);
    walk(root);
    expect_not_found("a.b", BERTH_E_AMBIGUOUS,
                     "\"a.b\" is the name of two values: ['a.b'] and ['a']['b']");
    expect_found("x.y", listed);
}

/* P3: doubling by sharing makes 2^40 paths; each container is entered once. */
Test(names, enter_a_shared_container_once, .timeout = 60)
{
    berth_value *value = berth_make_list(tree), *leaf = tensor();
    berth_list_append(value, leaf);
    for (int i = 0; i < 40; i++) {
        berth_value *outer = berth_make_list(tree);
        berth_list_append(outer, value);
        berth_list_append(outer, value);
        value = outer;
    }
    walk(value);
    cr_assert_eq(bth_names_tensor_count(names), 1);
    /* A later edge is an alias: not listed, but it can be followed. */
    expect_found("[1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1]"
                 "[1][1][1][1][1][1][1][1][1][1][1][1][1][0]",
                 leaf);
}

Test(names, of_a_cycle_end, .timeout = 60)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *leaf = tensor();
    berth_dict_set(root, "self", root);
    berth_dict_set(root, "w", leaf);
    walk(root);
    expect_list("w ['w']\n");
    expect_found("self.self.w", leaf);
    expect_found("self.self", root);
}

Test(names, of_a_tied_tensor_are_listed_at_each_edge)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *tied = tensor();
    berth_dict_set(root, "embed", tied);
    berth_dict_set(root, "head", tied);
    walk(root);
    expect_list("embed ['embed']\nhead ['head']\n");
}

/* P3: no recursion, whatever the depth. */
Test(names, reach_a_million_levels_down, .timeout = 120)
{
    enum { DEPTH = 1000000 };
    berth_value *value = tensor(), *leaf = value;
    for (int i = 0; i < DEPTH; i++)
        value = berth_make_tuple(tree, &value, 1);
    walk(value);
    struct told_name told = tell_name(0);
    cr_assert_eq(strlen(told.name), 2 * DEPTH - 1);
    cr_assert_eq(strlen(told.path), 3 * DEPTH);
    expect_found(told.path, leaf);
    expect_found(told.name, leaf);
}

Test(names, of_attributes_pass_dict)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                *state = berth_make_dict(tree, BERTH_KIND_DICT), *kept = tensor();
    berth_value *parameter = berth_make_parameter(tree, tensor(), true),
                *more = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "p", parameter);
    berth_value_set_state(parameter, more);
    berth_dict_set(more, "mask", kept);
    berth_value_set_state(root, state);
    berth_dict_set(state, "x", tensor());
    walk(root);
    expect_list("p ['p']\n"
                "p.__dict__.mask ['p'].__dict__['mask']\n"
                "__dict__.x .__dict__['x']\n");
    expect_found("p", parameter);
    expect_found("p.__dict__.mask", kept);
    expect_found("['p'].__dict__['mask']", kept);
    expect_found("p.__dict__", more);
}

Test(names, of_a_tensor_inside_a_parameter_with_attributes_of_its_own)
{
    berth_value *plain = tensor(), *state = berth_make_dict(tree, BERTH_KIND_DICT),
                *kept = tensor();
    berth_dict_set(state, "s", kept);
    berth_value *inner = berth_make_subclass(tree, plain, state);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "p", berth_make_parameter(tree, inner, false));
    walk(root);
    expect_list("p ['p']\n"
                "p.data.__dict__.s ['p'].data.__dict__['s']\n");
    expect_found("['p'].data.__dict__['s']", kept);
}

Test(names, of_attributes_inside_two_parameters_are_entered_once)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT), *kept = tensor();
    berth_dict_set(state, "s", kept);
    berth_value *inner = berth_make_subclass(tree, tensor(), state),
                *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "p", berth_make_parameter(tree, inner, false));
    berth_dict_set(root, "q", berth_make_parameter(tree, inner, false));
    walk(root);
    expect_list("p ['p']\n"
                "p.data.__dict__.s ['p'].data.__dict__['s']\n"
                "q ['q']\n");
    expect_found("['q'].data.__dict__['s']", kept);
}

Test(names, of_a_sparse_tensor_are_those_of_its_parts)
{
    const int64_t shape[2] = {3, 4};
    berth_value *coo[2] = {matrix(BERTH_INT64, 2, 1), vector(BERTH_FLOAT32, 1)};
    berth_value *csr[3] = {vector(BERTH_INT32, 4), vector(BERTH_INT32, 2),
                           vector(BERTH_FLOAT32, 2)};
    berth_value *csc[3] = {vector(BERTH_INT32, 5), vector(BERTH_INT32, 1),
                           vector(BERTH_FLOAT32, 1)};
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "a", berth_make_sparse(tree, BERTH_SPARSE_COO, shape, 2, coo, true));
    berth_dict_set(root, "b", berth_make_sparse(tree, BERTH_SPARSE_CSR, shape, 2, csr, false));
    berth_dict_set(root, "c", berth_make_sparse(tree, BERTH_SPARSE_CSC, shape, 2, csc, false));
    walk(root);
    expect_list("a.indices ['a'].indices\n"
                "a.values ['a'].values\n"
                "b.crow_indices ['b'].crow_indices\n"
                "b.col_indices ['b'].col_indices\n"
                "b.values ['b'].values\n"
                "c.ccol_indices ['c'].ccol_indices\n"
                "c.row_indices ['c'].row_indices\n"
                "c.values ['c'].values\n");
    expect_found("a.values", coo[1]);
    expect_found("['b'].col_indices", csr[1]);
    expect_found("a", berth_dict_get(root, "a"));
}

Test(names, of_quantized_tensors_are_joined_by_scales_and_zero_points)
{
    const int64_t shape[2] = {2, 1};
    berth_value *scales = vector(BERTH_FLOAT64, 2), *zero_points = vector(BERTH_INT64, 2);
    berth_value *root = berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_QINT8,
                                                                .rank = 2,
                                                                .shape = shape,
                                                                .data = data,
                                                                .qscheme = BERTH_PER_CHANNEL_AFFINE,
                                                                .scales = scales,
                                                                .zero_points = zero_points});
    walk(root);
    expect_list(" \nscales .scales\nzero_points .zero_points\n");
    expect_found("zero_points", zero_points);
    expect_found(".scales", scales);
    expect_not_found("scale", BERTH_E_NOT_FOUND, "no value named \"scale\"; near: \"scales\"");
}

Test(names, of_nested_tensors_are_those_of_their_parts)
{
    berth_value *parts[4] = {vector(BERTH_FLOAT32, 3), matrix(BERTH_INT64, 1, 2),
                             matrix(BERTH_INT64, 1, 2), vector(BERTH_INT64, 1)};
    berth_value *root = berth_make_list(tree);
    berth_list_append(root, berth_make_nested(tree, parts));
    walk(root);
    expect_list("0.buffer [0].buffer\n0.sizes [0].sizes\n0.strides [0].strides\n"
                "0.storage_offsets [0].storage_offsets\n");
}

/*
 * As Python does, and as str.isprintable() has it, at least for what a terminal takes for something
 * else. The name is the text itself, where there can be such a name.
 */
Test(names, quote_text_and_escape_what_could_not_be_seen)
{
    static const struct {
        const char *key, *path;
        bool is_path; /* the name is, too */
    } rows[] = {
        {"it's", "[\"it's\"]", false},
        {"\"it's\"", "['\"it\\'s\"']", false},
        {"a\\b\n\t\r\x01", "['a\\\\b\\n\\t\\r\\x01']", false},
        {"", "['']", true},
        {"\xc3\xa9\xed\xa0\x80\xf0\x9f\x98\x80", "['\xc3\xa9\\ud800\xf0\x9f\x98\x80']", true},
        {"\x1f", "['\\x1f']", false},
        {"~", "['~']", false},
        {"\x7f", "['\\x7f']", false},
        {"\xc2\x80", "['\\x80']", false},
        {"\xc2\xa0", "['\\xa0']", false},
        {"\xc2\xa1", "['\xc2\xa1']", false},
        {"\xc2\xad", "['\\xad']", false},
        {"\xe2\x80\x8a", "['\\u200a']", false},
        {"\xe2\x80\x8b", "['\\u200b']", false},
        {"\xe2\x80\x8f", "['\\u200f']", false},
        {"\xe2\x80\x90", "['\xe2\x80\x90']", false},
        {"\xe2\x80\xa8", "['\\u2028']", false},
        {"\xe2\x80\xae", "['\\u202e']", false},
        {"\xe2\x81\xa0", "['\\u2060']", false},
        {"\xe2\x81\xaf", "['\\u206f']", false},
        {"\xef\xbb\xbf", "['\\ufeff']", false},
        {"\xed\x9f\xbf", "['\xed\x9f\xbf']", false},
        {"\xed\xbf\xbf", "['\\udfff']", true},
        {"\xee\x80\x80", "['\xee\x80\x80']", false},
    };
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        berth_dict_set(root, rows[i].key, tensor());
    walk(root);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct told_name told = tell_name(i);
        cr_expect_str_eq(told.name, rows[i].is_path ? rows[i].path : rows[i].key);
        cr_expect_str_eq(told.path, rows[i].path);
        expect_found(rows[i].path, bth_names_tensor_value(names, i));
    }
    expect_found("['\\xe9\\uD800\\U0001F600']", bth_names_tensor_value(names, 4));
}

/* P3: a memo-doubled tuple as a key would be 2^60 characters. */
Test(names, of_doubled_tuples_are_cut, .timeout = 60)
{
    berth_value *key = berth_make_int(tree, 1);
    for (int i = 0; i < 60; i++) {
        berth_value *pair[2] = {key, key};
        key = berth_make_tuple(tree, pair, 2);
    }
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set_value(root, key, tensor());
    walk(root);
    struct told_name told = tell_name(0);
    cr_assert_lt(strlen(told.name), 300);
    cr_assert_str_eq(told.name + strlen(told.name) - 4, "...)");
    expect_found(told.name, bth_names_tensor_value(names, 0));
}

/* P3: one long key in many dicts is hashed once. */
Test(names, with_a_long_shared_key_take_linear_time, .timeout = 60)
{
    enum { LENGTH = 1000000, DICTS = 20000 };
    char *long_text = malloc(LENGTH);
    memset(long_text, 'k', LENGTH);
    berth_value *key = berth_make_str(tree, long_text, LENGTH), *root = berth_make_list(tree);
    for (int i = 0; i < DICTS; i++) {
        berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
        berth_dict_set_value(dict, key, tensor());
        berth_list_append(root, dict);
    }
    walk(root);
    cr_assert_eq(bth_names_tensor_count(names), DICTS);
    struct told_name told = tell_name(DICTS - 1);
    expect_found(told.name, bth_names_tensor_value(names, DICTS - 1));
    free(long_text);
}

Test(names, not_found_say_what_is_near)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "encoder.wxeghs", tensor()); /* two letters of "wieght" are others */
    berth_dict_set(root, "encoder.weight", tensor()); /* two change places, which is one fault */
    berth_dict_set(root, "encoder.bias", tensor());
    walk(root);
    expect_not_found("encoder.wieght", BERTH_E_NOT_FOUND,
                     "no value named \"encoder.wieght\"; near: \"encoder.weight\"");
    expect_not_found("bias", BERTH_E_NOT_FOUND, "no value named \"bias\"; near: \"encoder.bias\"");
    expect_not_found("zzzz", BERTH_E_NOT_FOUND, "no value named \"zzzz\"");
    expect_not_found("['encoder.weight'", BERTH_E_NOT_FOUND,
                     "no value named \"['encoder.weight'\"; near: \"encoder.weight\"");
}

/* P3: only of the first 10,000. */
Test(names, near_are_looked_for_among_the_first_ones)
{
    berth_value *root = berth_make_list(tree), *tied = tensor();
    for (int i = 0; i <= 10000; i++)
        berth_list_append(root, tied);
    walk(root);
    expect_not_found("10000x", BERTH_E_NOT_FOUND, "no value named \"10000x\"; near: \"1000\"");
}

Test(names, that_are_too_long_are_near_none)
{
    char text[201] = "";
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);
    memset(text, 'k', sizeof text - 1);
    berth_dict_set(inner, text, tensor());
    berth_dict_set(root, "a", inner);
    walk(root);
    expect_not_found("a.b", BERTH_E_NOT_FOUND, "no value named \"a.b\"");
}

Test(names, of_inert_calls_pass_their_arguments)
{
    berth_value *a = tensor(), *state = berth_make_dict(tree, BERTH_KIND_DICT), *b = tensor();
    berth_value *call = bth_call_new(tree, bth_global_new(tree, "m", 1, "C", 1, false),
                                     berth_make_tuple(tree, &a, 1), true);
    berth_dict_set(state, "b", b);
    berth_value_set_state(call, state);
    walk(call);
    expect_list("0 [0]\n__dict__.b .__dict__['b']\n");
    expect_found("__dict__.b", b);
}

Test(names, of_inert_calls_pass_their_items)
{
    berth_value *call = bth_call_new(tree, bth_global_new(tree, "m", 1, "C", 1, false),
                                     berth_make_tuple(tree, NULL, 0), true);
    berth_value *a = tensor(), *b = tensor(), *key = berth_make_str(tree, "b", 1);
    berth_value *pairs[] = {key, b, call, tensor()};
    cr_assert_eq(bth_call_extend(call, (berth_value *[]){call, a}, 2, false), 0);
    cr_assert_eq(bth_call_extend(call, pairs, 2, true), 0);
    walk(call);
    char list[300], path[100];
    snprintf(path, sizeof path, "<m C %zu>", bth_value_id(call));
    snprintf(list, sizeof list,
             "list_items.1 .list_items[1]\ndict_items.b .dict_items['b']\n"
             "dict_items.%s .dict_items[%s]\n",
             path, path);
    expect_list(list);
    expect_found("list_items.1", a);
    expect_found(".list_items[0].dict_items['b']", b);
    expect_found("dict_items", berth_value_part(call, BERTH_PART_DICT_ITEMS));
    snprintf(list, sizeof list, ".dict_items[%s]", path);
    expect_found(list, pairs[3]);
}

Test(names, of_what_is_called_pass_callable)
{
    berth_value *a = tensor();
    berth_value *inner = bth_call_new(tree, bth_global_new(tree, "m", 1, "C", 1, false),
                                      berth_make_tuple(tree, &a, 1), true);
    berth_value *call = bth_call_new(tree, inner, berth_make_tuple(tree, NULL, 0), false);
    walk(call);
    expect_list("callable.0 .callable[0]\n");
    expect_found("callable.0", a);
    expect_found(".callable[0]", a);
    expect_found("callable", inner);
}

Test(names, of_a_tree_without_tensors_are_none)
{
    walk(berth_make_list(tree));
    cr_assert_eq(bth_names_tensor_count(names), 0);
    expect_not_found("x", BERTH_E_NOT_FOUND, "no value named \"x\"");
}
