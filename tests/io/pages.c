/* SPDX-License-Identifier: BSD-3-Clause */
/* Which memory lies in large pages. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "io/file.h"
#include "io/memory_region.h"
#include "io/syscalls.h"

#define N 4

static uint8_t *memory, *aligned;
static size_t nbytes;
static int fd;

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
    bth_pages_make_large(aligned, nbytes);
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
    bth_pages_make_large(aligned, nbytes);
    memset(aligned, 1, nbytes);
    bth_system.ioctl = no_ioctl;
    cr_expect_not(bth_pages_are_large(fd, aligned, 4096));
}
