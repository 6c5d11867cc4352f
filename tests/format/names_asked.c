/* SPDX-License-Identifier: BSD-3-Clause */
/* Names as people ask for them: paths that are none, names with many readings, keys of all kinds.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/values/value.h"
#include "tests/support/format/names_scene.h"
#include "tests/support/support.h"

static const float numbers[4];

TestSuite(names_asked, .init = begin_tree, .fini = end_names);

static void expect_none(const char *name)
{
    berth_error error;

    cr_expect_null(find(name, &error), "%s", name);
    cr_expect_eq(error.code, BERTH_E_NOT_FOUND, "%s: %s", name, error.message);
}

static void expect_alike(const char *name, const char *part)
{
    berth_error error;

    cr_expect_null(find(name, &error), "%s", name);
    FAILS_SAYING(error.code, BERTH_E_AMBIGUOUS, part);
}

/* What is no name of anything, beside what it would name if it were read less strictly. */
Test(names_asked, what_only_looks_like_a_name_is_not_found)
{
    static const char *const asked[] = {
        "l.",
        "l.00",
        "l.01",
        "l.-0",
        "l.2",
        "i.",
        "i.-0",
        "i.9223372036854775808",
        "i.00",
        "'a'",
        "a.data",
        "a.nothing",
        "a.scales",
        "a.callable",
        "l.data",
        "l.ccol_indices",
        "l.values",
        "i.ccol_indices",
        "p.callable",
        "c.data",
        "c.values",
        "c.ccol_indices",
        "s.nothing",
        "s.ccol_indices",
        "s.0",
        "n.0",
        "o.b",
        "['\\q']",
        "['\\x4g']",
        "['\\x04g']",
        "['\\xZ']",
        "['\\U00110000']",
        "['zz']",
        "['o']['zz']",
        "['\\x",
        "['\\",
        "['a",
        "['P",
        "['s'].nothing",
        "['\\x4",
        "['\\uZZZZ']",
        "['a'",
        "['a'x",
        "['a'].",
        "['a'].nothing",
        "['a'].data",
        "['l'][",
        "['l'][2]",
        "['l'][-1]",
        "['l']['a']",
        "['l'][01]",
        "['l'][x]",
        "[",
        "['a']]",
        ".",
        ".x",
        "['l'][0",
        "['a'][0]",
        "['a'].scales",
        "['l'].list_items",
        "['l'].dict_items",
        "['l'].callable",
        "['l'].__dict__",
        "[nan]",
        "[99]",
        "['l'][4294967296]",
        "['\\xA']",
    };
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *list = berth_make_list(tree),
                *ints = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *ordered = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *parts[2] = {test_tensor(tree, BERTH_INT64, numbers, 2, (const int64_t[]){1, 1}),
                             tensor()};
    berth_value *nested[4] = {tensor(), parts[0], parts[0],
                              test_tensor(tree, BERTH_INT64, numbers, 1, (const int64_t[]){1})};

    berth_dict_set(root, "a", tensor());
    berth_dict_set(root, "P", tensor());
    berth_dict_set(root, "", tensor());
    berth_dict_set_value(root, berth_make_str(tree, "\0", 1), tensor());
    berth_dict_set(root, "\x04", tensor());
    berth_dict_set_value(root, berth_make_str(tree, "\0Z", 2), tensor());
    berth_list_append(list, tensor());
    berth_list_append(list, tensor());
    berth_dict_set(root, "l", list);
    berth_dict_set_value(ints, berth_make_int(tree, 0), tensor());
    berth_dict_set_value(ints, berth_make_int(tree, INT64_MIN), tensor());
    berth_dict_set_value(ints, berth_make_int(tree, 7), tensor());
    berth_dict_set(ints, "data", berth_make_int(tree, 1));
    berth_dict_set(root, "i", ints);
    berth_dict_set(state, "x", tensor());
    cr_assert_eq(berth_value_set_state(ordered, state), 0);
    berth_dict_set(root, "o", ordered);
    berth_dict_set(root, "p", berth_make_parameter(tree, tensor(), true));
    berth_dict_set(root, "s",
                   berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){4}, 1, parts, true));
    berth_dict_set(root, "n", berth_make_nested(tree, nested));
    berth_dict_set(root, "c",
                   bth_call_new(tree, bth_global_new(tree, "a", 1, "B", 1, false),
                                berth_make_tuple(tree, &list, 1), false));
    walk(root);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        expect_none(asked[i]);
    expect_found("", root);
    expect_found("['\\x61']", berth_dict_get(root, "a"));
    expect_found("[\"\\u0061\"]", berth_dict_get(root, "a"));
    expect_found("['l'][0]", bth_value_item(list, 0));
    expect_found("l.0", bth_value_item(list, 0));
    expect_found("i.-9223372036854775808", bth_value_item(ints, 1));
    expect_found("i.data", berth_dict_get(ints, "data")); /* a key, and no attribute */
    expect_found("['o'].__dict__['x']", berth_dict_get(state, "x"));
    expect_found("['']", berth_dict_get(root, ""));
    expect_found("s.values", parts[1]);
}

