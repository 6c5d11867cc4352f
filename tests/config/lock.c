/* SPDX-License-Identifier: BSD-3-Clause */
/* X11: what a child is told of a lock that its parent had. */
#include "base/lock.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"

static bth_lock lock;

TestSuite(lock);

static void begin(bool by_id)
{
    if (by_id)
        bth_process_use_pids_as_numbers();
    bth_lock_initialize(&lock);
}

static bool takes_as(bth_lock_state wanted)
{
    bth_lock_state state = bth_lock_acquire(&lock);

    bth_lock_release(&lock);
    return state == wanted;
}

static int finds_it_free(void)
{
    if (bth_lock_is_of_this_process(&lock) || !bth_lock_was_free_at_fork(&lock))
        return 1;
    bth_lock_destroy(&lock); /* of another process: nothing */
    return takes_as(BTH_LOCK_INHERITED) && bth_lock_is_of_this_process(&lock) &&
                   takes_as(BTH_LOCK_OURS)
               ? 0
               : 2;
}

static int finds_it_torn(void)
{
    if (bth_lock_is_of_this_process(&lock) || bth_lock_was_free_at_fork(&lock))
        return 1;
    return takes_as(BTH_LOCK_TORN) && takes_as(BTH_LOCK_OURS) ? 0 : 2;
}

static int is_told_still(void)
{
    return takes_as(BTH_LOCK_TORN) ? 0 : 1;
}

static int has_a_child_that_finds_it_free(void)
{
    if (!takes_as(BTH_LOCK_INHERITED))
        return 1;
    test_in_child(finds_it_free);
    return 0;
}

static int has_a_child_that_finds_it_torn(void)
{
    test_in_child(finds_it_torn); /* nobody had it in between */
    if (bth_lock_acquire(&lock) != BTH_LOCK_TORN)
        return 1;
    test_in_child(finds_it_torn);
    return 0;
}

static void try_all(bool by_id)
{
    begin(by_id);
    test_in_child(finds_it_free);
    cr_assert(takes_as(BTH_LOCK_OURS));
    test_in_child(has_a_child_that_finds_it_free);
    cr_assert_eq(bth_lock_acquire(&lock), BTH_LOCK_OURS);
    test_in_child(finds_it_torn);
    test_in_child(has_a_child_that_finds_it_torn);
    bth_lock_release(&lock);
    lock.state = BTH_LOCK_TORN; /* a process between, of which nobody took it once it was anew */
    test_in_child(is_told_still);
    bth_lock_destroy(&lock);
}

Test(lock, of_a_parent_is_made_anew)
{
    try_all(false);
}

Test(lock, of_a_parent_is_made_anew_where_processes_are_known_by_their_ids)
{
    try_all(true);
}

static unsigned n_told[3], n_inside;

static void *take_often(void *unused)
{
    for (int i = 0; i < 1000; i++) {
        bth_lock_state state = bth_lock_acquire(&lock);
        if (n_inside++ != 0)
            _exit(3);
        n_told[state]++;
        n_inside--;
        bth_lock_release(&lock);
    }
    return unused;
}

static int takes_it_in_many_threads(void)
{
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, take_often, NULL) != 0)
            return 1;
    for (int i = 0; i < 8; i++)
        (void)pthread_join(threads[i], NULL);
    return n_told[BTH_LOCK_TORN] == 1 && n_told[BTH_LOCK_OURS] == 7999 ? 0 : 2;
}

/* One of them, and only one, makes good what it protects. */
Test(lock, of_a_parent_is_made_anew_once)
{
    begin(false);
    (void)bth_lock_acquire(&lock);
    for (int i = 0; i < 50; i++)
        test_in_child(takes_it_in_many_threads);
    bth_lock_release(&lock);
}

static int numbers_itself(void)
{
    return bth_process_unique_number() == bth_process_unique_number() && bth_fork_count() == 1 ? 0
                                                                                               : 1;
}

Test(process, numbers_are_told_apart)
{
    uint64_t mine = bth_process_unique_number();

    cr_assert_neq(mine, 0);
    uint64_t before = bth_fork_count();
    if (before == 0)
        test_in_child(numbers_itself);
    cr_assert_eq(bth_process_unique_number(), mine);
}

/* ---- a handler that forks ---- */

static volatile sig_atomic_t raises, n_handled, n_handled_early;

static void raise_within_the_fork(void)
{
    if (raises)
        (void)raise(SIGUSR1);
    n_handled_early += n_handled;
}

static void see_after_the_fork(void)
{
    n_handled_early += n_handled;
}

/* Before the constructors of the library: so its own handlers of forks are around these. */
__attribute__((constructor(101))) static void register_within_the_fork(void)
{
    (void)pthread_atfork(raise_within_the_fork, see_after_the_fork, see_after_the_fork);
}

static int holds_and_releases(void)
{
    bth_fork_hold();
    bth_fork_release();
    return n_handled_early;
}

static void fork_in_handler(int number)
{
    (void)number;
    raises = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (waitpid(child, NULL, 0) != child)
        abort();
    n_handled = 1;
}

/* X11. A child has no signal that waited in its parent. */
Test(process, a_handler_that_forks_comes_after_the_fork)
{
    sigset_t before, after;

    (void)signal(SIGUSR1, fork_in_handler);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    raises = 1;
    test_in_child(holds_and_releases);
    cr_assert(n_handled == 1 && n_handled_early == 0, "%d early", n_handled_early);

    n_handled = 0;
    bth_fork_hold();
    (void)raise(SIGUSR1);
    cr_assert_eq(n_handled, 0);
    bth_fork_release();
    cr_assert_eq(n_handled, 1);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < NSIG; number++)
        cr_assert_eq(sigismember(&before, number), sigismember(&after, number), "%d", number);
}
