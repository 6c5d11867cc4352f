/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/memory_region.h"

#include <assert.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/syscalls.h"

/* ---- regions ---- */

#define NODES_MAX 1024
#define WORD_BITS (8 * sizeof(unsigned long))

int bth_region_new(uint64_t nbytes, size_t alignment, bool spread, bth_pages *pages,
                   bth_region *region, berth_error *error)
{
    assert(nbytes > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
    *region = (bth_region){0};
    if (nbytes > PTRDIFF_MAX - BTH_LARGE_PAGE_NBYTES)
        return bth_fail_memory(error, nbytes);
    if (nbytes < BTH_LARGE_PAGE_NBYTES) {
        region->base = bth_allocate((size_t)nbytes + alignment);
        if (!region->base)
            return bth_fail_memory(error, nbytes);
        region->bytes = bth_align_up(region->base, alignment);
        return 0;
    }
    size_t base_nbytes = (size_t)nbytes + BTH_LARGE_PAGE_NBYTES;
    void *base = bth_system.mmap(NULL, base_nbytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return bth_fail_system(error, errno, "%llu bytes of memory cannot be mapped",
                               (unsigned long long)nbytes);
    *region = (bth_region){.bytes = bth_align_up(base, BTH_LARGE_PAGE_NBYTES),
                           .base = base,
                           .base_nbytes = base_nbytes};
    if (spread) { /* on all nodes that the process may use; else near the thread that touches it */
        unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
        int mode;
        if (bth_system.get_mempolicy(&mode, nodes, NODES_MAX, NULL, MPOL_F_MEMS_ALLOWED) < 0 ||
            bth_system.mbind(base, base_nbytes, MPOL_INTERLEAVE, nodes, NODES_MAX, 0) < 0)
            bth_log("memory is not spread over nodes (io.numa=interleave): %s",
                    bth_errno_text(errno));
    }
    if (pages)
        bth_pages_choose(pages, region->bytes, (size_t)nbytes);
    return 0;
}

void bth_region_free(bth_region *region)
{
    if (region->base_nbytes > 0)
        (void)bth_system.munmap(region->base, region->base_nbytes);
    else
        bth_release(region->base);
    *region = (bth_region){0};
}
