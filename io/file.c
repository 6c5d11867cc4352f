/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/file.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "io/syscalls.h"

ssize_t bth_xattr_get(int fd, const char *name, void *value, size_t nbytes)
{
    char path[BTH_FILE_PATH_NBYTES];
    ssize_t n = bth_system.fgetxattr(fd, name, value, nbytes);

    if (n < 0 && errno == EBADF)
        n = bth_system.getxattr(bth_file_proc_path(fd, path), name, value, nbytes);
    return n;
}

ssize_t bth_xattr_list(int fd, char *names, size_t nbytes)
{
    char path[BTH_FILE_PATH_NBYTES];
    ssize_t n = bth_system.flistxattr(fd, names, nbytes);

    if (n < 0 && errno == EBADF)
        n = bth_system.listxattr(bth_file_proc_path(fd, path), names, nbytes);
    return n;
}

int bth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags)
{
    char path[BTH_FILE_PATH_NBYTES];
    int result = bth_system.fsetxattr(fd, name, value, nbytes, flags);

    if (result < 0 && errno == EBADF)
        result = bth_system.setxattr(bth_file_proc_path(fd, path), name, value, nbytes, flags);
    return result;
}

bool bth_xattr_is_absent(int system_errno)
{
    return system_errno == ENODATA || system_errno == EOPNOTSUPP || system_errno == ENOSYS;
}

/* Linux accepts up to this many pieces in one call (UIO_MAXIOV). */
#define PIECES_MAX 1024

int bth_file_size(int fd, uint64_t *nbytes, berth_error *error)
{
    struct stat status;
    ssize_t n = 0;
    char byte;

    if (bth_system.fstat(fd, &status) < 0)
        return bth_fail_system(error, errno, "cannot be examined");
    if (!S_ISREG(status.st_mode))
        return bth_fail_status(error, BERTH_E_NOT_CHECKPOINT, "%s",
                               S_ISDIR(status.st_mode)    ? "is a folder, not a file"
                               : S_ISFIFO(status.st_mode) ? BTH_FILE_IS_PIPE
                                                          : "is not a regular file");
    *nbytes = (uint64_t)status.st_size;
    /* Files that the kernel makes when they are read, in /proc and elsewhere, tell no size. */
    if (*nbytes == 0)
        BTH_REPEAT(n, bth_system.pread(fd, &byte, 1, 0));
    if (n > 0)
        return bth_fail_status(
            error, BERTH_E_NOT_CHECKPOINT,
            "does not report its size, as files of /proc do not" BTH_FILE_COPY_FIRST);
    return 0;
}

static int file_open_close_on_exec(const char *path, int flags)
{
    int fd;

    BTH_REPEAT(fd, bth_system.open(path, flags | O_CLOEXEC, 0));
    return fd;
}

