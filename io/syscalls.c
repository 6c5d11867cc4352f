/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/lock.h"

/* These calls do not go through bth_system: its functions that open files use them. */

#define N_LOW 3

/* Some call found descriptor 0, 1 or 2 closed. Before that, no call needs the lock. */
static atomic_bool were_closed;
static struct {
    bth_lock lock; /* protects the rest */
    unsigned n_users;
    bool has_placeholder[N_LOW];
} low;

/* The caller holds the lock. */
static void placeholders_close(void)
{
    for (int fd = 0; fd < N_LOW; fd++) {
        int flags = low.has_placeholder[fd] ? fcntl(fd, F_GETFL) : -1;
        /* Else the program has put its own file there. Only we have O_PATH descriptors there. */
        if (flags >= 0 && (flags & O_PATH))
            (void)close(fd);
        low.has_placeholder[fd] = false;
    }
}

/* X11: a child closes the placeholders of its parent's threads. */
static void low_fds_lock_and_reset_if_forked(void)
{
    bth_lock_state state = bth_lock_acquire(&low.lock);

    if (state == BTH_LOCK_OURS)
        return;
    for (int fd = 0; fd < N_LOW && state == BTH_LOCK_TORN; fd++)
        low.has_placeholder[fd] = true;
    placeholders_close();
    low.n_users = 0;
}

bool bth_low_fds_fill(void)
{
    int failure = errno, fd = 0;

    while (fd < N_LOW && !atomic_load(&were_closed) && fcntl(fd, F_GETFD) >= 0)
        fd++;
    if (fd == N_LOW && !atomic_load(&were_closed)) /* again: the open ones may be placeholders */
        return false;
    atomic_store(&were_closed, true);
    low_fds_lock_and_reset_if_forked();
    for (int i = 0; i < N_LOW; i++) {
        fd = open("/", O_PATH | O_CLOEXEC);
        if (fd >= N_LOW)
            (void)close(fd);
        if (fd < 0 || fd >= N_LOW)
            break;
        low.has_placeholder[fd] = true;
    }
    low.n_users++;
    bth_lock_release(&low.lock);
    errno = failure;
    return true;
}

void bth_low_fds_release(void)
{
    int failure = errno;

    low_fds_lock_and_reset_if_forked();
    if (low.n_users > 0 && --low.n_users == 0)
        placeholders_close();
    bth_lock_release(&low.lock);
    errno = failure;
}

/* open and openat are variadic, and fields of the table cannot be. */
static int openat_avoiding_low_fds(int folder, const char *path, int flags, mode_t mode)
{
    bool are_filled = bth_low_fds_fill(); /* X10 */
    int fd = openat(folder, path, flags, mode);

    if (are_filled)
        bth_low_fds_release();
    if (fd < 0 || fd >= N_LOW)
        return fd;
    /* The program closed that number meanwhile. */
    int above = fcntl(fd, F_DUPFD_CLOEXEC, N_LOW);
    int failure = errno;
    (void)close(fd);
    errno = failure;
    return above;
}

static int open_avoiding_low_fds(const char *path, int flags, mode_t mode)
{
    return openat_avoiding_low_fds(AT_FDCWD, path, flags, mode);
}

/* Its first parameter is an enum in glibc and an int elsewhere. */
static int getrlimit_with_int(int resource, struct rlimit *limit)
{
    return getrlimit((unsigned)resource, limit);
}

static int ioctl_with_pointer(int fd, unsigned long request, void *argument)
{
    return ioctl(fd, request, argument);
}

/* musl has the next two since 1.2.5. */
static ssize_t preadv2_of_system(int fd, const struct iovec *pieces, int n, off_t offset, int flags)
{
#ifdef __GLIBC__
    return preadv2(fd, pieces, n, offset, flags);
#else
    return syscall(SYS_preadv2, fd, pieces, n, offset, 0, flags);
#endif
}

static int statx_of_system(int folder, const char *path, int flags, unsigned mask,
                           struct statx *status)
{
#ifdef __GLIBC__
    return statx(folder, path, flags, mask, status);
#else
    return (int)syscall(SYS_statx, folder, path, flags, mask, status);
#endif
}

/* The C library does not have the next two; libnuma has. */
static long get_mempolicy_by_syscall(int *mode, unsigned long *nodes, unsigned long n_nodes,
                                     void *address, unsigned long flags)
{
    return syscall(SYS_get_mempolicy, mode, nodes, n_nodes, address, flags);
}

static long mbind_by_syscall(void *address, unsigned long nbytes, int mode,
                             const unsigned long *nodes, unsigned long n_nodes, unsigned flags)
{
    return syscall(SYS_mbind, address, nbytes, mode, nodes, n_nodes, flags);
}

/* glibc has it since 2.30. */
static ssize_t getdents64_by_syscall(int fd, void *entries, size_t nbytes)
{
    return syscall(SYS_getdents64, fd, entries, nbytes);
}

/* The operations that are forbidden for a file of memfd_create. */
static int get_seals_by_fcntl(int fd)
{
    return fcntl(fd, F_GET_SEALS);
}

/* The C library does not have it; libcap has. */
static int capget_by_syscall(void *header, void *capabilities)
{
    return (int)syscall(SYS_capget, header, capabilities);
}

/* Linux 6.5; older headers do not have the number, nor the C library a function. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
static int cachestat_by_syscall(int fd, void *range, void *counts, unsigned flags)
{
    return (int)syscall(SYS_cachestat, fd, range, counts, flags);
}

/* dup leaks the copy into programs that the process starts (F1), and may return 0 to 2 (X10). */
static int dup_close_on_exec(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

/* clang-format off */
#define BTH_SYSCALL(result, name, parameters, function) .name = (function),
static const bth_system_table real_system = {
#include "io/syscalls.def"
};

bth_system_table bth_system = {
#include "io/syscalls.def"
};
#undef BTH_SYSCALL
/* clang-format on */

void bth_system_restore(void)
{
    bth_system = real_system;
}
