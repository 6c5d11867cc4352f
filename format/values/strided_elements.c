/* SPDX-License-Identifier: BSD-3-Clause */
/* Moves elements from any strides to row-major order, and from one byte order to the other. */
#include "base/error.h"
#include "format/values/value.h"

#include <string.h>

/* ---- gather ---- */

/*
 * The dimensions to walk, outermost first: without those of size 1, and with neighbours merged
 * where possible.
 */
struct walk {
    int32_t rank;
    int64_t shape[BERTH_MAX_RANK];
    int64_t stride[BERTH_MAX_RANK];
    int64_t index[BERTH_MAX_RANK];
    int64_t position; /* of the index, in elements of the storage */
};

/* Merges the dimensions of a tensor, and sets the index to element `first`. */
static void gather_begin(const berth_tensor *tensor, int64_t first, struct walk *walk)
{
    walk->rank = 0;
    for (int32_t i = 0; i < tensor->rank; i++) {
        int64_t size = tensor->shape[i], stride = tensor->stride[i], together;
        if (size == 1)
            continue;
        int32_t outer = walk->rank - 1;
        if (outer >= 0 && !__builtin_mul_overflow(size, stride, &together) &&
            walk->stride[outer] == together) {
            walk->shape[outer] *= size;
            walk->stride[outer] = stride;
            continue;
        }
        walk->shape[walk->rank] = size;
        walk->stride[walk->rank++] = stride;
    }
    if (walk->rank == 0) { /* one element */
        walk->rank = 1;
        walk->shape[0] = walk->stride[0] = 1;
    }
    walk->position = tensor->storage_offset;
    for (int32_t i = walk->rank; i-- > 0;) {
        walk->index[i] = first % walk->shape[i];
        first /= walk->shape[i];
        walk->position += walk->index[i] * walk->stride[i];
    }
}

#define GATHER_ITEMS(nbytes)                                                                       \
    for (int64_t i = 0; i < n; i++, in += step, out += (nbytes))                                   \
    memcpy(out, in, nbytes)

/* n items, `step` bytes apart. The copies of constant size become single moves. */
static void gather_items(char *out, const char *in, int64_t n, size_t item, int64_t step)
{
    switch (item) {
    case 1:
        GATHER_ITEMS(1);
        break;
    case 2:
        GATHER_ITEMS(2);
        break;
    case 4:
        GATHER_ITEMS(4);
        break;
    case 8:
        GATHER_ITEMS(8);
        break;
    default:
        GATHER_ITEMS(16);
        break;
    }
}

void bth_tensor_gather(const berth_tensor *tensor, const void *base, int64_t first, int64_t n,
                       void *out)
{
    if (n <= 0)
        return;
    struct walk walk;
    gather_begin(tensor, first, &walk);
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int32_t inner = walk.rank - 1;
    char *to = out;
    for (;;) {
        int64_t run = walk.shape[inner] - walk.index[inner];
        run = run < n ? run : n;
        const char *from = (const char *)base + (size_t)walk.position * item;
        if (walk.stride[inner] == 1)
            memcpy(to, from, (size_t)run * item);
        else
            gather_items(to, from, run, item, walk.stride[inner] * (int64_t)item);
        n -= run;
        if (n == 0)
            return;
        to += (size_t)run * item;
        /* The row is done: on to the next. */
        for (int32_t i = inner; i > 0; i--) {
            walk.position -= walk.index[i] * walk.stride[i];
            walk.index[i] = 0;
            if (walk.index[i - 1] + 1 < walk.shape[i - 1]) {
                walk.index[i - 1]++;
                walk.position += walk.stride[i - 1];
                break;
            }
        }
    }
}

/* ---- conjugate and negative bits ---- */

/* Flips the sign bit of every `stride`th of the real numbers. */
static void reals_flip_signs(uint8_t *bytes, size_t n, size_t nbytes, size_t stride)
{
    size_t sign_byte = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? nbytes - 1 : 0;
    for (size_t i = 0; i < n; i++)
        bytes[i * stride * nbytes + sign_byte] ^= 0x80;
}

int bth_tensor_resolve_bits(const berth_tensor *tensor, int64_t n, void *elements,
                            berth_error *error)
{
    berth_dtype dtype = tensor->dtype;
    bool is_complex = dtype == BERTH_COMPLEX32 || dtype == BERTH_BCOMPLEX32 ||
                      dtype == BERTH_COMPLEX64 || dtype == BERTH_COMPLEX128;
    bool is_real_with_sign_bit = dtype == BERTH_FLOAT16 || dtype == BERTH_BFLOAT16 ||
                                 dtype == BERTH_FLOAT32 || dtype == BERTH_FLOAT64;
    uint8_t *bytes = elements;
    if (!(tensor->flags & (BERTH_CONJ | BERTH_NEG)) || n <= 0)
        return 0;
    if (!is_complex && (!is_real_with_sign_bit || tensor->flags & BERTH_CONJ))
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the conjugate or negative bit is not supported for %s",
                               berth_dtype_name(dtype));
    size_t nbytes = berth_dtype_nbytes(dtype) / (is_complex ? 2 : 1); /* of one real number */
    if (tensor->flags & BERTH_NEG)
        reals_flip_signs(bytes, (size_t)n * (is_complex ? 2 : 1), nbytes, 1);
    if (tensor->flags & BERTH_CONJ)
        reals_flip_signs(bytes + nbytes, (size_t)n, nbytes, 2);
    return 0;
}

/* ---- byte order ---- */

#define SWAP_UNITS(type, swap)                                                                     \
    for (size_t at = 0; at + sizeof(type) <= nbytes; at += sizeof(type)) {                         \
        type unit_value;                                                                           \
        memcpy(&unit_value, from + at, sizeof(type));                                              \
        unit_value = swap(unit_value);                                                             \
        memcpy(to + at, &unit_value, sizeof(type));                                                \
    }

void bth_swap_bytes(void *out, const void *in, size_t nbytes, size_t unit)
{
    char *to = out;
    const char *from = in;
    switch (unit) {
    case 2:
        SWAP_UNITS(uint16_t, __builtin_bswap16)
        break;
    case 4:
        SWAP_UNITS(uint32_t, __builtin_bswap32)
        break;
    case 8:
        SWAP_UNITS(uint64_t, __builtin_bswap64)
        break;
    default:
        if (to != from)
            memcpy(to, from, nbytes);
        break;
    }
}
