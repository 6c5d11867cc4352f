/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs: saves on a thread of their own. */
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/thread_pool.h"
#include "save/save_error.h"
#include "save/save_operation.h"

struct berth_job {
    bth_operation operation;
    pthread_t thread;
    bth_lock lock;          /* of the rest; only in the process that has the thread (X11) */
    pthread_cond_t changed; /* staged or done */
    bool staged, done;
    bool waited_for;   /* the error was returned to a caller */
    berth_error error; /* the thread's, until it is done */
};

/* ---- on the job's thread ---- */

static void job_set_event(berth_job *job, bool *event)
{
    (void)bth_lock_acquire(&job->lock);
    *event = true;
    pthread_cond_broadcast(&job->changed);
    bth_lock_release(&job->lock);
}

static void job_set_staged(void *context)
{
    berth_job *job = context;

    job_set_event(job, &job->staged);
}

static void *job_run(void *argument)
{
    berth_job *job = argument;

    bth_thread_disable_cancel();
    bth_error_clear(&job->error);
    job->operation.staged = job_set_staged;
    job->operation.staged_context = job;
    bth_operation_resume_trace(&job->operation);
    if (bth_operation_transfer(&job->operation, &job->error) == 0)
        bth_operation_finish(&job->operation, &job->error);
    bth_operation_end(&job->operation, &job->error);
    job_set_event(job, &job->done);
    return NULL;
}

/* ---- begin ---- */

static void job_free_memory(berth_job *job)
{
    if (bth_lock_is_of_this_process(&job->lock)) {
        pthread_cond_destroy(&job->changed);
        bth_lock_destroy(&job->lock);
    }
    bth_release(job);
}

int berth_save_begin(const berth_target *target, const berth_content *content, uint32_t flags,
                     const berth_params *params, berth_job **job, berth_error *error)
{
    bool snapshot = flags & BERTH_SAVE_SNAPSHOT;

    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT(); /* this thread reserves the disk space */
    if (!job)
        return bth_fail_argument(error, "job is NULL");
    *job = NULL;
    if (flags & ~BERTH_SAVE_SNAPSHOT)
        return bth_fail_argument(error, "unknown flags 0x%x", flags & ~BERTH_SAVE_SNAPSHOT);
    berth_job *made = bth_allocate_zeroed(sizeof *made);
    if (!made)
        return bth_fail_memory(error, sizeof *made);
    bth_lock_initialize(&made->lock);
    bth_condition_initialize(&made->changed);
    made->staged = snapshot;
    if (bth_operation_begin(&made->operation, target, content,
                            snapshot ? BTH_OPERATION_SNAPSHOT : 0, params, error) == 0) {
        bth_operation_suspend_trace(&made->operation);
        int failure = bth_thread_start(&made->thread, job_run, made);
        if (failure != 0)
            bth_fail_system(error, failure, "the job's thread cannot be started");
    }
    if (error->code == BERTH_OK)
        *job = made;
    else {
        bth_operation_end(&made->operation, error);
        job_free_memory(made);
    }
    return error->code;
}

/* ---- from any thread ---- */

/* X11: a forked child has no thread for the job: its events never happen, and no call may wait. */
static bool job_is_lost(const berth_job *job)
{
    return !bth_lock_is_of_this_process(&job->lock);
}

static int job_check_event_and_process(const berth_job *job, berth_job_event event,
                                       berth_error *error)
{
    if (!job)
        return bth_fail_argument(error, "the job is NULL");
    if (event != BERTH_JOB_STAGED && event != BERTH_JOB_DONE)
        return bth_fail_argument(error, "invalid event %d", (int)event);
    return job_is_lost(job) ? bth_fail_forked(error, "job") : 0;
}

/* Under the lock. A job that is done is staged, too: it reads nothing any more. */
static bool job_has_event(const berth_job *job, berth_job_event event)
{
    return job->done || (event == BERTH_JOB_STAGED && job->staged);
}

/* Under the lock. Returns whether the event is there. seconds < 0: waits without a limit. */
static bool job_wait_for_event(berth_job *job, berth_job_event event, double seconds)
{
    struct timespec end = bth_time_after(seconds);
    int result = 0;

    while (!job_has_event(job, event) && result == 0)
        result = seconds < 0 ? pthread_cond_wait(&job->changed, &job->lock.mutex)
                             : pthread_cond_timedwait(&job->changed, &job->lock.mutex, &end);
    return job_has_event(job, event);
}

int berth_job_wait(berth_job *job, berth_job_event event, double seconds, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (job_check_event_and_process(job, event, error) < 0)
        return error->code;
    (void)bth_lock_acquire(&job->lock);
    if (!job_wait_for_event(job, event, seconds))
        (void)bth_fail(error, BERTH_E_TIMEOUT, NULL, BERTH_NO_OFFSET,
                       "the job was not %s within %g seconds",
                       event == BERTH_JOB_DONE ? "done" : "staged", seconds);
    else if (event == BERTH_JOB_DONE || !job->staged)
        *error = job->error;
    job->waited_for |= event == BERTH_JOB_DONE && error->code != BERTH_E_TIMEOUT;
    bth_lock_release(&job->lock);
    return error->code;
}

void berth_job_progress(berth_job *job, uint64_t *done_nbytes, uint64_t *total_nbytes)
{
    if (done_nbytes)
        *done_nbytes = job ? atomic_load(&job->operation.done_nbytes) : 0;
    if (total_nbytes)
        *total_nbytes = job ? job->operation.nbytes : 0;
}

bool berth_job_cancel(berth_job *job)
{
    return job && !job_is_lost(job) && bth_operation_cancel(&job->operation);
}

void berth_job_free(berth_job *job)
{
    BTH_HOLD_CANCEL(true);
    if (!job)
        return;
    if (!job_is_lost(job)) { /* else plan, copies and temporary stay as the thread left them */
        pthread_join(job->thread, NULL);
        if (!job->waited_for && job->error.code != BERTH_OK && job->error.code != BERTH_E_CANCELLED)
            bth_log("%s", job->error.message);
    }
    job_free_memory(job);
}
