/* SPDX-License-Identifier: BSD-3-Clause */
/* T1, T2 and T4: bounds of tensors, and of those that are made of several. */
#include "format/values/value.h"

#include "base/error.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

#include <criterion/criterion.h>
#include <string.h>

static berth_error error;
static const uint8_t data[4096];

TestSuite(tensor, .init = begin_tree, .fini = end_tree);

static void expect_bad(const berth_tensor *tensor, const char *message)
{
    bth_error_clear(&error);
    cr_assert_eq(bth_tensor_check(tensor, &error), BERTH_E_TENSOR, "%s", message);
    cr_assert_str_eq(error.message, message);
}

static void expect_good(const berth_tensor *tensor)
{
    bth_error_clear(&error);
    assert_ok(bth_tensor_check(tensor, &error));
}

static berth_storage *storage(berth_dtype dtype, uint64_t nbytes)
{
    return berth_storage_new(tree, dtype, data, nbytes, NULL);
}

Test(tensor, that_fits_its_storage_exactly_is_good)
{
    int64_t shape[2] = {2, 3}, stride[2] = {3, 1};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                           .rank = 2,
                           .shape = shape,
                           .stride = stride,
                           .storage = storage(BERTH_FLOAT32, 24)};
    expect_good(&tensor);
    tensor.storage_offset = 1;
    expect_bad(&tensor, "a tensor of float32, shape [2, 3], stride [3, 1] and storage offset 1 "
                        "ends at byte 28 of storage of its own, which has 24");
    stride[0] = 0; /* expanded */
    expect_good(&tensor);
    tensor.storage_offset = 3;
    expect_good(&tensor);
    tensor.storage_offset = 4;
    expect_bad(&tensor, "a tensor of float32, shape [2, 3], stride [0, 1] and storage offset 4 "
                        "ends at byte 28 of storage of its own, which has 24");
    shape[0] = 0; /* T2: unless some size is 0 */
    tensor.storage_offset = 1000;
    expect_good(&tensor);
}

Test(tensor, names_the_storage_of_a_file)
{
    berth_tensor tensor = {
        .dtype = BERTH_INT64,
        .storage = bth_tree_find_or_add_storage(tree, "17", 2, BERTH_INT64, 0, "cpu", 3)};
    expect_bad(&tensor, "a tensor of int64, shape [], stride [] and storage offset 0 ends at byte "
                        "8 of storage 17, which has 0");
}

Test(tensor, with_negative_numbers_is_refused)
{
    int64_t shape[2] = {2, 3}, stride[2] = {3, 1};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                           .rank = 2,
                           .shape = shape,
                           .stride = stride,
                           .storage = storage(BERTH_FLOAT32, 24)};
    shape[1] = -3;
    expect_bad(&tensor, "a tensor with the negative size -3 in dimension 1");
    shape[1] = 3;
    stride[0] = -1;
    expect_bad(&tensor, "a tensor with the negative stride -1 in dimension 0");
    stride[0] = 3;
    tensor.storage_offset = INT64_MIN;
    expect_bad(&tensor, "a tensor with the negative storage offset -9223372036854775808");
    tensor.storage_offset = 0;
    tensor.rank = 65;
    expect_bad(&tensor, "a tensor of rank 65 (0 to 64)");
    tensor.rank = -1;
    expect_bad(&tensor, "a tensor of rank -1 (0 to 64)");
    tensor.rank = 2;
    tensor.dtype = BERTH_DTYPE_NONE;
    expect_bad(&tensor, "a tensor without a dtype");
    tensor.dtype = BERTH_FLOAT32;
    tensor.storage = NULL;
    expect_bad(&tensor, "a tensor without a storage");
    tensor.shape = NULL;
    expect_bad(&tensor, "a tensor without a shape or stride");
}

