/* SPDX-License-Identifier: BSD-3-Clause */
/* How many workers an operation has, for every kind of work and every bound. */
#include "io/thread_pool.h"

#include <criterion/criterion.h>

#include "io/syscalls.h"

static int n_processors;

static int pretend_affinity(pid_t process, size_t nbytes, cpu_set_t *cpus)
{
    (void)process, (void)nbytes;
    CPU_ZERO(cpus);
    for (int i = 0; i < n_processors; i++)
        CPU_SET((unsigned)i * 3, cpus);
    return n_processors ? 0 : -1;
}

static void begin(void)
{
    bth_system.sched_getaffinity = pretend_affinity;
}
TestSuite(workers, .init = begin, .fini = bth_system_restore);

Test(workers, processors_are_those_of_the_process_and_at_most_8)
{
    n_processors = 1;
    cr_assert_eq(bth_processors_count_capped(), 1);
    n_processors = 5;
    cr_assert_eq(bth_processors_count_capped(), 5);
    n_processors = 64;
    cr_assert_eq(bth_processors_count_capped(), 8);
    n_processors = 0; /* the system call fails */
    cr_assert_geq(bth_processors_count_capped(), 1);
    cr_assert_leq(bth_processors_count_capped(), 8);
}

Test(workers, count_is_bounded_by_threads_memory_and_tasks)
{
    static const struct {
        int n_processors;
        int64_t threads, memory_nbytes;
        bth_workers_kind kind;
        uint64_t n_tasks, worker_nbytes;
        unsigned n;
    } cases[] = {
        {5, 0, 0, BTH_WORKERS_COMPUTE, UINT64_MAX, 0, 5},
        {64, 0, 0, BTH_WORKERS_COMPUTE, UINT64_MAX, 0, 8},
        {2, 0, 0, BTH_WORKERS_WAIT, UINT64_MAX, 0, 8},
        {2, 0, 0, BTH_WORKERS_PREFETCH, UINT64_MAX, 0, 2},
        {64, 0, 0, BTH_WORKERS_PREFETCH, UINT64_MAX, 0, 4},
        {2, 0, 0, BTH_WORKERS_ROWS, UINT64_MAX, 0, 16},
        /* io.threads decides for every kind */
        {2, 1024, 0, BTH_WORKERS_COMPUTE, UINT64_MAX, 0, 1024},
        {2, 3, 0, BTH_WORKERS_WAIT, UINT64_MAX, 0, 3},
        {2, 7, 0, BTH_WORKERS_PREFETCH, UINT64_MAX, 0, 7},
        {2, 1, 0, BTH_WORKERS_ROWS, UINT64_MAX, 0, 1},
        /* tasks */
        {2, 0, 0, BTH_WORKERS_WAIT, 3, 0, 3},
        {2, 9, 0, BTH_WORKERS_WAIT, 1, 0, 1},
        {2, 9, 0, BTH_WORKERS_WAIT, 0, 0, 1},
        /* memory, where it is bounded and the workers need some */
        {2, 0, 100, BTH_WORKERS_WAIT, UINT64_MAX, 30, 3},
        {2, 9, 100, BTH_WORKERS_WAIT, UINT64_MAX, 50, 2},
        {2, 9, 100, BTH_WORKERS_WAIT, UINT64_MAX, 101, 1},
        {2, 9, 100, BTH_WORKERS_WAIT, UINT64_MAX, 0, 9},
        {2, 9, 0, BTH_WORKERS_WAIT, UINT64_MAX, 30, 9},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct berth_config config = {.io_threads = cases[i].threads,
                                      .io_memory_nbytes = cases[i].memory_nbytes};
        n_processors = cases[i].n_processors;
        cr_expect_eq(bth_workers_choose_count(&config, cases[i].kind, cases[i].n_tasks,
                                              cases[i].worker_nbytes),
                     cases[i].n, "case %zu", i);
    }
}

Test(workers, chunks_hold_whole_elements_and_are_not_tiny)
{
    static const int64_t nbytes[][2] = {
        {0, 4 << 20},   {1, 65536},     {65536, 65536},
        {65543, 65536}, {65544, 65544}, {1 << 30, 1 << 30},
    };

    for (size_t i = 0; i < sizeof nbytes / sizeof *nbytes; i++) {
        struct berth_config config = {.io_chunk_nbytes = nbytes[i][0]};
        cr_expect_eq(bth_workers_chunk_nbytes(&config), (uint64_t)nbytes[i][1], "case %zu", i);
    }
}
