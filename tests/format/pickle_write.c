/* SPDX-License-Identifier: BSD-3-Clause */
/* Values are written as torch.save writes them, byte for byte (FORMAT.md 6). */
#include "tests/support/format/pickle_written.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

#include <math.h>
#include <stdio.h>

#include "tests/format/pickle_write_expected.h"

TestSuite(pickle_write, .init = begin_tree, .fini = end_tree);

/* Appends, and hands the item back so that it can be used twice. */
static berth_value *add(berth_value *list, berth_value *item)
{
    cr_assert_eq(berth_list_append(list, item), 0);
    return item;
}

/* ---- leaves ---- */

/* 2 to the power of `bit`, or its negative, in two's complement. */
static berth_value *power(size_t bit, bool negative)
{
    uint8_t bytes[16];
    memset(bytes, 0, sizeof bytes);
    bytes[bit / 8] = (uint8_t)(1u << (bit % 8));
    if (negative) { /* -(2^bit): ones above the bit, too */
        for (size_t i = bit / 8 + 1; i < sizeof bytes; i++)
            bytes[i] = 0xff;
        bytes[bit / 8] = (uint8_t)(0xff << (bit % 8));
    }
    return berth_make_bytes(tree, BERTH_KIND_INT, bytes, sizeof bytes);
}

Test(pickle_write, integers_take_the_shortest_form)
{
    const int64_t integers[] = {0,         255,
                                256,       65535,
                                65536,     -1,
                                INT32_MAX, INT64_C(1) << 31,
                                INT32_MIN, -(INT64_C(1) << 31) - 1,
                                INT64_MAX};
    berth_value *list = berth_make_list(tree);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        add(list, berth_make_int(tree, integers[i]));
    add(list, power(63, false));
    add(list, berth_make_int(tree, INT64_MIN));
    add(list, power(70, false));
    add(list, power(70, true));
    add(list, berth_make_int(tree, -128 - (INT64_C(1) << 40)));
    check_pickle(list, expected_integers);
}

Test(pickle_write, scalars)
{
    check_pickle(LIST(berth_make_none(tree), berth_make_bool(tree, true),
                      berth_make_bool(tree, false), berth_make_float(tree, 1.5),
                      berth_make_float(tree, -0.0), berth_make_float(tree, HUGE_VAL),
                      berth_make_complex(tree, 1, 2)),
                 expected_scalars);
}

Test(pickle_write, a_nan_keeps_its_payload)
{
    uint64_t bits = 0xfff4deadbeef0001;
    double nan;
#ifdef __i386__
    cr_skip_test("a double that is returned goes through the x87, and a signalling NaN gets quiet");
#endif
    memcpy(&nan, &bits, sizeof nan);
    berth_value *value = berth_make_float(tree, nan);
    check_pickle(value, "\x80\x02G\xff\xf4\xde\xad\xbe\xef\x00\x01.");
}

Test(pickle_write, equal_strings_are_shared_by_node_and_the_empty_one_always)
{
    berth_value *accented = make_text("\xc3\xa9"), *a = make_text("a");
    check_pickle(LIST(make_text("weight"), make_text("weight"), make_text(""), make_text(""),
                      accented, accented, a, a, make_text("\xf0\x9f\x98\x80"),
                      make_text("\xed\xb2\x80"), /* a lone surrogate */
                      make_text("cpu"), make_text("latin1"), make_text("storage")),
                 expected_strings);
}

static berth_value *bytes(const void *data, size_t nbytes)
{
    return berth_make_bytes(tree, BERTH_KIND_BYTES, data, nbytes);
}

static berth_value *bytearray(const char *text)
{
    return berth_make_bytes(tree, BERTH_KIND_BYTEARRAY, text, strlen(text));
}

Test(pickle_write, bytes_are_latin1_text)
{
    const uint8_t four[] = {0, 127, 128, 255};
    berth_value *a = bytes("a", 1);
    check_pickle(
        LIST(a, a, make_text("a"), bytes(four, sizeof four), bytes("xy", 2), make_text("xy")),
        expected_byte_strings);
}

/* Python calls `bytes` for b'', which torch.load(weights_only=True) refuses. */
Test(pickle_write, empty_bytes_are_written_so_that_weights_only_reads_them)
{
    check_pickle(LIST(bytes("", 0), bytes("", 0)),
                 "\x80\x02]q\000(c_"
                 "codecs\nencode\nq\001X\000\000\000\000q\002X\006\000\000\000latin1q\003\x86"
                 "q\004Rq\005h\005e.");
}

/* The text of one byte is one object. */
Test(pickle_write, bytearrays_wrap_bytes)
{
    check_pickle(LIST(bytearray(""), bytearray("a"), bytearray("ab"), bytearray("a")),
                 expected_bytearrays);
}

