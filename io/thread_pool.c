/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/thread_pool.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/syscalls.h"

#define WATCH_SECONDS 0.1

int bth_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    /* X11: glibc (2.36) frees the old thread-local memory of a stack that it uses again, and then
     * notes that it has. A child of a fork in between frees it once more, at its next thread. The
     * thread runs no handler of the program's signals. */
    bth_fork_hold();
    int failure = bth_system.pthread_create(thread, NULL, function, argument);
    bth_fork_release();
    return failure;
}

struct pool {
    bth_pool_function function;
    void *context;
    uint64_t n_tasks;
    const bth_trace_thread *traced; /* of the thread that waits; NULL: none */
    pthread_mutex_t lock;           /* protects the rest */
    pthread_cond_t finished;        /* a worker has finished */
    bool stop;                      /* no worker begins another task */
    uint64_t next_task;
    unsigned n_running;
    berth_error first; /* the first failure (W8) */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    unsigned number;
};

/* ---- workers ---- */

/* Keeps the first failure; no worker begins another task (W8). The caller holds the lock. */
static void pool_stop_with_error(struct pool *pool, int status, const berth_error *error)
{
    if (pool->first.code == BERTH_OK) {
        pool->first = *error;
        /* Of a task that failed without setting an error. */
        (void)bth_fail_status(&pool->first, status, "%s", bth_status_text(status));
    }
    pool->stop = true;
}

