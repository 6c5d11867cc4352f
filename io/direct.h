/* SPDX-License-Identifier: BSD-3-Clause */
/* Direct I/O past the page cache, through a second open file description. */
#ifndef BTH_IO_DIRECT_H
#define BTH_IO_DIRECT_H

#include "berth.h"

/* The smallest block, which is also used where the system reports none. */
#define BTH_DIRECT_BLOCK_NBYTES 4096
#define BTH_MAX_DIRECT_BLOCK_NBYTES 65536

typedef struct bth_direct {
    int fd;                    /* O_DIRECT; -1: none */
    uint32_t block_nbytes;     /* positions and lengths are multiples of it */
    uint32_t memory_alignment; /* addresses are multiples of it */
} bth_direct;

/*
 * Opens the file of fd for direct writes, through fd and not by its path, and checks that it is the
 * same file (F1). False: not possible, for *reason, a static text; that is no error. Even after
 * true the first request may fail with EINVAL.
 */
bool bth_direct_open(int fd, bth_direct *direct, const char **reason);
/* The same for direct reads. */
bool bth_direct_open_reading(int fd, bth_direct *direct, const char **reason);
/*
 * Reads whole blocks. *done_nbytes is less than nbytes where the file ends, where the kernel
 * returned part of a block, or where it refused the request (EINVAL, EFAULT, EOPNOTSUPP: *refused).
 * That is no error: the caller reads the rest in another way. Any thread may call it.
 */
int bth_direct_read(const bth_direct *direct, void *buffer, size_t nbytes, uint64_t offset,
                    size_t *done_nbytes, bool *refused, berth_error *error);
void bth_direct_close(bth_direct *direct);

#endif
