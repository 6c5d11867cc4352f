/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/readahead.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include "io/file.h"
#include "io/syscalls.h"

#define KIB_MAX (UINT64_C(1) << 20)

static bool read_number(const char *path, uint64_t *number)
{
    char text[24];

    if (!bth_file_read_text(path, text, sizeof text) || *text < '0' || *text > '9')
        return false;
    *number = strtoull(text, NULL, 10);
    return true;
}

uint64_t bth_readahead_nbytes(int fd, const char *root)
{
    /* A disk; a partition; file systems without a disk of their own (btrfs, NFS). */
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
    uint64_t nbytes = (n_kib < KIB_MAX ? n_kib : KIB_MAX) * 1024;
    return nbytes < page_nbytes ? page_nbytes : nbytes - nbytes % page_nbytes;
}
