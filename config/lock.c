/* SPDX-License-Identifier: BSD-3-Clause */
#include "config/lock.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/error.h"

#ifndef MADV_WIPEONFORK /* Linux 4.14 */
#define MADV_WIPEONFORK 18
#endif

/* Of bth_lock.process: somebody is making the mutex. */
#define MAKING 1u

/* ---- which process this is ---- */

/* In a page that is zeros in a child. NULL: there is none, and processes are known by their ids. */
_Atomic uint64_t *bth_process_page;
static _Atomic uint64_t n_processes; /* numbers given so far, here and in the parents */

static _Atomic uint64_t n_forks;

static void count_fork(void)
{
    atomic_fetch_add(&n_forks, 1);
}

uint64_t bth_forks(void)
{
    return atomic_load(&n_forks);
}

/*
 * Before anybody can fork. These calls are in no table: tests could not replace them in time, and
 * a failure needs no more than the process's id instead.
 */
__attribute__((constructor)) static void begin(void)
{
    size_t nbytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)pthread_atfork(count_fork, NULL, NULL);
    if (page == MAP_FAILED)
        return;
    /* Emulators that take any advice (qemu before 8.0) follow none. */
    if (madvise(page, nbytes, -1) != 0 && madvise(page, nbytes, MADV_WIPEONFORK) == 0)
        bth_process_page = page;
    else
        (void)munmap(page, nbytes);
}

void bth_process_by_id(void)
{
    bth_process_page = NULL;
}

/* Two threads of a child may come at once: the number that is there first counts for both. */
static uint64_t number_process(void)
{
    uint64_t nobody = 0, number = atomic_fetch_add(&n_processes, 1) + 1;

    return atomic_compare_exchange_strong(bth_process_page, &nobody, number) ? number : nobody;
}

uint64_t bth_process_number(void)
{
    return bth_process_page ? number_process() : (uint64_t)getpid();
}

/* ---- locks ---- */

static uint64_t made_in(uint64_t process)
{
    return process << 1;
}

void bth_lock_begin(bth_lock *lock)
{
    (void)pthread_mutex_init(&lock->mutex, NULL);
    lock->state = BTH_LOCK_OURS;
    atomic_init(&lock->process, made_in(bth_process()));
}

/*
 * Makes the mutex anew, unless another thread of this process does. What the parent left tells
 * whether it was held. A fork in the midst of this leaves MAKING with the number of a process that
 * the grandchild is not.
 */
static void make_anew(bth_lock *lock, uint64_t wanted)
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
            lock->state = bth_lock_was_free(lock) ? BTH_LOCK_INHERITED : BTH_LOCK_TORN;
        (void)pthread_mutex_init(&lock->mutex, NULL);
        atomic_store(&lock->process, wanted);
        return;
    }
}

bth_lock_state bth_lock_take(bth_lock *lock)
{
    uint64_t wanted = made_in(bth_process());

    if (atomic_load_explicit(&lock->process, memory_order_acquire) != wanted)
        make_anew(lock, wanted);
    (void)pthread_mutex_lock(&lock->mutex);
    bth_lock_state state = lock->state;
    lock->state = BTH_LOCK_OURS;
    return state;
}

void bth_lock_give(bth_lock *lock)
{
    (void)pthread_mutex_unlock(&lock->mutex);
}

bool bth_lock_is_ours(const bth_lock *lock)
{
    return atomic_load_explicit(&lock->process, memory_order_relaxed) == made_in(bth_process());
}

bool bth_lock_was_free(bth_lock *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return false;
    (void)pthread_mutex_unlock(&lock->mutex);
    return true;
}

void bth_lock_end(bth_lock *lock)
{
    if (bth_lock_is_ours(lock))
        (void)pthread_mutex_destroy(&lock->mutex);
}

int bth_fail_forked(berth_error *error, const char *what)
{
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                    "this %s was made before this process was forked, and its threads are not "
                    "here: make it anew in this process",
                    what);
}
