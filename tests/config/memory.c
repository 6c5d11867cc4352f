/* SPDX-License-Identifier: BSD-3-Clause */
/* W6: memory comes from the hook, and may not come. */
#include "base/memory.h"

#include <berth.h>
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/support.h"

Test(memory, of_no_bytes_is_none)
{
    char *kept = bth_allocate(1);

    cr_assert_null(bth_allocate(0));
    cr_assert_null(bth_allocate_zeroed(0));
    cr_assert_null(bth_duplicate_text("", SIZE_MAX));
    kept[0] = 'k';
    cr_assert_null(bth_reallocate(kept, 0), "and the block stays");
    cr_assert_eq(kept[0], 'k');
    bth_release(kept);
    bth_release(NULL);
}

Test(memory, of_sizes_beyond_any_block_is_not_even_asked_for)
{
    test_memory_watch();
    cr_assert_null(bth_allocate((size_t)PTRDIFF_MAX + 1));
    cr_assert_null(bth_allocate_zeroed(SIZE_MAX));
    cr_assert_null(bth_reallocate(NULL, SIZE_MAX));
    cr_assert_eq(test_memory_seen().n_allocations, 0);
    test_memory_unwatch();
}

Test(memory, of_more_items_than_any_block_is_not_even_asked_for)
{
    cr_expect_eq(bth_array_nbytes(3, 8), 24);
    cr_expect_eq(bth_array_nbytes(SIZE_MAX / 8, 8), SIZE_MAX - 7);
    cr_expect_eq(bth_array_nbytes(SIZE_MAX / 8 + 1, 8), SIZE_MAX);
    test_memory_watch();
    cr_expect_null(bth_allocate(bth_array_nbytes(SIZE_MAX / 4 + 2, 4)));
    cr_expect_eq(test_memory_seen().n_allocations, 0);
    test_memory_unwatch();
}

Test(memory, of_the_hook_is_zeroed)
{
    test_memory_watch();
    for (int round = 0; round < 50; round++) {
        unsigned char *used = bth_allocate(200);
        memset(used, 0xAA, 200);
        bth_release(used);
        unsigned char *zeroed = bth_allocate_zeroed(200);
        for (size_t i = 0; i < 200; i++)
            cr_assert_eq(zeroed[i], 0);
        bth_release(zeroed);
    }
    test_memory_unwatch();
}

Test(memory, goes_through_the_hook_and_back)
{
    test_memory_watch();
    char *a = bth_allocate(10), *b = bth_allocate_zeroed(20), *c = bth_duplicate_text("ab", 2);
    a = bth_reallocate(a, 100);
    cr_assert_eq(test_memory_seen().live_nbytes, 100 + 20 + 3);
    cr_assert_str_eq(c, "ab");
    bth_release(a);
    bth_release(b);
    berth_free(c);
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    cr_assert_eq(test_memory_seen().n_allocations, 4);
    test_memory_unwatch();
}

Test(memory, that_is_refused_leaves_the_old_block)
{
    test_memory_watch();
    char *kept = bth_duplicate_text("kept", 4);
    test_memory_refuse(1, true);
    cr_assert_null(bth_reallocate(kept, 1000));
    cr_assert_null(bth_allocate(1));
    cr_assert_null(bth_allocate_zeroed(1));
    cr_assert_null(bth_duplicate_text("", 0));
    cr_assert_str_eq(kept, "kept");
    bth_release(kept);
    test_memory_unwatch();
}

Test(memory, of_the_c_library_is_zeroed_too)
{
    for (int round = 0; round < 50; round++) {
        unsigned char *used = bth_allocate(4096);
        memset(used, 0xAA, 4096);
        bth_release(used);
        unsigned char *zeroed = bth_allocate_zeroed(4096);
        for (size_t i = 0; i < 4096; i++)
            cr_assert_eq(zeroed[i], 0);
        bth_release(zeroed);
    }
}

Test(arithmetic, tells_what_does_not_fit)
{
    uint64_t result;

    cr_assert(bth_try_add(UINT64_MAX - 1, 1, &result) && result == UINT64_MAX);
    cr_assert_not(bth_try_add(UINT64_MAX, 1, &result));
    cr_assert(bth_try_multiply(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &result));
    /* T1: four times this is 4 to whoever does not look. */
    cr_assert_not(bth_try_multiply(UINT64_C(0x4000000000000001), 4, &result));
}
