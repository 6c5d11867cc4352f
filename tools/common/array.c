/* SPDX-License-Identifier: BSD-3-Clause */
/* Arrays that grow. */
#include <stdlib.h>

#include "tools/common/array.h"
#include "tools/common/report.h"

bool array_reserve(void *array, size_t n, size_t *capacity, size_t item_nbytes)
{
    void **items = array;

    if (n < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 16;
    void *grown = realloc(*items, more * item_nbytes);
    if (!grown)
        return print_trouble("out of memory") == 0;
    *items = grown;
    *capacity = more;
    return true;
}