/* T1: the product that wraps to 4 bytes, and its kin. */
Test(tensor, sizes_that_overflow_are_refused)
{
    static const struct {
        int64_t shape[3], stride[3], offset;
        const char *message;
    } rows[] = {
        {{0x4000000000000001, 1, 1},
         {1, 1, 1},
         0,
         "a tensor of shape [4611686018427387905, 1, 1], stride [1, 1, 1] and storage offset 0 "
         "does not fit 64 bits"},
        {{INT64_MAX, INT64_MAX, 4},
         {0, 0, 0},
         0,
         "a tensor of shape [9223372036854775807, 9223372036854775807, 4], stride [0, 0, 0] and "
         "storage offset 0 does not fit 64 bits"},
        {{0x3fffffffffffffff, 1, 1}, /* 2^64 - 4 bytes, expanded from one element */
         {0, 0, 0},
         0,
         "a tensor of shape [4611686018427387903, 1, 1], stride [0, 0, 0] and storage offset 0 "
         "does not fit 64 bits"},
        {{3, 1, 1},
         {INT64_MAX, 0, 0},
         INT64_MAX,
         "a tensor of shape [3, 1, 1], stride [9223372036854775807, 0, 0] and storage offset "
         "9223372036854775807 does not fit 64 bits"},
        {{5, 1, 1},
         {INT64_MAX, 0, 0},
         0,
         "a tensor of shape [5, 1, 1], stride [9223372036854775807, 0, 0] and storage offset 0 "
         "does not fit 64 bits"},
        {{3, 3, 1},
         {INT64_MAX, INT64_MAX, 0},
         0,
         "a tensor of shape [3, 3, 1], stride [9223372036854775807, 9223372036854775807, 0] and "
         "storage offset 0 does not fit 64 bits"},
        {{1, 1, 1},
         {1, 1, 1},
         0x4000000000000000,
         "a tensor of shape [1, 1, 1], stride [1, 1, 1] and storage offset 4611686018427387904 "
         "does not fit 64 bits"},
        /* Each of these would wrap to one element, or to none. */
        {{0x4000000000000001, 1, 1},
         {0, 0, 0},
         0,
         "a tensor of shape [4611686018427387905, 1, 1], stride [0, 0, 0] and storage offset 0 "
         "does not fit 64 bits"},
        {{0x100000001, 1, 1},
         {0x100000000, 0, 0},
         0,
         "a tensor of shape [4294967297, 1, 1], stride [4294967296, 0, 0] and storage offset 0 "
         "does not fit 64 bits"},
        {{3, 3, 1},
         {0x4000000000000000, 0x4000000000000000, 0},
         0,
         "a tensor of shape [3, 3, 1], stride [4611686018427387904, 4611686018427387904, 0] and "
         "storage offset 0 does not fit 64 bits"},
        {{3, 1, 1},
         {INT64_MAX, 0, 0},
         1,
         "a tensor of shape [3, 1, 1], stride [9223372036854775807, 0, 0] and storage offset 1 "
         "does not fit 64 bits"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                               .rank = 3,
                               .shape = rows[i].shape,
                               .stride = rows[i].stride,
                               .storage_offset = rows[i].offset,
                               .storage = storage(BERTH_FLOAT32, 4)};
        expect_bad(&tensor, rows[i].message);
    }
}

Test(tensor, long_shapes_are_cut_in_messages)
{
    static const int64_t shape[6] = {INT64_MAX, INT64_MAX, INT64_MAX,
                                     INT64_MAX, INT64_MAX, INT64_MAX};
    static const int64_t stride[6] = {0};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                           .rank = 6,
                           .shape = shape,
                           .stride = stride,
                           .storage = storage(BERTH_FLOAT32, 4)};
    expect_bad(&tensor, "a tensor of shape [9223372036854775807, 9223372036854775807, "
                        "9223372036854775807, 9223372036854775807, 9223372036854775807, …], stride "
                        "[0, 0, 0, 0, 0, 0] and storage offset 0 does not fit 64 bits");
}

Test(tensor, numel_of_an_empty_shape_never_overflows)
{
    static const int64_t shapes[2][3] = {{INT64_MAX, 0, INT64_MAX}, {INT64_MAX, INT64_MAX, 0}};
    int64_t numel = -1;
    for (int i = 0; i < 2; i++) {
        cr_assert(bth_shape_numel(shapes[i], 3, &numel));
        cr_assert_eq(numel, 0);
    }
    cr_assert(bth_shape_numel(NULL, 0, &numel));
    cr_assert_eq(numel, 1);
}

