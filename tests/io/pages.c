/* SPDX-License-Identifier: BSD-3-Clause */
/* Which memory lies in large pages. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "io/pages.h"
#include "io/syscalls.h"

#define N 4

static uint8_t *memory, *aligned;
static size_t nbytes;
static int fd;

static void set_up(void)
{
    nbytes = N * BERTH_LARGE_PAGE_NBYTES;
    memory = mmap(NULL, nbytes + BERTH_LARGE_PAGE_NBYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    aligned = (uint8_t *)(((uintptr_t)memory + BERTH_LARGE_PAGE_NBYTES - 1) &
                          ~(uintptr_t)(BERTH_LARGE_PAGE_NBYTES - 1));
    fd = berth_pages_open();
}

static void tear_down(void)
{
    berth_system_restore();
    berth_pages_close(fd);
    munmap(memory, nbytes + BERTH_LARGE_PAGE_NBYTES);
}

TestSuite(pages, .init = set_up, .fini = tear_down);

Test(pages, that_were_made_large_are_told_from_small_ones)
{
    berth_pages_make_large(aligned, nbytes);
    madvise(aligned + nbytes - BERTH_LARGE_PAGE_NBYTES, BERTH_LARGE_PAGE_NBYTES, MADV_NOHUGEPAGE);
    cr_assert_not(berth_pages_are_large(fd, aligned, nbytes), "nothing is present yet");
    memset(aligned, 1, nbytes);
    if (!berth_pages_are_large(fd, aligned, BERTH_LARGE_PAGE_NBYTES))
        cr_skip_test("no large pages here, or nobody tells");
    cr_expect(berth_pages_are_large(fd, aligned + 100, BERTH_LARGE_PAGE_NBYTES));
    cr_expect(berth_pages_are_large(fd, aligned, (N - 1) * BERTH_LARGE_PAGE_NBYTES));
    cr_expect_not(berth_pages_are_large(fd, aligned, (N - 1) * BERTH_LARGE_PAGE_NBYTES + 1));
    cr_expect_not(berth_pages_are_large(fd, aligned + (N - 1) * BERTH_LARGE_PAGE_NBYTES, 4096));
    cr_expect_not(berth_pages_are_large(-1, aligned, 4096));
}

static int no_ioctl(int of, unsigned long request, void *argument)
{
    (void)of, (void)request, (void)argument;
    errno = ENOTTY;
    return -1;
}

Test(pages, are_taken_for_small_where_nobody_tells)
{
    berth_pages_make_large(aligned, nbytes);
    memset(aligned, 1, nbytes);
    berth_system.ioctl = no_ioctl;
    cr_expect_not(berth_pages_are_large(fd, aligned, 4096));
}
