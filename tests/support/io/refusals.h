/* SPDX-License-Identifier: BSD-3-Clause */
/* System calls that fail, to put into bth_system. */
#ifndef TESTS_SUPPORT_REFUSALS_H
#define TESTS_SUPPORT_REFUSALS_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/types.h>

/* A machine that maps nothing. */
extern int refused_mmap_errno; /* ENOMEM, unless a test sets another one */
void *refused_mmap(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset);

/* Fails with EIO once, after so many good reads. */
extern atomic_int n_reads_left;
ssize_t failing_pread(int fd, void *buffer, size_t nbytes, off_t offset);

#endif
