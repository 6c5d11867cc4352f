/* SPDX-License-Identifier: BSD-3-Clause */
/* The allocator hook. Without one: the C library, whose calloc need not touch fresh pages. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "berth/more.h"

static berth_allocator allocator;

void berth_set_allocator(const berth_allocator *chosen)
{
    allocator = chosen ? *chosen : (berth_allocator){0};
}

/* X13: the hook is the caller's code and may wait. */
static void *allocator_call_hook(void *pointer, size_t nbytes)
{
    BTH_HOLD_CANCEL(true);
    return allocator.reallocate(allocator.context, pointer, nbytes);
}

void *bth_allocate_zeroed(size_t nbytes)
{
    if (nbytes == 0 || nbytes > PTRDIFF_MAX) /* indexing a larger block is undefined behaviour */
        return NULL;
    if (!allocator.reallocate)
        return calloc(1, nbytes);
    void *pointer = allocator_call_hook(NULL, nbytes);
    if (pointer)
        memset(pointer, 0, nbytes);
    return pointer;
}

void *bth_reallocate(void *pointer, size_t nbytes)
{
    if (nbytes == 0 || nbytes > PTRDIFF_MAX)
        return NULL;
    if (allocator.reallocate)
        return allocator_call_hook(pointer, nbytes);
    return realloc(pointer, nbytes);
}

void *bth_allocate(size_t nbytes)
{
    return bth_reallocate(NULL, nbytes);
}

void bth_release(void *pointer)
{
    if (!pointer)
        return;
    if (allocator.reallocate)
        (void)allocator_call_hook(pointer, 0);
    else
        free(pointer);
}

void *bth_items_grow(void *items, size_t n, size_t more, size_t *room, size_t item_nbytes,
                     berth_error *error)
{
    if (items && more <= *room - n)
        return items;
    size_t larger = 2 * *room + more + 16, nbytes = bth_array_nbytes(larger, item_nbytes);
    void *grown = bth_reallocate(items, nbytes);
    if (!grown)
        (void)bth_fail_memory(error, nbytes);
    else
        *room = larger;
    return grown;
}

char *bth_duplicate_text(const char *text, size_t n)
{
    char *copy = bth_allocate(n + 1); /* 0 for SIZE_MAX, which fails */

    if (!copy)
        return NULL;
    if (n > 0)
        memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

void berth_free(void *bytes)
{
    bth_release(bytes);
}
