/* SPDX-License-Identifier: BSD-3-Clause */
/* How many of a file's bytes are in the page cache: counted by whom it is told. */
#include "io/page_cache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define NBYTES 100000

#include "tests/support/io/small_file.h"

static int fd;
static bth_map map;

static void open_a_file(void)
{
    begin_file(NBYTES);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(bth_map_file(fd, NBYTES, 0, &map, &error), 0);
}

static void close_the_file(void)
{
    bth_map_free(&map);
    (void)close(fd);
    end_file();
}

TestSuite(cached, .init = open_a_file, .fini = close_the_file);

/* ---- a system of which the test says what it tells ---- */

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

static uint64_t every_nth, n_asked_pages;

static int told_mincore(void *address, size_t nbytes, unsigned char *pages)
{
    uint64_t first = (uint64_t)((uint8_t *)address - (uint8_t *)map.address) / PAGE;

    for (uint64_t i = 0; i < (nbytes + PAGE - 1) / PAGE; i++, n_asked_pages++)
        pages[i] = (first + i) % every_nth == 0 ? 0x81 : 0x80; /* other bits have no meaning */
    return 0;
}

static int failing_mincore(void *address, size_t nbytes, unsigned char *pages)
{
    (void)address, (void)nbytes, (void)pages;
    errno = EAGAIN;
    return -1;
}

static int told_cachestat(int of, void *range, void *counts, unsigned flags)
{
    const uint64_t *asked = range;

    cr_assert(of == fd && flags == 0);
    cr_assert_eq(asked[0], 2 * PAGE);
    memcpy(counts, &(uint64_t){asked[1] / PAGE / 2}, sizeof(uint64_t));
    return 0;
}

static int unknown_cachestat(int of, void *range, void *counts, unsigned flags)
{
    (void)of, (void)range, (void)counts, (void)flags;
    errno = ENOSYS;
    return -1;
}

static int another_owner(int of, struct stat *status)
{
    int result = fstat(of, status);

    status->st_uid = geteuid() + 1;
    return result;
}

static int refused_access(int at, const char *name, int mode, int flags)
{
    char expected[32];

    (void)snprintf(expected, sizeof expected, "/proc/self/fd/%d", fd);
    cr_assert(at == AT_FDCWD && mode == W_OK && flags == AT_EACCESS);
    cr_assert_str_eq(name, expected);
    errno = EACCES;
    return -1;
}

Test(cached, pages_of_a_map_are_counted_one_by_one)
{
    uint64_t nbytes = 7;

    bth_system.mincore = told_mincore;
    every_nth = 3;
    cr_assert(bth_page_cache_nbytes(fd, &map, 0, 9 * PAGE, &nbytes));
    cr_expect_eq(nbytes, 3 * PAGE);
    cr_assert(bth_page_cache_nbytes(fd, &map, PAGE, 2 * PAGE, &nbytes));
    cr_expect_eq(nbytes, 0);
    every_nth = 1;
    cr_assert(bth_page_cache_nbytes(fd, &map, 2 * PAGE, 100, &nbytes));
    cr_expect_eq(nbytes, 100, "no more than asked for");
    n_asked_pages = 0;
    cr_assert(bth_page_cache_nbytes(fd, &map, 0, 10001 * PAGE, &nbytes));
    cr_expect_eq(n_asked_pages, 10001);
    cr_expect_eq(nbytes, 10001 * PAGE);
}

/* Else a file that others own would count as there, and nothing of it be brought. */
Test(cached, mincore_is_not_believed_by_whom_it_tells_nothing)
{
    uint64_t nbytes;

    bth_system.mincore = told_mincore;
    bth_system.fstat = another_owner;
    bth_system.faccessat = refused_access;
    bth_system.cachestat = told_cachestat;
    every_nth = 1;
    cr_assert(bth_page_cache_nbytes(fd, &map, 2 * PAGE, 8 * PAGE, &nbytes));
    cr_expect_eq(nbytes, 4 * PAGE);
    cr_expect_eq(n_asked_pages, 0);
    bth_system.cachestat = unknown_cachestat;
    cr_expect_not(bth_page_cache_nbytes(fd, &map, 2 * PAGE, 8 * PAGE, &nbytes));
}

Test(cached, without_a_map_or_its_answer_the_file_is_asked)
{
    uint64_t nbytes;

    bth_system.cachestat = told_cachestat;
    cr_assert(bth_page_cache_nbytes(fd, NULL, 2 * PAGE, 8 * PAGE, &nbytes));
    cr_expect_eq(nbytes, 4 * PAGE);
    bth_system.mincore = failing_mincore;
    cr_assert(bth_page_cache_nbytes(fd, &map, 2 * PAGE, 8 * PAGE, &nbytes));
    cr_expect_eq(nbytes, 4 * PAGE);
}

Test(cached, of_a_file_just_written_is_all)
{
    uint64_t nbytes;

    cr_assert(bth_page_cache_nbytes(fd, &map, 0, NBYTES, &nbytes));
    cr_expect_eq(nbytes, NBYTES);
}
