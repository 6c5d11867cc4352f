/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies of values: the same in all but, if compact, the bytes that no tensor uses. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "tests/support/support.h"

#define N_NUMBERS 1000

static berth_tree *from, *to;
static float numbers[N_NUMBERS];

static void set_up(void)
{
    from = berth_tree_new(NULL);
    to = berth_tree_new(NULL);
    for (int i = 0; i < N_NUMBERS; i++)
        numbers[i] = (float)i;
}

static void tear_down(void)
{
    berth_tree_free(to);
    berth_tree_free(from);
}

TestSuite(copy, .init = set_up, .fini = tear_down);

static berth_value *compact(const berth_value *value)
{
    berth_error error;
    berth_value *made = berth_value_copy(to, value, BERTH_COPY_COMPACT);

    cr_assert_not_null(made, "%s", (berth_tree_error(to, &error), error.message));
    return made;
}

static void expect_error_of(const berth_tree *tree, const char *sentence)
{
    berth_error error;

    FAILS(berth_tree_error(tree, &error), BERTH_E_ARGUMENT, sentence);
}

static berth_value *view(berth_storage *storage, berth_dtype dtype, int64_t offset, int64_t n)
{
    const berth_tensor tensor = {
        .dtype = dtype, .rank = 1, .shape = &n, .storage_offset = offset, .storage = storage};

    return berth_make_tensor(from, &tensor);
}

static berth_storage *all_numbers(void)
{
    return berth_storage_new(from, BERTH_FLOAT32, numbers, sizeof numbers, "cuda:1");
}

static const berth_tensor *tensor_of(const berth_value *value)
{
    const berth_tensor *tensor = berth_as_tensor(value);

    cr_assert_not_null(tensor);
    return tensor;
}

/* ---- what is kept of storages ---- */

Test(copy, a_view_keeps_its_own_bytes)
{
    berth_value *old = view(all_numbers(), BERTH_FLOAT32, 100, 7);
    const berth_tensor *tensor = tensor_of(compact(old));

    cr_expect_eq(tensor->storage->nbytes, 28);
    cr_expect_eq(tensor->storage_offset, 0);
    cr_expect_eq(tensor->storage->data, &numbers[100], "nothing is copied");
    cr_expect_eq(tensor->storage->dtype, BERTH_FLOAT32);
    cr_expect_str_eq(tensor->storage->location, "cuda:1");
    cr_expect_eq(tensor->storage->tree, to);
    cr_expect_eq(tensor_of(old)->storage->nbytes, sizeof numbers, "the old one stays as it is");
    cr_expect_eq(tensor_of(old)->storage_offset, 100);
}

Test(copy, strides_count)
{
    const int64_t shape[] = {3, 2}, stride[] = {1, 10};
    const berth_tensor columns = {.dtype = BERTH_FLOAT32,
                                  .rank = 2,
                                  .shape = shape,
                                  .stride = stride,
                                  .storage_offset = 500,
                                  .storage = all_numbers()};
    const berth_tensor *tensor = tensor_of(compact(berth_make_tensor(from, &columns)));

    cr_expect_eq(tensor->storage->nbytes, 13 * 4, "2 * 1 + 1 * 10, and the last one");
    cr_expect_eq(tensor->storage->data, &numbers[500]);
    cr_expect_eq(tensor->stride[1], 10);
}

Test(copy, what_shared_a_storage_shares_it_still)
{
    berth_storage *storage = all_numbers();
    berth_value *list = berth_make_list(from);

    berth_list_append(list, view(storage, BERTH_FLOAT32, 300, 10));
    berth_list_append(list, view(storage, BERTH_FLOAT32, 100, 10));
    berth_list_append(list, view(all_numbers(), BERTH_FLOAT32, 0, 1));
    const berth_value *made = compact(list);
    const berth_tensor *later = tensor_of(bth_value_item(made, 0));
    const berth_tensor *first = tensor_of(bth_value_item(made, 1));
    const berth_tensor *other = tensor_of(bth_value_item(made, 2));
    cr_expect_eq(later->storage, first->storage);
    cr_expect_neq(other->storage, first->storage);
    cr_expect_eq(first->storage->nbytes, 210 * 4);
    cr_expect_eq(first->storage_offset, 0);
    cr_expect_eq(later->storage_offset, 200);
    cr_expect_eq(other->storage->nbytes, 4);
}

