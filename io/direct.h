/* SPDX-License-Identifier: BSD-3-Clause */
/* Direct I/O: a second description of an open file, past the page cache. */
#ifndef BTH_IO_DIRECT_H
#define BTH_IO_DIRECT_H

#include "berth.h"

/* What is assumed where nobody tells, and the least that is used: no block of a file is shared. */
#define BTH_DIRECT_BLOCK_NBYTES 4096
#define BTH_DIRECT_MOST_BLOCK_NBYTES 65536

typedef struct bth_direct {
    int fd;                    /* O_DIRECT; -1: none */
    uint32_t block_nbytes;     /* positions and lengths are multiples of it */
    uint32_t memory_alignment; /* addresses are multiples of it */
} bth_direct;

/*
 * Opens the file that fd is once more, for writing, through fd and never by path, and makes sure
 * that it is the same (F1). False and *reason, a static sentence, where that cannot be: that is no
 * error. True proves nothing: the first request may still fail with EINVAL.
 */
bool bth_direct_open(int fd, bth_direct *direct, const char **reason);
/* The same for reading. */
bool bth_direct_open_reading(int fd, bth_direct *direct, const char **reason);
/*
 * Reads whole blocks to where they belong: fewer than nbytes where the file ends, where the kernel
 * gave less than a block, or where it refused a request (EINVAL, EFAULT: *refused). That is no
 * error: the rest is to be read otherwise. Thread-safe.
 */
int bth_direct_read(const bth_direct *direct, void *buffer, size_t nbytes, uint64_t offset,
                    size_t *done_nbytes, bool *refused, berth_error *error);
void bth_direct_close(bth_direct *direct);

#endif
