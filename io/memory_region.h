/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory in large pages, and aligned regions of it. */
#ifndef BTH_IO_MEMORY_REGION_H
#define BTH_IO_MEMORY_REGION_H

#include <stdatomic.h>

#include "berth.h"
#include "berth/more.h"

/*
 * Pages of 2 MiB for new memory (io.large_pages). Where the system has them ready, they take a
 * seventh of the time of as many bytes in pages of 4 KiB. Where it must make them first, they can
 * take ten times as long: by moving other pages, or, in a virtual machine, by getting memory back
 * from the host. Both change within seconds. So `auto` times the large pages that it gets, goes on
 * with small ones where those are faster, and tries again later. What it has learned holds for all
 * operations of the process, and is forgotten after a second.
 */

#define BTH_LARGE_PAGE_NBYTES ((size_t)2 * 1024 * 1024)

/* The first address that is a multiple of `alignment`, a power of two. */
static inline uint8_t *bth_align_up(void *address, size_t alignment)
{
    uint8_t *bytes = address;

    return bytes + ((0 - (uintptr_t)bytes) & (alignment - 1));
}

/* Opens a descriptor for bth_pages_are_large; -1 on failure. Close it with bth_file_close. */
int bth_pagemap_open(void);

/* Whether all of [bytes, bytes + nbytes) is present, in large pages. False also if unknown. */
bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes);

/* The pages of one operation. All but `wanted` begin with zeros. */
typedef struct bth_pages {
    int64_t wanted; /* io.large_pages */
    /* Pieces of 2 MiB by what was asked for: */
    atomic_uint_fast64_t n_large;
    atomic_uint_fast64_t n_small;
    atomic_uint_fast64_t n_slow;    /* part of n_large: small pages would have been faster */
    atomic_uint_fast64_t n_refused; /* part of n_large: the system gave small ones */
} bth_pages;

/* How far threads have come in memory that is filled from its begin to its end. */
typedef struct bth_pages_front {
    uint8_t *next;      /* pieces from here on: nobody has come to them */
    uint8_t *small_end; /* pieces from `next` to here are advised to be small */
    uint8_t *end;       /* of the last piece */
} bth_pages_front;

/* New memory that nobody has touched; it may begin and end anywhere. Then threads fill it, roughly
 * from its begin to its end: before a thread writes somewhere, it calls bth_pages_touch. */
void bth_pages_begin(bth_pages *pages, bth_pages_front *front, void *bytes, size_t nbytes);
/* [bytes, bytes + nbytes) is written next, by this thread alone. May write zeros to some of it. */
void bth_pages_touch(bth_pages *pages, bth_pages_front *front, void *bytes, size_t nbytes);
/* All is filled, and lives on: when the system has time, it may make large pages of small ones. */
void bth_pages_end(bth_pages *pages, void *bytes, size_t nbytes);

/* Instead of the three: one choice for all of it, by its first large page. */
void bth_pages_choose(bth_pages *pages, void *bytes, size_t nbytes);

/* Sets stats->pages and why, unless no pages were chosen. NULL: nothing. */
void bth_pages_describe(const bth_pages *pages, berth_stats *stats);

/* For tests: as in a process that has learned nothing; large pages always seem to take this long
 * (0: as they do). */
void bth_pages_forget(double seconds);

/*
 * Aligned memory for reads, in large pages where the system has them. One request to a disk can
 * have a limited number of pieces of memory: with large pages there are fewer and larger requests.
 */
typedef struct bth_region {
    uint8_t *bytes;
    void *base;         /* to be freed */
    size_t base_nbytes; /* of the map; 0: from the allocator */
} bth_region;

/*
 * nbytes > 0; `alignment`: a power of two up to 64 KiB. From the size of a large page on, the
 * memory is a map, zeroed, and each page is near the thread that touches it first; with `spread`,
 * pages are spread over all memory nodes that the process may use. Direct reads into the memory of
 * a far node are slower. `pages`: chooses the pages of a map; NULL: the caller does.
 */
int bth_region_new(uint64_t nbytes, size_t alignment, bool spread, bth_pages *pages,
                   bth_region *region, berth_error *error);
void bth_region_free(bth_region *region); /* does nothing to zeros */

#endif