Test(tensor, elements_beyond_64_bits_are_counted_as_none)
{
    static const int64_t shape[2] = {INT64_MAX, 2}, stride[2] = {0, 0};
    const berth_tensor tensor = {.dtype = BERTH_INT8, .rank = 2, .shape = shape, .stride = stride};
    cr_assert_eq(berth_tensor_nbytes(&tensor), 0);
}

/* T2: in bits for the sub-byte kinds. */
Test(tensor, sub_byte_kinds_are_bounded_by_elements)
{
    int64_t shape[1] = {7}, stride[1] = {1};
    berth_tensor tensor = {.dtype = BERTH_QUINT4X2,
                           .rank = 1,
                           .shape = shape,
                           .stride = stride,
                           .qscheme = BERTH_PER_TENSOR_AFFINE,
                           .storage = storage(BERTH_QUINT4X2, 4)};
    expect_good(&tensor);
    cr_assert_eq(berth_tensor_nbytes(&tensor), 4);
    tensor.storage_offset = 1;
    expect_good(&tensor);
    tensor.storage_offset = 2;
    expect_bad(&tensor, "a tensor of quint4x2, shape [7], stride [1] and storage offset 2 ends at "
                        "byte 5 of storage of its own, which has 4");
    tensor.dtype = BERTH_QUINT2X4;
    shape[0] = 16;
    tensor.storage_offset = 0;
    expect_good(&tensor);
    shape[0] = 17;
    expect_bad(&tensor, "a tensor of quint2x4, shape [17], stride [1] and storage offset 0 ends at "
                        "byte 5 of storage of its own, which has 4");
}

Test(tensor, on_the_meta_device_has_no_storage)
{
    static const int64_t shape[1] = {1000000}, stride[1] = {1};
    berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .stride = stride, .flags = BERTH_META};
    expect_good(&tensor);
    const berth_value *value = berth_make_tensor(tree, &tensor);
    cr_assert_null(berth_as_tensor(value)->storage);
    tensor.storage = storage(BERTH_FLOAT32, 4);
    expect_bad(&tensor, "a meta tensor with a storage");
}

static berth_value *numbers(berth_dtype dtype, int64_t n)
{
    return test_vector(tree, dtype, data, n);
}

/* T4 */
Test(tensor, quantized_by_channel_has_one_scale_and_zero_point_each)
{
    static const int64_t shape[2] = {2, 3}, stride[2] = {3, 1};
    berth_tensor tensor = {.dtype = BERTH_QINT8,
                           .rank = 2,
                           .shape = shape,
                           .stride = stride,
                           .storage = storage(BERTH_QINT8, 6),
                           .qscheme = BERTH_PER_CHANNEL_AFFINE,
                           .scales = numbers(BERTH_FLOAT64, 2),
                           .zero_points = numbers(BERTH_INT64, 2)};
    expect_good(&tensor);
    tensor.axis = 1;
    expect_bad(&tensor, "a tensor quantized along axis 1 of size 3 has 2 scales and 2 zero points");
    tensor.axis = 2;
    expect_bad(&tensor, "a tensor quantized along axis 2 has 2 dimensions");
    tensor.axis = -1;
    expect_bad(&tensor, "a tensor quantized along axis -1 has 2 dimensions");
    tensor.axis = 0;
    tensor.zero_points = NULL;
    expect_bad(&tensor,
               "a tensor quantized along axis 0 of size 2 has 2 scales and -1 zero points");
    berth_value *list = berth_make_list(tree); /* as in older files */
    berth_list_append(list, berth_make_int(tree, 0));
    berth_list_append(list, berth_make_int(tree, 0));
    tensor.zero_points = list;
    expect_good(&tensor);
    tensor.dtype = BERTH_INT8;
    expect_bad(&tensor, "a quantized tensor of dtype int8");
}

/* ---- values ---- */

