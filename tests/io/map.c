/* SPDX-License-Identifier: BSD-3-Clause */
/* F1, F2, T5, W6: maps of exactly what is there. */
#include "io/map.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "config/options.h"

#define NBYTES 20000

#include "tests/support/io/small_file.h"

static void open_a_file(void)
{
    begin_file(NBYTES);
}

TestSuite(map, .init = open_a_file, .fini = end_file);

Test(map, holds_the_bytes_of_the_file)
{
    bth_map map;

    cr_assert_eq(bth_map_file(file_fd, NBYTES, 0, &map, &error), 0);
    cr_assert_arr_eq(map.address, file_bytes, NBYTES);
    cr_expect(bth_map_holds(&map, (uint8_t *)map.address + NBYTES - 1));
    cr_expect_not(bth_map_holds(&map, (uint8_t *)map.address + NBYTES));
    bth_map_free(&map);
    cr_assert_null(map.address);
    bth_map_free(&map);
}

Test(map, private_is_copied_on_write)
{
    bth_map map, other;
    size_t nbytes;

    cr_assert_eq(bth_map_file(file_fd, 50, BTH_MMAP_POPULATE, &map, &error), 0);
    cr_assert_eq(bth_map_file(file_fd, 50, 0, &other, &error), 0);
    memset(map.address, 0xEE, 50);
    cr_assert_arr_eq(other.address, file_bytes, 50);
    uint8_t *found = test_read_file(path, &nbytes);
    cr_assert_arr_eq(found, file_bytes, NBYTES);
    free(found);
    bth_map_free(&map);
    bth_map_free(&other);
}

static int asked_protection, asked_flags;

static void *noting_mmap(void *address, size_t nbytes, int protection, int flags, int file,
                         off_t offset)
{
    asked_protection = protection;
    asked_flags = flags;
    return mmap(address, nbytes, protection, flags, file, offset);
}

Test(map, asks_for_what_load_mmap_flags_says)
{
    bth_map map;

    bth_system.mmap = noting_mmap;
    cr_assert_eq(bth_map_file(file_fd, 50, BTH_MMAP_SHARED, &map, &error), 0);
    bth_map_free(&map);
    cr_assert_eq(asked_protection, PROT_READ);
    cr_assert_eq(asked_flags, MAP_SHARED);
    cr_assert_eq(bth_map_file(file_fd, 50, BTH_MMAP_SHARED | BTH_MMAP_POPULATE, &map, &error), 0);
    bth_map_free(&map);
    cr_assert_eq(asked_flags, MAP_SHARED);
    cr_assert_eq(bth_map_file(file_fd, 50, 0, &map, &error), 0);
    bth_map_free(&map);
    cr_assert_eq(asked_protection, PROT_READ | PROT_WRITE);
    cr_assert_eq(asked_flags, MAP_PRIVATE | MAP_NORESERVE);
}

static int advised[4], n_advised;

static int noting_madvise(void *address, size_t nbytes, int advice)
{
    (void)address, (void)nbytes;
    advised[n_advised++ % 4] = advice;
    errno = EINVAL;
    return -1;
}

/* Wishes: that they are refused does no harm. MAP_POPULATE would copy every page of a private map.
 */
Test(map, populate_and_huge_are_asked_for_when_it_is_made)
{
    bth_map map;

    bth_system.mmap = noting_mmap;
    bth_system.madvise = noting_madvise;
    cr_assert_eq(bth_map_file(file_fd, 50, BTH_MMAP_POPULATE | BTH_MMAP_HUGE, &map, &error), 0);
    bth_map_free(&map);
    cr_assert_eq(asked_flags, MAP_PRIVATE | MAP_NORESERVE);
    cr_assert_eq(n_advised, 2);
    cr_assert_eq(advised[0], MADV_HUGEPAGE);
    cr_assert_eq(advised[1], MADV_POPULATE_READ);
    cr_assert_eq(bth_map_file(file_fd, 50, BTH_MMAP_SHARED, &map, &error), 0);
    bth_map_free(&map);
    cr_assert_eq(n_advised, 2);
}

static void *failing_mmap(void *address, size_t nbytes, int protection, int flags, int file,
                          off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)file, (void)offset;
    errno = ENOMEM;
    return MAP_FAILED;
}

Test(map, that_the_system_refuses_is_an_error_w6)
{
    bth_map map = {0};

    bth_system.mmap = failing_mmap;
    FAILS(bth_map_file(file_fd, 50, 0, &map, &error), BERTH_E_MEMORY,
          "at byte 0: 50 bytes cannot be mapped: Cannot allocate memory");
    cr_assert_null(map.address);
}