/* The first byte of the range is at a multiple of the widest element, the last is behind one. */
Test(copy, elements_of_any_width_stay_aligned)
{
    berth_storage *bytes = berth_storage_new(from, BERTH_DTYPE_NONE, numbers, 1001, NULL);
    berth_value *list = berth_make_list(from);

    berth_list_append(list, view(bytes, BERTH_UINT8, 21, 3));
    berth_list_append(list, view(bytes, BERTH_COMPLEX128, 4, 1));
    berth_list_append(list, view(bytes, BERTH_INT16, 45, 1));
    const berth_value *made = compact(list);
    const berth_tensor *narrow = tensor_of(bth_value_item(made, 0));
    const berth_tensor *wide = tensor_of(bth_value_item(made, 1));
    const berth_tensor *last = tensor_of(bth_value_item(made, 2));
    cr_expect_eq(narrow->storage->data, (uint8_t *)numbers + 16);
    cr_expect_eq(narrow->storage->nbytes, 96 - 16);
    cr_expect_eq(narrow->storage_offset, 5);
    cr_expect_eq(wide->storage_offset, 3);
    cr_expect_eq(last->storage_offset, 45 - 8);
}

Test(copy, the_last_unit_ends_with_the_storage)
{
    berth_storage *bytes = berth_storage_new(from, BERTH_DTYPE_NONE, numbers, 1001, NULL);
    berth_value *list = berth_make_list(from);

    berth_list_append(list, view(bytes, BERTH_FLOAT64, 124, 1));
    berth_list_append(list, view(bytes, BERTH_UINT8, 1000, 1));
    const berth_tensor *tensor = tensor_of(bth_value_item(compact(list), 0));
    cr_expect_eq(tensor->storage->nbytes, 9);
    cr_expect_eq(tensor->storage_offset, 0);
}

/* A storage of a class of wider items holds whole ones of them. */
Test(copy, storages_hold_whole_items_of_their_class)
{
    const berth_tensor *tensor = tensor_of(compact(view(all_numbers(), BERTH_UINT8, 6, 1)));

    cr_expect_eq(tensor->storage->nbytes, 4);
    cr_expect_eq(tensor->storage->data, &numbers[1]);
    cr_expect_eq(tensor->storage_offset, 2);
}

/* Two of quint4x2 and four of quint2x4 lie in a byte: what begins within one, stays there. */
Test(copy, elements_within_a_byte_stay_where_they_are_in_it)
{
    berth_storage *fours = berth_storage_new(from, BERTH_QUINT4X2, numbers, 100, NULL);
    berth_storage *twos = berth_storage_new(from, BERTH_QUINT2X4, numbers, 100, NULL);
    const berth_tensor *four = tensor_of(compact(view(fours, BERTH_QUINT4X2, 21, 4)));
    const berth_tensor *two = tensor_of(compact(view(twos, BERTH_QUINT2X4, 43, 2)));

    cr_expect_eq(four->storage->data, (uint8_t *)numbers + 10);
    cr_expect_eq(four->storage->nbytes, 3, "the elements 20 to 25");
    cr_expect_eq(four->storage_offset, 1);
    cr_expect_eq(two->storage->data, (uint8_t *)numbers + 10);
    cr_expect_eq(two->storage->nbytes, 2, "the elements 40 to 47");
    cr_expect_eq(two->storage_offset, 3);
}

Test(copy, of_no_element_no_byte_is_kept)
{
    const berth_tensor *tensor = tensor_of(compact(view(all_numbers(), BERTH_FLOAT32, 900, 0)));

    cr_expect_eq(tensor->storage->nbytes, 0);
    cr_expect_eq(tensor->storage_offset, 0);
}

Test(copy, a_storage_that_is_a_value_stays_whole)
{
    berth_storage *storage = all_numbers();
    berth_value *list = berth_make_list(from);

    berth_list_append(list, view(storage, BERTH_FLOAT32, 900, 2));
    berth_list_append(list, berth_make_storage(from, storage));
    berth_list_append(list, view(storage, BERTH_FLOAT32, 900, 0));
    const berth_value *made = compact(list);
    const berth_tensor *tensor = tensor_of(bth_value_item(made, 0));
    cr_expect_eq(berth_as_storage(bth_value_item(made, 1)), tensor->storage);
    cr_expect_eq(tensor->storage->nbytes, sizeof numbers);
    cr_expect_eq(tensor->storage_offset, 900);
    cr_expect_eq(tensor_of(bth_value_item(made, 2))->storage_offset, 900, "nothing was left out");
}