Test(tensor, values_copy_shape_and_make_stride_and_storage)
{
    int64_t shape[3] = {2, 0, 3};
    const berth_value *value = test_tensor(tree, BERTH_UINT16, data, 3, shape);
    const berth_tensor *made = berth_as_tensor(value);
    shape[0] = 9;
    cr_assert_eq(made->shape[0], 2);
    cr_assert_arr_eq(made->stride, ((int64_t[]){3, 3, 1}), 24);
    cr_assert_eq(berth_storage_get_info(made->storage)->nbytes, 0);
    cr_assert_null(made->data);
    /* uint16 has no storage class of its own (FORMAT.md 6). */
    cr_assert_eq(berth_storage_get_info(made->storage)->dtype, BERTH_DTYPE_NONE);
    cr_assert_eq(made->storage->element, BERTH_UINT16);
    int64_t two[1] = {2}, stride[1] = {5};
    value = berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                    .rank = 1,
                                                    .shape = two,
                                                    .stride = stride,
                                                    .storage_offset = 1,
                                                    .data = data});
    made = berth_as_tensor(value);
    cr_assert_eq(berth_storage_get_info(made->storage)->nbytes, 28);
    cr_assert_eq(made->storage->data, data);
    cr_assert_str_eq(made->storage->location, "cpu");
    cr_assert_eq(berth_tensor_numel(made), 2);
    cr_assert_not(berth_tensor_is_contiguous(made));
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
}

Test(tensor, values_that_are_none_fail_the_tree)
{
    static const int64_t shape[1] = {5}, huge[3] = {0, INT64_MAX, 4};
    berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .storage = storage(BERTH_FLOAT32, 16)};
    expect_tree_failure(
        berth_make_tensor(tree, &tensor), BERTH_E_TENSOR,
        "a tensor of float32, shape [5], stride [1] and storage offset 0 ends at byte "
        "20 of storage of its own, which has 16");
    tensor.storage = NULL;
    tensor.rank = 3;
    tensor.shape = huge;
    expect_tree_failure(berth_make_tensor(tree, &tensor), BERTH_E_TENSOR,
                        "the strides of a tensor do not fit 64 bits");
}

Test(tensor, wrapped_in_parameter_and_attributes_is_still_asked)
{
    berth_value *plain = berth_make_tensor(
        tree, &(berth_tensor){.dtype = BERTH_INT8, .data = data, .flags = BERTH_REQUIRES_GRAD});
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *parameter = berth_make_parameter(tree, plain, false);
    berth_value *subclass = berth_make_subclass(tree, parameter, state);
    cr_assert_eq(berth_as_tensor(subclass), berth_as_tensor(plain));
    cr_assert_eq(berth_value_part(subclass, BERTH_PART_INNER), parameter);
    cr_assert_eq(berth_value_part(subclass, BERTH_PART_STATE), state);
    cr_assert(berth_value_flags(plain) & BERTH_REQUIRES_GRAD);
    cr_assert_not(berth_value_flags(parameter) & BERTH_REQUIRES_GRAD);
    cr_assert_not(berth_value_flags(subclass) & BERTH_REQUIRES_GRAD);
    cr_assert(berth_value_flags(berth_make_parameter(tree, plain, true)) & BERTH_REQUIRES_GRAD);
    expect_tree_failure(berth_make_parameter(tree, subclass, true), BERTH_E_ARGUMENT,
                        "a Parameter around a tensor with attributes");
    expect_tree_failure(berth_make_parameter(tree, berth_make_list(tree), true), BERTH_E_ARGUMENT,
                        "a Parameter around a list");
}

struct sparse_row {
    berth_layout_kind layout;
    int32_t rank;
    int64_t shape[4];
    int32_t ranks[3];
    int64_t shapes[3][4];
    bool good;
};

static berth_value *make_sparse(const struct sparse_row *row)
{
    berth_value *parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = test_tensor(tree, BERTH_INT32, data, row->ranks[i], row->shapes[i]);
    return berth_make_sparse(tree, row->layout, row->shape, row->rank, parts, true);
}

