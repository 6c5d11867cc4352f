/* SPDX-License-Identifier: BSD-3-Clause */
/* Its calls are in no table: they are a part of the rows that open. */
#include "io/low.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "config/lock.h"

#define N_LOW 3

/* Some were closed once: until then, nobody takes the lock. */
static atomic_bool were_closed;
static struct {
    bth_lock lock; /* of the rest */
    unsigned n_users;
    bool is_taken[N_LOW];
} low;

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* Nobody but us has such a thing there; what is not is the program's, which has put it there. */
static bool is_placeholder(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && (flags & O_PATH);
}

/* With the lock held, as the next one. */
static void take_closed(void)
{
    for (int i = 0; i < N_LOW; i++) {
        int fd = open("/", O_PATH | O_CLOEXEC);
        if (fd >= N_LOW)
            (void)close(fd);
        if (fd < 0 || fd >= N_LOW)
            return;
        low.is_taken[fd] = true;
    }
}

static void give_back_all(void)
{
    for (int fd = 0; fd < N_LOW; fd++) {
        if (low.is_taken[fd] && is_placeholder(fd))
            (void)close(fd);
        low.is_taken[fd] = false;
    }
}

/* X11: a child goes without those that its parent's threads had. */
static void lock(void)
{
    bth_lock_state state = bth_lock_take(&low.lock);

    if (state == BTH_LOCK_OURS)
        return;
    for (int fd = 0; fd < N_LOW && state == BTH_LOCK_TORN; fd++)
        low.is_taken[fd] = true;
    give_back_all();
    low.n_users = 0;
}

bool bth_low_take(void)
{
    int failure = errno;

    if (!atomic_load(&were_closed) && is_open(0) && is_open(1) && is_open(2) &&
        !atomic_load(&were_closed)) /* else it may be a placeholder that was seen */
        return false;
    atomic_store(&were_closed, true);
    lock();
    take_closed();
    low.n_users++;
    bth_lock_give(&low.lock);
    errno = failure;
    return true;
}

void bth_low_give_back(void)
{
    int failure = errno;

    lock();
    if (low.n_users > 0 && --low.n_users == 0)
        give_back_all();
    bth_lock_give(&low.lock);
    errno = failure;
}

int bth_low_move_up(int fd)
{
    int above = fcntl(fd, F_DUPFD_CLOEXEC, N_LOW);
    int failure = errno;

    (void)close(fd);
    errno = failure;
    return above;
}
