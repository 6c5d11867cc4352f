/* SPDX-License-Identifier: BSD-3-Clause */
/* T5: elements gathered by strides, which of them are contiguous, byte order. */
#include "format/values/value.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Element i of the row-major order, by the definition. */
static int64_t position_of(const berth_tensor *tensor, int64_t i)
{
    int64_t position = tensor->storage_offset;
    for (int32_t dimension = tensor->rank; dimension-- > 0;) {
        position += i % tensor->shape[dimension] * tensor->stride[dimension];
        i /= tensor->shape[dimension];
    }
    return position;
}

static void expect_gathered(const berth_tensor *tensor, const uint8_t *bytes)
{
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = berth_tensor_numel(tensor);
    uint8_t *out = calloc((size_t)numel + 1, item);
    for (int64_t first = 0; first < numel; first++)
        for (int64_t n = 1; n <= numel - first; n += 1 + n / 3) {
            memset(out, 0xee, ((size_t)numel + 1) * item);
            bth_tensor_gather(tensor, bytes, first, n, out);
            for (int64_t i = 0; i < n; i++)
                cr_assert_arr_eq(out + (size_t)i * item,
                                 bytes + (size_t)position_of(tensor, first + i) * item, item);
            cr_assert_eq(out[(size_t)n * item], 0xee);
        }
    free(out);
}

Test(gather, elements_are_gathered_in_row_major_order, .timeout = 120)
{
    static const struct {
        int32_t rank;
        int64_t shape[4], stride[4], offset;
    } rows[] = {
        {0, {0}, {0}, 3},
        {1, {10}, {1}, 2},
        {1, {10}, {3}, 0},
        {1, {10}, {0}, 5},
        {2, {4, 5}, {5, 1}, 1},
        {2, {5, 4}, {1, 5}, 0},              /* transposed */
        {2, {4, 3}, {5, 1}, 0},              /* rows of a wider matrix */
        {2, {4, 3}, {0, 1}, 0},              /* expanded outside */
        {2, {4, 3}, {1, 0}, 0},              /* expanded inside */
        {2, {4, 3}, {1, 1}, 0},              /* overlapping windows */
        {3, {2, 3, 4}, {12, 4, 1}, 0},       /* contiguous */
        {3, {2, 3, 4}, {1, 2, 6}, 0},        /* turned around */
        {3, {2, 1, 4}, {4, 77, 1}, 0},       /* a dimension of one */
        {3, {2, 3, 4}, {24, 8, 2}, 1},       /* every second element */
        {4, {2, 3, 2, 2}, {12, 1, 6, 3}, 0}, /* channels last */
    };
    static const berth_dtype dtypes[] = {BERTH_INT8, BERTH_INT16, BERTH_FLOAT32, BERTH_INT64,
                                         BERTH_COMPLEX128};
    uint8_t bytes[4096];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 131 + i / 256);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (size_t j = 0; j < sizeof(dtypes) / sizeof(*dtypes); j++) {
            const berth_tensor tensor = {.dtype = dtypes[j],
                                         .rank = rows[i].rank,
                                         .shape = rows[i].shape,
                                         .stride = rows[i].stride,
                                         .storage_offset = rows[i].offset};
            expect_gathered(&tensor, bytes);
        }
}

/* 4 x 2^62 is not 0, the stride outside: no neighbours. */
Test(gather, dimensions_whose_product_overflows_are_not_merged)
{
    const int64_t shape[] = {2, 4, 2}, stride[] = {0, INT64_C(1) << 62, 1};
    const berth_tensor tensor = {.dtype = BERTH_INT8, .rank = 3, .shape = shape, .stride = stride};
    const uint8_t bytes[2] = {7, 8};
    uint8_t out[3] = {0};

    bth_tensor_gather(&tensor, bytes, 8, 2, out);
    cr_expect_eq(out[0], 7);
    cr_expect_eq(out[1], 8);
    cr_expect_eq(out[2], 0);
}