/* T4: the shapes of the parts agree. Those that are good are as PyTorch makes them. */
Test(tensor, sparse_parts_agree)
{
    static const struct sparse_row rows[] = {
        {BERTH_SPARSE_COO, 2, {3, 4}, {2, 1, 0}, {{2, 5}, {5}}, true},
        {BERTH_SPARSE_COO, 3, {3, 4, 7}, {2, 2, 0}, {{2, 5}, {5, 7}}, true},
        {BERTH_SPARSE_COO, 0, {0}, {2, 1, 0}, {{0, 1}, {1}}, true},
        {BERTH_SPARSE_COO, 2, {3, 4}, {2, 1, 0}, {{2, 5}, {4}}, false},
        {BERTH_SPARSE_COO, 2, {3, 4}, {2, 1, 0}, {{1, 5}, {5}}, false},
        {BERTH_SPARSE_COO, 3, {3, 4, 7}, {2, 2, 0}, {{2, 5}, {5, 6}}, false},
        {BERTH_SPARSE_COO, 1, {3}, {1, 1, 0}, {{5}, {5}}, false},
        {BERTH_SPARSE_COO, 0, {0}, {2, 2, 0}, {{0, 1}, {1, 2}}, false},
        {BERTH_SPARSE_COO, 1, {3}, {3, 1, 0}, {{1, 5, 1}, {5}}, false},
        {BERTH_SPARSE_COO, 2, {3, 4}, {1, 1, 0}, {{5}, {5}}, false},
        {BERTH_SPARSE_COO, 2, {3, 4}, {2, 0, 0}, {{2, 5}, {0}}, false},
        {BERTH_SPARSE_COO, 1, {4}, {2, 3, 0}, {{0, 3}, {3, 4, 5}}, false},
        {BERTH_SPARSE_COO, 2, {4, 5}, {2, 2, 0}, {{1, 3}, {3, 6}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 2, 1}, {{4}, {5, 1}, {5}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 2, 1}, {{4}, {1, 5}, {5}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 1, 0}, {{4}, {5}, {0}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 1, 1}, {{0}, {5}, {5}}, false},
        /* Batches of two matrices, then a dense dimension. */
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {2, 3}, {2, 3, 5}}, true},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{3, 5}, {2, 3}, {2, 3, 5}}, false},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {3, 3}, {2, 3, 5}}, false},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {3, 3}, {3, 3, 5}}, false},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {2, 3}, {3, 3, 5}}, false},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {2, 3}, {2, 4, 5}}, false},
        {BERTH_SPARSE_CSR, 4, {2, 4, 6, 5}, {2, 2, 3}, {{2, 5}, {2, 3}, {2, 3, 6}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {0, 0, 1}, {{0}, {0}, {5}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 1, 1}, {{4}, {5}, {5}}, true},
        {BERTH_SPARSE_CSR, 3, {2, 3, 4}, {2, 2, 2}, {{2, 4}, {2, 5}, {2, 5}}, true},
        {BERTH_SPARSE_CSR, 3, {3, 4, 2}, {1, 1, 2}, {{4}, {5}, {5, 2}}, true},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 1, 1}, {{5}, {5}, {5}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {1, 1, 1}, {{4}, {5}, {6}}, false},
        {BERTH_SPARSE_CSR, 3, {2, 3, 4}, {2, 2, 2}, {{1, 4}, {2, 5}, {2, 5}}, false},
        {BERTH_SPARSE_CSR, 1, {3}, {1, 1, 1}, {{4}, {5}, {5}}, false},
        {BERTH_SPARSE_CSR, 2, {3, 4}, {0, 1, 1}, {{0}, {5}, {5}}, false},
        {BERTH_SPARSE_CSC, 2, {3, 4}, {1, 1, 1}, {{5}, {5}, {5}}, true},
        {BERTH_SPARSE_CSC, 2, {3, 4}, {1, 1, 1}, {{4}, {5}, {5}}, false},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 2, 3}}, true},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 3, 3}}, false},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 0, 3}}, false},
        /* As many blocks as fit whole, where they are no parts of the rows, or columns. */
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{2}, {3}, {3, 3, 2}}, false},
        {BERTH_SPARSE_BSC, 2, {4, 6}, {1, 1, 3}, {{2}, {3}, {3, 2, 4}}, false},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 2, 0}}, false},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 2, 4}}, false},
        {BERTH_SPARSE_BSR, 2, {4, 6}, {1, 1, 1}, {{3}, {4}, {4}}, false},
        {BERTH_SPARSE_BSC, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 2, 3}}, true},
        {BERTH_SPARSE_BSC, 2, {4, 6}, {1, 1, 3}, {{3}, {4}, {4, 2, 4}}, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        berth_value *sparse = make_sparse(&rows[i]);
        cr_assert_eq(sparse != NULL, rows[i].good, "row %zu", i);
        if (!sparse) {
            expect_tree_failure(sparse, BERTH_E_TENSOR,
                                "the parts of a sparse tensor do not fit its shape");
            continue;
        }
        int32_t rank;
        cr_assert_eq(bth_value_layout(sparse), rows[i].layout);
        cr_assert_arr_eq(berth_as_size(sparse, &rank), rows[i].shape, (size_t)rows[i].rank * 8);
        cr_assert_eq(rank, rows[i].rank);
        cr_assert_eq(berth_value_count(sparse), rows[i].layout == BERTH_SPARSE_COO ? 2 : 3);
        cr_assert_eq(berth_value_flags(sparse),
                     rows[i].layout == BERTH_SPARSE_COO ? BERTH_COALESCED : 0);
    }
}

