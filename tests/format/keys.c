/* SPDX-License-Identifier: BSD-3-Clause */
/* P4: what can be a key of a dict, which keys are equal, and that all of it is linear (P3). */
#include "format/values/node.h"
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(keys, .init = begin_tree, .fini = end_tree);

static berth_value *text(const char *string)
{
    return berth_make_str(tree, string, strlen(string));
}

static berth_value *tuple2(berth_value *a, berth_value *b)
{
    berth_value *items[2] = {a, b};
    return berth_make_tuple(tree, items, 2);
}

static berth_value *tuple1(berth_value *a)
{
    return berth_make_tuple(tree, &a, 1);
}

/* 2^70, as an int and negated. */
static const uint8_t power[9] = {[8] = 0x40};
static const uint8_t negative_power[9] = {[8] = 0xc0};
/* 2^70 + 1, and + 2 */
static const uint8_t power_and_one[9] = {[0] = 1, [8] = 0x40};
static const uint8_t power_and_two[9] = {[0] = 2, [8] = 0x40};

/* Keys, each with the number of its class: Python's == holds within a class and not between two. */
struct row {
    int class;
    berth_value *key;
};

static size_t make_rows(struct row *rows)
{
    static const int64_t sizes[2] = {1, 2};
    berth_value *nan_value = berth_make_float(tree, NAN);
    const struct row all[] = {
        {1, berth_make_int(tree, 1)},
        {1, berth_make_bool(tree, true)},
        {1, berth_make_float(tree, 1.0)},
        {1, berth_make_complex(tree, 1.0, 0.0)},
        {1, berth_make_complex(tree, 1.0, -0.0)},
        {2, berth_make_int(tree, 0)},
        {2, berth_make_bool(tree, false)},
        {2, berth_make_float(tree, 0.0)},
        {2, berth_make_float(tree, -0.0)},
        {2, berth_make_complex(tree, -0.0, 0.0)},
        {3, berth_make_bytes(tree, BERTH_KIND_INT, power, 9)},
        {3, berth_make_float(tree, 0x1p70)},
        {3, berth_make_complex(tree, 0x1p70, 0.0)},
        {4, berth_make_bytes(tree, BERTH_KIND_INT, negative_power, 9)},
        {4, berth_make_float(tree, -0x1p70)},
        {5, berth_make_bytes(tree, BERTH_KIND_INT, power_and_one, 9)},
        {5, berth_make_bytes(tree, BERTH_KIND_INT, power_and_one, 9)},
        {6, berth_make_float(tree, INFINITY)},
        {7, berth_make_float(tree, -INFINITY)},
        {8, berth_make_float(tree, 1.5)},
        {8, berth_make_complex(tree, 1.5, 0.0)},
        {9, berth_make_complex(tree, 1.5, 2.0)},
        {9, berth_make_complex(tree, 1.5, 2.0)},
        {10, berth_make_complex(tree, 0.0, 2.0)},
        {10, berth_make_complex(tree, -0.0, 2.0)},
        {11, nan_value},
        {11, nan_value},
        {12, berth_make_float(tree, NAN)},
        {13, berth_make_complex(tree, NAN, 1)},
        {14, text("1")},
        {14, text("1")},
        {15, berth_make_bytes(tree, BERTH_KIND_BYTES, "1", 1)},
        {15, bth_bytes_from_latin1(tree, text("1"))},
        {16, text("")},
        {17, berth_make_bytes(tree, BERTH_KIND_BYTES, "", 0)},
        {18, berth_make_none(tree)},
        {18, berth_make_none(tree)},
        {19, berth_make_tuple(tree, NULL, 0)},
        {20, tuple1(berth_make_int(tree, 1))},
        {20, tuple1(berth_make_float(tree, 1.0))},
        {20, tuple1(berth_make_bool(tree, true))},
        {20, berth_make_size(tree, sizes, 1)},
        {21, tuple2(berth_make_int(tree, 1), berth_make_int(tree, 2))},
        {21, berth_make_size(tree, sizes, 2)},
        {22, tuple1(tuple1(berth_make_int(tree, 1)))},
        {22, tuple1(berth_make_size(tree, sizes, 1))},
        {23, tuple1(text("1"))},
        {23, tuple1(text("1"))},
        {24, tuple1(berth_make_bytes(tree, BERTH_KIND_BYTES, "1", 1))},
        {25, tuple1(nan_value)},
        {25, tuple1(nan_value)},
        {26, tuple1(berth_make_float(tree, NAN))},
        {27, berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT32)},
        {27, berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT32)},
        {28, berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT64)},
        {29, berth_make_device(tree, "cuda", 1)},
        {29, berth_make_device(tree, "cuda", 1)},
        {30, berth_make_device(tree, "cuda", 0)},
        {31, berth_make_device(tree, "cuda", -1)},
        {32, tuple1(berth_make_device(tree, "cuda", 0))},
        {32, tuple1(berth_make_device(tree, "cuda", 0))},
        {90, tuple2(text("longer than what is short"), tuple2(text("a"), tuple1(text("b"))))},
        {90, tuple2(text("longer than what is short"), tuple2(text("a"), tuple1(text("b"))))},
        {91, tuple2(text("longer than what is short"), tuple2(text("a"), tuple1(text("c"))))},
        {33, text("cuda:1")},
        {34, berth_make_int(tree, INT64_MIN)},
        {34, berth_make_float(tree, -0x1p63)},
        {35, berth_make_float(tree, 0x1p63)},
        {36, berth_make_int(tree, INT64_MAX)},
        {37, berth_make_float(tree, 0x1.8p1000)},
        {38, berth_make_float(tree, -0x1.fffffffffffffp1023)},
        {39, berth_make_float(tree, 0.1)},
        {40, berth_make_complex(tree, 1, NAN)},
        {41, berth_make_complex(tree, 1.5, 3.0)},
        {42, berth_make_bytes(tree, BERTH_KIND_INT, power_and_two, 9)},
        {43, berth_make_int(tree, 0x3ff8000000000000)}, /* the bits of 1.5 */
    };
    memcpy(rows, all, sizeof(all));
    return sizeof(all) / sizeof(*all);
}

