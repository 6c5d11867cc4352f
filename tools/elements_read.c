/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of a tensor as plain values: conjugate and negative bits are applied. */
#include "tools/shared.h"

int read_elements(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                  int64_t n, void *buffer, berth_error *error)
{
    int code = berth_tensor_read(checkpoint, tensor, first, n, buffer, error);

    return code < 0 ? code : berth_tensor_resolve_bits(tensor, n, buffer, error);
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