Test(gather, contiguous_is_what_pytorch_calls_so)
{
    static const struct {
        int64_t shape[3], stride[3];
        bool contiguous;
    } rows[] = {
        {{2, 3, 4}, {12, 4, 1}, true}, {{2, 3, 4}, {12, 4, 2}, false},
        {{2, 1, 4}, {4, 99, 1}, true}, {{0, 3, 4}, {7, 7, 7}, true},
        {{1, 1, 1}, {0, 0, 0}, true},  {{2, 3, 4}, {0, 4, 1}, false},
        {{2, 3, 4}, {1, 2, 6}, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const berth_tensor tensor = {
            .dtype = BERTH_INT8, .rank = 3, .shape = rows[i].shape, .stride = rows[i].stride};
        cr_assert_eq(berth_tensor_is_contiguous(&tensor), rows[i].contiguous, "row %zu", i);
    }
    cr_assert_not(berth_tensor_is_contiguous(NULL));
    cr_assert_eq(berth_tensor_numel(NULL), 0);
    cr_assert_eq(berth_tensor_nbytes(NULL), 0);
}

/* T5 */
Test(gather, bytes_are_swapped_by_unit_also_in_place)
{
    static const uint8_t in[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (size_t unit = 1; unit <= 8; unit *= 2) {
        uint8_t out[16], place[16];
        memcpy(place, in, 16);
        bth_swap_bytes(out, in, 16, unit);
        bth_swap_bytes(place, place, 16, unit);
        for (size_t i = 0; i < 16; i++)
            cr_assert_eq(out[i], in[i / unit * unit + unit - 1 - i % unit]);
        cr_assert_arr_eq(place, out, 16);
    }
}

/* ---- conjugate and negative bits ---- */

/* Every byte of `bytes` as it must become: signs lie in the highest byte of a real number. */
static void expect_signs(const uint8_t *bytes, size_t n_reals, size_t real, bool is_complex,
                         uint32_t flags)
{
    for (size_t i = 0; i < n_reals * real; i++) {
        bool is_imaginary = is_complex && i / real % 2 == 1;
        bool is_highest = i % real == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? real - 1 : 0);
        bool flips = (flags & BERTH_NEG) != 0;
        if (is_imaginary && (flags & BERTH_CONJ))
            flips = !flips;
        cr_expect_eq(bytes[i], 0x11 ^ (is_highest && flips ? 0x80 : 0), "byte %zu, flags %u", i,
                     (unsigned)flags);
    }
}

Test(gather, conjugate_and_negative_bits_flip_signs)
{
    static const struct {
        berth_dtype dtype;
        size_t real;
        bool is_complex;
    } rows[] = {{BERTH_FLOAT16, 2, false},  {BERTH_BFLOAT16, 2, false}, {BERTH_FLOAT32, 4, false},
                {BERTH_FLOAT64, 8, false},  {BERTH_COMPLEX32, 2, true}, {BERTH_BCOMPLEX32, 2, true},
                {BERTH_COMPLEX64, 4, true}, {BERTH_COMPLEX128, 8, true}};
    static const uint32_t flags[] = {0, BERTH_NEG, BERTH_CONJ, BERTH_CONJ | BERTH_NEG};
    uint8_t bytes[3 * 16];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < 4; k++) {
            const berth_tensor tensor = {.dtype = rows[i].dtype, .flags = flags[k]};
            bool refused = !rows[i].is_complex && (flags[k] & BERTH_CONJ);
            berth_error error = {0};
            memset(bytes, 0x11, sizeof bytes);
            cr_expect_eq(bth_tensor_resolve_bits(&tensor, 3, bytes, &error),
                         refused ? BERTH_E_UNSUPPORTED : 0);
            expect_signs(bytes, rows[i].is_complex ? 6 : 3, rows[i].real, rows[i].is_complex,
                         refused ? 0 : flags[k]);
            cr_expect_eq(bth_tensor_resolve_bits(&tensor, 0, NULL, &error), 0);
        }
}
