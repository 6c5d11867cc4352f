/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine that maps nothing: bth_system.mmap = refused_mmap. */
#ifndef TESTS_SUPPORT_NO_MAP_H
#define TESTS_SUPPORT_NO_MAP_H

#include <sys/mman.h>
#include <sys/types.h>

extern int refused_mmap_errno; /* ENOMEM, unless a test sets another one */
void *refused_mmap(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset);

#endif
