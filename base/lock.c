/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/lock.h"

#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#ifndef MADV_WIPEONFORK /* Linux 4.14 */
#define MADV_WIPEONFORK 18
#endif

/* In bth_lock.process, below the number: a thread is initializing the mutex. */
#define MAKING 1u

/* ---- the number of this process ---- */

/* In a page that the kernel clears in a child. NULL: no such page; use process ids. */
_Atomic uint64_t *bth_process_page;
static _Atomic uint64_t n_processes; /* the last number, here and in the parents */
static _Atomic uint64_t n_forks;

/*
 * With musl only a mutex of the plain type can be made anew in a child: it has the others in a list
 * of the thread. The handler of a signal may fork: it must not run in a thread that has this one.
 */
static pthread_mutex_t fork_hold = PTHREAD_MUTEX_INITIALIZER;
static sigset_t signals_of_holder; /* the mask that it had before; fork_hold protects it */

void bth_fork_hold(void)
{
    static const int raised_by_the_thread[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;

    (void)sigfillset(&blocked);
    for (size_t i = 0; i < sizeof raised_by_the_thread / sizeof *raised_by_the_thread; i++)
        (void)sigdelset(&blocked, raised_by_the_thread[i]);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &before);
    (void)pthread_mutex_lock(&fork_hold);
    signals_of_holder = before;
}

void bth_fork_release(void)
{
    sigset_t before = signals_of_holder;

    (void)pthread_mutex_unlock(&fork_hold);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void fork_release_in_child(void)
{
    sigset_t before = signals_of_holder;

    (void)pthread_mutex_init(&fork_hold, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void process_before_fork(void)
{
    bth_fork_hold();
    atomic_fetch_add(&n_forks, 1);
}

uint64_t bth_fork_count(void)
{
    return atomic_load(&n_forks);
}

/* Not through bth_system: this runs before tests can replace calls. On failure, ids are used. */
__attribute__((constructor)) static void process_page_create(void)
{
    size_t nbytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)pthread_atfork(process_before_fork, bth_fork_release, fork_release_in_child);
    if (page == MAP_FAILED)
        return;
    /* Emulators that accept any advice (qemu before 8.0) ignore it. */
    if (madvise(page, nbytes, -1) != 0 && madvise(page, nbytes, MADV_WIPEONFORK) == 0)
        bth_process_page = page;
    else
        (void)munmap(page, nbytes);
}

void bth_process_use_pids_as_numbers(void)
{
    bth_process_page = NULL;
}

uint64_t bth_process_assign_number(void)
{
    uint64_t none = 0, number;

    if (!bth_process_page)
        return (uint64_t)getpid();
    /* If two threads do this at once, the first one sets the number for both. */
    number = atomic_fetch_add(&n_processes, 1) + 1;
    return atomic_compare_exchange_strong(bth_process_page, &none, number) ? number : none;
}

/* ---- locks ---- */

void bth_lock_initialize(bth_lock *lock)
{
    (void)pthread_mutex_init(&lock->mutex, NULL);
    lock->state = BTH_LOCK_OURS;
    atomic_init(&lock->process, bth_process_unique_number() << 1);
}

/*
 * Initializes the mutex, unless another thread of this process does. The parent's mutex shows
 * whether it was held. A fork during this leaves MAKING with the parent's number, which the child
 * ignores.
 */
static void lock_reinitialize_after_fork(bth_lock *lock, uint64_t wanted)
{
    uint64_t seen = atomic_load(&lock->process);

    while (seen != wanted) {
        if (seen == (wanted | MAKING)) {
            (void)sched_yield();
            seen = atomic_load(&lock->process);
            continue;
        }
        if (!atomic_compare_exchange_strong(&lock->process, &seen, wanted | MAKING))
            continue;
        if (lock->state != BTH_LOCK_TORN)
            lock->state = bth_lock_was_free_at_fork(lock) ? BTH_LOCK_INHERITED : BTH_LOCK_TORN;
        (void)pthread_mutex_init(&lock->mutex, NULL);
        atomic_store(&lock->process, wanted);
        return;
    }
}

bth_lock_state bth_lock_acquire(bth_lock *lock)
{
    uint64_t wanted = bth_process_unique_number() << 1;

    if (atomic_load_explicit(&lock->process, memory_order_acquire) != wanted)
        lock_reinitialize_after_fork(lock, wanted);
    (void)pthread_mutex_lock(&lock->mutex);
    bth_lock_state state = lock->state;
    lock->state = BTH_LOCK_OURS;
    return state;
}

void bth_lock_release(bth_lock *lock)
{
    (void)pthread_mutex_unlock(&lock->mutex);
}

bool bth_lock_is_of_this_process(const bth_lock *lock)
{
    return atomic_load_explicit(&lock->process, memory_order_relaxed) == bth_process_unique_number()
                                                                             << 1;
}

bool bth_lock_was_free_at_fork(bth_lock *lock)
{
    assert(!bth_lock_is_of_this_process(lock));
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return false;
    (void)pthread_mutex_unlock(&lock->mutex);
    return true;
}

void bth_lock_destroy(bth_lock *lock)
{
    if (bth_lock_is_of_this_process(lock))
        (void)pthread_mutex_destroy(&lock->mutex);
}

int bth_fail_forked(berth_error *error, const char *what)
{
    return bth_fail_argument(error,
                             "this %s belongs to the parent process, whose threads do not exist "
                             "here: make a new one in this process",
                             what);
}
