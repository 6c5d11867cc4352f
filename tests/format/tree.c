/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of a tree, its failure, its storages (T3). P3: pickle_bombs.c. */
#include "format/values/node.h"
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(tree, .init = begin_tree, .fini = end_tree);

Test(tree, remembers_its_first_failure)
{
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
    cr_assert_null(berth_make_str(tree, "a\xff", 2));
    cr_assert_null(berth_make_bytes(tree, BERTH_KIND_INT, NULL, 0));
    /* What is built afterwards is still there to be refused with that error. */
    cr_assert_not_null(berth_make_dict(tree, BERTH_KIND_DICT));
    expect_tree_failure(NULL, BERTH_E_ARGUMENT, "text that is not UTF-8 at its byte 1");
}

/* What could not be made is NULL: the first container that it should go into says where. */
Test(tree, errors_name_the_key_or_the_index)
{
    static const char *const sentences[] = {
        "['a']: a dict's value is NULL",   "[7]: a dict's value is NULL",
        "[0]: a dict's value is NULL",     "[1]: an item of a list is NULL",
        "[2]: an item of a tuple is NULL", "['a']: no torch.dtype has the number 99",
        "[0]: a dict's value is NULL"};
    static const uint8_t power[9] = {[8] = 1}; /* 2^64: the key is not shown */
    for (int i = 0; i < 7; i++) {
        berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT), *list = berth_make_list(tree);
        berth_value *keys[] = {berth_make_str(tree, "a", 1), berth_make_int(tree, 7), list,
                               berth_make_bytes(tree, BERTH_KIND_INT, power, sizeof power)};
        berth_list_append(list, dict);
        berth_list_append(i == 3 ? list : NULL, NULL);
        berth_make_tuple(i == 4 ? tree : NULL, (berth_value *[]){list, list, NULL}, 3);
        if (i == 5)
            cr_expect_null(berth_make_constant(tree, BERTH_KIND_DTYPE, 99));
        cr_expect_lt(berth_dict_set_value(dict, keys[i < 3 ? i : i == 6 ? 3 : 0], NULL), 0);
        cr_expect_lt(berth_dict_set(dict, "later", NULL), 0);
        expect_tree_failure(NULL, BERTH_E_ARGUMENT, sentences[i]);
    }
}

Test(tree, values_know_their_tree)
{
    berth_tree *other = berth_tree_new(NULL);
    char *text = calloc(1, 100000);
    cr_assert_eq(bth_value_tree(berth_make_list(tree)), tree);
    cr_assert_eq(bth_value_tree(berth_make_none(other)), other);
    memset(text, 'a', 99999);
    berth_value *value = berth_make_str(tree, text, 99999);
    cr_assert_eq(bth_value_tree(value), tree);
    cr_assert_str_eq(berth_as_text(value, NULL), text);
    free(text);
    berth_tree_free(other);
}

Test(tree, the_newest_block_is_given_back_too)
{
    test_memory_watch();
    berth_tree *watched = berth_tree_new(NULL);
    uint64_t nbytes = test_memory_seen().live_nbytes;
    bth_tree_release_allocation(watched, bth_tree_allocate(watched, 2000), 2000);
    cr_expect_eq(test_memory_seen().live_nbytes, nbytes);
    cr_expect_not_null(berth_make_list(watched));
    berth_tree_free(watched);
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

Test(tree, as_many_bytes_as_there_are_addresses_are_refused)
{
    char message[80];
    (void)snprintf(message, sizeof(message), "out of memory: %zu bytes for values", SIZE_MAX);
    expect_tree_failure(bth_tree_allocate(tree, SIZE_MAX), BERTH_E_MEMORY, message);
}

Test(tree, ids_count_the_nodes_that_a_memo_can_hold)
{
    cr_assert_eq(bth_value_id(berth_make_none(tree)), SIZE_MAX);
    cr_assert_eq(bth_value_id(berth_make_bool(tree, true)), SIZE_MAX);
    cr_assert_eq(bth_value_id(berth_make_int(tree, 1)), SIZE_MAX);
    cr_assert_eq(bth_value_id(berth_make_float(tree, 1)), SIZE_MAX);
    cr_assert_eq(bth_value_id(berth_make_tuple(tree, NULL, 0)), SIZE_MAX);
    cr_assert_eq(bth_value_id(berth_make_list(tree)), 0);
    cr_assert_eq(bth_value_id(berth_make_str(tree, "a", 1)), 1);
    cr_assert_eq(bth_value_id(berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_INT8)), 2);
    cr_assert_eq(bth_value_id(berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_INT8)), 2);
    cr_assert_eq(bth_tree_n_ids(tree), 3);
}

