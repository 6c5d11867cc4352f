/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "config/error.h"
#include "io/syscalls.h"

/* What readv and writev take at most in one call on Linux (UIO_MAXIOV). */
#define MAX_PIECES 1024

static int fail_regular(const struct stat *status, berth_error *error)
{
    if (S_ISDIR(status->st_mode))
        return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET,
                        "is a folder, not a file");
    return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET, "is not a regular file");
}

int bth_file_size(int fd, uint64_t *nbytes, berth_error *error)
{
    struct stat status;

    if (bth_system.fstat(fd, &status) < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
    if (!S_ISREG(status.st_mode))
        return fail_regular(&status, error);
    *nbytes = (uint64_t)status.st_size;
    return 0;
}

static int open_as(const char *path, int flags)
{
    int fd;

    do
        fd = bth_system.open(path, flags | O_CLOEXEC, 0);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/*
 * O_NONBLOCK: a named pipe must not hang us before fstat can tell that it is one (F1). X9: where
 * somebody has a lease on the file (Samba, a delegation of NFS), that gives EAGAIN. Once the file
 * is known to be a regular one, it is opened again, and the kernel waits until the lease is given
 * back (/proc/sys/fs/lease-break-time at most).
 */
static int open_for_reading(const char *path)
{
    int fd = open_as(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    struct stat status;

    if (fd >= 0 || errno != EWOULDBLOCK)
        return fd;
    int place = open_as(path, O_PATH);
    if (place < 0)
        return -1;
    if (bth_system.fstat(place, &status) == 0 && S_ISREG(status.st_mode))
        fd = bth_file_open_again(place, O_RDONLY | O_NOCTTY);
    else
        errno = EWOULDBLOCK;
    int failure = errno;
    bth_file_close(place);
    errno = failure;
    return fd;
}

int bth_file_open(const char *path, int *fd, uint64_t *nbytes, berth_error *error)
{
    int opened = open_for_reading(path);

    if (opened < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be opened");
    if (bth_file_size(opened, nbytes, error) < 0) {
        bth_file_close(opened);
        return error->code;
    }
    *fd = opened;
    return 0;
}

int bth_file_open_again(int fd, int flags)
{
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open_as(path, flags);
}

bool bth_file_read_text(const char *path, char *text, size_t text_nbytes)
{
    int fd = open_as(path, O_RDONLY);
    ssize_t n;

    if (fd < 0)
        return false;
    do
        n = bth_system.pread(fd, text, text_nbytes - 1, 0);
    while (n < 0 && errno == EINTR);
    bth_file_close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return true;
}

void bth_file_close(int fd)
{
    /* Never repeated: Linux has let go of the number even when it says EINTR. */
    if (fd >= 0)
        (void)bth_system.close(fd);
}

bool bth_file_may_continue(int fd, int system_errno, short events)
{
    struct pollfd wait = {.fd = fd, .events = events};

    if (system_errno == EINTR)
        return true;
    if (system_errno != EAGAIN && system_errno != EWOULDBLOCK)
        return false;
    (void)bth_system.poll(&wait, 1, -1);
    return true;
}

/* Positions are off_t to the kernel. */
static bool is_position(uint64_t offset, uint64_t nbytes)
{
    return offset <= INT64_MAX && nbytes <= (uint64_t)INT64_MAX - offset;
}

static int fail_write(berth_error *error, int system_errno, uint64_t offset, uint64_t nbytes)
{
    return bth_fail_errno(error, system_errno, NULL, offset, "%llu bytes not written",
                          (unsigned long long)nbytes);
}

int bth_file_read(int fd, void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    uint8_t *at = buffer;

    if (!is_position(offset, nbytes))
        return bth_fail_errno(error, EOVERFLOW, NULL, offset, "%zu bytes not read", nbytes);
    while (nbytes > 0) {
        ssize_t n = bth_system.pread(fd, at, nbytes, (off_t)offset);
        if (n < 0) {
            if (bth_file_may_continue(fd, errno, POLLIN))
                continue;
            return bth_fail_errno(error, errno, NULL, offset, "%zu bytes not read", nbytes);
        }
        if (n == 0) /* W9: it was longer when it was opened */
            return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                            "the file ends here, %zu bytes too early", nbytes);
        at += n;
        nbytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

int bth_file_write(int fd, const void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const uint8_t *at = buffer;

    if (!is_position(offset, nbytes))
        return fail_write(error, EFBIG, offset, nbytes);
    while (nbytes > 0) {
        ssize_t n = bth_system.pwrite(fd, at, nbytes, (off_t)offset);
        if (n < 0 && bth_file_may_continue(fd, errno, POLLOUT))
            continue;
        if (n <= 0) /* 0 of more than 0 bytes would be repeated for ever */
            return fail_write(error, n < 0 ? errno : EIO, offset, nbytes);
        at += n;
        nbytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Takes n bytes off the front of the pieces, and empty pieces with them. */
static void advance(struct iovec **pieces, size_t *n_pieces, size_t n)
{
    while (*n_pieces > 0 && n >= (*pieces)->iov_len) {
        n -= (*pieces)->iov_len;
        ++*pieces;
        --*n_pieces;
    }
    if (n > 0) {
        (*pieces)->iov_base = (uint8_t *)(*pieces)->iov_base + n;
        (*pieces)->iov_len -= n;
    }
}

static uint64_t sum_of(const struct iovec *pieces, size_t n_pieces)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n_pieces; i++)
        sum += pieces[i].iov_len; /* memory that exists: cannot wrap */
    return sum;
}

int bth_file_write_pieces(int fd, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                          berth_error *error)
{
    if (!is_position(offset, sum_of(pieces, n_pieces)))
        return fail_write(error, EFBIG, offset, sum_of(pieces, n_pieces));
    advance(&pieces, &n_pieces, 0);
    while (n_pieces > 0) {
        int n_now = n_pieces < MAX_PIECES ? (int)n_pieces : MAX_PIECES;
        ssize_t n = bth_system.pwritev(fd, pieces, n_now, (off_t)offset);
        if (n < 0 && bth_file_may_continue(fd, errno, POLLOUT))
            continue;
        if (n <= 0)
            return fail_write(error, n < 0 ? errno : EIO, offset, sum_of(pieces, n_pieces));
        advance(&pieces, &n_pieces, (size_t)n);
        offset += (uint64_t)n;
    }
    return 0;
}

int bth_file_append(int fd, const void *buffer, size_t nbytes, berth_error *error)
{
    const uint8_t *at = buffer;

    while (nbytes > 0) {
        ssize_t n = bth_system.write(fd, at, nbytes);
        if (n < 0 && bth_file_may_continue(fd, errno, POLLOUT))
            continue;
        if (n <= 0)
            return fail_write(error, n < 0 ? errno : EIO, BERTH_NO_OFFSET, nbytes);
        at += n;
        nbytes -= (size_t)n;
    }
    return 0;
}
