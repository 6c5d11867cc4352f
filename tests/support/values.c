/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/support.h"

berth_value *test_tensor(berth_tree *tree, berth_dtype dtype, const void *data, int32_t rank,
                         const int64_t *shape)
{
    return berth_make_tensor(
        tree, &(berth_tensor){.dtype = dtype, .rank = rank, .shape = shape, .data = data});
}

berth_value *test_vector(berth_tree *tree, berth_dtype dtype, const void *data, int64_t n)
{
    return test_tensor(tree, dtype, data, 1, &n);
}