/* Large dicts are found by slots, small ones by a scan: both with the same equality. */
static void expect_classes(int filling)
{
    struct row rows[100];
    size_t n = make_rows(rows);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
            for (int k = 0; k < filling; k++)
                berth_dict_set_value(dict, berth_make_int(tree, 1000 + k), berth_make_none(tree));
            cr_assert_eq(berth_dict_set_value(dict, rows[i].key, berth_make_none(tree)), 0);
            cr_assert_eq(berth_dict_set_value(dict, rows[j].key, berth_make_bool(tree, true)), 0);
            bool equal = berth_value_count(dict) == (size_t)filling + 1;
            cr_assert_eq(equal, rows[i].class == rows[j].class, "rows %zu and %zu", i, j);
        }
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
}

Test(keys, are_equal_as_in_python)
{
    expect_classes(0);
}

Test(keys, are_equal_as_in_python_in_a_large_dict)
{
    expect_classes(20);
}

Test(keys, that_repeat_keep_the_place_and_the_first_key_and_take_the_new_value)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT), *one = berth_make_int(tree, 1);
    berth_dict_set_value(dict, one, text("first"));
    berth_dict_set(dict, "a", text("second"));
    berth_dict_set_value(dict, berth_make_bool(tree, true), text("third"));
    berth_value *key = bth_value_key(dict, 1);
    berth_dict_set(dict, "a", text("fourth"));
    cr_assert_eq(berth_value_count(dict), 2);
    cr_assert_eq(bth_value_key(dict, 0), one);
    cr_assert_eq(bth_value_key(dict, 1), key);
    cr_assert_str_eq(berth_as_text(bth_value_item(dict, 0), NULL), "third");
    cr_assert_str_eq(berth_as_text(bth_value_item(dict, 1), NULL), "fourth");
}

Test(keys, of_a_large_dict_are_found_in_the_order_of_insertion)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[32];
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof(name), "key %d", i);
        cr_assert_eq(berth_dict_set(dict, name, berth_make_int(tree, i)), 0);
        cr_assert_eq(berth_dict_set_value(dict, berth_make_int(tree, i), berth_make_int(tree, -i)),
                     0);
    }
    cr_assert_eq(berth_value_count(dict), 20000);
    for (int i = 0; i < 10000; i++) {
        int64_t found;
        snprintf(name, sizeof(name), "key %d", i);
        cr_assert(berth_as_int(berth_dict_get(dict, name), &found) && found == i);
        cr_assert_eq(bth_dict_find_int_position(dict, i), 2 * (size_t)i + 1);
        cr_assert_str_eq(berth_as_text(bth_value_key(dict, 2 * (size_t)i), NULL), name);
    }
    cr_assert_null(berth_dict_get(dict, "key 10000"));
    cr_assert_eq(bth_dict_find_int_position(dict, 10000), SIZE_MAX);
}

