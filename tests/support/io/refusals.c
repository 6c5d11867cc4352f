/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/io/refusals.h"
#include <errno.h>
#include <unistd.h>

int refused_mmap_errno = ENOMEM;
atomic_int n_reads_left;

void *refused_mmap(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)fd, (void)offset;
    errno = refused_mmap_errno;
    return MAP_FAILED;
}

ssize_t failing_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    if (n_reads_left-- == 0) {
        errno = EIO;
        return -1;
    }
    return pread(fd, buffer, nbytes, offset);
}