/* Brackets of a path are looked for no further than 512 bytes. */
Test(names_asked, a_path_without_end_is_given_up)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char path[2000];

    berth_dict_set(root, "a", tensor());
    walk(root);
    memset(path, 'x', sizeof path);
    path[0] = '[';
    path[700] = path[sizeof path - 2] = ']';
    path[sizeof path - 1] = 0;
    expect_none(path);
    memset(path, '9', 200);
    path[0] = '[';
    path[30] = 0;
    expect_none(path);
}

/* A tuple of `n` ones and a last number. */
static berth_value *ones(size_t n, int64_t last)
{
    berth_value *items[300];

    for (size_t i = 0; i < n; i++)
        items[i] = berth_make_int(tree, 1);
    items[n] = berth_make_int(tree, last);
    return berth_make_tuple(tree, items, n + 1);
}

/* What is shown of them is the same: none of the two is given as the other. */
Test(names_asked, two_keys_that_are_written_alike_are_refused)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set_value(root, ones(200, 2), tensor());
    berth_dict_set_value(root, ones(200, 3), tensor());
    berth_dict_set_value(root, berth_make_float(tree, NAN), tensor());
    berth_dict_set_value(root, berth_make_float(tree, NAN), tensor());
    berth_dict_set_value(root, ones(20, 4), tensor());
    walk(root);
    for (size_t i = 0; i < 5; i++) {
        struct told_name told = tell_name(i);
        if (i == 4)
            expect_found(told.path, bth_names_tensor_value(names, i));
        else
            expect_alike(told.path, i < 2 ? "two keys are written as (1, 1, 1, 1, "
                                          : "two keys are written as nan");
    }
    expect_alike("nan", "\"nan\" is the name of two values: [nan] and [nan]");
    expect_none("zz"); /* nor near one of them */
}

/* P3: a tuple is cut before what does not fit, wherever that is; its path finds it all the same. */
Test(names_asked, a_tuple_that_is_cut_anywhere_is_found)
{
    char first[260], second[300];

    memset(first, 'a', sizeof first);
    memset(second, 'b', sizeof second);
    for (size_t n = 1; n < sizeof first; n++) {
        berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
        berth_value *pair[2] = {berth_make_str(tree, first, n),
                                berth_make_str(tree, second, sizeof second)};
        berth_dict_set_value(root, berth_make_tuple(tree, pair, 2), tensor());
        walk(root);
        struct told_name told = tell_name(0);
        expect_found(told.path, bth_names_tensor_value(names, 0));
    }
}

/* Bytes are not cut in a name; they are no further written than what is asked is long. */
Test(names_asked, a_key_much_longer_than_what_is_asked_is_not_it)
{
    static char text[1000];
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    memset(text, 'x', sizeof text);
    berth_dict_set_value(root, berth_make_bytes(tree, BERTH_KIND_BYTES, text, sizeof text),
                         tensor());
    walk(root);
    expect_none("[b'x']");
    expect_none("b'x'");
}

/* P3: a dict in itself under "a" and "a.a" can be meant in more ways than anyone tries. */
Test(names_asked, a_name_of_too_many_readings_is_refused)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[200];

    berth_dict_set(root, "a", root);
    berth_dict_set(root, "a.a", root);
    walk(root);
    for (size_t i = 0; i < 80; i++)
        memcpy(name + 2 * i, "a.", 3);
    strcat(name, "x");
    expect_alike(name, "can be read in more than 10000 ways; use its path, as ['a'][0]");
}

/* Between two of one name there may be others. */
Test(names_asked, two_tensors_of_one_name_that_are_no_neighbours)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "a.b", tensor());
    berth_dict_set(root, "c", tensor());
    berth_dict_set(inner, "b", tensor());
    berth_dict_set(root, "a", inner);
    walk(root);
    expect_not_found("a.b", BERTH_E_AMBIGUOUS,
                     "\"a.b\" is the name of two values: ['a.b'] and ['a']['b']");
}

/* As if "a" had the hash of "b", which has 61 bits: texts are compared, too. */
Test(names_asked, names_of_one_hash_are_told_apart)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *b = tensor();

    berth_dict_set(root, "b", b);
    berth_dict_set(root, "a", tensor());
    walk(root);
    names->entries[names->tensors[0]].hash |= BTH_NAME_SHARED;
    names->entries[names->tensors[1]].hash = names->entries[names->tensors[0]].hash;
    expect_found("b", b);
    expect_found("a", berth_dict_get(root, "a")); /* among all values */
}