Test(tensor, sparse_ones_are_wrapped_too)
{
    const struct sparse_row row = {BERTH_SPARSE_COO, 2, {3, 4}, {2, 1, 0}, {{2, 5}, {5}}, true};
    berth_value *sparse = make_sparse(&row);
    berth_value *parameter = berth_make_parameter(tree, sparse, true);
    cr_assert_eq(berth_value_part(parameter, BERTH_PART_INNER), sparse);
    cr_assert_eq(berth_value_part(
                     berth_make_subclass(tree, parameter, berth_make_dict(tree, BERTH_KIND_DICT)),
                     BERTH_PART_INNER),
                 parameter);
}

Test(tensor, sparse_parts_that_are_no_tensors_are_refused)
{
    static const int64_t shape[1] = {3};
    berth_value *parts[2] = {berth_make_none(tree), berth_make_none(tree)};
    expect_tree_failure(berth_make_sparse(tree, BERTH_SPARSE_COO, shape, 1, parts, true),
                        BERTH_E_TENSOR, "part 0 of a sparse tensor is None, not a tensor");
    static const int64_t negative[1] = {-3};
    parts[0] = parts[1] = numbers(BERTH_INT64, 1);
    expect_tree_failure(berth_make_sparse(tree, BERTH_SPARSE_COO, negative, 1, parts, true),
                        BERTH_E_TENSOR, "a sparse tensor with the negative size -3");
}

/* T4 */
Test(tensor, nested_parts_agree)
{
    static const int64_t shape[2] = {2, 3};
    berth_value *sizes = test_tensor(tree, BERTH_INT64, data, 2, shape);
    berth_value *good[4] = {numbers(BERTH_INT8, 9), sizes, sizes, numbers(BERTH_INT64, 2)};
    berth_value *nested = berth_make_nested(tree, good);
    cr_assert_eq(berth_value_count(nested), 4);
    cr_assert_eq(bth_value_item(nested, 3), good[3]);
    cr_assert_eq(berth_value_part(berth_make_parameter(tree, nested, true), BERTH_PART_INNER),
                 nested);
    /* No table, but as if there were no tensor. */
    const int64_t cube[3] = {0, 2, 3};
    berth_value *cubes = test_tensor(tree, BERTH_INT64, data, 3, cube);
    berth_value *deep[4] = {numbers(BERTH_INT8, 9), cubes, cubes, numbers(BERTH_INT64, 0)};
    expect_tree_failure(berth_make_nested(tree, deep), BERTH_E_TENSOR,
                        "the parts of a nested tensor do not agree");
}
