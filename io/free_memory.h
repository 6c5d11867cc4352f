/* SPDX-License-Identifier: BSD-3-Clause */
/* How much memory can really be had now. */
#ifndef BTH_IO_FREE_MEMORY_H
#define BTH_IO_FREE_MEMORY_H

#include <stdint.h>

/*
 * What the system has available, free swap with it, or what the control groups of this process (v2
 * and v1, each with those around it) leave, whichever is least. X15: what can be reclaimed counts
 * as free: file pages, and of the kernel's own memory the slabs that it gives back. Whoever wants
 * more than this must be refused before: memory is given to all who ask, and who then touches too
 * much of it is killed. UINT64_MAX: nobody tells. `root`: of the folders proc and sys, "" but for
 * tests.
 */
uint64_t bth_free_memory(const char *root);

#endif
