/* SPDX-License-Identifier: BSD-3-Clause */
/* W6, W8: workers that all do their part, or all stop. */
#include "io/thread_pool.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "io/syscalls.h"
#include "tests/support/support.h"

#define N_TASKS 500

static berth_error error;

static void forget_faults(void)
{
    bth_system_restore();
}
TestSuite(pool, .fini = forget_faults);

typedef struct record {
    atomic_int done[N_TASKS];
    atomic_int n_done;
    atomic_uint most_worker;
    uint64_t fail_at; /* this task fails; past the end: none */
    long nanoseconds; /* that a task takes */
    int wait_for;     /* so many watches before a task ends: the machine may be busy */
    atomic_int n_watches;
    int cancel_at; /* this watch cancels; 0: none */
    pthread_t caller;
} record;

static int do_task(void *context, uint64_t task, unsigned worker, berth_error *own)
{
    record *tasks = context;
    unsigned most = atomic_load(&tasks->most_worker);

    while (worker > most && !atomic_compare_exchange_weak(&tasks->most_worker, &most, worker))
        ;
    while (atomic_load(&tasks->n_watches) < tasks->wait_for)
        (void)usleep(1000);
    if (tasks->nanoseconds)
        (void)nanosleep(&(struct timespec){.tv_nsec = tasks->nanoseconds}, NULL);
    atomic_fetch_add(&tasks->done[task], 1);
    atomic_fetch_add(&tasks->n_done, 1);
    if (task == tasks->fail_at)
        return bth_fail(own, BERTH_E_CHECKSUM, "data/3", 77, "task %d is bad", (int)task);
    return 0;
}

static int watch(void *context)
{
    record *tasks = context;

    cr_assert(pthread_equal(tasks->caller, pthread_self()));
    tasks->n_watches++;
    return tasks->cancel_at && tasks->n_watches >= tasks->cancel_at;
}

static void begin(record *tasks)
{
    memset(tasks, 0, sizeof *tasks);
    tasks->fail_at = UINT64_MAX;
    tasks->caller = pthread_self();
    error = (berth_error){0};
}

Test(pool, does_every_task_once_with_any_number_of_workers)
{
    static const unsigned n_workers[] = {0, 1, 2, 3, 8, 700};
    static record tasks;

    for (size_t i = 0; i < sizeof n_workers / sizeof *n_workers; i++) {
        begin(&tasks);
        cr_assert_eq(bth_pool_run(n_workers[i], N_TASKS, do_task, watch, &tasks, &error), 0);
        for (size_t k = 0; k < N_TASKS; k++)
            cr_assert_eq(tasks.done[k], 1);
        cr_assert_lt(tasks.most_worker, n_workers[i] ? n_workers[i] : 1);
    }
    begin(&tasks);
    cr_assert_eq(bth_pool_run(4, 0, do_task, watch, &tasks, &error), 0);
    cr_assert_eq(tasks.n_done, 0);
}

Test(pool, tells_the_first_failure_and_begins_nothing_after_it_w8)
{
    static record tasks;

    for (unsigned n_workers = 0; n_workers <= 4; n_workers++) {
        begin(&tasks);
        tasks.fail_at = 40;
        tasks.nanoseconds = 1000;
        FAILS(bth_pool_run(n_workers, N_TASKS, do_task, watch, &tasks, &error), BERTH_E_CHECKSUM,
              "data/3 at byte 77: task 40 is bad");
        cr_assert_str_eq(error.record, "data/3");
        for (size_t k = 0; k <= 40; k++)
            cr_assert_eq(tasks.done[k], 1, "claimed in order, and finished");
        cr_assert_lt(tasks.n_done, N_TASKS);
    }
}

static int fail_silently(void *context, uint64_t task, unsigned worker, berth_error *own)
{
    (void)context, (void)task, (void)worker, (void)own;
    return BERTH_E_SYSTEM;
}

static int fail_each(void *context, uint64_t task, unsigned worker, berth_error *own)
{
    (void)context, (void)worker;
    return bth_fail(own, BERTH_E_CHECKSUM, NULL, task, "bad");
}

Test(pool, failure_without_a_word_is_still_one)
{
    for (unsigned n_workers = 0; n_workers <= 2; n_workers++) {
        error = (berth_error){0};
        FAILS(bth_pool_run(n_workers, 3, fail_silently, NULL, NULL, &error), BERTH_E_SYSTEM,
              "a system call failed");
    }
}

Test(pool, tells_one_failure_of_many_whole)
{
    char sentence[40];

    for (int round = 0; round < 50; round++) {
        error = (berth_error){0};
        cr_assert_eq(bth_pool_run(4, 100, fail_each, NULL, NULL, &error), BERTH_E_CHECKSUM);
        (void)snprintf(sentence, sizeof sentence, "at byte %d: bad", (int)error.offset);
        cr_assert_str_eq(error.message, sentence);
    }
}

