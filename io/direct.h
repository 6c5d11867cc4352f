/* SPDX-License-Identifier: BSD-3-Clause */
/* Direct I/O: a second description of an open file, past the page cache. */
#ifndef BERTH_IO_DIRECT_H
#define BERTH_IO_DIRECT_H

#include "berth.h"

/* What is assumed where nobody tells, and the least that is used: no block of a file is shared. */
#define BERTH_DIRECT_BLOCK_NBYTES 4096
#define BERTH_DIRECT_MOST_BLOCK_NBYTES 65536

typedef struct berth_direct {
    int fd;                    /* O_DIRECT, for writing; -1: none */
    uint32_t block_nbytes;     /* positions and lengths are multiples of it */
    uint32_t memory_alignment; /* addresses are multiples of it */
} berth_direct;

/*
 * Opens the file that fd is once more, through fd and never by path, and makes sure that it is the
 * same (F1). False and *reason, a static sentence, where that cannot be: that is no error. True
 * proves nothing: the first request may still fail with EINVAL.
 */
bool berth_direct_open(int fd, berth_direct *direct, const char **reason);
void berth_direct_close(berth_direct *direct);

#endif
