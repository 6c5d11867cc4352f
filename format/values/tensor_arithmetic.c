/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Arithmetic on tensors: bounds and their check; elements moved from any strides to row-major
 * order, and from one byte order to the other.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"

bool bth_shape_numel(const int64_t *shape, int32_t rank, int64_t *numel)
{
    int64_t product = 1;
    bool empty = false, fits = true;
    for (int32_t i = 0; i < rank; i++) {
        empty |= shape[i] == 0;
        fits &= !__builtin_mul_overflow(product, shape[i], &product);
    }
    *numel = empty ? 0 : product;
    return empty || fits;
}

void bth_contiguous_stride(const int64_t *shape, int32_t rank, int64_t *stride)
{
    int64_t product = 1;
    for (int32_t i = rank; i-- > 0;) {
        stride[i] = product;
        if (shape[i] > 1 && __builtin_mul_overflow(product, shape[i], &product))
            product = INT64_MAX;
    }
}

/* Bytes of n elements. */
static bool tensor_elements_nbytes(berth_dtype dtype, uint64_t n, uint64_t *nbytes)
{
    uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(dtype);
    uint64_t items = per_item == 1 ? n : n / per_item + (n % per_item != 0);
    return !__builtin_mul_overflow(items, berth_dtype_nbytes(dtype), nbytes);
}

uint64_t berth_tensor_nbytes(const berth_tensor *tensor)
{
    uint64_t nbytes = 0;
    int64_t numel;
    if (tensor && bth_shape_numel(tensor->shape, tensor->rank, &numel))
        tensor_elements_nbytes(tensor->dtype, (uint64_t)numel, &nbytes);
    return nbytes;
}

