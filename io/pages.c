/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/pages.h"

#include <assert.h>
#include <linux/types.h>
#include <sys/ioctl.h>

#include "io/syscalls.h"

/* For PAGEMAP_SCAN of Linux 6.7, from <linux/fs.h>; older headers do not have them. */
struct scanned {
    __u64 start, end, categories;
};

struct scan {
    __u64 size, flags;
    __u64 start, end, walk_end;
    __u64 vec, vec_len, max_pages;
    __u64 category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define SCAN _IOWR('f', 16, struct scan)
#define IS_HUGE ((__u64)1 << 6)
#define PAGE_NBYTES ((__u64)4096)

int bth_pages_open(void)
{
    return bth_system.open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
}

bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes)
{
    struct scanned found = {0};
    struct scan scan = {.size = sizeof scan,
                        .start = (__u64)(uintptr_t)bytes & ~(PAGE_NBYTES - 1),
                        .vec = (__u64)(uintptr_t)&found,
                        .vec_len = 1,
                        .category_mask = IS_HUGE,
                        .return_mask = IS_HUGE};

    scan.end = ((__u64)(uintptr_t)bytes + nbytes + PAGE_NBYTES - 1) & ~(PAGE_NBYTES - 1);
    if (fd < 0 || bth_system.ioctl(fd, SCAN, &scan) != 1)
        return false;
    return found.start == scan.start && found.end == scan.end;
}

void bth_pages_make_large(void *bytes, size_t nbytes)
{
    assert((uintptr_t)bytes % BTH_LARGE_PAGE_NBYTES == 0);
    (void)bth_system.madvise(bytes, nbytes & ~(BTH_LARGE_PAGE_NBYTES - 1), MADV_HUGEPAGE);
}
