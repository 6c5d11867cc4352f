/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/memory_region.h"

#include <assert.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <linux/types.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "config/options.h"
#include "io/syscalls.h"

#define PAGE_NBYTES 4096

/* ---- which pages are large ---- */

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

int bth_pagemap_open(void)
{
    return bth_system.open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
}

bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes)
{
    struct scanned found = {0};
    struct scan scan = {.size = sizeof scan,
                        .start = (__u64)(uintptr_t)bytes & ~(__u64)(PAGE_NBYTES - 1),
                        .vec = (__u64)(uintptr_t)&found,
                        .vec_len = 1,
                        .category_mask = IS_HUGE,
                        .return_mask = IS_HUGE};

    scan.end = ((__u64)(uintptr_t)bytes + nbytes + PAGE_NBYTES - 1) & ~(__u64)(PAGE_NBYTES - 1);
    if (fd < 0 || bth_system.ioctl(fd, SCAN, &scan) != 1)
        return false;
    return found.start == scan.start && found.end == scan.end;
}

/* ---- what the process knows ---- */

/* So long is known what was learned. */
#define KNOWN_SECONDS 1.0
/* After a large page that came slowly, so many pieces get small pages before the next try; twice as
 * many after each further one, up to the maximum. */
#define FIRST_STRETCH 8
#define MAX_STRETCH 1024
/* What 2 MiB in small pages take, until it is measured. */
#define SMALL_SECONDS 0.0006
/* A large page that takes this many times as long is slow. */
#define SLOW_TIMES 2

/* Of Linux 5.14; older headers do not have it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static struct {
    bth_lock lock;
    double end_seconds; /* of the time for which the rest holds */
    bool is_fast;       /* the last large page came fast */
    bool is_tried;      /* one thread tries a large page; others take small ones meanwhile */
    uint64_t n_left;    /* pieces that get small pages before the next try */
    uint64_t stretch;   /* the length of the next stretch */
    uint64_t n_good;    /* large pages since then that came fast */
    unsigned n_changes; /* so that threads that were slow together count once */
    double small_seconds;
} known;

static double test_seconds;

/* What is left of a thread of the parent, or too old, is forgotten. */
static void known_lock_and_refresh(void)
{
    bth_lock_state state = bth_lock_acquire(&known.lock);
    double now = bth_seconds();

    if (state == BTH_LOCK_OURS && now < known.end_seconds)
        return;
    known.is_fast = true; /* until a large page comes slowly */
    known.is_tried = false;
    known.n_left = known.n_good = 0;
    known.stretch = FIRST_STRETCH;
    known.n_changes++;
    known.small_seconds = SMALL_SECONDS;
    known.end_seconds = now + KNOWN_SECONDS;
}

void bth_pages_forget(double seconds)
{
    known_lock_and_refresh();
    known.end_seconds = 0;
    test_seconds = seconds;
    bth_lock_release(&known.lock);
}

/* ---- one piece ---- */

/* Of this thread alone: that others run on its processor meanwhile does not count. Time that the
 * host of a virtual machine takes for a page does (measured with KVM). */
