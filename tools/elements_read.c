/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of a tensor as plain values: conjugate and negative bits are applied. */
#include <string.h>

#include "tools/shared.h"

/* Bytes of one real number in a dtype that can be negated by its sign bit; 0 if it cannot. */
static size_t negatable_real_nbytes(berth_dtype dtype, bool *is_complex)
{
    *is_complex = dtype == BERTH_COMPLEX32 || dtype == BERTH_BCOMPLEX32 ||
                  dtype == BERTH_COMPLEX64 || dtype == BERTH_COMPLEX128;
    if (*is_complex)
        return berth_dtype_nbytes(dtype) / 2;
    if (dtype == BERTH_FLOAT16 || dtype == BERTH_BFLOAT16 || dtype == BERTH_FLOAT32 ||
        dtype == BERTH_FLOAT64)
        return berth_dtype_nbytes(dtype);
    return 0;
}

/* Flips the sign bit of every `stride`th real number. Little- and big-endian hosts both. */
static void flip_signs(uint8_t *bytes, size_t n, size_t nbytes, size_t stride)
{
    const uint16_t probe = 1;
    size_t sign_byte = *(const uint8_t *)&probe ? nbytes - 1 : 0;

    for (size_t i = 0; i < n; i++)
        bytes[i * stride * nbytes + sign_byte] ^= 0x80;
}

static int apply_conj_and_neg_bits(const berth_tensor *tensor, int64_t n, uint8_t *buffer,
                                   berth_error *error)
{
    bool is_complex;
    size_t nbytes = negatable_real_nbytes(tensor->dtype, &is_complex);

    if (!(tensor->flags & (BERTH_CONJ | BERTH_NEG)))
        return 0;
    if (!nbytes || ((tensor->flags & BERTH_CONJ) && !is_complex)) {
        memset(error, 0, sizeof *error);
        error->code = BERTH_E_UNSUPPORTED;
        error->offset = BERTH_NO_OFFSET;
        strcpy(error->message, "the conjugate or negative bit is not supported for this dtype");
        return error->code;
    }
    if (tensor->flags & BERTH_NEG)
        flip_signs(buffer, (size_t)n * (is_complex ? 2 : 1), nbytes, 1);
    if (tensor->flags & BERTH_CONJ)
        flip_signs(buffer + nbytes, (size_t)n, nbytes, 2);
    return 0;
}

void to_or_from_little(berth_dtype dtype, void *bytes, size_t nbytes)
{
    bool is_complex;
    uint8_t *at = bytes;

    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        return;
    size_t unit = negatable_real_nbytes(dtype, &is_complex);
    if (unit == 0)
        unit = berth_dtype_nbytes(dtype);
    if (unit < 2)
        return;
    for (size_t item = 0; item + unit <= nbytes; item += unit)
        for (size_t i = 0; i < unit / 2; i++) {
            uint8_t other = at[item + unit - 1 - i];
            at[item + unit - 1 - i] = at[item + i];
            at[item + i] = other;
        }
}

int read_elements(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                  int64_t n, void *buffer, berth_error *error)
{
    int code = berth_tensor_read(checkpoint, tensor, first, n, buffer, error);

    return code < 0 ? code : apply_conj_and_neg_bits(tensor, n, buffer, error);
}

int64_t elements_per_chunk(const berth_tensor *tensor, size_t nbytes)
{
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = berth_tensor_numel(tensor);

    if (tensor->dtype == BERTH_QUINT4X2 || tensor->dtype == BERTH_QUINT2X4)
        return numel ? numel : 1;
    int64_t max = nbytes > item ? (int64_t)(nbytes / item) : 1;
    return numel > 0 && numel < max ? numel : max;
}
