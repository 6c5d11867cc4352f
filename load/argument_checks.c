/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of a tensor or a storage that a caller passes. */
#include <stdio.h>

#include "base/error.h"
#include "format/values/value.h"
#include "load/checkpoint.h"

int bth_checkpoint_check_caller_storage(const berth_checkpoint *checkpoint,
                                        const berth_storage *storage, berth_error *error)
{
    if (!checkpoint || !storage)
        return bth_fail_argument(error, "the checkpoint or the storage is NULL");
    if (storage->tree != checkpoint->contents.tree)
        return bth_fail_argument(error, "the storage is of another checkpoint or tree");
    return 0;
}

int bth_checkpoint_check_caller_tensor(const berth_checkpoint *checkpoint,
                                       const berth_tensor *tensor, berth_error *error)
{
    if (!tensor)
        return bth_fail_argument(error, "the tensor is NULL");
    if (tensor->flags & BERTH_META || !tensor->storage)
        return bth_fail_argument(error, "a meta tensor has no data");
    if (bth_checkpoint_check_caller_storage(checkpoint, tensor->storage, error) < 0)
        return error->code;
    return bth_tensor_check(tensor, error);
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

/* ---- berth_expect ---- */

/* "[2, 3]"; a long one ends with "...". */
static void shape_write(const int64_t *shape, int32_t rank, char *text, size_t text_nbytes)
{
    size_t n = 1;

    (void)snprintf(text, text_nbytes, "[");
    for (int32_t d = 0; d < rank; d++) {
        if (d > 0)
            n += (size_t)snprintf(text + n, text_nbytes - n, ", ");
        if (n + 32 >= text_nbytes) {
            n += (size_t)snprintf(text + n, text_nbytes - n, "...");
            break;
        }
        if (shape[d] < 0)
            n += (size_t)snprintf(text + n, text_nbytes - n, "any");
        else
            n += (size_t)snprintf(text + n, text_nbytes - n, "%lld", (long long)shape[d]);
    }
    (void)snprintf(text + n, text_nbytes - n, "]");
}

static bool shape_equals_expected(const berth_tensor *tensor, int32_t rank, const int64_t *shape)
{
    bool fits = tensor->rank == rank;

    for (int32_t d = 0; d < rank && fits; d++)
        fits = shape[d] == -1 || shape[d] == tensor->shape[d];
    return fits;
}

int bth_tensor_check_expected(const berth_tensor *tensor, const char *name, berth_dtype dtype,
                              int32_t rank, const int64_t *shape, berth_error *error)
{
    char expected[160], found[160];

    if (rank < 0 || (rank > 0 && !shape))
        return bth_fail_argument(error, "berth_expect needs a rank and a shape");
    if (tensor->flags & BERTH_META || !tensor->storage)
        return bth_fail_argument(error, "\"%.100s\" is a meta tensor: it has no data", name);
    if (tensor->dtype != dtype)
        return bth_fail_argument(error, "\"%.100s\" has elements of %s, expected: %s", name,
                                 berth_dtype_name(tensor->dtype), berth_dtype_name(dtype));
    if (!shape_equals_expected(tensor, rank, shape)) {
        shape_write(tensor->shape, tensor->rank, found, sizeof found);
        shape_write(shape, rank, expected, sizeof expected);
        return bth_fail_argument(error, "\"%.100s\" has the shape %s, expected: %s", name, found,
                                 expected);
    }
    if (berth_tensor_is_contiguous(tensor))
        return 0;
    return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                           "\"%.100s\" is not contiguous: berth_tensor_read copies its elements",
                           name);
}
