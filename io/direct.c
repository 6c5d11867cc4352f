/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/direct.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/syscalls.h"

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

bool bth_direct_open(int fd, int flags, bth_direct *direct, const char **reason)
{
    const char *none = flags == O_WRONLY ? "the file system does not support direct writes"
                                         : "the file system does not support direct reads";
    uint32_t block_nbytes = BTH_DIRECT_BLOCK_NBYTES, memory_alignment = BTH_DIRECT_BLOCK_NBYTES;
    struct stat first, second;

    *direct = (bth_direct){.fd = -1};
    *reason = "the file cannot be opened a second time";
    if (bth_system.fstat(fd, &first) < 0)
        return false;
        /*
         * The alignment: what statx reports (Linux 6.1 and later, some file systems), else a page.
         * A request never divides a block of the file system: ext4 and XFS would lock the whole
         * file for it.
         */
#ifdef STATX_DIOALIGN
    struct statx more;
    if (bth_system.statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &more) == 0 &&
        (more.stx_mask & STATX_DIOALIGN)) {
        block_nbytes = is_power_of_two(more.stx_dio_offset_align)
                           ? (uint32_t)bth_max(block_nbytes, more.stx_dio_offset_align)
                           : 0; /* this file has no direct I/O */
        memory_alignment = more.stx_dio_mem_align;
    }
#endif
    if (block_nbytes > 0 && first.st_blksize > 0 && first.st_blksize <= BTH_MAX_DIRECT_BLOCK_NBYTES)
        block_nbytes = (uint32_t)bth_max(block_nbytes, (uint32_t)first.st_blksize);
    if (!is_power_of_two(block_nbytes) || block_nbytes > BTH_MAX_DIRECT_BLOCK_NBYTES ||
        !is_power_of_two(memory_alignment) || memory_alignment > block_nbytes) {
        *reason = none;
        return false;
    }
    direct->block_nbytes = block_nbytes;
    direct->memory_alignment = memory_alignment;
    direct->fd = bth_file_open_again(fd, flags | O_DIRECT);
    if (direct->fd < 0) {
        if (errno == EINVAL || errno == EOPNOTSUPP)
            *reason = none;
        return false;
    }
    if (bth_system.fstat(direct->fd, &second) == 0 && first.st_dev == second.st_dev &&
        first.st_ino == second.st_ino)
        return true;
    bth_direct_close(direct);
    return false;
}

int bth_direct_read(const bth_direct *direct, void *buffer, size_t nbytes, uint64_t offset,
                    size_t *done_nbytes, bool *refused, berth_error *error)
{
    uint8_t *at = buffer;

    assert(nbytes % direct->block_nbytes == 0 && offset % direct->block_nbytes == 0);
    *done_nbytes = 0;
    *refused = false;
    while (*done_nbytes < nbytes && *done_nbytes % direct->block_nbytes == 0) {
        size_t left = nbytes - *done_nbytes;
        ssize_t n =
            bth_system.pread(direct->fd, at + *done_nbytes, left, (off_t)(offset + *done_nbytes));
        if (n < 0 && bth_file_can_retry_after_wait(direct->fd, errno, POLLIN))
            continue;
        *refused = n < 0 && (errno == EINVAL || errno == EFAULT || errno == EOPNOTSUPP);
        if (n < 0 && !*refused)
            return bth_fail_errno(error, errno, NULL, offset + *done_nbytes, "%zu bytes not read",
                                  left);
        if (n <= 0)
            break;
        *done_nbytes += (size_t)n;
    }
    return 0;
}

void bth_direct_close(bth_direct *direct)
{
    bth_file_close(direct->fd);
    direct->fd = -1;
}
