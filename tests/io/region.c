/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for what is read: aligned, in large pages, spread over nodes on request; W6. */
#include "io/memory_region.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>

#include "config/options.h"
#include "io/syscalls.h"
#include "tests/support/io/refusals.h"
#include "tests/support/support.h"

static berth_error error;

static void set_up(void)
{
    error = (berth_error){0};
}

TestSuite(region, .init = set_up, .fini = bth_system_restore);

static int advised, n_unmapped;
static size_t advised_nbytes;

static int noting_madvise(void *address, size_t nbytes, int advice)
{
    (void)address;
    advised = advice;
    advised_nbytes = nbytes;
    return 0;
}

static int noting_munmap(void *address, size_t nbytes)
{
    n_unmapped++;
    return munmap(address, nbytes);
}

Test(region, of_any_size_is_aligned_and_can_be_written)
{
    static const uint64_t sizes[] = {1, 63, 4096, 100000, BTH_LARGE_PAGE_NBYTES - 1};
    static const size_t alignments[] = {64, 4096, 65536};
    bth_region region;

    test_memory_watch();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < 3; k++) {
            cr_assert_eq(bth_region_new(sizes[i], alignments[k], false, NULL, &region, &error), 0);
            cr_expect_eq((uintptr_t)region.bytes % alignments[k], 0);
            cr_expect_eq(region.base_nbytes, 0, "small ones are the allocator's");
            memset(region.bytes, 0xee, sizes[i]);
            bth_region_free(&region);
            cr_expect_null(region.bytes);
            bth_region_free(&region);
        }
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

Test(region, of_a_large_page_and_more_is_mapped_in_large_pages)
{
    uint64_t nbytes = 2 * BTH_LARGE_PAGE_NBYTES + 4097;
    bth_pages pages = {.wanted = BTH_LARGE_PAGES_ON};
    bth_region region;

    bth_system.madvise = noting_madvise;
    bth_system.munmap = noting_munmap;
    cr_assert_eq(bth_region_new(nbytes, 64, false, &pages, &region, &error), 0);
    cr_expect_eq((uintptr_t)region.bytes % BTH_LARGE_PAGE_NBYTES, 0);
    cr_expect_eq(advised, MADV_HUGEPAGE);
    cr_expect_eq(advised_nbytes, 2 * BTH_LARGE_PAGE_NBYTES);
    memset(region.bytes, 0xee, nbytes);
    bth_region_free(&region);
    cr_expect_eq(n_unmapped, 1);
}

Test(region, that_cannot_be_had_is_an_error_w6)
{
    bth_region region;

    bth_system.mmap = refused_mmap;
    FAILS(bth_region_new(5000000, 64, false, NULL, &region, &error), BERTH_E_MEMORY,
          "5000000 bytes of memory cannot be mapped: Cannot allocate memory");
    cr_expect_null(region.base);
    error = (berth_error){0};
    cr_expect_eq(bth_region_new(UINT64_MAX, 64, false, NULL, &region, &error), BERTH_E_MEMORY);
    test_memory_watch();
    test_memory_refuse(1, false);
    error = (berth_error){0};
    cr_expect_eq(bth_region_new(5000, 64, false, NULL, &region, &error), BERTH_E_MEMORY);
    test_memory_unwatch();
}

/* ---- io.numa=interleave ---- */

static int bound_mode;
static unsigned long bound_nodes;
static size_t bound_nbytes;
static int n_bound, result;

static long some_nodes(int *mode, unsigned long *nodes, unsigned long n_nodes, void *address,
                       unsigned long flags)
{
    (void)mode, (void)address;
    cr_assert_eq(flags, MPOL_F_MEMS_ALLOWED);
    cr_assert_geq(n_nodes, 1024);
    nodes[0] = 5;
    return 0;
}

static long noting_mbind(void *address, unsigned long nbytes, int mode, const unsigned long *nodes,
                         unsigned long n_nodes, unsigned flags)
{
    (void)address, (void)n_nodes, (void)flags;
    n_bound++;
    bound_mode = mode;
    bound_nodes = nodes[0];
    bound_nbytes = nbytes;
    errno = ENOSYS;
    return result;
}

static char logged[200];

static void keep_log(void *context, const char *message)
{
    (void)context;
    (void)snprintf(logged, sizeof logged, "%s", message);
}

Test(region, is_spread_over_all_allowed_nodes_only_if_asked)
{
    bth_region region;

    bth_system.get_mempolicy = some_nodes;
    bth_system.mbind = noting_mbind;
    cr_assert_eq(bth_region_new(5000000, 64, false, NULL, &region, &error), 0);
    bth_region_free(&region);
    cr_expect_eq(n_bound, 0);
    cr_assert_eq(bth_region_new(5000000, 64, true, NULL, &region, &error), 0);
    bth_region_free(&region);
    cr_expect_eq(n_bound, 1);
    cr_expect_eq(bound_mode, MPOL_INTERLEAVE);
    cr_expect_eq(bound_nodes, 5);
    cr_expect_geq(bound_nbytes, 5000000);
}

Test(region, that_cannot_be_spread_is_told_and_used)
{
    bth_region region;

    bth_system.get_mempolicy = some_nodes;
    bth_system.mbind = noting_mbind;
    result = -1;
    berth_set_log(keep_log, NULL);
    cr_expect_eq(bth_region_new(5000000, 64, true, NULL, &region, &error), 0);
    cr_expect_str_eq(
        logged, "memory is not spread over nodes (io.numa=interleave): Function not implemented");
    memset(region.bytes, 1, 5000000);
    bth_region_free(&region);
    berth_set_log(NULL, NULL);
}

/* The kernel takes what is asked of it, where it knows nodes at all. */
Test(region, is_really_spread)
{
    bth_region region;

    berth_set_log(keep_log, NULL);
    cr_assert_eq(bth_region_new(5000000, 64, true, NULL, &region, &error), 0);
    cr_expect(logged[0] == '\0' || strstr(logged, "not implemented") ||
                  strstr(logged, "not permitted"),
              "%s", logged);
    bth_region_free(&region);
    berth_set_log(NULL, NULL);
}