int bth_file_open(const char *path, int *fd, uint64_t *nbytes, berth_error *error)
{
    /*
     * O_NONBLOCK: opening a named pipe must not wait (F1). X9: if another process has a lease on
     * the file (Samba, a delegation of NFS), open then fails with EAGAIN. A regular file is opened
     * again without O_NONBLOCK: the kernel waits for the lease, at most
     * /proc/sys/fs/lease-break-time.
     */
    int opened = file_open_close_on_exec(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    int failure = errno;
    if (opened < 0 && failure == EWOULDBLOCK) {
        struct stat status;
        int path_fd = file_open_close_on_exec(path, O_PATH);
        if (path_fd < 0)
            failure = errno;
        else if (bth_system.fstat(path_fd, &status) == 0 && S_ISREG(status.st_mode)) {
            opened = bth_file_open_again(path_fd, O_RDONLY | O_NOCTTY);
            failure = errno;
        }
        bth_file_close(path_fd);
    }
    if (opened < 0)
        return bth_fail_system(error, failure, "cannot be opened");
    if (bth_file_size(opened, nbytes, error) < 0) {
        bth_file_close(opened);
        return error->code;
    }
    *fd = opened;
    return 0;
}

const char *bth_file_proc_path(int fd, char path[BTH_FILE_PATH_NBYTES])
{
    (void)snprintf(path, BTH_FILE_PATH_NBYTES, "/proc/self/fd/%d", fd);
    return path;
}

int bth_file_open_again(int fd, int flags)
{
    char path[BTH_FILE_PATH_NBYTES];

    return file_open_close_on_exec(bth_file_proc_path(fd, path), flags);
}

bool bth_file_read_start_as_text(const char *path, char *text, size_t text_nbytes)
{
    int fd = file_open_close_on_exec(path, O_RDONLY);
    ssize_t n;

    if (fd < 0)
        return false;
    BTH_REPEAT(n, bth_system.pread(fd, text, text_nbytes - 1, 0));
    bth_file_close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return true;
}

void bth_file_close(int fd)
{
    /* Not repeated after EINTR: Linux has closed the descriptor then, too. */
    if (fd >= 0)
        (void)bth_system.close(fd);
}

bool bth_file_can_retry_after_wait(int fd, int system_errno, short events)
{
    struct pollfd wait = {.fd = fd, .events = events};

    if (system_errno == EINTR)
        return true;
    if (system_errno != EAGAIN && system_errno != EWOULDBLOCK)
        return false;
    (void)bth_system.poll(&wait, 1, -1);
    return true;
}

/* Whether the kernel accepts the range: positions are off_t. */
static bool file_range_is_valid(uint64_t offset, uint64_t nbytes)
{
    return offset <= INT64_MAX && nbytes <= (uint64_t)INT64_MAX - offset;
}

static int file_fail_write(berth_error *error, int system_errno, uint64_t offset, uint64_t nbytes)
{
    return bth_fail_errno(error, system_errno, NULL, offset, "%llu bytes not written",
                          (unsigned long long)nbytes);
}

int bth_file_read(int fd, void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    uint8_t *at = buffer;

    if (!file_range_is_valid(offset, nbytes))
        return bth_fail_errno(error, EOVERFLOW, NULL, offset, "%zu bytes not read", nbytes);
    while (nbytes > 0) {
        ssize_t n = bth_system.pread(fd, at, nbytes, (off_t)offset);
        if (n < 0) {
            if (bth_file_can_retry_after_wait(fd, errno, POLLIN))
                continue;
            return bth_fail_errno(error, errno, NULL, offset, "%zu bytes not read", nbytes);
        }
        if (n == 0) { /* W9: the file was longer at open */
            struct stat status;
            bool is_longer =
                bth_system.fstat(fd, &status) == 0 && (uint64_t)status.st_size > offset;
            return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                            "the file ends here, %zu bytes too early%s", nbytes,
                            is_longer ? ", but reports a larger size, as files of /sys do" : "");
        }
        at += n;
        nbytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

int bth_file_write(int fd, const void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const uint8_t *at = buffer;

    if (offset != BERTH_NO_OFFSET && !file_range_is_valid(offset, nbytes))
        return file_fail_write(error, EFBIG, offset, nbytes);
    while (nbytes > 0) {
        ssize_t n = offset == BERTH_NO_OFFSET ? bth_system.write(fd, at, nbytes)
                                              : bth_system.pwrite(fd, at, nbytes, (off_t)offset);
        if (n < 0 && bth_file_can_retry_after_wait(fd, errno, POLLOUT))
            continue;
        if (n <= 0) /* repeating after 0 might never end */
            return file_fail_write(error, n < 0 ? errno : EIO, offset, nbytes);
        at += n;
        nbytes -= (size_t)n;
        offset += offset == BERTH_NO_OFFSET ? 0 : (uint64_t)n;
    }
    return 0;
}

int bth_file_write_pieces(int fd, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                          berth_error *error)
{
    const struct iovec *behind = pieces + n_pieces;
    uint64_t left = 0; /* cannot overflow: all are in memory */

    for (const struct iovec *piece = pieces; piece < behind; piece++)
        left += piece->iov_len;
    if (!file_range_is_valid(offset, left))
        return file_fail_write(error, EFBIG, offset, left);
    for (size_t done = 0; left > 0; left -= done, offset += done) {
        for (; done >= pieces->iov_len; pieces++)
            done -= pieces->iov_len;
        pieces->iov_base = (uint8_t *)pieces->iov_base + done;
        pieces->iov_len -= done;
        done = 0;
        int n_now = behind - pieces < PIECES_MAX ? (int)(behind - pieces) : PIECES_MAX;
        ssize_t n = bth_system.pwritev(fd, pieces, n_now, (off_t)offset);
        if (n < 0 && bth_file_can_retry_after_wait(fd, errno, POLLOUT))
            continue;
        if (n <= 0)
            return file_fail_write(error, n < 0 ? errno : EIO, offset, left);
        done = (size_t)n;
    }
    return 0;
}

/* ---- the limit of file sizes (X14) ---- */

static bool file_limit_signal_is_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

bth_file_limit bth_file_limit_signal_block(void)
{
    bth_file_limit held = {.was_pending = false};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &set, &held.before);
    held.was_pending = file_limit_signal_is_pending();
    return held;
}

void bth_file_limit_signal_unblock(const bth_file_limit *held)
{
    static const struct timespec at_once = {0};
    int failure = errno;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    if (!held->was_pending && file_limit_signal_is_pending())
        while (sigtimedwait(&set, NULL, &at_once) < 0 && errno == EINTR)
            ;
    (void)pthread_sigmask(SIG_SETMASK, &held->before, NULL);
    errno = failure;
}
