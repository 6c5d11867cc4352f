/* SPDX-License-Identifier: BSD-3-Clause */
/* The amount of memory that can be used now. */
#ifndef BTH_IO_FREE_MEMORY_H
#define BTH_IO_FREE_MEMORY_H

#include <stdint.h>

/*
 * The smallest of: the system's available memory and free swap, and what each control group of this
 * process (v1, v2, and those around them) leaves. X15: file pages and reclaimable slabs count as
 * free. Refuse larger requests: Linux allows them, and kills the process that uses the memory.
 * UINT64_MAX: unknown. `root`: the folder that has proc and sys; "" except in tests.
 */
uint64_t bth_free_memory_nbytes(const char *root);

#endif
