/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine that maps nothing: bth_system.mmap = refused_mmap. */
#ifndef TESTS_NO_MAP_H
#define TESTS_NO_MAP_H

#include <errno.h>
#include <sys/mman.h>
#include <sys/types.h>

static int refused_mmap_errno = ENOMEM;

static inline void *refused_mmap(void *address, size_t nbytes, int protection, int flags, int fd,
                                 off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)fd, (void)offset;
    errno = refused_mmap_errno;
    return MAP_FAILED;
}

#endif
