/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory through the allocator hook, and arithmetic on sizes that cannot wrap. */
#ifndef BERTH_CONFIG_MEMORY_H
#define BERTH_CONFIG_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when there is none; nbytes 0 gives NULL too. Thread-safe. */
void *berth_allocate(size_t nbytes);
void *berth_allocate_zeroed(size_t nbytes);
/* Like realloc: the old block stays when NULL comes back. */
void *berth_reallocate(void *pointer, size_t nbytes);
void berth_release(void *pointer); /* NULL: nothing */
/* A copy of n bytes with a NUL behind. */
char *berth_duplicate(const char *text, size_t n);

/* True and the result, or false if it does not fit. */
static inline bool berth_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool berth_multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
/* Of n items: SIZE_MAX, which no block has, where the product does not fit, as in 32 bits. */
static inline size_t berth_array_nbytes(size_t n, size_t item_nbytes)
{
    size_t nbytes;

    return __builtin_mul_overflow(n, item_nbytes, &nbytes) ? SIZE_MAX : nbytes;
}

#endif