Test(names_asked, of_three_values_of_one_name_two_are_told)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "nan", berth_make_int(tree, 1));
    berth_dict_set_value(root, berth_make_float(tree, NAN), berth_make_int(tree, 2));
    berth_dict_set_value(root, berth_make_float(tree, NAN), berth_make_int(tree, 3));
    walk(root);
    expect_alike("nan", "\"nan\" is the name of two values: ['nan'] and [nan]");
}

/* The last 64 steps of them. */
Test(names_asked, two_values_deep_down_are_told_by_their_last_steps)
{
    enum { DEPTH = 70 };
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT), *value = dict;
    char name[2 * DEPTH + 2];

    berth_dict_set(dict, "1", berth_make_int(tree, 1));
    berth_dict_set_value(dict, berth_make_int(tree, 1), berth_make_int(tree, 2));
    for (size_t i = 0; i < DEPTH; i++) {
        berth_value *list = berth_make_list(tree);
        berth_list_append(list, value);
        value = list;
        memcpy(name + 2 * i, "0.", 2);
    }
    memcpy(name + 2 * (size_t)DEPTH, "1", 2);
    walk(value);
    expect_alike(name, " is the name of two values: [0][0]");
}

static void expect_name(berth_value *key, const char *wanted)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    cr_assert_eq(berth_dict_set_value(root, key, tensor()), 0);
    walk(root);
    struct told_name told = tell_name(0);
    cr_expect_str_eq(told.name, wanted);
    expect_found(told.name, bth_value_item(root, 0));
    expect_found(told.path, bth_value_item(root, 0));
}

Test(names_asked, keys_as_python_shows_them)
{
    static const uint8_t big[10] = {[8] = 0x40}, negative[10] = {[8] = 0xc0, [9] = 0xff};
    static const uint8_t all_ones[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0xff};
    berth_value *pair[2] = {berth_make_int(tree, 1), berth_make_str(tree, "x", 1)};
    const int64_t shape[2] = {2, 3};

    expect_name(berth_make_none(tree), "None");
    expect_name(berth_make_bool(tree, true), "True");
    expect_name(berth_make_float(tree, 1.5), "1.5");
    expect_name(berth_make_float(tree, 1e16), "1e+16");
    expect_name(berth_make_float(tree, 123456789012345.0), "123456789012345.0");
    expect_name(berth_make_float(tree, -1e-5), "-1e-05");
    expect_name(berth_make_float(tree, 0.0001), "0.0001");
    expect_name(berth_make_float(tree, 0.1), "0.1");
    expect_name(berth_make_complex(tree, 1, -2.5), "(1-2.5j)");
    expect_name(berth_make_complex(tree, 0, 2), "2j");
    expect_name(berth_make_bytes(tree, BERTH_KIND_INT, big, sizeof(big)), "1180591620717411303424");
    expect_name(berth_make_bytes(tree, BERTH_KIND_INT, negative, sizeof(negative)),
                "-1180591620717411303424");
    expect_name(berth_make_bytes(tree, BERTH_KIND_BYTES, "a\0\xff'", 4), "b\"a\\x00\\xff'\"");
    expect_name(berth_make_tuple(tree, pair, 2), "(1, 'x')");
    expect_name(berth_make_tuple(tree, &pair[1], 1), "('x',)");
    expect_name(berth_make_size(tree, shape, 2), "torch.Size([2, 3])");
    expect_name(berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_BFLOAT16), "torch.bfloat16");
    expect_name(berth_make_device(tree, "cuda", 1), "device(type='cuda', index=1)");
    expect_name(berth_make_device(tree, "cpu", -1), "device(type='cpu')");
    expect_name(berth_make_tuple(tree, NULL, 0), "()");
    expect_name(berth_make_float(tree, (double)NAN), "nan");
    expect_name(berth_make_float(tree, (double)INFINITY), "inf");
    expect_name(berth_make_float(tree, -(double)INFINITY), "-inf");
    expect_name(berth_make_float(tree, 1.5e16), "1.5e+16");
    expect_name(berth_make_float(tree, 1.5e-7), "1.5e-07");
    expect_name(berth_make_float(tree, -0.0), "-0.0");
    expect_name(berth_make_float(tree, 5e-324), "5e-324");
    expect_name(berth_make_float(tree, 100.0), "100.0");
    expect_name(berth_make_float(tree, 0.1 + 0.2), "0.30000000000000004");
    expect_name(berth_make_float(tree, 1234567890123456.0), "1234567890123456.0");
    expect_name(berth_make_complex(tree, 1, 2), "(1+2j)");
    expect_name(berth_make_complex(tree, -0.0, 2), "(-0+2j)");
    expect_name(berth_make_complex(tree, 1, (double)NAN), "(1+nanj)");
    expect_name(berth_make_complex(tree, 1, -(double)NAN), "(1+nanj)");
    expect_name(berth_make_bool(tree, false), "False");
    expect_name(berth_make_bytes(tree, BERTH_KIND_INT, all_ones, sizeof all_ones),
                "-18446744073709551616");
    expect_name(berth_make_str(tree, "\xe2\x80\xa8", 3), "\xe2\x80\xa8");
    expect_name(berth_make_bytes(tree, BERTH_KIND_BYTES, "\\'\"", 3), "b'\\\\\\'\"'");
}