/* P3: freed by blocks, so that depth costs no stack. */
Test(tree, a_million_levels_deep_is_freed, .timeout = 120)
{
    berth_value *value = berth_make_none(tree);
    for (int i = 0; i < 1000000; i++) {
        berth_value *outer = berth_make_list(tree);
        berth_list_append(outer, value);
        value = outer;
    }
}

/* ---- memory that was given ---- */

static void fill_dict(berth_tree *of, berth_value *dict, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        cr_assert_eq(berth_dict_set_value(dict, berth_make_int(of, i), berth_make_none(of)), 0);
}

Test(tree, values_and_their_tables_lie_in_what_was_given_as_long_as_it_lasts)
{
    enum { GIVEN_NBYTES = 2 << 20, FEW = 10000, LOTS = 50000 };
    _Alignas(8) static char given[GIVEN_NBYTES];
    test_memory_watch();
    berth_tree *watched = berth_tree_new(NULL);
    bth_tree_set_spare_memory(watched, given, sizeof given);
    berth_value *dict = berth_make_dict(watched, BERTH_KIND_DICT);
    fill_dict(watched, dict, 0, FEW);
    cr_expect_eq(test_memory_seen().n_allocations, 1, "the watched itself");
    cr_expect((char *)dict >= given && (char *)dict < given + sizeof given);
    fill_dict(watched, dict, FEW, LOTS);
    cr_expect_gt(test_memory_seen().n_allocations, 1);
    for (int64_t i = 0; i < LOTS; i++)
        cr_assert_eq(bth_dict_find_int_position(dict, i), (size_t)i);
    cr_expect_eq(berth_tree_error(watched, NULL), 0);
    berth_tree_free(watched);
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

Test(tree, what_is_too_little_for_a_block_is_not_used)
{
    _Alignas(8) static char given[20];
    bth_tree_set_spare_memory(tree, given, sizeof given);
    char text[2000];
    memset(text, 'a', sizeof text);
    cr_expect(berth_make_str(tree, text, sizeof text));
    cr_expect(berth_make_list(tree));
    for (size_t i = 0; i < sizeof given; i++)
        cr_expect_eq(given[i], 0);
}

/* W6: every allocation of a building of all kinds is refused in turn. */
static berth_value *build(berth_tree *of)
{
    static const float data[600];
    const int64_t shape[1] = {600};
    berth_value *dict = berth_make_dict(of, BERTH_KIND_ORDERED_DICT), *list = berth_make_list(of);
    char text[2000] = "";
    memset(text, 'x', sizeof(text) - 1);
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        berth_value *items[2] = {berth_make_str(of, text, (size_t)i * 5), berth_make_int(of, i)};
        berth_dict_set_value(dict, berth_make_tuple(of, items, 2), list);
        bth_tree_find_or_add_storage(of, name, strlen(name), BERTH_UINT8, 1, "cpu", 3);
        berth_list_append(list, test_tensor(of, BERTH_FLOAT32, data, 1, shape));
    }
    berth_value_set_state(dict, bth_set_from_list(of, berth_make_list(of)));
    return dict;
}

Test(tree, every_refused_allocation_is_a_clean_failure, .timeout = 60)
{
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        struct test_refusals each = {.for_ever = for_ever};
        while (test_refuse_next(&each)) {
            berth_error error;
            berth_tree *watched = berth_tree_new(&error);
            if (watched) {
                build(watched);
                berth_tree_error(watched, &error);
            }
            cr_assert_eq(error.code, test_memory_refused() ? BERTH_E_MEMORY : 0, "%s",
                         error.message);
            berth_tree_free(watched);
        }
        cr_assert_gt(each.nth, 50, "only %zu points of failure", (size_t)each.nth);
    }
}

/* Slots that could not grow must not be filled to the last one: looking for a key would never end.
 */
