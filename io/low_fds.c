/* SPDX-License-Identifier: BSD-3-Clause */
/* These calls do not go through bth_system: its functions that open files use them. */
#include "io/low_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/lock.h"

#define N_LOW 3

/* Some call found descriptor 0, 1 or 2 closed. Before that, no call needs the lock. */
static atomic_bool were_closed;
static struct {
    bth_lock lock; /* protects the rest */
    unsigned n_users;
    bool has_placeholder[N_LOW];
} low;

static bool low_fd_is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* False: the program has put its own file there. Only we have O_PATH descriptors there. */
static bool low_fd_is_placeholder(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && (flags & O_PATH);
}

/* The caller holds the lock, here and in the next function. */
static void placeholders_open(void)
{
    for (int i = 0; i < N_LOW; i++) {
        int fd = open("/", O_PATH | O_CLOEXEC);
        if (fd >= N_LOW)
            (void)close(fd);
        if (fd < 0 || fd >= N_LOW)
            return;
        low.has_placeholder[fd] = true;
    }
}

static void placeholders_close(void)
{
    for (int fd = 0; fd < N_LOW; fd++) {
        if (low.has_placeholder[fd] && low_fd_is_placeholder(fd))
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
    int failure = errno;

    if (!atomic_load(&were_closed) && low_fd_is_open(0) && low_fd_is_open(1) && low_fd_is_open(2) &&
        !atomic_load(&were_closed)) /* again: the open ones may be placeholders */
        return false;
    atomic_store(&were_closed, true);
    low_fds_lock_and_reset_if_forked();
    placeholders_open();
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

int bth_low_fd_move_up(int fd)
{
    int above = fcntl(fd, F_DUPFD_CLOEXEC, N_LOW);
    int failure = errno;

    (void)close(fd);
    errno = failure;
    return above;
}