static void *pool_run_worker(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    bth_trace_scope traced = {0};
    berth_error error;

    bth_thread_disable_cancel();
    bth_trace_enter_worker(&traced, pool->traced);
    bth_error_clear(&error);
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && pool->next_task < pool->n_tasks) {
        uint64_t task = pool->next_task++;
        pthread_mutex_unlock(&pool->lock);
        int status = pool->function(pool->context, task, worker->number, &error);
        pthread_mutex_lock(&pool->lock);
        if (status < 0)
            pool_stop_with_error(pool, status, &error);
    }
    pthread_mutex_unlock(&pool->lock);
    bth_trace_leave_lazily(&traced);
    pthread_mutex_lock(&pool->lock);
    pool->n_running--;
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Calls the watch ten times a second, on the caller's thread, until all workers have finished. */
static void pool_wait_and_call_watch(struct pool *pool, bth_pool_watch watch)
{
    struct timespec next_watch = bth_time_after(WATCH_SECONDS);

    pthread_mutex_lock(&pool->lock);
    while (pool->n_running > 0) {
        if (!watch || pool->stop) {
            pthread_cond_wait(&pool->finished, &pool->lock);
            continue;
        }
        if (pthread_cond_timedwait(&pool->finished, &pool->lock, &next_watch) == 0)
            continue;
        pthread_mutex_unlock(&pool->lock); /* the watch is the caller's code, and may take long */
        bool is_cancelled = watch(pool->context) != 0;
        next_watch = bth_time_after(WATCH_SECONDS);
        pthread_mutex_lock(&pool->lock);
        if (is_cancelled) {
            berth_error error;
            bth_error_clear(&error);
            (void)bth_fail_status(&error, BERTH_E_CANCELLED, "cancelled");
            pool_stop_with_error(pool, error.code, &error);
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

int bth_pool_run(unsigned n_workers, uint64_t n_tasks, bth_pool_function function,
                 bth_pool_watch watch, void *context, berth_error *error)
{
    struct pool pool = {.function = function,
                        .context = context,
                        .n_tasks = n_tasks,
                        .traced = bth_trace_current()};

    if (n_workers <= 1 || n_tasks <= 1) { /* on the caller's own thread */
        double next_watch = 0;
        for (uint64_t task = 0; task < n_tasks; task++) {
            if (watch && bth_seconds() >= next_watch) {
                if (watch(context) != 0)
                    return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
                next_watch = bth_seconds() + WATCH_SECONDS;
            }
            int status = function(context, task, 0, error);
            if (status < 0)
                return bth_fail_status(error, status, "%s", bth_status_text(status));
        }
        return 0;
    }
    if (watch && watch(context) != 0)
        return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
    if (n_workers > n_tasks)
        n_workers = (unsigned)n_tasks;
    struct worker *workers = bth_allocate(n_workers * sizeof *workers);
    if (!workers)
        return bth_fail_memory(error, n_workers * sizeof *workers);
    pthread_mutex_init(&pool.lock, NULL);
    bth_condition_initialize(&pool.finished);
    unsigned n_started = 0;
    int failure = 0;
    pool.n_running = n_workers;
    for (; n_started < n_workers; n_started++) {
        workers[n_started] = (struct worker){.pool = &pool, .number = n_started};
        failure =
            bth_thread_start(&workers[n_started].thread, pool_run_worker, &workers[n_started]);
        if (failure != 0)
            break;
    }
    if (failure != 0) { /* W6 */
        berth_error why;
        bth_error_clear(&why);
        (void)bth_fail_system(&why, failure, "worker thread %u of %u cannot be started",
                              n_started + 1, n_workers);
        pthread_mutex_lock(&pool.lock);
        pool_stop_with_error(&pool, why.code, &why);
        pool.n_running -= n_workers - n_started;
        pthread_mutex_unlock(&pool.lock);
    }
    double begin_seconds = bth_trace_seconds();
    pool_wait_and_call_watch(&pool, watch);
    BTH_TRACE(.category = "wait", .name = "wait for workers", .begin_seconds = begin_seconds,
              .end_seconds = bth_seconds());
    for (unsigned i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_cond_destroy(&pool.finished);
    pthread_mutex_destroy(&pool.lock);
    bth_release(workers);
    if (pool.first.code != BERTH_OK && error->code == BERTH_OK)
        *error = pool.first;
    return pool.first.code;
}

/* ---- how many workers, and how many bytes one moves at a time ---- */

#define PROCESSORS_MAX 8
/*
 * Enough to keep a disk busy while other workers compute checksums. On 2 processors 2, 3, 4, 6 and
 * 8 workers wrote 2.9, 3.2, 3.3, 3.4 and 3.5 GiB/s with checksums, and 3.1, 3.3, 3.4, 3.5 and 3.5
 * without.
 */
#define WAIT_WORKERS 8
#define PREFETCH_WORKERS_MAX 4
#define ROW_WORKERS 16
#define CHUNK_MIN_NBYTES 65536
#define CHUNK_UNIT_NBYTES 8

unsigned bth_processors_count_capped(void)
{
    cpu_set_t cpus;
    long n;

    if (bth_system.sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        n = CPU_COUNT(&cpus);
    else /* more processors than the set has bits */
        n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n > PROCESSORS_MAX ? PROCESSORS_MAX : (unsigned)n;
}

unsigned bth_workers_choose_count(const struct berth_config *config, bth_workers_kind kind,
                                  uint64_t n_tasks, uint64_t worker_nbytes)
{
    uint64_t n = (uint64_t)config->io_threads;

    if (n == 0)
        n = kind == BTH_WORKERS_WAIT       ? WAIT_WORKERS
            : kind == BTH_WORKERS_ROWS     ? ROW_WORKERS
            : kind == BTH_WORKERS_ROTATING ? 1
            : kind == BTH_WORKERS_PREFETCH
                ? bth_min(bth_processors_count_capped(), PREFETCH_WORKERS_MAX)
                : bth_processors_count_capped();
    if (config->io_memory_nbytes && worker_nbytes)
        n = bth_min(n, (uint64_t)config->io_memory_nbytes / worker_nbytes);
    n = bth_min(n, n_tasks);
    return n > 0 ? (unsigned)n : 1;
}

uint64_t bth_workers_chunk_nbytes(const struct berth_config *config)
{
    uint64_t nbytes = (uint64_t)config->io_chunk_nbytes;

    if (nbytes == 0)
        return BTH_WORKERS_CHUNK_NBYTES;
    return nbytes < CHUNK_MIN_NBYTES ? CHUNK_MIN_NBYTES : nbytes - nbytes % CHUNK_UNIT_NBYTES;
}