Test(names_asked, an_inert_class_is_a_key_by_its_number)
{
    berth_value *class = bth_global_new(tree, "m", 1, "C", 1, true);
    char wanted[40];

    (void)snprintf(wanted, sizeof wanted, "<m C %zu>", bth_value_id(class));
    expect_name(class, wanted);
}

static berth_value *text_of(const char *text)
{
    return berth_make_str(tree, text, strlen(text));
}

static berth_value *attribute_of(berth_value *object, const char *function, berth_value *name)
{
    berth_value *both[2] = {object, name};

    return bth_call_new(tree, bth_global_new(tree, "builtins", 8, function, strlen(function), true),
                        berth_make_tuple(tree, both, 2), false);
}

static void expect_inert_name(berth_value *key, const char *class)
{
    char wanted[80];

    (void)snprintf(wanted, sizeof wanted, "<%s %zu>", class, bth_value_id(key));
    expect_name(key, wanted);
}

/* Classes within classes, which pickles name by getattr; and what is made of them. */
Test(names_asked, inert_keys_show_their_class)
{
    berth_value *outer = bth_global_new(tree, "m", 1, "Outer", 5, true);
    berth_value *inner = attribute_of(outer, "getattr", text_of("Inner"));
    berth_value *deep = inner, *none = berth_make_tuple(tree, NULL, 0);

    expect_inert_name(inner, "m Outer.Inner");
    expect_inert_name(bth_call_new(tree, inner, none, false), "m Outer.Inner");
    expect_inert_name(bth_call_new(tree, outer, none, false), "m Outer");
    expect_inert_name(bth_call_new(tree, bth_call_new(tree, inner, none, false), none, false),
                      "object");
    expect_inert_name(attribute_of(outer, "getattr", text_of("a b")), "builtins getattr");
    expect_inert_name(attribute_of(outer, "getattr", text_of("")), "builtins getattr");
    expect_inert_name(attribute_of(outer, "getattr", none), "builtins getattr");
    expect_inert_name(attribute_of(outer, "setattr", text_of("a")), "builtins setattr");
    berth_value *two[] = {outer, text_of("a")};
    expect_inert_name(bth_call_new(tree, inner, berth_make_tuple(tree, two, 2), false),
                      "m Outer.Inner");
    for (int i = 0; i < 4; i++)
        deep = attribute_of(deep, "getattr", text_of("X"));
    expect_inert_name(deep, "object.X.X.X.X");
}

/* P3: so is one of more levels than the text may have brackets. */
Test(names_asked, a_tuple_that_is_too_deep_is_cut)
{
    berth_value *key = berth_make_int(tree, 1);
    char wanted[256 + 5];

    for (int i = 0; i < 300; i++)
        key = berth_make_tuple(tree, &key, 1);
    memset(wanted, '(', 256);
    memcpy(wanted + 256, "...)", 5);
    expect_name(key, wanted);
}

/* P3: a name of more than 16 MiB is told, not made. */
Test(names_asked, a_name_that_is_too_long_is_told)
{
    enum { LONG = 2 << 20 };
    char *text = malloc(LONG), *name, *path;
    berth_error error = {0};
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *below = root;

    memset(text, 'k', LONG);
    berth_value *key = berth_make_str(tree, text, LONG);
    for (int i = 0; i < 9; i++) {
        berth_value *next = i < 8 ? berth_make_dict(tree, BERTH_KIND_DICT) : tensor();
        berth_dict_set_value(below, key, next);
        below = next;
    }
    walk(root);
    FAILS(bth_names_allocate_tensor_name_and_path(names, 0, &name, &path, &error),
          BERTH_E_UNSUPPORTED, "the name of tensor 0 has more than 16777216 bytes");
    cr_expect_null(name);
    cr_expect_null(path);
    free(text);
}

/* -2^71 as a float and as an int are one key, as in Python. */
Test(names_asked, a_large_float_is_the_int_of_its_value)
{
    static const uint8_t big[9] = {[8] = 0x80};
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    cr_assert_eq(berth_dict_set_value(root, berth_make_float(tree, -0x1p71), tensor()), 0);
    cr_assert_eq(berth_dict_set_value(root, berth_make_bytes(tree, BERTH_KIND_INT, big, sizeof big),
                                      tensor()),
                 0);
    cr_expect_eq(berth_value_count(root), 1);
}
