/* SPDX-License-Identifier: BSD-3-Clause */
/* How many elements of a tensor are read at a time. */
#include "tools/common/shared.h"

int64_t elements_per_chunk(const berth_tensor *tensor, size_t nbytes)
{
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = berth_tensor_numel(tensor);

    if (tensor->dtype == BERTH_QUINT4X2 || tensor->dtype == BERTH_QUINT2X4)
        return numel ? numel : 1;
    int64_t max = nbytes > item ? (int64_t)(nbytes / item) : 1;
    return numel > 0 && numel < max ? numel : max;
}
