/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/io/no_map.h"
#include <errno.h>

int refused_mmap_errno = ENOMEM;

void *refused_mmap(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)fd, (void)offset;
    errno = refused_mmap_errno;
    return MAP_FAILED;
}
