/* SPDX-License-Identifier: BSD-3-Clause */
/* Which memory lies in large pages. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "config/options.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/syscalls.h"

#define N 4

static uint8_t *memory, *aligned;
static size_t nbytes;
static int fd;
static bth_pages large = {.wanted = BTH_LARGE_PAGES_ON};

static void set_up(void)
{
    nbytes = N * BTH_LARGE_PAGE_NBYTES;
    memory = mmap(NULL, nbytes + BTH_LARGE_PAGE_NBYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    aligned = (uint8_t *)(((uintptr_t)memory + BTH_LARGE_PAGE_NBYTES - 1) &
                          ~(uintptr_t)(BTH_LARGE_PAGE_NBYTES - 1));
    fd = bth_pagemap_open();
}

static void tear_down(void)
{
    bth_system_restore();
    bth_file_close(fd);
    munmap(memory, nbytes + BTH_LARGE_PAGE_NBYTES);
}

TestSuite(pages, .init = set_up, .fini = tear_down);

Test(pages, that_were_made_large_are_told_from_small_ones)
{
    bth_pages_begin(&large, aligned, nbytes);
    madvise(aligned + nbytes - BTH_LARGE_PAGE_NBYTES, BTH_LARGE_PAGE_NBYTES, MADV_NOHUGEPAGE);
    cr_assert_not(bth_pages_are_large(fd, aligned, nbytes), "nothing is present yet");
    memset(aligned, 1, nbytes);
    if (!bth_pages_are_large(fd, aligned, BTH_LARGE_PAGE_NBYTES))
        cr_skip_test("no large pages here, or nobody tells");
    cr_expect(bth_pages_are_large(fd, aligned + 100, BTH_LARGE_PAGE_NBYTES));
    cr_expect(bth_pages_are_large(fd, aligned, (N - 1) * BTH_LARGE_PAGE_NBYTES));
    cr_expect_not(bth_pages_are_large(fd, aligned, (N - 1) * BTH_LARGE_PAGE_NBYTES + 1));
    cr_expect_not(bth_pages_are_large(fd, aligned + (N - 1) * BTH_LARGE_PAGE_NBYTES, 4096));
    cr_expect_not(bth_pages_are_large(-1, aligned, 4096));
}

static int no_ioctl(int of, unsigned long request, void *argument)
{
    (void)of, (void)request, (void)argument;
    errno = ENOTTY;
    return -1;
}

Test(pages, are_taken_for_small_where_nobody_tells)
{
    bth_pages_begin(&large, aligned, nbytes);
    memset(aligned, 1, nbytes);
    bth_system.ioctl = no_ioctl;
    cr_expect_not(bth_pages_are_large(fd, aligned, 4096));
}

/* ---- io.large_pages ---- */

static void fill_in_pieces(bth_pages *pages)
{
    bth_pages_begin(pages, aligned, nbytes);
    for (size_t i = 0; i < nbytes; i += BTH_LARGE_PAGE_NBYTES / 2)
        bth_pages_touch(pages, aligned + i, BTH_LARGE_PAGE_NBYTES / 2, nbytes - i);
    bth_pages_end(pages, aligned, nbytes);
}

static unsigned char presence;

static int mincore_of_test(void *address, size_t n, unsigned char *pages)
{
    (void)address, (void)n;
    *pages = presence;
    return 0;
}

static int refusing_madvise(void *address, size_t n, int advice)
{
    (void)address, (void)n, (void)advice;
    errno = EINVAL; /* a kernel without large pages */
    return -1;
}

Test(pages, are_chosen_by_the_option_and_by_how_fast_they_come)
{
    static const struct {
        int wanted;
        double seconds; /* that large pages seem to take */
        unsigned char is_present;
        const char *pages, *reason;
        uint64_t n_large, n_small;
    } rows[] = {
        {BTH_LARGE_PAGES_ON, 1, 1, "large", "io.large_pages=on", N, 0},
        {BTH_LARGE_PAGES_OFF, 1e-9, 1, "small", "io.large_pages=off", 0, N},
        {BTH_LARGE_PAGES_AUTO, 1e-9, 1, "large", "large pages came fast", N, 0},
        {BTH_LARGE_PAGES_AUTO, 1e-9, 0, "small", "the system gave no large pages", N, 0},
        {BTH_LARGE_PAGES_AUTO, 1, 1, "small", "large pages came slowly", 1, N - 1},
    };

    for (int refuses = 0; refuses < 2; refuses++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            bth_pages pages = {.wanted = rows[i].wanted}, whole = {.wanted = rows[i].wanted};
            berth_stats stats = {0};
            bth_system.mincore = mincore_of_test;
            bth_system.madvise = refuses ? refusing_madvise : madvise;
            presence = rows[i].is_present;
            bth_pages_forget(rows[i].seconds);
            fill_in_pieces(&pages);
            bth_pages_describe(&pages, &stats);
            cr_expect_str_eq(stats.pages, rows[i].pages, "row %zu", i);
            cr_expect_str_eq(stats.pages_reason, rows[i].reason, "row %zu", i);
            cr_expect_eq(pages.n_large, rows[i].n_large, "row %zu", i);
            cr_expect_eq(pages.n_small, rows[i].n_small, "row %zu", i);
            bth_pages_forget(rows[i].seconds);
            bth_pages_choose(&whole, aligned, nbytes);
            cr_expect_eq(whole.n_large, rows[i].n_large, "whole, row %zu", i);
            cr_expect_eq(whole.n_small, rows[i].n_small, "whole, row %zu", i);
        }
    bth_pages_forget(0);
}

/* A piece that another thread has written is not touched by this one. */
Test(pages, are_touched_only_inside_of_what_is_written_next)
{
    bth_pages pages = {0};

    memset(aligned, 7, nbytes);
    bth_pages_touch(&pages, aligned + 1, BTH_LARGE_PAGE_NBYTES - 1, nbytes - 1);
    cr_expect_eq(aligned[BTH_LARGE_PAGE_NBYTES], 7);
    bth_pages_touch(&pages, aligned + nbytes - 5, 5, 5);
    cr_expect_eq(pages.n_large + pages.n_small, 0, "nothing whole is left");
}

Test(pages, of_less_than_a_large_page_have_no_choice)
{
    bth_pages pages = {0};
    berth_stats stats = {0};

    bth_pages_begin(&pages, aligned, 4096);
    bth_pages_touch(&pages, aligned, 4096, 4096);
    bth_pages_choose(&pages, aligned + 4096, BTH_LARGE_PAGE_NBYTES);
    bth_pages_describe(&pages, &stats);
    cr_expect_null(stats.pages);
    cr_expect_null(stats.pages_reason);
}