Test(keys, found_as_ints_are_ints)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set_value(dict, berth_make_bool(tree, true), berth_make_none(tree));
    cr_assert_eq(bth_dict_find_int_position(dict, 1), SIZE_MAX);
}

/* Their hashes are equal, as in Python. */
Test(keys, found_as_texts_are_no_bytes)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set_value(dict, berth_make_bytes(tree, BERTH_KIND_BYTES, "a", 1),
                         berth_make_none(tree));
    cr_expect_null(berth_dict_get(dict, "a"));
    berth_dict_set(dict, "a", berth_make_bool(tree, true));
    cr_expect_eq(berth_value_kind(berth_dict_get(dict, "a")), BERTH_KIND_BOOL);
}

static void expect_refused(berth_value *key, const char *message)
{
    berth_error error;
    cr_assert_not_null(key);
    cr_assert_lt(
        berth_dict_set_value(berth_make_dict(tree, BERTH_KIND_DICT), key, berth_make_none(tree)),
        0);
    berth_tree_error(tree, &error);
    cr_assert_str_eq(error.message, message);
    berth_tree_free(tree);
    tree = berth_tree_new(NULL);
}

Test(keys, that_python_cannot_hash_are_refused_by_name)
{
    const float data[1] = {0};
    const berth_tensor one = {.dtype = BERTH_FLOAT32, .data = data};
    expect_refused(berth_make_tensor(tree, &one), "a tensor cannot be a dict key");
    expect_refused(berth_make_parameter(tree, berth_make_tensor(tree, &one), true),
                   "a Parameter cannot be a dict key");
    expect_refused(berth_make_list(tree), "a list cannot be a dict key");
    expect_refused(berth_make_dict(tree, BERTH_KIND_DICT), "a dict cannot be a dict key");
    expect_refused(berth_make_set(tree), "a set cannot be a dict key");
    expect_refused(berth_make_bytes(tree, BERTH_KIND_BYTEARRAY, "", 0),
                   "a bytearray cannot be a dict key");
    expect_refused(tuple2(berth_make_int(tree, 1), tuple1(tuple1(berth_make_list(tree)))),
                   "a list cannot be a dict key");
}

Test(keys, of_sets_follow_the_same_rules)
{
    berth_value *set = berth_make_set(tree), *one = berth_make_int(tree, 1);
    berth_error error;
    cr_assert_eq(berth_set_add(set, one), 0);
    cr_assert_eq(berth_set_add(set, berth_make_float(tree, 1)), 0);
    cr_assert_eq(berth_set_add(set, text("a")), 0);
    cr_assert_eq(berth_value_count(set), 2);
    cr_assert_eq(bth_value_item(set, 0), one);
    cr_assert_lt(berth_set_add(set, berth_make_list(tree)), 0);
    berth_tree_error(tree, &error);
    cr_assert_str_eq(error.message, "a list cannot be in a set");
}

/* P3, P4: 2^200 items, were they walked as a tree; compared with an equal one of other nodes. */
Test(keys, doubled_by_memo_take_linear_time, .timeout = 60)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    for (int copy = 0; copy < 2; copy++) {
        berth_value *key = berth_make_int(tree, 7);
        for (int i = 0; i < 200; i++)
            key = tuple2(key, key);
        cr_assert_eq(berth_dict_set_value(dict, key, berth_make_int(tree, copy)), 0);
    }
    cr_assert_eq(berth_value_count(dict), 1);
}

/* P3: no recursion, however deep a tuple is. */
Test(keys, a_million_levels_deep_are_hashed, .timeout = 60)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    for (int copy = 0; copy < 2; copy++) {
        berth_value *key = berth_make_none(tree);
        for (int i = 0; i < 1000000; i++)
            key = tuple1(key);
        cr_assert_eq(berth_dict_set_value(dict, key, berth_make_int(tree, copy)), 0);
    }
    cr_assert_eq(berth_value_count(dict), 1);
}