Test(tree, a_dict_that_could_not_grow_can_still_be_asked, .timeout = 120)
{
    for (uint64_t nth = 1; nth <= 4; nth++) {
        test_memory_watch();
        berth_tree *watched = berth_tree_new(NULL);
        berth_value *dict = berth_make_dict(watched, BERTH_KIND_DICT), *items[2000];
        for (int i = 0; i < 2000; i++)
            items[i] = berth_make_int(watched, i);
        cr_assert_eq(bth_dict_extend(dict, items, 10), 0);
        test_memory_refuse(nth, false);
        bth_dict_extend(dict, items, 1000);
        for (int i = 0; i < 1000; i++)
            berth_dict_set_value(dict, items[i], items[i]);
        cr_assert_eq(bth_dict_find_int_position(dict, -1), SIZE_MAX);
        berth_tree_free(watched);
        test_memory_unwatch();
    }
}

/* ---- storages ---- */

static berth_storage *meet(const char *key, berth_dtype dtype, uint64_t nbytes)
{
    return bth_tree_find_or_add_storage(tree, key, strlen(key), dtype, nbytes, "cuda:0", 6);
}

Test(tree, storages_are_met_by_key_in_order)
{
    char key[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "%d", i * 7);
        berth_storage *storage = meet(key, BERTH_FLOAT32, 4);
        cr_assert_eq(storage->index, (size_t)i);
        cr_assert_eq(meet(key, BERTH_FLOAT32, 4), storage);
        cr_assert_eq(bth_tree_storage(tree, (size_t)i), storage);
        cr_assert_eq(bth_tree_find_storage(tree, key, strlen(key)), storage);
        cr_assert_str_eq(berth_storage_get_info(storage)->key, key);
        cr_assert_str_eq(berth_storage_get_info(storage)->location, "cuda:0");
        cr_assert_eq(berth_storage_get_info(storage)->nbytes, 4);
        cr_assert_eq(berth_storage_get_info(storage)->dtype, BERTH_FLOAT32);
    }
    cr_assert_eq(bth_tree_n_storages(tree), 1000);
    cr_assert_null(bth_tree_storage(tree, 1000));
    cr_assert_null(bth_tree_find_storage(tree, "x", 1));
    static const char long_key[1025] = {'7'};
    cr_assert_null(bth_tree_find_storage(tree, long_key, sizeof(long_key)));
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
}

/* Keys that are positions need no table; the first other one makes it of all. */
Test(tree, keys_that_are_positions_and_others_are_told_apart)
{
    static const char *const keys[] = {"0", "1", "2",          "02",         "3", "5",
                                       "x", "7", "4294967295", "4294967296", "-1"};
    static const char *const never[] = {"00", "01", "4", "6", "8", "10", "18446744073709551616",
                                        ""};
    enum { N = sizeof keys / sizeof *keys };
    berth_storage *storages[N];
    for (size_t i = 0; i < N; i++) {
        storages[i] = meet(keys[i], BERTH_FLOAT32, 4);
        for (size_t j = 0; j < N; j++)
            cr_expect_eq(bth_tree_find_storage(tree, keys[j], strlen(keys[j])),
                         j <= i ? storages[j] : NULL, "%s after %s", keys[j], keys[i]);
        for (size_t j = 0; j < sizeof never / sizeof *never; j++)
            cr_expect_null(bth_tree_find_storage(tree, never[j], strlen(never[j])), "%s", never[j]);
    }
    for (size_t i = 0; i < N; i++)
        cr_expect_eq(meet(keys[i], BERTH_FLOAT32, 4), storages[i], "%s", keys[i]);
    cr_expect_eq(bth_tree_n_storages(tree), N);
}

/* It has no key, and is at no position. */
Test(tree, a_storage_that_the_caller_made_is_not_met)
{
    berth_storage_new(tree, BERTH_UINT8, "a", 1, NULL);
    cr_expect_null(bth_tree_find_storage(tree, "0", 1));
    berth_storage *first = meet("0", BERTH_FLOAT32, 4);
    cr_expect_eq(first->index, 1);
    cr_expect_eq(bth_tree_find_storage(tree, "0", 1), first);
    cr_expect_null(bth_tree_find_storage(tree, "1", 1));
}

