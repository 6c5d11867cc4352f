/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory through the allocator hook, and arithmetic on sizes that cannot wrap. */
#ifndef BTH_CONFIG_MEMORY_H
#define BTH_CONFIG_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when there is none; nbytes 0 gives NULL too. Thread-safe. */
void *bth_allocate(size_t nbytes);
void *bth_allocate_zeroed(size_t nbytes);
/* Like realloc: the old block stays when NULL comes back. */
void *bth_reallocate(void *pointer, size_t nbytes);
void bth_release(void *pointer); /* NULL: nothing */
/* A copy of n bytes with a NUL behind. */
char *bth_duplicate(const char *text, size_t n);

/* True and the result, or false if it does not fit. */
static inline bool bth_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool bth_multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
/* Of n items: SIZE_MAX, which no block has, where the product does not fit, as in 32 bits. */
static inline size_t bth_array_nbytes(size_t n, size_t item_nbytes)
{
    size_t nbytes;

    return __builtin_mul_overflow(n, item_nbytes, &nbytes) ? SIZE_MAX : nbytes;
}

#endif