bool bth_tensor_compute_end_in_storage(const berth_tensor *tensor, uint64_t *nbytes)
{
    uint64_t last = (uint64_t)tensor->storage_offset;
    *nbytes = 0;
    for (int32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0)
            return true;
    for (int32_t i = 0; i < tensor->rank; i++) {
        uint64_t reach;
        if (__builtin_mul_overflow((uint64_t)tensor->shape[i] - 1, (uint64_t)tensor->stride[i],
                                   &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    }
    return !__builtin_add_overflow(last, 1, &last) &&
           tensor_elements_nbytes(tensor->dtype, last, nbytes);
}

bool bth_tensor_begins_at_whole_byte(const berth_tensor *tensor, uint64_t *offset)
{
    uint64_t elements = (uint64_t)bth_dtype_elements_per_item(tensor->dtype);

    *offset = 0;
    if (berth_tensor_numel(tensor) == 0)
        return true; /* T2: its offset may lie outside */
    *offset = (uint64_t)tensor->storage_offset / elements * berth_dtype_nbytes(tensor->dtype);
    return (uint64_t)tensor->storage_offset % elements == 0;
}

const berth_storage *bth_tensor_saved_storage(const berth_tensor *tensor, int64_t *storage_offset)
{
    const berth_storage *storage = tensor->storage;
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    *storage_offset = tensor->storage_offset;
    if (!storage->root || storage->root_offset % item_nbytes != 0 ||
        !bth_storage_dtypes_are_compatible(storage->root->dtype,
                                           bth_dtype_to_storage_dtype(tensor->dtype)))
        return storage;
    int64_t moved =
        (int64_t)(storage->root_offset / item_nbytes) * bth_dtype_elements_per_item(tensor->dtype);
    if (__builtin_add_overflow(*storage_offset, moved, storage_offset))
        *storage_offset = 0; /* without elements (T2), any offset is valid */
    return storage->root;
}

/* ---- checks ---- */

/* "[2, 3]" for messages; long shapes are cut. */
static const char *shape_text(const int64_t *items, int32_t n, char text[128])
{
    const size_t nbytes = 128;
    size_t at = (size_t)snprintf(text, nbytes, "[");
    for (int32_t i = 0; i < n && at < nbytes - 32; i++)
        at += (size_t)snprintf(text + at, nbytes - at, "%s%" PRId64, i ? ", " : "", items[i]);
    (void)snprintf(text + at, nbytes - at, at < nbytes - 32 ? "]" : ", …]");
    return text;
}

/* "shape [2, 3], stride [3, 1] and storage offset 0" */
static const char *tensor_text(const berth_tensor *tensor, char text[320])
{
    char shape[128], stride[128];
    (void)snprintf(text, 320, "shape %s, stride %s and storage offset %" PRId64,
                   shape_text(tensor->shape, tensor->rank, shape),
                   shape_text(tensor->stride, tensor->rank, stride), tensor->storage_offset);
    return text;
}

#define TENSOR_FAIL(error, ...) bth_fail_status(error, BERTH_E_TENSOR, __VA_ARGS__)

/* The number of scales or zero points of a quantized tensor; -1 if they are no numbers. */
static int64_t scales_or_zero_points_count(const berth_value *value)
{
    if (berth_value_kind(value) == BERTH_KIND_LIST) /* older files */
        return (int64_t)berth_value_count(value);
    const berth_tensor *tensor = berth_as_tensor(value);
    return tensor ? berth_tensor_numel(tensor) : -1;
}

int bth_tensor_check(const berth_tensor *tensor, berth_error *error)
{
    char text[320];
    int64_t numel;
    uint64_t nbytes;
    if (tensor->dtype == BERTH_DTYPE_NONE)
        return TENSOR_FAIL(error, "a tensor without a dtype");
    if ((unsigned)tensor->dtype >= BERTH_DTYPE_COUNT)
        return TENSOR_FAIL(error, "a tensor with the invalid dtype %d", (int)tensor->dtype);
    if (tensor->rank < 0 || tensor->rank > BERTH_MAX_RANK)
        return TENSOR_FAIL(error, "a tensor of rank %d (0 to %d)", tensor->rank, BERTH_MAX_RANK);
    if (tensor->rank && (!tensor->shape || !tensor->stride))
        return TENSOR_FAIL(error, "a tensor without a shape or stride");
    if (tensor->storage_offset < 0)
        return TENSOR_FAIL(error, "a tensor with the negative storage offset %" PRId64,
                           tensor->storage_offset);
    for (int32_t i = 0; i < tensor->rank; i++) {
        bool bad_size = tensor->shape[i] < 0;
        if (bad_size || tensor->stride[i] < 0)
            return TENSOR_FAIL(error, "a tensor with the negative %s %" PRId64 " in dimension %d",
                               bad_size ? "size" : "stride",
                               bad_size ? tensor->shape[i] : tensor->stride[i], i);
    }
    /* T1: a product may not wrap: 0x4000000000000001 elements of 4 bytes are not 4 bytes. */
    if (!bth_shape_numel(tensor->shape, tensor->rank, &numel) ||
        !tensor_elements_nbytes(tensor->dtype, (uint64_t)numel, &nbytes) || nbytes > INT64_MAX ||
        !bth_tensor_compute_end_in_storage(tensor, &nbytes))
        return TENSOR_FAIL(error, "a tensor of %s does not fit 64 bits", tensor_text(tensor, text));
    if (tensor->flags & BERTH_META && tensor->storage)
        return TENSOR_FAIL(error, "a meta tensor with a storage");
    if (!(tensor->flags & BERTH_META) && !tensor->storage)
        return TENSOR_FAIL(error, "a tensor without a storage");
    /* The storage holds every element (T2); in bits for sub-byte kinds. */
    if (tensor->storage && nbytes > tensor->storage->nbytes)
        return TENSOR_FAIL(
            error, "a tensor of %s, %s ends at byte %" PRIu64 " of storage %s, which has %" PRIu64,
            berth_dtype_name(tensor->dtype), tensor_text(tensor, text), nbytes,
            *tensor->storage->key ? tensor->storage->key : "of its own", tensor->storage->nbytes);
    if (tensor->qscheme == BERTH_NOT_QUANTIZED)
        return 0;
    if ((unsigned)tensor->qscheme > BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS)
        return TENSOR_FAIL(error, "a tensor with an unknown quantization scheme");
    if (!bth_dtype_is_quantized(tensor->dtype))
        return TENSOR_FAIL(error, "a quantized tensor of dtype %s",
                           berth_dtype_name(tensor->dtype));
    if (tensor->qscheme < BERTH_PER_CHANNEL_AFFINE)
        return 0;
    if (tensor->axis < 0 || tensor->axis >= tensor->rank)
        return TENSOR_FAIL(error, "a tensor quantized along axis %" PRId64 " has %d dimensions",
                           tensor->axis, tensor->rank);
    int64_t size = tensor->shape[tensor->axis];
    int64_t scales = scales_or_zero_points_count(tensor->scales);
    int64_t zero_points = scales_or_zero_points_count(tensor->zero_points);
    if (scales != size || zero_points != size)
        return TENSOR_FAIL(error,
                           "a tensor quantized along axis %" PRId64 " of size %" PRId64
                           " has %" PRId64 " scales and %" PRId64 " zero points",
                           tensor->axis, size, scales, zero_points);
    return 0;
}

/* ---- gather ---- */

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
    int64_t shape[BERTH_MAX_RANK], stride[BERTH_MAX_RANK], index[BERTH_MAX_RANK];
    int32_t rank = 0;
    if (n <= 0)
        return;
    /* The dimensions to walk, outermost first: without those of size 1, and with neighbours merged
     * where possible. */
    for (int32_t i = 0; i < tensor->rank; i++) {
        int64_t together;
        if (tensor->shape[i] == 1)
            continue;
        if (rank > 0 && !__builtin_mul_overflow(tensor->shape[i], tensor->stride[i], &together) &&
            stride[rank - 1] == together) {
            shape[rank - 1] *= tensor->shape[i];
            stride[rank - 1] = tensor->stride[i];
            continue;
        }
        shape[rank] = tensor->shape[i];
        stride[rank++] = tensor->stride[i];
    }
    if (rank == 0) { /* one element */
        rank = 1;
        shape[0] = stride[0] = 1;
    }
    int64_t position = tensor->storage_offset; /* of the index, in elements of the storage */
    for (int32_t i = rank; i-- > 0;) {
        index[i] = first % shape[i];
        first /= shape[i];
        position += index[i] * stride[i];
    }
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int32_t inner = rank - 1;
    char *to = out;
    for (;;) {
        int64_t run = shape[inner] - index[inner];
        run = run < n ? run : n;
        const char *from = (const char *)base + (size_t)position * item;
        if (stride[inner] == 1)
            memcpy(to, from, (size_t)run * item);
        else
            gather_items(to, from, run, item, stride[inner] * (int64_t)item);
        n -= run;
        if (n == 0)
            return;
        to += (size_t)run * item;
        /* The row is done: on to the next. */
        for (int32_t i = inner; i > 0; i--) {
            position -= index[i] * stride[i];
            index[i] = 0;
            if (index[i - 1] + 1 < shape[i - 1]) {
                index[i - 1]++;
                position += stride[i - 1];
                break;
            }
        }
    }
}

/* ---- conjugate and negative bits ---- */

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
    size_t reals_per_element = is_complex ? 2 : 1;
    size_t nbytes = berth_dtype_nbytes(dtype) / reals_per_element; /* of one real number */
    size_t sign_byte = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? nbytes - 1 : 0;
    bool neg = tensor->flags & BERTH_NEG, conj = tensor->flags & BERTH_CONJ;
    /* The sign bits of real and of imaginary parts; of real numbers both are the same. */
    const uint8_t flips[2] = {neg ? 0x80 : 0, neg != conj ? 0x80 : 0};
    for (size_t i = 0; i < (size_t)n * reals_per_element; i++)
        bytes[i * nbytes + sign_byte] ^= flips[i % 2];
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
