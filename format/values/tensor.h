/* SPDX-License-Identifier: BSD-3-Clause */
/* Arithmetic on tensors: bounds, overflow, stride walks, byte order (T1 to T5). Pure. */
#ifndef BTH_FORMAT_VALUES_TENSOR_H
#define BTH_FORMAT_VALUES_TENSOR_H

#include "berth.h"

/*
 * Checks shape, stride and offset against the storage's bytes (T2, T4): all >= 0, rank <= 64, the
 * last element inside; every sum and product checked; in bits for sub-byte kinds. On failure
 * sets error with the sentence (BERTH_E_TENSOR).
 */
int bth_tensor_check(const berth_tensor *tensor, berth_error *error);

/*
 * Bytes from the storage's start to the end of the last element; 0 for an empty tensor.
 * False on overflow. Shape, stride and offset must be >= 0.
 */
bool bth_tensor_extent(const berth_tensor *tensor, uint64_t *nbytes);

/*
 * The storage that a tensor is saved on, and its offset there. A view of another storage (streams
 * from before 1.6) is saved as the whole storage with a larger offset, so that what shared memory
 * goes on sharing it. Not for meta tensors.
 */
const berth_storage *bth_tensor_place(const berth_tensor *tensor, int64_t *storage_offset);

/* product of shape into *numel, or false on overflow. */
bool bth_shape_numel(const int64_t *shape, int32_t rank, int64_t *numel);

/*
 * Row-major strides as PyTorch makes them: stride[i] = product of max(shape[j], 1), j > i;
 * INT64_MAX where that does not fit.
 */
void bth_contiguous_stride(const int64_t *shape, int32_t rank, int64_t *stride);

/*
 * Copies elements [first, first + n) in row-major order from `base` (the storage's first byte)
 * to out. The tensor has been checked; whole-item dtypes only.
 */
void bth_tensor_gather(const berth_tensor *tensor, const void *base, int64_t first, int64_t n,
                       void *out);

/* Bytes of the unit that a change of byte order reverses: complex64 4, bool 1. */
size_t bth_dtype_swap_nbytes(berth_dtype dtype);
/* Copies nbytes (a multiple of unit) reversing each unit of 1, 2, 4 or 8; in may equal out. */
void bth_swap_bytes(void *out, const void *in, size_t nbytes, size_t unit);

/* Elements an item holds: 2 for quint4x2, 4 for quint2x4, else 1. */
int bth_dtype_elements(berth_dtype dtype);
/* Whether storages have a class of their own (FloatStorage); else UntypedStorage (v3). */
const char *bth_dtype_storage_class(berth_dtype dtype); /* "FloatStorage" or NULL */
/* The dtype of "FloatStorage"; UntypedStorage gives NONE. False if unknown. */
bool bth_dtype_from_storage_class(const char *name, size_t nbytes, berth_dtype *dtype);
/* The class that a tensor of this dtype meets its storage under; NONE: UntypedStorage. */
berth_dtype bth_dtype_of_storage(berth_dtype dtype);
/* PyTorch compares classes by dtype, and takes UntypedStorage for one of bytes (T3). */
bool bth_dtype_same_class(berth_dtype a, berth_dtype b);
bool bth_dtype_is_quantized(berth_dtype dtype); /* qint8, quint8, qint32, quint4x2, quint2x4 */

#endif