Test(pickle_write, torch_objects)
{
    berth_value *size = berth_make_size(tree, (const int64_t[]){2, 3}, 2);
    check_pickle(LIST(size, berth_make_size(tree, NULL, 0), size,
                      berth_make_device(tree, "cuda", 1), berth_make_device(tree, "cpu", -1),
                      berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT16),
                      berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_UINT16),
                      berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT16),
                      berth_make_constant(tree, BERTH_KIND_QSCHEME, BERTH_PER_TENSOR_AFFINE),
                      berth_make_constant(tree, BERTH_KIND_LAYOUT, BERTH_SPARSE_COO),
                      berth_make_constant(tree, BERTH_KIND_LAYOUT, BERTH_STRIDED),
                      berth_make_constant(tree, BERTH_KIND_LAYOUT, BERTH_SPARSE_COO)),
                 expected_torch_objects);
}

/* ---- containers ---- */

static berth_value *count_up(int n)
{
    berth_value *items[4];
    for (int i = 0; i < n; i++)
        items[i] = berth_make_int(tree, i + 1);
    return berth_make_tuple(tree, items, (size_t)n);
}

Test(pickle_write, tuples_of_every_length)
{
    berth_value *pair[] = {berth_make_int(tree, 1), make_text("x")}, *empty = count_up(0);
    berth_value *twice = berth_make_tuple(tree, pair, 2);
    check_pickle(LIST(count_up(0), count_up(1), count_up(2), count_up(3), count_up(4), twice, twice,
                      berth_make_tuple(tree, &empty, 1)),
                 expected_tuples);
}

Test(pickle_write, a_list_may_hold_itself)
{
    berth_value *list = berth_make_list(tree);
    add(list, berth_make_int(tree, 1));
    add(list, list);
    check_pickle(list, expected_list_in_itself);
}

Test(pickle_write, sets)
{
    const int members[4][2] = {{1, 0}, {1, 2}, {0, 0}, {7, 0}};
    berth_value *list = berth_make_list(tree);
    for (size_t i = 0; i < 4; i++) {
        berth_value *set = add(list, berth_make_set(tree));
        for (size_t j = 0; j < 2; j++)
            if (members[i][j] > 0)
                cr_assert_eq(berth_set_add(set, berth_make_int(tree, members[i][j])), 0);
    }
    check_pickle(list, expected_sets);
}

Test(pickle_write, counters)
{
    berth_value *counter = berth_make_dict(tree, BERTH_KIND_COUNTER);
    berth_dict_set(counter, "a", berth_make_int(tree, 2));
    berth_dict_set(counter, "b", berth_make_int(tree, 1));
    check_pickle(LIST(counter, berth_make_dict(tree, BERTH_KIND_COUNTER)), expected_counters);
}

Test(pickle_write, a_state_dict_has_its_metadata_behind)
{
    berth_value *state_dict = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_dict_set(state_dict, "a", berth_make_int(tree, 1));
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(state, "_metadata", berth_make_dict(tree, BERTH_KIND_ORDERED_DICT));
    cr_assert_eq(berth_value_set_state(state_dict, state), 0);
    check_pickle(state_dict, expected_state_dict);
}

Test(pickle_write, one_key_node_in_two_dicts_is_written_once)
{
    berth_value *key = make_text("epoch time");
    berth_value *list = berth_make_list(tree);
    for (int i = 1; i <= 2; i++)
        berth_dict_set_value(add(list, berth_make_dict(tree, BERTH_KIND_DICT)), key,
                             berth_make_int(tree, i));
    add(list, key);
    check_pickle(list, expected_shared_key);
}

#define N_SUMS(sums) (sizeof(sums) / sizeof *(sums))

Test(pickle_write, batches_of_lists)
{
    for (size_t i = 0; i < N_SUMS(list_sums); i++) {
        berth_value *list = berth_make_list(tree);
        for (size_t j = 0; j < list_sums[i].n; j++)
            add(list, berth_make_none(tree));
        check_pickled_sum(list, list_sums[i].n, list_sums[i].nbytes, list_sums[i].crc32);
    }
}

/* {0: None, 1: None, …}; counters count each key itself. */
static void check_dicts(berth_kind kind, const struct expected_sum *sums, size_t n_sums)
{
    for (size_t i = 0; i < n_sums; i++) {
        berth_value *dict = berth_make_dict(tree, kind);
        bool counts = kind == BERTH_KIND_COUNTER;
        for (size_t j = 0; j < sums[i].n; j++)
            berth_dict_set_value(dict, berth_make_int(tree, (int64_t)j),
                                 counts ? berth_make_int(tree, (int64_t)j) : berth_make_none(tree));
        check_pickled_sum(dict, sums[i].n, sums[i].nbytes, sums[i].crc32);
    }
}

