/* SPDX-License-Identifier: BSD-3-Clause */
/* How much memory can really be had now. */
#ifndef BERTH_IO_FREE_MEMORY_H
#define BERTH_IO_FREE_MEMORY_H

#include <stdint.h>

/*
 * What the system has available, free swap with it, or what the control groups of this process (v2
 * and v1, each with those around it) leave, whichever is least; file pages that can go count as
 * free. UINT64_MAX: nobody tells. `root`: of the folders proc and sys, "" but for tests.
 */
uint64_t berth_free_memory(const char *root);

#endif
