/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of tensors, opened with options and fetched; what is then known of each storage. */
#ifndef TESTS_SUPPORT_FETCH_SCENE_H
#define TESTS_SUPPORT_FETCH_SCENE_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "format/values/value.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"
#include "load/transfer/requests.h"
#include "tests/support/load/archive.h"

/* Tensors "t0", "t1" ... of so many words, small and long ones and an empty one, as four dtypes. */
static const size_t lengths[] = {1, 300, 0, 1000000, 7, 40000, 5, 500000, 3};
static const berth_dtype dtypes[] = {BERTH_UINT8, BERTH_INT16, BERTH_FLOAT32, BERTH_INT64};
#define N_TENSORS (sizeof lengths / sizeof *lengths)
#define BACK "io.chunk_nbytes=65536 io.threads=3"

extern uint32_t *elements[N_TENSORS];

/* The file at `path`; its bytes are `file`, too. */
void save_tensors(const char *options);
void begin_fetch(void);
void end_fetch(void);
bool is_memory(size_t i);
void expect_elements(void);
bool direct_reads_work(void);

#endif
