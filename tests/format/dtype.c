/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of dtypes, against what PyTorch 2.13 says of its own. */
#include "format/values/value.h"

#include <criterion/criterion.h>
#include <string.h>

struct row {
    const char *name;
    size_t nbytes;
    const char *storage_class;
    int swap_nbytes;
};

/*
 * torch.storage._dtype_to_storage_type_map() and _new_dtypes(), with dtype.itemsize; the swap
 * is that of torch's byteswap of the class: complex numbers by their halves.
 */
static const struct row rows[] = {
    {"float32", 4, "FloatStorage", 4},
    {"float64", 8, "DoubleStorage", 8},
    {"float16", 2, "HalfStorage", 2},
    {"bfloat16", 2, "BFloat16Storage", 2},
    {"int8", 1, "CharStorage", 1},
    {"int16", 2, "ShortStorage", 2},
    {"int32", 4, "IntStorage", 4},
    {"int64", 8, "LongStorage", 8},
    {"uint8", 1, "ByteStorage", 1},
    {"bool", 1, "BoolStorage", 1},
    {"complex64", 8, "ComplexFloatStorage", 4},
    {"complex128", 16, "ComplexDoubleStorage", 8},
    {"qint8", 1, "QInt8Storage", 1},
    {"quint8", 1, "QUInt8Storage", 1},
    {"qint32", 4, "QInt32Storage", 4},
    {"quint4x2", 1, "QUInt4x2Storage", 1},
    {"quint2x4", 1, "QUInt2x4Storage", 1},
    {"complex32", 4, NULL, 2},
    {"uint16", 2, NULL, 2},
    {"uint32", 4, NULL, 4},
    {"uint64", 8, NULL, 8},
    {"float8_e5m2", 1, NULL, 1},
    {"float8_e4m3fn", 1, NULL, 1},
    {"float8_e5m2fnuz", 1, NULL, 1},
    {"float8_e4m3fnuz", 1, NULL, 1},
    {"float8_e8m0fnu", 1, NULL, 1},
    {"float4_e2m1fn_x2", 1, NULL, 1},
    {"bits8", 1, NULL, 1},
    {"bits16", 2, NULL, 2},
    {"bits1x8", 1, NULL, 1},
    {"bits2x4", 1, NULL, 1},
    {"bits4x2", 1, NULL, 1},
    {"bcomplex32", 4, NULL, 2}, /* of PyTorch 2.14 */
};

static berth_dtype find(const char *name)
{
    for (int dtype = 1; dtype < BERTH_DTYPE_COUNT; dtype++)
        if (strcmp(berth_dtype_name((berth_dtype)dtype), name) == 0)
            return (berth_dtype)dtype;
    return BERTH_DTYPE_NONE;
}

Test(dtype, facts_are_those_of_pytorch)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        berth_dtype dtype = find(rows[i].name);
        cr_assert_neq(dtype, BERTH_DTYPE_NONE, "%s", rows[i].name);
        cr_assert_eq(berth_dtype_nbytes(dtype), rows[i].nbytes, "%s", rows[i].name);
        cr_assert_eq(bth_dtype_swap_nbytes(dtype), (size_t)rows[i].swap_nbytes);
        const char *class = bth_dtype_storage_class(dtype);
        cr_assert_eq(class == NULL, rows[i].storage_class == NULL, "%s", rows[i].name);
        if (class)
            cr_assert_str_eq(class, rows[i].storage_class);
    }
}

Test(dtype, that_pytorch_only_loads_are_known_and_these_are_all)
{
    static const char *const names[] = {"int1",  "int2",  "int3",  "int4",  "int5",
                                        "int6",  "int7",  "uint1", "uint2", "uint3",
                                        "uint4", "uint5", "uint6", "uint7"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        berth_dtype dtype = find(names[i]);
        cr_assert_neq(dtype, BERTH_DTYPE_NONE);
        cr_assert_null(bth_dtype_storage_class(dtype));
    }
    cr_assert_eq(sizeof(rows) / sizeof(*rows) + sizeof(names) / sizeof(*names) + 3,
                 BERTH_DTYPE_COUNT);
    for (int dtype = 1; dtype < BERTH_DTYPE_COUNT; dtype++) /* which PyTorch has not at all */
        cr_assert_eq(bth_dtype_is_foreign((berth_dtype)dtype),
                     dtype == BERTH_FLOAT6_E2M3FN_X4 || dtype == BERTH_FLOAT6_E3M2FN_X4);
}

Test(dtype, sorts)
{
    cr_assert(bth_dtype_is_quantized(BERTH_QUINT2X4));
    cr_assert_not(bth_dtype_is_quantized(BERTH_UINT8));
    cr_assert_eq(bth_dtype_elements_per_item(BERTH_QUINT4X2), 2);
    cr_assert_eq(bth_dtype_elements_per_item(BERTH_QUINT2X4), 4);
    cr_assert_eq(bth_dtype_elements_per_item(BERTH_FLOAT4_E2M1FN_X2), 1);
    cr_assert_eq(berth_dtype_nbytes(BERTH_DTYPE_NONE), 1);
    cr_assert_str_eq(berth_dtype_name(BERTH_DTYPE_NONE), "untyped");
    cr_assert_eq(berth_dtype_nbytes((berth_dtype)1000), 1);
}