Test(pickle_write, batches_of_dicts)
{
    check_dicts(BERTH_KIND_DICT, dict_sums, N_SUMS(dict_sums));
    check_dicts(BERTH_KIND_ORDERED_DICT, ordered_dict_sums, N_SUMS(ordered_dict_sums));
    check_dicts(BERTH_KIND_COUNTER, counter_sums, N_SUMS(counter_sums));
}

Test(pickle_write, memo_numbers_beyond_a_byte)
{
    for (size_t i = 0; i < N_SUMS(memo_sums); i++) {
        berth_value *list = berth_make_list(tree);
        size_t n = memo_sums[i].n;
        for (size_t j = 0; j < n; j++) {
            char string[32];
            snprintf(string, sizeof string, "item %zu", j);
            add(list, make_text(string));
        }
        for (size_t j = 0; j < n; j++)
            add(list, bth_value_item(list, j));
        check_pickled_sum(list, n, memo_sums[i].nbytes, memo_sums[i].crc32);
    }
}

/* ---- inert values ---- */

Test(pickle_write, inert_calls_are_written_back)
{
    berth_value *class = bth_global_new(tree, "a.b", 3, "C", 1, false);
    berth_value *one = berth_make_int(tree, 1);
    berth_value *list = berth_make_list(tree);
    berth_value *made = add(list, bth_call_new(tree, class, berth_make_tuple(tree, &one, 1), true));
    cr_assert_eq(berth_value_set_state(made, berth_make_dict(tree, BERTH_KIND_DICT)), 0);
    add(list, bth_call_new(tree, class, berth_make_tuple(tree, NULL, 0), false));
    add(list, made);
    add(list, class);
    check_pickle(
        list,
        "\x80\x02]q\000(ca.b\nC\nq\001K\001\x85q\002\x81q\003}q\004bh\001)Rq\005h\003h\001e.");
}

/* In the table they lie on each other's places. */
Test(pickle_write, classes_of_one_name_in_many_modules)
{
    berth_value *list = berth_make_list(tree);
    char expected[2000] = "\x80\x02]q\000(", module[16];
    size_t nbytes = 6;
    for (int i = 0; i < 100; i++) {
        int n = snprintf(module, sizeof module, "m%d", i);
        add(list, add(list, bth_global_new(tree, module, (size_t)n, "C", 1, false)));
        nbytes += (size_t)snprintf(expected + nbytes, sizeof expected - nbytes, "c%s\nC\nq%ch%c",
                                   module, i + 1, i + 1);
    }
    memcpy(expected + nbytes, "e.", 2);
    check_pickled(list, expected, nbytes + 2);
}

/* ---- refusals ---- */

Test(pickle_write, a_tuple_that_holds_itself_is_refused)
{
    berth_value *list = berth_make_list(tree);
    berth_value *tuple = berth_make_tuple(tree, &list, 1);
    add(list, tuple);
    check_write_refused(
        tuple, false, BERTH_E_UNSUPPORTED,
        "data.pkl: a tuple contains itself: torch.load(weights_only=True) cannot read that");
    /* From the list's side it is built before it is met again. */
    check_pickle(list, "\x80\x02]q\000h\000\x85q\001a.");
}

Test(pickle_write, a_counter_that_holds_itself_is_refused)
{
    berth_value *counter = berth_make_dict(tree, BERTH_KIND_COUNTER);
    berth_dict_set(counter, "self", counter);
    check_write_refused(
        counter, false, BERTH_E_UNSUPPORTED,
        "data.pkl: a Counter contains itself: torch.load(weights_only=True) cannot read that");
}

Test(pickle_write, no_value_is_refused)
{
    berth_error error;
    bth_pickled pickled;
    bth_error_clear(&error);
    FAILS(bth_pickle_write(NULL, false, &pickled, &error), BERTH_E_ARGUMENT,
          "data.pkl: no value to save");
}

/* ---- P3 ---- */

Test(pickle_write, depth_is_bounded_by_memory_alone_P3)
{
    berth_value *root = berth_make_list(tree);
    berth_value *inner = root;
    for (int i = 0; i < 500000; i++)
        inner = add(inner, berth_make_list(tree));
    bth_pickled pickled = must_write(root);
    cr_expect_gt(pickled.nbytes, 500000u * 3);
    bth_pickled_free(&pickled);
}

Test(pickle_write, shared_nodes_are_written_once_P3)
{
    berth_value *value = berth_make_tuple(tree, (berth_value *[]){make_text("x")}, 1);
    for (int i = 0; i < 100; i++) /* spelled out: 2^100 */
        value = berth_make_tuple(tree, (berth_value *[]){value, value}, 2);
    bth_pickled pickled = must_write(value);
    cr_expect_lt(pickled.nbytes, 1000);
    bth_pickled_free(&pickled);
}