/* More positions than the first table holds. */
Test(tree, keys_after_many_positions)
{
    char key[16];
    for (int i = 0; i < 100; i++) {
        (void)snprintf(key, sizeof key, "%d", i);
        cr_assert_not_null(meet(key, BERTH_UINT8, 1));
    }
    const berth_storage *named = meet("a", BERTH_UINT8, 1);
    cr_expect_eq(bth_tree_find_storage(tree, "a", 1), named);
    cr_expect_eq(bth_tree_find_storage(tree, "99", 2), bth_tree_storage(tree, 99));
    cr_expect_null(bth_tree_find_storage(tree, "100", 3));
    cr_expect_null(bth_tree_find_storage(tree, "b", 1));
}

struct conflict {
    berth_dtype first, second;
    uint64_t first_nbytes, second_nbytes;
    const char *message; /* NULL: no conflict */
};

/* T3 */
Test(tree, a_storage_keeps_one_size_and_one_class)
{
    static const struct conflict rows[] = {
        {BERTH_FLOAT32, BERTH_FLOAT32, 8, 12, "storage k has 12 bytes here and 8 bytes before"},
        {BERTH_FLOAT32, BERTH_INT32, 8, 8, "storage k is of int32 here and of float32 before"},
        {BERTH_FLOAT32, BERTH_DTYPE_NONE, 8, 8,
         "storage k is of untyped here and of float32 before"},
        {BERTH_FLOAT32, BERTH_UINT8, 8, 8, "storage k is of uint8 here and of float32 before"},
        {BERTH_INT8, BERTH_DTYPE_NONE, 8, 8, "storage k is of untyped here and of int8 before"},
        {BERTH_DTYPE_NONE, BERTH_INT8, 8, 8, "storage k is of int8 here and of untyped before"},
        {BERTH_UINT8, BERTH_BOOL, 8, 8, "storage k is of bool here and of uint8 before"},
        {BERTH_UINT8, BERTH_DTYPE_NONE, 8, 8, NULL},
        {BERTH_DTYPE_NONE, BERTH_UINT8, 8, 8, NULL},
        {BERTH_FLOAT32, BERTH_INT64, 0, 0, NULL},
        {BERTH_FLOAT32, BERTH_INT64, 0, 8, "storage k has 8 bytes here and 0 bytes before"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const berth_storage *first = meet("k", rows[i].first, rows[i].first_nbytes);
        const berth_storage *second = meet("k", rows[i].second, rows[i].second_nbytes);
        if (rows[i].message)
            expect_tree_failure(second, BERTH_E_TENSOR, rows[i].message);
        else
            cr_expect_eq(second, first);
        end_tree();
        begin_tree();
    }
}

Test(tree, storage_keys_and_locations_are_bounded)
{
    static char text[2000];
    memset(text, 'k', sizeof(text));
    static const struct {
        const char *key;
        size_t key_nbytes;
        const char *location;
        size_t location_nbytes;
        const char *message; /* NULL: it is good */
    } rows[] = {
        {text, 1024, text, 255, NULL},
        {"0", 1, "metal", 5, NULL},
        {text, 1025, "cpu", 3, "a storage key of 1025 bytes (1 to 1024, without NUL)"},
        {"a\0b", 3, "cpu", 3, "a storage key of 3 bytes (1 to 1024, without NUL)"},
        {"1", 1, text, 256, "a storage's location of 256 bytes (at most 255, without NUL)"},
        {"1", 1, "c\0pu", 4, "a storage's location of 4 bytes (at most 255, without NUL)"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const berth_storage *made =
            bth_tree_find_or_add_storage(tree, rows[i].key, rows[i].key_nbytes, BERTH_UINT8, 1,
                                         rows[i].location, rows[i].location_nbytes);
        if (rows[i].message)
            expect_tree_failure(made, BERTH_E_UNSUPPORTED, rows[i].message);
        else
            cr_expect(made && berth_tree_error(tree, NULL) == 0);
    }
    expect_tree_failure(berth_storage_new(tree, BERTH_UINT8, text, 1, "meta"), BERTH_E_UNSUPPORTED,
                        "a storage whose location is meta: PyTorch would read none of its bytes");
}

Test(tree, storages_of_the_caller_are_checked)
{
    expect_tree_failure(berth_storage_new(tree, BERTH_FLOAT32, "12345", 5, NULL), BERTH_E_ARGUMENT,
                        "a storage of 5 bytes does not hold a whole number of float32");
    expect_tree_failure(berth_storage_new(tree, BERTH_FLOAT32, NULL, 4, NULL), BERTH_E_ARGUMENT,
                        "a storage of 4 bytes without data");
}
