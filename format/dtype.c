/* SPDX-License-Identifier: BSD-3-Clause */
/* Properties of dtypes, from the rows of dtypes.def. */
#include "format/values/value.h"

#include <string.h>

enum { PLAIN, QUANTIZED, FOREIGN };

struct dtype_row {
    const char *name;
    const char *storage_class;
    uint8_t nbytes;
    uint8_t swap_nbytes;
    uint8_t elements;
    uint8_t sort;
};

static const struct dtype_row rows[] = {
    {"untyped", NULL, 1, 1, 1, PLAIN},
#define DTYPE(name, text, nbytes, storage_class, swap_nbytes, elements, sort)                      \
    [BERTH_##name] = {text, storage_class, nbytes, swap_nbytes, elements, sort},
#include "format/dtypes.def"
#undef DTYPE
};
_Static_assert(sizeof rows / sizeof *rows == BERTH_DTYPE_COUNT,
               "dtypes.def has other dtypes than berth.h");

/* The caller may have cast any number to the enum. */
static unsigned dtype_index(berth_dtype dtype)
{
    return (unsigned)dtype < BERTH_DTYPE_COUNT ? (unsigned)dtype : 0;
}

const char *berth_dtype_name(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].name;
}

size_t berth_dtype_nbytes(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].nbytes;
}

size_t bth_dtype_swap_nbytes(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].swap_nbytes;
}

int bth_dtype_elements_per_item(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].elements;
}

const char *bth_dtype_storage_class(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].storage_class;
}

berth_dtype bth_dtype_to_storage_dtype(berth_dtype dtype)
{
    return bth_dtype_storage_class(dtype) ? dtype : BERTH_DTYPE_NONE;
}

bool bth_storage_dtypes_are_compatible(berth_dtype a, berth_dtype b)
{
    return a == b || (a == BERTH_DTYPE_NONE && b == BERTH_UINT8) ||
           (a == BERTH_UINT8 && b == BERTH_DTYPE_NONE);
}

bool bth_dtype_is_quantized(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].sort == QUANTIZED;
}

bool bth_dtype_is_foreign(berth_dtype dtype)
{
    return rows[dtype_index(dtype)].sort == FOREIGN;
}