/* Streams from before 1.6: views of one storage are saved on it, so they share in it here, too. */
Test(copy, views_of_a_storage_share_what_they_use_of_it)
{
    berth_storage *root = all_numbers();
    berth_storage *parts[2];
    berth_value *list = berth_make_list(from);

    for (size_t i = 0; i < 2; i++) {
        parts[i] = berth_storage_new(from, BERTH_FLOAT32, numbers, 400, NULL);
        parts[i]->data = NULL;
        parts[i]->root = root;
        parts[i]->root_offset = 800 + i * 200;
        berth_list_append(list, view(parts[i], BERTH_FLOAT32, 10, 20));
    }
    /* Of another class than the whole's: on a storage of its own, as it would be saved. */
    berth_storage *bytes = berth_storage_new(from, BERTH_INT16, numbers, 100, NULL);
    bytes->data = NULL;
    bytes->root = root;
    bytes->root_offset = 2;
    berth_list_append(list, view(bytes, BERTH_INT16, 3, 2));
    const berth_value *made = compact(list);
    const berth_tensor *first = tensor_of(bth_value_item(made, 0));
    const berth_tensor *second = tensor_of(bth_value_item(made, 1));
    const berth_tensor *third = tensor_of(bth_value_item(made, 2));
    cr_expect_eq(first->storage, second->storage);
    cr_expect_eq(first->storage->data, &numbers[210]);
    cr_expect_eq(first->storage->nbytes, 70 * 4);
    cr_expect_eq(second->storage_offset, 50);
    cr_expect_eq(third->storage->data, (uint8_t *)numbers + 2 + 6);
    cr_expect_eq(third->storage->nbytes, 4);
}

static int read_numbers(const berth_storage *storage, void *buffer, size_t nbytes, uint64_t offset,
                        berth_error *error)
{
    (void)error;
    cr_assert_eq(storage->context, numbers, "the old storage is asked");
    cr_assert_leq(offset + nbytes, storage->nbytes);
    memcpy(buffer, (const uint8_t *)numbers + offset, nbytes);
    return 0;
}

Test(copy, bytes_that_are_not_in_memory_are_read_from_the_old_storage)
{
    berth_storage *storage = all_numbers();
    float read[3] = {0};
    berth_error error;

    storage->data = NULL;
    storage->read = read_numbers;
    storage->context = numbers;
    const berth_tensor *tensor = tensor_of(compact(view(storage, BERTH_FLOAT32, 990, 10)));
    cr_assert_null(tensor->storage->data);
    cr_assert_eq(tensor->storage->nbytes, 40);
    cr_assert_eq(tensor->storage->read(tensor->storage, read, 12, 8, &error), 0);
    cr_expect_eq(read[0], 992);
    cr_expect_eq(read[2], 994);
}

/* ---- what is kept of values: all ---- */

static berth_value *text(const char *string)
{
    return berth_make_str(from, string, strlen(string));
}

static berth_value *whole(berth_dtype dtype, int64_t n)
{
    const berth_tensor tensor = {.dtype = dtype, .rank = 1, .shape = &n, .data = numbers};

    return berth_make_tensor(from, &tensor);
}

static void put(berth_value *dict, const char *key, berth_value *value)
{
    cr_assert_eq(berth_dict_set(dict, key, value), 0, "%s", key);
}

