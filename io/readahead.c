/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/readahead.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include "io/file.h"
#include "io/syscalls.h"

#define MOST_KIB (UINT64_C(1) << 20)

/* A file that holds one number. */
static bool read_number(const char *path, uint64_t *number)
{
    char text[24];
    int fd = bth_system.open(path, O_RDONLY | O_CLOEXEC, 0);

    if (fd < 0)
        return false;
    ssize_t n = bth_system.pread(fd, text, sizeof text - 1, 0);
    bth_file_close(fd);
    if (n <= 0 || *text < '0' || *text > '9')
        return false;
    text[n] = '\0';
    *number = strtoull(text, NULL, 10);
    return true;
}

uint64_t bth_readahead_nbytes(int fd, const char *root)
{
    /* A whole disk; a partition of one; what has no disk of its own (btrfs, NFS). */
    static const char *const places[] = {"%s/sys/dev/block/%u:%u/queue/read_ahead_kb",
                                         "%s/sys/dev/block/%u:%u/../queue/read_ahead_kb",
                                         "%s/sys/class/bdi/%u:%u/read_ahead_kb"};
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n_kib = BTH_READAHEAD_NBYTES / 1024;
    char path[4096];
    struct stat status;

    for (size_t i = 0; i < 3 && bth_system.fstat(fd, &status) == 0; i++) {
        int n = snprintf(path, sizeof path, places[i], root, major(status.st_dev),
                         minor(status.st_dev));
        if (n > 0 && (size_t)n < sizeof path && read_number(path, &n_kib))
            break;
    }
    uint64_t nbytes = (n_kib < MOST_KIB ? n_kib : MOST_KIB) * 1024;
    return nbytes < page_nbytes ? page_nbytes : nbytes - nbytes % page_nbytes;
}
