/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/pool.h"

#include <string.h>
#include <time.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/syscalls.h"
#include "io/thread.h"

#define WATCH_NANOSECONDS 100000000L

struct pool {
    bth_pool_function function;
    void *context;
    uint64_t n_tasks;
    pthread_mutex_t lock;    /* of the rest */
    pthread_cond_t finished; /* a worker came to its end */
    bool stop;               /* no new task is begun */
    uint64_t next_task;
    unsigned n_running;
    berth_error first; /* the first failure (W8) */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    unsigned number;
};

static int fail_cancelled(berth_error *error)
{
    return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
}

static struct timespec after(struct timespec time, long nanoseconds)
{
    time.tv_nsec += nanoseconds;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static struct timespec now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

/* A function that fails without saying why still fails, with a sentence. */
static int fail_plainly(berth_error *error, int status)
{
    return bth_fail(error, status, NULL, BERTH_NO_OFFSET, "%s", berth_status_text(status));
}

/* ---- one worker: the caller's own thread ---- */

static int run_serially(uint64_t n_tasks, bth_pool_function function, bth_pool_watch watch,
                        void *context, berth_error *error)
{
    struct timespec next_watch = now();

    for (uint64_t task = 0; task < n_tasks; task++) {
        struct timespec time = now();
        if (watch && !is_before(&time, &next_watch)) {
            if (watch(context) != 0)
                return fail_cancelled(error);
            next_watch = after(time, WATCH_NANOSECONDS);
        }
        int status = function(context, task, 0, error);
        if (status < 0)
            return fail_plainly(error, status);
    }
    return 0;
}

/* ---- workers ---- */

/* True and the next task, in order, unless all are claimed or the others are to stop. */
static bool claim(struct pool *pool, uint64_t *task)
{
    bool claimed = false;

    pthread_mutex_lock(&pool->lock);
    if (!pool->stop && pool->next_task < pool->n_tasks) {
        *task = pool->next_task++;
        claimed = true;
    }
    pthread_mutex_unlock(&pool->lock);
    return claimed;
}

/* Keeps the first failure and lets nobody begin another task (W8). */
static void stop_with(struct pool *pool, int status, const berth_error *error)
{
    pthread_mutex_lock(&pool->lock);
    if (pool->first.code == BERTH_OK) {
        pool->first = *error;
        (void)fail_plainly(&pool->first, status);
    }
    pool->stop = true;
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    berth_error error;
    uint64_t task;

    bth_thread_begin();
    bth_error_clear(&error);
    while (claim(pool, &task)) {
        int status = pool->function(pool->context, task, worker->number, &error);
        if (status < 0) {
            stop_with(pool, status, &error);
            break;
        }
    }
    pthread_mutex_lock(&pool->lock);
    pool->n_running--;
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Starts the workers and says how many there are; not all: the reason is in pool->first (W6). */
static unsigned start(struct pool *pool, struct worker *workers, unsigned n_workers)
{
    unsigned n = 0;
    int failure = 0;

    pool->n_running = n_workers;
    for (; n < n_workers; n++) {
        workers[n] = (struct worker){.pool = pool, .number = n};
        failure = bth_thread_start(&workers[n].thread, work, &workers[n]);
        if (failure != 0)
            break;
    }
    if (failure != 0) {
        berth_error error;
        bth_error_clear(&error);
        (void)bth_fail_errno(&error, failure, NULL, BERTH_NO_OFFSET,
                             "worker thread %u of %u cannot be started", n + 1, n_workers);
        stop_with(pool, error.code, &error);
        pthread_mutex_lock(&pool->lock);
        pool->n_running -= n_workers - n;
        pthread_mutex_unlock(&pool->lock);
    }
    return n;
}

/* Calls the watch about ten times a second, on the caller's thread, until all workers are done. */
static void wait_for(struct pool *pool, bth_pool_watch watch)
{
    struct timespec next_watch = after(now(), WATCH_NANOSECONDS);

    pthread_mutex_lock(&pool->lock);
    while (pool->n_running > 0) {
        if (!watch || pool->stop) {
            pthread_cond_wait(&pool->finished, &pool->lock);
            continue;
        }
        if (pthread_cond_timedwait(&pool->finished, &pool->lock, &next_watch) == 0)
            continue;
        pthread_mutex_unlock(&pool->lock); /* the watch is the caller's code */
        if (watch(pool->context) != 0) {
            berth_error error;
            bth_error_clear(&error);
            stop_with(pool, fail_cancelled(&error), &error);
        }
        next_watch = after(now(), WATCH_NANOSECONDS);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void prepare(struct pool *pool)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* a set clock wakes nobody late */
    pthread_cond_init(&pool->finished, &attributes);
    pthread_condattr_destroy(&attributes);
}

int bth_pool_run(unsigned n_workers, uint64_t n_tasks, bth_pool_function function,
                 bth_pool_watch watch, void *context, berth_error *error)
{
    struct pool pool = {.function = function, .context = context, .n_tasks = n_tasks};

    if (n_workers <= 1 || n_tasks <= 1)
        return run_serially(n_tasks, function, watch, context, error);
    if (watch && watch(context) != 0)
        return fail_cancelled(error);
    if (n_workers > n_tasks)
        n_workers = (unsigned)n_tasks;
    struct worker *workers = bth_allocate(n_workers * sizeof *workers);
    if (!workers)
        return bth_fail_memory(error, n_workers * sizeof *workers);
    prepare(&pool);
    unsigned n_started = start(&pool, workers, n_workers);
    wait_for(&pool, watch);
    for (unsigned i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_cond_destroy(&pool.finished);
    pthread_mutex_destroy(&pool.lock);
    bth_release(workers);
    if (pool.first.code != BERTH_OK && error->code == BERTH_OK)
        *error = pool.first;
    return pool.first.code;
}
