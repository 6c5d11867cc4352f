/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint of many tensors in a file, and prefetches of it. */
#ifndef TESTS_SUPPORT_PREFETCH_SCENE_H
#define TESTS_SUPPORT_PREFETCH_SCENE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "berth.h"
#include "berth/prefetch.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "tests/support/opened.h"

#define N_TENSORS 24
#define TENSOR_NBYTES ((int64_t)1 << 18)

extern berth_prefetch *prefetch;
extern berth_prefetch_stats stats;
void begin_prefetches(void);
void free_prefetch(void);
void end_prefetches(void);

/* The file leaves memory, or the test is skipped: not every file system lets it. */
void evict_file(void);

/* How many bytes of the file are in memory. */
uint64_t cached_nbytes(uint64_t offset, uint64_t nbytes);
/* Nine of ten bytes are in memory: the system may drop pages again, and take advice in part. */
void expect_cached(uint64_t offset, uint64_t nbytes);
/* The same within 20 seconds: advice does not wait. */
void wait_until_cached(uint64_t offset, uint64_t nbytes);
/* load.head_nbytes: no more of the file comes into memory than must. */
int try_to_open(const char *options);
void open_path(const char *options);
int try_to_begin(const berth_selection *what, uint32_t flags, const char *options,
                 berth_prefetch **begun);
/* In the place of the one before. */
void begin_prefetch(const char *options);

/* The consumer goes through all tensors. */
void advance_through_all(void);

/* What is brought without a consumer, and no more. */
void wait_until_idle(void);
void wait_for_all(void);

#endif