static double thread_seconds(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* `first`: the caller's first byte of the piece. False: it came slowly. */
static bool piece_touch_large(bth_pages *pages, uint8_t *piece, uint8_t *first, unsigned n_changes)
{
    uint8_t *last_page = piece + BTH_LARGE_PAGE_NBYTES - PAGE_NBYTES;
    double begin_seconds = thread_seconds();
    unsigned char present = 0;

    *(volatile uint8_t *)first = 0;
    double seconds = thread_seconds() - begin_seconds;
    if (test_seconds > 0)
        seconds = test_seconds;
    /* Its last small page is present only if the first touch made it so. */
    if (bth_system.mincore(last_page, PAGE_NBYTES, &present) == 0 && !(present & 1))
        atomic_fetch_add_explicit(&pages->n_refused, 1, memory_order_relaxed);
    known_lock_and_refresh();
    bool is_good = seconds <= SLOW_TIMES * known.small_seconds;
    if (n_changes == known.n_changes) {
        known.is_tried = false;
        known.is_fast = is_good;
        known.end_seconds = bth_seconds() + KNOWN_SECONDS;
    }
    if (is_good && ++known.n_good >= known.stretch) {
        known.n_good = 0;
        known.stretch = bth_max(known.stretch / 2, FIRST_STRETCH);
    } else if (!is_good && n_changes == known.n_changes) {
        known.n_changes++;
        known.n_good = 0;
        known.n_left = known.stretch;
        known.stretch = bth_min(2 * known.stretch, MAX_STRETCH);
    }
    bth_lock_release(&known.lock);
    if (!is_good)
        atomic_fetch_add_explicit(&pages->n_slow, 1, memory_order_relaxed);
    return is_good;
}

/* ---- memory ---- */

/* Of whole large pages inside of memory, which may begin anywhere. */
static size_t pieces_nbytes(void *bytes, size_t nbytes)
{
    size_t before = (size_t)(bth_align_up(bytes, BTH_LARGE_PAGE_NBYTES) - (uint8_t *)bytes);

    return before < nbytes ? (nbytes - before) & ~(BTH_LARGE_PAGE_NBYTES - 1) : 0;
}

/* A wish: what the system refuses makes nothing worse. */
static void pieces_advise(uint8_t *piece, size_t nbytes, int advice)
{
    if (nbytes > 0)
        (void)bth_system.madvise(piece, nbytes, advice);
}

static void pages_advise_small(bth_pages *pages, uint8_t *piece, size_t nbytes)
{
    pieces_advise(piece, nbytes, MADV_NOHUGEPAGE);
    atomic_fetch_add_explicit(&pages->n_small, nbytes / BTH_LARGE_PAGE_NBYTES,
                              memory_order_relaxed);
}

void bth_pages_begin(bth_pages *pages, bth_pages_front *front, void *bytes, size_t nbytes)
{
    uint8_t *piece = bth_align_up(bytes, BTH_LARGE_PAGE_NBYTES);

    nbytes = pieces_nbytes(bytes, nbytes);
    *front = (bth_pages_front){.next = piece, .small_end = piece, .end = piece + nbytes};
    if (pages->wanted == BTH_LARGE_PAGES_OFF) {
        pages_advise_small(pages, piece, nbytes);
        front->small_end = front->end;
    } else
        pieces_advise(piece, nbytes, MADV_HUGEPAGE);
    if (pages->wanted == BTH_LARGE_PAGES_ON) {
        atomic_fetch_add_explicit(&pages->n_large, nbytes / BTH_LARGE_PAGE_NBYTES,
                                  memory_order_relaxed);
        front->next = front->end;
    }
}

struct claim {
    uint8_t *piece;
    bool is_large;
    unsigned n_changes;
};

/*
 * The next piece, if it begins before `end`. One lock for the choice, the advice and the front: a
 * thread that comes second to a piece must find it advised, or its first byte gets a large page
 * where a small one was chosen.
 */
static bool front_claim(bth_pages *pages, bth_pages_front *front, const uint8_t *begin,
                        const uint8_t *end, struct claim *claim)
{
    known_lock_and_refresh();
    uint8_t *piece = front->next;
    bool is_claimed = piece < end && piece < front->end;

    if (is_claimed && piece >= front->small_end) {
        /* How many pieces from here on get small pages; 0: the next one gets a large page. */
        uint64_t n_small = 0;
        if (!known.is_fast) {
            n_small = bth_min(known.n_left, (uint64_t)(front->end - piece) / BTH_LARGE_PAGE_NBYTES);
            known.n_left -= n_small;
            bool may_try = piece + BTH_LARGE_PAGE_NBYTES > begin; /* the caller will time it */
            if (n_small == 0 && (known.is_tried || !may_try))
                n_small = 1;
            else if (n_small == 0)
                known.is_tried = true;
        }
        front->small_end = piece + n_small * BTH_LARGE_PAGE_NBYTES;
        pages_advise_small(pages, piece, n_small * BTH_LARGE_PAGE_NBYTES);
        atomic_fetch_add_explicit(&pages->n_large, n_small == 0, memory_order_relaxed);
    }
    if (is_claimed) {
        *claim = (struct claim){piece, piece >= front->small_end, known.n_changes};
        front->next = piece + BTH_LARGE_PAGE_NBYTES;
    }
    bth_lock_release(&known.lock);
    return is_claimed;
}

/* What lies before `bytes` is another thread's, which is about to write there: it is advised only.
 */
void bth_pages_touch(bth_pages *pages, bth_pages_front *front, void *bytes, size_t nbytes)
{
    uint8_t *begin = bytes, *end = begin + nbytes;
    struct claim claim;

    if (pages->wanted == BTH_LARGE_PAGES_ON)
        return;
    while (front_claim(pages, front, begin, end, &claim)) {
        if (claim.piece + BTH_LARGE_PAGE_NBYTES <= begin)
            continue;
        if (claim.is_large) {
            (void)piece_touch_large(pages, claim.piece, claim.piece > begin ? claim.piece : begin,
                                    claim.n_changes);
            continue;
        }
        /* All at once takes two thirds of the time of one fault each. It changes no byte. A system
         * that cannot do it makes the pages when they are written. */
        double begin_seconds = thread_seconds();
        if (bth_system.madvise(claim.piece, BTH_LARGE_PAGE_NBYTES, MADV_POPULATE_WRITE) != 0)
            continue;
        double seconds = thread_seconds() - begin_seconds;
        known_lock_and_refresh();
        /* One value that is far too large, because of something else, must not count for much. */
        known.small_seconds = seconds < 2 * known.small_seconds ? seconds : 2 * known.small_seconds;
        bth_lock_release(&known.lock);
    }
}

void bth_pages_end(bth_pages *pages, void *bytes, size_t nbytes)
{
    if (pages->wanted == BTH_LARGE_PAGES_AUTO && atomic_load(&pages->n_small) > 0)
        pieces_advise(bth_align_up(bytes, BTH_LARGE_PAGE_NBYTES), pieces_nbytes(bytes, nbytes),
                      MADV_HUGEPAGE);
}

void bth_pages_choose(bth_pages *pages, void *bytes, size_t nbytes)
{
    uint8_t *piece = bth_align_up(bytes, BTH_LARGE_PAGE_NBYTES);
    bth_pages_front front;
    struct claim claim;

    bth_pages_begin(pages, &front, bytes, nbytes);
    if (pages->wanted != BTH_LARGE_PAGES_AUTO ||
        !front_claim(pages, &front, piece, piece + 1, &claim))
        return;
    bool is_large = claim.is_large && piece_touch_large(pages, piece, piece, claim.n_changes);
    piece = claim.is_large ? front.next : front.small_end;
    size_t left = (size_t)(front.end - piece);
    if (is_large)
        atomic_fetch_add(&pages->n_large, left / BTH_LARGE_PAGE_NBYTES);
    else
        pages_advise_small(pages, piece, left);
}

/* ---- statistics ---- */

void bth_pages_describe(const bth_pages *pages, berth_stats *stats)
{
    uint64_t n_large = atomic_load(&pages->n_large), n_small = atomic_load(&pages->n_small);
    uint64_t n_slow = atomic_load(&pages->n_slow), n_refused = atomic_load(&pages->n_refused);

    if (!stats || n_large + n_small == 0)
        return;
    stats->pages = n_large - n_slow == 0 ? "small" : n_small > 0 ? "large and small" : "large";
    if (pages->wanted != BTH_LARGE_PAGES_AUTO)
        stats->pages_reason =
            pages->wanted == BTH_LARGE_PAGES_ON ? "io.large_pages=on" : "io.large_pages=off";
    else if (n_refused == n_large && n_large > 0) {
        stats->pages = "small";
        stats->pages_reason = "the system gave no large pages";
    } else if (n_slow > 0 || n_small > 0)
        stats->pages_reason = "large pages came slowly";
    else
        stats->pages_reason = "large pages came fast";
}

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