static void put_scalars(berth_value *dict)
{
    static const uint8_t big[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    berth_value *key[2] = {berth_make_complex(from, 1, -0.0), text("key")};

    put(dict, "none", berth_make_none(from));
    put(dict, "true", berth_make_bool(from, true));
    put(dict, "int", berth_make_int(from, -5));
    put(dict, "big", berth_make_bytes(from, BERTH_KIND_INT, big, sizeof big));
    put(dict, "float", berth_make_float(from, 0.1));
    put(dict, "str", text("tied"));
    put(dict, "str again", berth_dict_get(dict, "str"));
    put(dict, "bytes", berth_make_bytes(from, BERTH_KIND_BYTES, "\xff\0", 2));
    put(dict, "ascii", bth_bytes_from_latin1(from, text("ascii")));
    put(dict, "bytearray", berth_make_bytes(from, BERTH_KIND_BYTEARRAY, "abc", 3));
    put(dict, "empty", berth_make_tuple(from, NULL, 0));
    put(dict, "size", berth_make_size(from, (int64_t[]){2, 3}, 2));
    put(dict, "device", berth_make_device(from, "cuda", 1));
    put(dict, "dtype", berth_make_constant(from, BERTH_KIND_DTYPE, BERTH_BFLOAT16));
    put(dict, "qscheme", berth_make_constant(from, BERTH_KIND_QSCHEME, BERTH_PER_TENSOR_AFFINE));
    put(dict, "layout", berth_make_constant(from, BERTH_KIND_LAYOUT, BERTH_SPARSE_CSR));
    berth_dict_set_value(dict, berth_make_tuple(from, key, 2), text("by a tuple"));
}

static void put_containers(berth_value *dict)
{
    berth_value *set = berth_make_set(from), *counter = berth_make_dict(from, BERTH_KIND_COUNTER);
    berth_value *ordered = berth_make_dict(from, BERTH_KIND_ORDERED_DICT),
                *metadata = berth_make_dict(from, BERTH_KIND_DICT);

    berth_set_add(set, berth_make_int(from, 3));
    berth_dict_set(counter, "n", berth_make_int(from, 2));
    put(metadata, "version", berth_make_int(from, 1));
    berth_value_set_state(ordered, metadata);
    put(ordered, "metadata again", metadata);
    put(dict, "set", set);
    put(dict, "counter", counter);
    put(dict, "ordered", ordered);
    put(dict, "list", berth_make_list(from));
}

static void put_inert(berth_value *dict)
{
    berth_value *callable = bth_global_new(from, "my", 2, "Thing", 5, true);
    berth_value *arguments[] = {whole(BERTH_INT8, 4), dict};
    berth_value *call = bth_call_new(from, callable, berth_make_tuple(from, arguments, 2), true);
    berth_value *pair[] = {text("key"), call};

    bth_call_extend(call, arguments, 1, false);
    bth_call_extend(call, pair, 1, true);
    berth_value_set_state(call, call);
    put(dict, "global", bth_global_new(from, "torch", 5, "float32", 7, false));
    put(dict, "inert", call);
    cr_expect_null(berth_value_part(call, BERTH_PART_TYPE));
}

static berth_value *quantized(void)
{
    const int64_t shape[] = {4, 2};
    berth_tensor tensor = {.dtype = BERTH_QINT8,
                           .rank = 2,
                           .shape = shape,
                           .data = numbers,
                           .qscheme = BERTH_PER_CHANNEL_AFFINE,
                           .scales = whole(BERTH_FLOAT64, 2),
                           .zero_points = whole(BERTH_INT64, 2),
                           .axis = 1};

    return berth_make_tensor(from, &tensor);
}

static void put_tensors(berth_value *dict)
{
    const int64_t two[] = {1, 3}, n = 3;
    const berth_tensor indices = {.dtype = BERTH_INT64, .rank = 2, .shape = two, .data = numbers};
    const berth_tensor meta = {.dtype = BERTH_FLOAT16, .rank = 1, .shape = &n, .flags = BERTH_META};
    berth_value *parts[] = {berth_make_tensor(from, &indices), whole(BERTH_FLOAT32, 3)};
    const int64_t sizes[] = {1, 1};
    const berth_tensor table = {.dtype = BERTH_INT64, .rank = 2, .shape = sizes, .data = numbers};
    berth_value *nested[] = {whole(BERTH_FLOAT32, 1), berth_make_tensor(from, &table),
                             berth_make_tensor(from, &table), whole(BERTH_INT64, 1)};
    berth_value *state = berth_make_dict(from, BERTH_KIND_DICT);

    put(state, "tag", parts[1]);
    put(dict, "meta", berth_make_tensor(from, &meta));
    put(dict, "quantized", quantized());
    put(dict, "sparse", berth_make_sparse(from, BERTH_SPARSE_COO, (int64_t[]){9}, 1, parts, true));
    put(dict, "nested", berth_make_nested(from, nested));
    put(dict, "parameter", berth_make_parameter(from, whole(BERTH_FLOAT32, 5), true));
    put(dict, "quantized parameter", berth_make_parameter(from, quantized(), false));
    put(dict, "subclass", berth_make_subclass(from, whole(BERTH_FLOAT32, 6), state));
    put(dict, "storage", berth_make_storage(from, all_numbers()));
}

static void check_same_pickle(const berth_value *a, const berth_value *b)
{
    bth_pickled one, other;
    berth_error error;

    bth_error_clear(&error);
    assert_ok(bth_pickle_write(a, false, &one, &error));
    assert_ok(bth_pickle_write(b, false, &other, &error));
    cr_assert_eq(one.nbytes, other.nbytes);
    cr_assert_arr_eq(one.bytes, other.bytes, one.nbytes);
    cr_assert_eq(one.n_storages, other.n_storages);
    for (size_t i = 0; i < one.n_storages; i++)
        cr_expect_eq(one.storages[i]->data, other.storages[i]->data, "storage %zu", i);
    bth_pickled_free(&one);
    bth_pickled_free(&other);
}

/* With nothing to leave out, the same pickle: of every kind, with all that is shared. */
Test(copy, every_kind_of_value_is_the_same)
{
    berth_value *dict = berth_make_dict(from, BERTH_KIND_DICT);

    put_scalars(dict);
    put_containers(dict);
    put_tensors(dict);
    put_inert(dict);
    put(dict, "itself", dict);
    check_same_pickle(dict, compact(dict));
    cr_expect_eq(berth_value_count(compact(dict)), berth_value_count(dict));
}

Test(copy, plain_values_are_values_too)
{
    int64_t integer;

    cr_expect(berth_as_int(compact(berth_make_int(from, 7)), &integer));
    cr_expect_eq(integer, 7);
    cr_expect_eq(berth_value_kind(compact(berth_make_none(from))), BERTH_KIND_NONE);
}

/* Not None in its place. */
Test(copy, what_is_not_there_is_not_there)
{
    berth_value *call = bth_call_new(from, bth_global_new(from, "a", 1, "B", 1, false),
                                     berth_make_tuple(from, NULL, 0), false);
    const berth_value *made = compact(call);

    cr_expect_null(berth_value_part(made, BERTH_PART_LIST_ITEMS));
    cr_expect_null(berth_value_part(made, BERTH_PART_DICT_ITEMS));
    cr_expect_null(berth_value_part(made, BERTH_PART_STATE));
}

Test(copy, attributes_of_a_tensor_may_hold_it)
{
    berth_value *state = berth_make_dict(from, BERTH_KIND_DICT);
    berth_value *tensor = berth_make_subclass(from, whole(BERTH_FLOAT32, 2), state);

    put(state, "self", tensor);
    const berth_value *made = compact(tensor);
    cr_expect_eq(berth_dict_get(berth_value_part(made, BERTH_PART_STATE), "self"), made);
    berth_value *pair[] = {tensor, tensor};
    berth_value_set_state(tensor, berth_make_tuple(from, pair, 2));
    made = compact(tensor);
    cr_expect_eq(bth_value_item(berth_value_part(made, BERTH_PART_STATE), 1), made);
}

/* P3: no recursion. */
Test(copy, depth_costs_no_stack)
{
    berth_value *value = whole(BERTH_FLOAT32, 1);

    for (int i = 0; i < 300000; i++) {
        berth_value *list = berth_make_list(from);
        berth_list_append(list, value);
        value = berth_make_tuple(from, &list, 1);
    }
    value = compact(value);
    for (int i = 0; i < 300000; i++)
        value = bth_value_item(bth_value_item(value, 0), 0);
    cr_expect_eq(berth_value_kind(value), BERTH_KIND_TENSOR);
}

/* P3: 2^100 paths, 100 nodes. */
Test(copy, what_is_shared_is_made_once)
{
    berth_value *value = berth_make_list(from), *pair[2];

    for (int i = 0; i < 100; i++) {
        pair[0] = pair[1] = value;
        value = berth_make_tuple(from, pair, 2);
    }
    size_t before = bth_tree_n_ids(to);
    const berth_value *made = compact(value);
    cr_expect_eq(bth_tree_n_ids(to) - before, 101);
    cr_expect_eq(bth_value_item(made, 0), bth_value_item(made, 1));
}

Test(copy, without_the_flag_storages_are_whole_and_shared)
{
    berth_storage *storage = all_numbers();
    berth_value *list = berth_make_list(from);

    berth_list_append(list, view(storage, BERTH_FLOAT32, 300, 10));
    berth_list_append(list, view(storage, BERTH_FLOAT32, 100, 10));
    berth_list_append(list, view(storage, BERTH_FLOAT32, 100, 0));
    const berth_value *made = berth_value_copy(to, list, 0);
    for (size_t i = 0; i < 3; i++) {
        const berth_tensor *tensor = tensor_of(bth_value_item(made, i));
        cr_expect_eq(tensor->storage, bth_tree_storage(to, 0));
        cr_expect_eq(tensor->storage_offset, i == 0 ? 300 : 100);
    }
    cr_expect_eq(bth_tree_storage(to, 0)->data, numbers, "nothing is copied");
    cr_expect_eq(bth_tree_storage(to, 0)->nbytes, sizeof numbers);
    cr_expect_eq(bth_tree_n_storages(to), 1);
    cr_expect_null(berth_value_copy(to, list, 2));
    expect_error_of(to, "unknown flags 0x2 of a copy");
}

Test(copy, the_tree_may_be_the_values_own)
{
    berth_value *list = berth_make_list(from);

    for (int i = 0; i < 20; i++)
        berth_list_append(list, view(all_numbers(), BERTH_FLOAT32, 10 * i, 3));
    const berth_value *made = berth_value_copy(from, list, BERTH_COPY_COMPACT);
    cr_assert_not_null(made);
    cr_expect_eq(bth_tree_n_storages(from), 40);
    for (size_t i = 0; i < 20; i++) {
        const berth_tensor *tensor = tensor_of(bth_value_item(made, i));
        cr_expect_eq(tensor->storage->data, &numbers[10 * i]);
        cr_expect_eq(tensor->storage->nbytes, 12);
    }
    const berth_value *again = berth_value_copy(from, made, BERTH_COPY_COMPACT);
    cr_expect_eq(tensor_of(bth_value_item(again, 19))->storage->data, &numbers[190]);
}

/* ---- failures ---- */

Test(copy, of_nothing_or_of_a_failed_tree_fails)
{
    cr_expect_null(berth_value_copy(NULL, berth_make_none(from), BERTH_COPY_COMPACT));
    cr_expect_null(berth_value_copy(to, NULL, BERTH_COPY_COMPACT));
    expect_error_of(to, "the value is NULL");
    berth_tree_free(to);
    to = berth_tree_new(NULL);
    berth_value *list = berth_make_list(from);
    cr_expect_lt(berth_list_append(list, NULL), 0);
    cr_expect_null(berth_value_copy(to, list, BERTH_COPY_COMPACT));
    expect_error_of(to, "[0]: an item of a list is NULL");
}

/* W6: whichever allocation fails, it is told, and nothing is kept. */
Test(copy, without_memory_is_told)
{
    berth_value *value;
    berth_error error;
    int code = BERTH_E_MEMORY;

    tear_down();
    test_memory_watch();
    from = berth_tree_new(NULL);
    value = berth_make_dict(from, BERTH_KIND_DICT);
    put_tensors(value);
    put_containers(value);
    put_inert(value);
    for (uint64_t nth = 1; code == BERTH_E_MEMORY; nth++) {
        uint64_t before = test_memory_seen().live_nbytes;
        cr_assert_lt(nth, 1000);
        to = berth_tree_new(NULL);
        test_memory_refuse(nth, false);
        const berth_value *made = berth_value_copy(to, value, BERTH_COPY_COMPACT);
        code = berth_tree_error(to, &error);
        cr_assert_eq(made != NULL, code == 0);
        berth_tree_free(to);
        cr_assert_eq(test_memory_seen().live_nbytes, before, "allocation %d", (int)nth);
    }
    cr_expect_eq(code, 0);
    berth_tree_free(from);
    test_memory_unwatch();
    to = from = NULL;
}

/* What was begun when memory ended is not made twice: there is room for each node once. */
Test(copy, after_the_first_failure_nothing_is_made)
{
    static char long_text[4096]; /* of a block of its own */
    berth_error error;
    int code = BERTH_E_MEMORY;

    tear_down();
    test_memory_watch();
    from = berth_tree_new(NULL);
    memset(long_text, 'a', sizeof long_text);
    berth_value *dict = berth_make_dict(from, BERTH_KIND_DICT),
                *key = berth_make_str(from, long_text, sizeof long_text);
    berth_value *inner = berth_make_tuple(from, &key, 1),
                *outer = berth_make_tuple(from, &inner, 1);
    cr_assert_eq(berth_dict_set_value(dict, outer, inner), 0);
    for (uint64_t nth = 1; code == BERTH_E_MEMORY; nth++) {
        cr_assert_lt(nth, 1000);
        to = berth_tree_new(NULL);
        test_memory_refuse(nth, false);
        const berth_value *made = berth_value_copy(to, dict, BERTH_COPY_COMPACT);
        code = berth_tree_error(to, &error);
        cr_assert_eq(made != NULL, code == 0);
        cr_assert_leq(bth_tree_n_ids(to), bth_tree_n_ids(from), "allocation %d", (int)nth);
        berth_tree_free(to);
    }
    cr_expect_eq(code, 0);
    berth_tree_free(from);
    test_memory_unwatch();
    to = from = NULL;
}