/* P3: each is hashed and compared once, however often it is used. */
Test(keys, of_many_megabytes_used_a_hundred_thousand_times_take_linear_time, .timeout = 60)
{
    enum { NBYTES = 1 << 24 };
    char *bytes = calloc(1, NBYTES);
    memset(bytes, 'k', NBYTES);
    berth_value *first = berth_make_str(tree, bytes, NBYTES),
                *second = berth_make_str(tree, bytes, NBYTES);
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set_value(dict, first, berth_make_none(tree));
    for (int i = 0; i < 100000; i++)
        berth_dict_set_value(dict, second, berth_make_none(tree));
    cr_assert_eq(berth_value_count(dict), 1);
    cr_assert_eq(bth_value_key(dict, 0), first);
    free(bytes);
}

/* P3: 64 bytes of memory a byte of pickle; a further TUPLE1 is one byte. */
Test(keys, a_chain_of_tuples_stays_within_64_bytes_a_level)
{
    enum { DEPTH = 1000000 };
    berth_tree_free(tree);
    test_memory_watch();
    tree = berth_tree_new(NULL);
    berth_value *key = berth_make_none(tree), *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    for (int i = 0; i < DEPTH; i++)
        key = tuple1(key);
    cr_assert_eq(berth_dict_set_value(dict, key, key), 0);
    struct test_memory seen = test_memory_seen();
    cr_assert_lt(seen.peak_nbytes, 64u * DEPTH + 65536, "%.1f bytes a level",
                 (double)seen.peak_nbytes / DEPTH);
    cr_log_info("%.1f bytes a level", (double)seen.peak_nbytes / DEPTH);
    berth_tree_free(tree);
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    tree = NULL;
}

struct hashed {
    uint32_t hash, number;
};

static int by_hash(const void *a, const void *b)
{
    uint32_t x = ((const struct hashed *)a)->hash, y = ((const struct hashed *)b)->hash;
    return (x > y) - (x < y);
}

/* Of eight or nine bytes. */
static const char *numbered(uint32_t number, char text[16])
{
    (void)snprintf(text, 16, "%s%08x", number % 2 ? "k" : "", (unsigned)number);
    return text;
}

static void expect_two_keys(const char *a, const char *b, int filling)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    for (int k = 0; k < filling; k++)
        berth_dict_set_value(dict, berth_make_int(tree, 1000 + k), berth_make_none(tree));
    cr_assert_eq(berth_dict_set(dict, a, berth_make_none(tree)), 0);
    cr_expect_null(berth_dict_get(dict, b), "%s is not %s", b, a);
    cr_assert_eq(berth_dict_set(dict, b, berth_make_bool(tree, true)), 0);
    cr_expect_eq(berth_value_count(dict), (size_t)filling + 2);
    cr_expect_eq(berth_value_kind(berth_dict_get(dict, a)), BERTH_KIND_NONE);
    cr_expect_eq(berth_value_kind(berth_dict_get(dict, b)), BERTH_KIND_BOOL);
}

/* T3: two storages, which keep their keys. */
static void expect_two_storages(const char *a, const char *b)
{
    berth_storage *first =
        bth_tree_find_or_add_storage(tree, a, strlen(a), BERTH_UINT8, 1, "cpu", 3);
    berth_storage *second =
        bth_tree_find_or_add_storage(tree, b, strlen(b), BERTH_UINT8, 1, "cpu", 3);
    cr_expect_neq(first, second);
    cr_expect_eq(bth_tree_find_storage(tree, a, strlen(a)), first);
    cr_expect_eq(bth_tree_find_storage(tree, b, strlen(b)), second);
}

/* A hash has 32 bits: of a million texts, some 120 pairs have one. */
Test(keys, of_one_hash_are_told_apart, .timeout = 60)
{
    enum { N = 1 << 20 };
    struct hashed *all = malloc(N * sizeof *all);
    size_t n_pairs[2] = {0, 0}; /* of two lengths, of one */
    char a[16], b[16];

    cr_assert_not_null(all);
    for (uint32_t i = 0; i < N; i++) {
        numbered(i, a);
        all[i] = (struct hashed){bth_hash(tree->seed, a, strlen(a)), i};
    }
    qsort(all, N, sizeof *all, by_hash);
    for (size_t i = 1; i < N; i++)
        if (all[i].hash == all[i - 1].hash) {
            numbered(all[i - 1].number, a);
            numbered(all[i].number, b);
            n_pairs[strlen(a) == strlen(b)]++;
            expect_two_keys(a, b, 0);
            expect_two_keys(a, b, 20);
            expect_two_storages(a, b);
        }
    cr_expect_gt(n_pairs[0], 0);
    cr_expect_gt(n_pairs[1], 0);
    free(all);
}