static double now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

Test(pool, is_watched_about_ten_times_a_second_and_at_the_start)
{
    static record tasks;

    for (unsigned n_workers = 1; n_workers <= 2; n_workers++) {
        begin(&tasks);
        tasks.nanoseconds = 10 * 1000 * 1000;
        tasks.wait_for = n_workers > 1 ? 3 : 0; /* one worker is the caller, who watches */
        double since = now();
        cr_assert_eq(bth_pool_run(n_workers, 50, do_task, watch, &tasks, &error), 0);
        cr_assert_geq(tasks.n_watches, 3);
        cr_assert_leq(tasks.n_watches, 3 + 10 * (now() - since), "never after every task");
    }
    begin(&tasks);
    cr_assert_eq(bth_pool_run(2, 50, do_task, NULL, &tasks, &error), 0);
}

Test(pool, can_be_cancelled_at_once_and_later)
{
    static record tasks;

    for (unsigned n_workers = 0; n_workers <= 3; n_workers++)
        for (int cancel_at = 1; cancel_at <= 2; cancel_at++) {
            begin(&tasks);
            tasks.cancel_at = cancel_at;
            tasks.nanoseconds = 10 * 1000 * 1000;
            FAILS(bth_pool_run(n_workers, N_TASKS, do_task, watch, &tasks, &error),
                  BERTH_E_CANCELLED, "cancelled");
            cr_assert_eq(tasks.n_watches, cancel_at, "asked no more");
            cr_assert_lt(tasks.n_done, N_TASKS);
            cr_assert(cancel_at > 1 || tasks.n_done == 0);
        }
    begin(&tasks);
    tasks.cancel_at = 2;
    tasks.nanoseconds = 400 * 1000 * 1000;
    tasks.wait_for = 2;
    cr_assert_eq(bth_pool_run(2, 9, do_task, watch, &tasks, &error), BERTH_E_CANCELLED);
    cr_assert_eq(tasks.n_watches, 2, "nor while the last tasks come to their end");
    cr_assert_eq(tasks.n_done, 2);
}

static int n_created, fail_creation_at;

static int failing_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    if (++n_created == fail_creation_at)
        return EAGAIN;
    return pthread_create(thread, attributes, start, argument);
}

Test(pool, of_which_a_thread_cannot_start_stops_and_fails_w6)
{
    static record tasks;
    char sentence[120];

    bth_system.pthread_create = failing_create;
    for (fail_creation_at = 1; fail_creation_at <= 4; fail_creation_at++) {
        begin(&tasks);
        tasks.nanoseconds = 1000 * 1000;
        n_created = 0;
        test_memory_watch();
        cr_assert_eq(bth_pool_run(4, N_TASKS, do_task, watch, &tasks, &error), BERTH_E_SYSTEM);
        (void)snprintf(sentence, sizeof sentence,
                       "worker thread %d of 4 cannot be started: Resource temporarily unavailable",
                       fail_creation_at);
        cr_assert_str_eq(error.message, sentence);
        cr_assert_eq(n_created, fail_creation_at);
        cr_assert_lt(tasks.n_done, N_TASKS);
        cr_assert_eq(test_memory_seen().live_nbytes, 0);
        test_memory_unwatch();
    }
}

Test(pool, that_finds_no_memory_says_so_w6)
{
    static record tasks;

    begin(&tasks);
    test_memory_watch();
    test_memory_refuse(1, true);
    cr_assert_eq(bth_pool_run(4, N_TASKS, do_task, watch, &tasks, &error), BERTH_E_MEMORY);
    cr_assert_eq(tasks.n_done, 0);
    test_memory_unwatch();
}

static int look_at_signals(void *context, uint64_t task, unsigned worker, berth_error *own)
{
    sigset_t *blocked = context;

    (void)task, (void)worker, (void)own;
    return pthread_sigmask(SIG_SETMASK, NULL, blocked) == 0 ? 0 : BERTH_E_SYSTEM;
}

Test(pool, leaves_the_program_s_signals_to_the_program)
{
    sigset_t before, in_worker, after;

    pthread_sigmask(SIG_SETMASK, NULL, &before);
    cr_assert_eq(bth_pool_run(2, 2, look_at_signals, NULL, &in_worker, &error), 0);
    cr_assert(sigismember(&in_worker, SIGINT) && sigismember(&in_worker, SIGTERM));
    cr_assert_not(sigismember(&in_worker, SIGBUS) || sigismember(&in_worker, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++)
        cr_assert_eq(sigismember(&before, i), sigismember(&after, i));
}
