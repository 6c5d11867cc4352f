/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/support.h"
#include <stdatomic.h>
#include <stdlib.h>

/* Before each block lies its size, in a space that keeps malloc's alignment. */
enum { PREFIX_NBYTES = 16 };

static _Atomic uint64_t n_allocations;
static _Atomic uint64_t live_nbytes;
static _Atomic uint64_t peak_nbytes;
static _Atomic uint64_t largest_nbytes;
static _Atomic uint64_t refuse_at; /* 0: never */
static _Atomic bool refuse_for_ever;

static void raise_to(_Atomic uint64_t *highest, uint64_t value)
{
    uint64_t seen = atomic_load(highest);
    while (seen < value && !atomic_compare_exchange_weak(highest, &seen, value))
        continue;
}

static bool refused(void)
{
    uint64_t n = atomic_fetch_add(&n_allocations, 1) + 1;
    uint64_t at = atomic_load(&refuse_at);
    return at && (n == at || (n > at && atomic_load(&refuse_for_ever)));
}

static uint64_t size_of(const char *block)
{
    return *(const uint64_t *)(const void *)block;
}

static void *counting_reallocate(void *context, void *pointer, size_t nbytes)
{
    (void)context;
    char *old = pointer ? (char *)pointer - PREFIX_NBYTES : NULL;
    uint64_t old_nbytes = old ? size_of(old) : 0;
    if (nbytes == 0) {
        free(old);
        atomic_fetch_sub(&live_nbytes, old_nbytes);
        return NULL;
    }
    raise_to(&largest_nbytes, nbytes);
    if (refused() || nbytes > SIZE_MAX - PREFIX_NBYTES)
        return NULL;
    char *block = realloc(old, nbytes + PREFIX_NBYTES);
    if (!block)
        return NULL;
    *(uint64_t *)(void *)block = nbytes;
    raise_to(&peak_nbytes,
             atomic_fetch_add(&live_nbytes, nbytes - old_nbytes) + nbytes - old_nbytes);
    return block + PREFIX_NBYTES;
}

void test_memory_watch(void)
{
    atomic_store(&n_allocations, 0);
    atomic_store(&live_nbytes, 0);
    atomic_store(&peak_nbytes, 0);
    atomic_store(&largest_nbytes, 0);
    atomic_store(&refuse_at, 0);
    berth_set_allocator(&(berth_allocator){.reallocate = counting_reallocate});
}

void test_memory_refuse(uint64_t nth, bool for_ever)
{
    atomic_store(&refuse_for_ever, for_ever);
    atomic_store(&refuse_at, nth ? atomic_load(&n_allocations) + nth : 0);
}

bool test_memory_refused(void)
{
    uint64_t at = atomic_load(&refuse_at);
    return at && atomic_load(&n_allocations) >= at;
}

bool test_refuse_next(struct test_refusals *each)
{
    if (each->nth > 0) {
        bool is_over = !test_memory_refused();
        if (atomic_load(&live_nbytes) > 0)
            test_give_up("after allocation %llu was refused, %llu bytes leak",
                         (unsigned long long)each->nth,
                         (unsigned long long)atomic_load(&live_nbytes));
        test_memory_unwatch();
        if (is_over)
            return false;
    }
    test_memory_watch();
    test_memory_refuse(++each->nth, each->for_ever);
    return true;
}

struct test_memory test_memory_seen(void)
{
    return (struct test_memory){
        .n_allocations = atomic_load(&n_allocations),
        .live_nbytes = atomic_load(&live_nbytes),
        .peak_nbytes = atomic_load(&peak_nbytes),
        .largest_nbytes = atomic_load(&largest_nbytes),
    };
}

void test_memory_unwatch(void)
{
    berth_set_allocator(NULL);
}
