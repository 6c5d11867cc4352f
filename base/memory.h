/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory through the allocator hook, and size arithmetic that detects overflow. */
#ifndef BTH_BASE_MEMORY_H
#define BTH_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "berth.h"

/* NULL: out of memory, or nbytes is 0. Any thread may call these. */
void *bth_allocate(size_t nbytes);
void *bth_allocate_zeroed(size_t nbytes);
/* As realloc: on failure it returns NULL, and the old block stays valid. */
void *bth_reallocate(void *pointer, size_t nbytes);
void bth_release(void *pointer); /* does nothing for NULL */
/* Room for `more` items behind n: the items, perhaps at another place. NULL: the error is set, and
 * the old ones stay. */
void *bth_items_grow(void *items, size_t n, size_t more, size_t *room, size_t item_nbytes,
                     berth_error *error);
/* A copy of n bytes, with a NUL at its end. */
char *bth_duplicate_text(const char *text, size_t n);

static inline uint64_t bth_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t bth_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
/* Sets the result; false: it overflows. */
static inline bool bth_try_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool bth_try_multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
/* Size of n items; if it does not fit, SIZE_MAX, which no allocation can have. */
static inline size_t bth_array_nbytes(size_t n, size_t item_nbytes)
{
    size_t nbytes;

    return __builtin_mul_overflow(n, item_nbytes, &nbytes) ? SIZE_MAX : nbytes;
}

#endif
