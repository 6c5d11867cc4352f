/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stands before the C library's allocator (LD_PRELOAD) and counts what a program holds of it, all
 * threads and libraries together. When the program ends, writes "peak largest" in bytes to the file
 * that BERTH_HEAP names.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* glibc's own names for what is replaced here. */
void *__libc_malloc(size_t nbytes);
void *__libc_realloc(void *block, size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_memalign(size_t alignment, size_t nbytes);
void __libc_free(void *block);

static _Atomic size_t live_nbytes, peak_nbytes, largest_nbytes;

static void raise_to(_Atomic size_t *highest, size_t value)
{
    size_t seen = atomic_load(highest);

    while (seen < value && !atomic_compare_exchange_weak(highest, &seen, value))
        continue;
}

static void *count(void *block)
{
    size_t nbytes = block ? malloc_usable_size(block) : 0;

    raise_to(&largest_nbytes, nbytes);
    raise_to(&peak_nbytes, atomic_fetch_add(&live_nbytes, nbytes) + nbytes);
    return block;
}

__attribute__((visibility("default"))) void *malloc(size_t nbytes)
{
    return count(__libc_malloc(nbytes));
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t nbytes)
{
    return count(__libc_calloc(n, nbytes));
}

/* Old and new block are held at the same time: counts both. */
__attribute__((visibility("default"))) void *realloc(void *block, size_t nbytes)
{
    size_t old_nbytes = block ? malloc_usable_size(block) : 0;
    void *grown = __libc_realloc(block, nbytes);

    if (!grown && nbytes > 0)
        return NULL;
    (void)count(grown);
    atomic_fetch_sub(&live_nbytes, old_nbytes);
    return grown;
}

__attribute__((visibility("default"))) void free(void *block)
{
    if (block)
        atomic_fetch_sub(&live_nbytes, malloc_usable_size(block));
    __libc_free(block);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t nbytes)
{
    return count(__libc_memalign(alignment, nbytes));
}

__attribute__((visibility("default"))) void *memalign(size_t alignment, size_t nbytes)
{
    return count(__libc_memalign(alignment, nbytes));
}

__attribute__((visibility("default"))) int posix_memalign(void **block, size_t alignment,
                                                          size_t nbytes)
{
    void *made = count(__libc_memalign(alignment, nbytes));

    if (!made)
        return ENOMEM;
    *block = made;
    return 0;
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("BERTH_HEAP");
    size_t peak = atomic_load(&peak_nbytes), largest = atomic_load(&largest_nbytes);
    FILE *out = path ? fopen(path, "w") : NULL;

    if (!out)
        return;
    (void)fprintf(out, "%zu %zu\n", peak, largest);
    (void)fclose(out);
}
