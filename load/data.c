/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading: the bytes of tensors and storages. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "load/storages_load.h"

/*
 * T5: storages are aligned for what they hold, but a file may have a tensor of wide elements in the
 * middle of bytes.
 */
static int check_alignment(const berth_tensor *tensor, const uint8_t *first, berth_error *error)
{
    size_t unit = bth_dtype_swap_nbytes(tensor->dtype);

    if ((uintptr_t)first % unit == 0)
        return 0;
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                    "the tensor's elements are not aligned to %zu bytes: berth_tensor_read copies "
                    "them",
                    unit);
}

const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                              berth_error *error)
{
    const uint8_t *memory = NULL;
    uint64_t offset = 0;

    BTH_ERROR_BEGIN_QUICKLY(error);
    if (bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        bth_prefetch_pass_tensor(checkpoint, tensor, 0, berth_tensor_numel(tensor));
        if (bth_tensor_first_byte(tensor, &offset, error) == 0 &&
            bth_storage_memory(checkpoint, tensor->storage, &memory, error) == 0)
            (void)check_alignment(tensor, memory + offset, error);
    }
    if (error->code == 0)
        return memory + offset;
    if (checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return NULL;
}

static const berth_storage *root_of(const berth_tensor *tensor)
{
    return tensor->storage->root ? tensor->storage->root : tensor->storage;
}

const void *berth_storage_data(berth_checkpoint *checkpoint, const berth_storage *storage,
                               berth_error *error)
{
    const uint8_t *memory = NULL;

    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_storage(checkpoint, storage, error) == 0) {
        bth_prefetch_pass_storage(checkpoint, storage);
        (void)bth_storage_memory(checkpoint, storage, &memory, error);
    }
    if (error->code < 0 && checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code < 0 ? NULL : memory;
}

/* Sub-byte kinds only as a whole: their elements do not begin at bytes. */
static int read_subbyte(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                        int64_t n, void *buffer, berth_error *error)
{
    uint64_t offset;

    if (!bth_tensor_begins_at_byte(tensor, &offset) || first != 0 ||
        n != berth_tensor_numel(tensor) || !berth_tensor_is_contiguous(tensor))
        return bth_fail_subbyte(tensor, "only the whole of a contiguous tensor can be read", error);
    return bth_storage_read(checkpoint, tensor->storage, buffer, berth_tensor_nbytes(tensor),
                            offset, error);
}

/* ---- rows of what is neither mapped nor contiguous ---- */

/* Bytes of rows that are read at a time, unless one row is longer. */
#define ROWS_NBYTES ((int64_t)1 << 20)

/* What one index of the first dimension takes, in elements. Everything fits its storage (T2). */
typedef struct row_kind {
    int64_t numel;  /* of one row */
    int64_t stride; /* from one to the next */
    int64_t extent; /* from its first element to behind its last */
} row_kind;

static row_kind rows_of(const berth_tensor *tensor)
{
    row_kind row = {.numel = berth_tensor_numel(tensor) / tensor->shape[0],
                    .stride = tensor->stride[0],
                    .extent = 1};

    for (int32_t d = 1; d < tensor->rank; d++)
        row.extent += (tensor->shape[d] - 1) * tensor->stride[d];
    return row;
}

/* Whether a part of the storage is enough, and much less than all of it. */
static bool is_worth_it(const berth_tensor *tensor, row_kind row, int64_t first, int64_t n)
{
    int64_t n_rows = (first + n - 1) / row.numel - first / row.numel;
    uint64_t elements = (uint64_t)(n_rows * row.stride + row.extent);

    return elements <= tensor->storage->nbytes / berth_dtype_nbytes(tensor->dtype) / 2;
}

/* How many rows are read at a time. */
static int64_t rows_at_once(const berth_tensor *tensor, row_kind row)
{
    int64_t elements = ROWS_NBYTES / (int64_t)berth_dtype_nbytes(tensor->dtype);

    if (row.stride == 0)
        return tensor->shape[0];
    return elements > row.extent ? 1 + (elements - row.extent) / row.stride : 1;
}

/* n > 0. Each batch of rows with what lies between them, and of that the elements. */
static int read_rows(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                     int64_t n, uint8_t *out, berth_error *error)
{
    int64_t item_nbytes = (int64_t)berth_dtype_nbytes(tensor->dtype);
    row_kind row = rows_of(tensor);
    int64_t n_rows = rows_at_once(tensor, row);
    size_t room_nbytes = (size_t)(((n_rows - 1) * row.stride + row.extent) * item_nbytes);
    uint8_t *bytes = bth_allocate(room_nbytes);

    if (!bytes)
        return bth_fail_memory(error, room_nbytes);
    while (n > 0 && error->code == 0) {
        int64_t begin = first / row.numel;
        int64_t rows = tensor->shape[0] - begin < n_rows ? tensor->shape[0] - begin : n_rows;
        int64_t left = (begin + rows) * row.numel - first, now = n < left ? n : left;
        int64_t elements = ((first + now - 1) / row.numel - begin) * row.stride + row.extent;
        int64_t offset = tensor->storage_offset + begin * row.stride;
        berth_tensor part = *tensor;
        part.storage_offset -= offset;
        if (bth_storage_read(checkpoint, tensor->storage, bytes, (size_t)(elements * item_nbytes),
                             (uint64_t)(offset * item_nbytes), error) == 0)
            bth_tensor_gather(&part, bytes, first, now, out);
        out += now * item_nbytes;
        first += now;
        n -= now;
    }
    bth_release(bytes);
    return error->code;
}

/* ---- elements ---- */

/* From a device: all of the storage comes to the host for a moment. */
static int read_through(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                        int64_t n, void *buffer, berth_error *error)
{
    size_t nbytes = (size_t)tensor->storage->nbytes;
    uint8_t *bytes = bth_allocate(nbytes);

    if (!bytes)
        return bth_fail_memory(error, nbytes);
    if (bth_storage_read(checkpoint, tensor->storage, bytes, nbytes, 0, error) == 0)
        bth_tensor_gather(tensor, bytes, first, n, buffer);
    bth_release(bytes);
    return error->code;
}

/* Of what is neither memory nor mapped only they are read, not all of the storage. */
static int read_contiguous(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                           int64_t n, void *buffer, berth_error *error)
{
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    const uint8_t *memory;

    if (bth_storage_is_at_hand(checkpoint, tensor->storage) &&
        bth_storage_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    return bth_storage_read(checkpoint, tensor->storage, buffer, (uint64_t)n * item_nbytes,
                            (uint64_t)(tensor->storage_offset + first) * item_nbytes, error);
}

int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error)
{
    const uint8_t *memory;

    if (n == 0)
        return 0;
    bth_prefetch_pass_tensor(checkpoint, tensor, first, n);
    if (bth_dtype_elements(tensor->dtype) > 1)
        return read_subbyte(checkpoint, tensor, first, n, buffer, error);
    if (berth_tensor_is_contiguous(tensor))
        return read_contiguous(checkpoint, tensor, first, n, buffer, error);
    bool at_hand = bth_storage_is_at_hand(checkpoint, tensor->storage);
    if (!at_hand && is_worth_it(tensor, rows_of(tensor), first, n))
        return read_rows(checkpoint, tensor, first, n, buffer, error);
    if (!at_hand && bth_storage_placed(checkpoint, root_of(tensor)).device)
        return read_through(checkpoint, tensor, first, n, buffer, error);
    if (bth_storage_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    bth_tensor_gather(tensor, memory, first, n, buffer);
    return 0;
}

int berth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                      int64_t n, void *buffer, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        int64_t numel = berth_tensor_numel(tensor);
        if (first < 0 || n < 0 || first > numel || n > numel - first || (!buffer && n > 0))
            (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                           "%lld elements from %lld on are asked for, the tensor has %lld",
                           (long long)n, (long long)first, (long long)numel);
        else
            (void)bth_tensor_read(checkpoint, tensor, first, n, buffer, error);
    }
    if (error->code < 0 && checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}
