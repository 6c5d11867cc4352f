/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading: the bytes of tensors and storages. */
#include <string.h>

#include "config/error.h"
#include "format/tensor.h"
#include "load/checkpoint.h"

int berth_checkpoint_check_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                                   berth_error *error)
{
    if (!checkpoint || !storage)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "there is no checkpoint, or no storage");
    if (storage->tree != checkpoint->tree)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "the storage is of another checkpoint or tree");
    return 0;
}

int berth_checkpoint_check_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                  berth_error *error)
{
    if (!tensor)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "there is no tensor");
    if (tensor->flags & BERTH_META || !tensor->storage)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "a meta tensor has no data");
    if (berth_checkpoint_check_storage(checkpoint, tensor->storage, error) < 0)
        return error->code;
    return berth_tensor_check(tensor, error);
}

/* Byte of the first element in the storage; *whole is false where that is no whole byte. */
static uint64_t first_byte(const berth_tensor *tensor, bool *whole)
{
    uint64_t elements = (uint64_t)berth_dtype_elements(tensor->dtype);

    *whole = true;
    if (berth_tensor_numel(tensor) == 0)
        return 0; /* T2: its offset may lie outside */
    *whole = (uint64_t)tensor->storage_offset % elements == 0;
    return (uint64_t)tensor->storage_offset / elements * berth_dtype_nbytes(tensor->dtype);
}

/*
 * T5: storages are aligned for what they hold, but a file may have a tensor of wide elements in the
 * middle of bytes.
 */
static int check_alignment(const berth_tensor *tensor, const uint8_t *first, berth_error *error)
{
    size_t unit = berth_dtype_swap_nbytes(tensor->dtype);

    if ((uintptr_t)first % unit == 0)
        return 0;
    return berth_fail(
        error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
        "the tensor's elements are not aligned to %zu bytes: berth_tensor_read copies "
        "them",
        unit);
}

static int fail_subbyte(const berth_tensor *tensor, const char *what, berth_error *error)
{
    return berth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET, "%s of %s elements", what,
                      berth_dtype_name(tensor->dtype));
}

const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                              berth_error *error)
{
    const uint8_t *memory = NULL;
    uint64_t offset = 0, end;
    bool whole;

    BERTH_ERROR_BEGIN(error);
    if (berth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        offset = first_byte(tensor, &whole);
        if (berth_tensor_extent(tensor, &end))
            berth_prefetch_pass_by(checkpoint, tensor->storage, end);
        if (!whole)
            (void)fail_subbyte(tensor, "no address has an element within a byte", error);
        else if (berth_storage_memory(checkpoint, tensor->storage, &memory, error) == 0)
            (void)check_alignment(tensor, memory + offset, error);
    }
    if (error->code == 0)
        return memory + offset;
    if (checkpoint)
        (void)berth_error_prefix(error, checkpoint->reader.name);
    return NULL;
}

const void *berth_storage_data(berth_checkpoint *checkpoint, const berth_storage *storage,
                               berth_error *error)
{
    const uint8_t *memory = NULL;

    BERTH_ERROR_BEGIN(error);
    if (berth_checkpoint_check_storage(checkpoint, storage, error) == 0) {
        berth_prefetch_pass_by(checkpoint, storage, storage->nbytes);
        (void)berth_storage_memory(checkpoint, storage, &memory, error);
    }
    if (error->code < 0 && checkpoint)
        (void)berth_error_prefix(error, checkpoint->reader.name);
    return error->code < 0 ? NULL : memory;
}

/* Sub-byte kinds only as a whole: their elements do not begin at bytes. */
static int read_subbyte(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                        int64_t n, void *buffer, berth_error *error)
{
    bool whole;
    uint64_t offset = first_byte(tensor, &whole);

    if (!whole || first != 0 || n != berth_tensor_numel(tensor) ||
        !berth_tensor_is_contiguous(tensor))
        return fail_subbyte(tensor, "only the whole of a contiguous tensor can be read", error);
    return berth_storage_read(checkpoint, tensor->storage, buffer, berth_tensor_nbytes(tensor),
                              offset, error);
}

static int read_elements(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                         int64_t n, void *buffer, berth_error *error)
{
    size_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    const uint8_t *memory;

    if (n == 0)
        return 0;
    if (berth_dtype_elements(tensor->dtype) > 1)
        return read_subbyte(checkpoint, tensor, first, n, buffer, error);
    /* Rows of a table that is not mapped: only they are read, not the table. */
    if (!berth_storage_is_at_hand(checkpoint, tensor->storage) &&
        berth_tensor_is_contiguous(tensor))
        return berth_storage_read(checkpoint, tensor->storage, buffer, (uint64_t)n * item_nbytes,
                                  (uint64_t)(tensor->storage_offset + first) * item_nbytes, error);
    if (berth_storage_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    berth_tensor_gather(tensor, memory, first, n, buffer);
    return 0;
}

int berth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                      int64_t n, void *buffer, berth_error *error)
{
    BERTH_ERROR_BEGIN(error);
    if (berth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        int64_t numel = berth_tensor_numel(tensor);
        if (first < 0 || n < 0 || first > numel || n > numel - first || (!buffer && n > 0))
            (void)berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                             "%lld elements from %lld on are asked for, the tensor has %lld",
                             (long long)n, (long long)first, (long long)numel);
        else
            (void)read_elements(checkpoint, tensor, first, n, buffer, error);
    }
    if (error->code < 0 && checkpoint)
        (void)berth_error_prefix(error, checkpoint->reader.name);
    return error->code;
}
