/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs: saves that a thread of their own carries out. */
#include <string.h>

#include "config/error.h"
#include "config/lock.h"
#include "config/memory.h"
#include "io/file_limit.h"
#include "io/thread.h"
#include "save/operation.h"

struct berth_job {
    bth_operation operation;
    bth_request request;
    berth_sink sink; /* copies of what the caller gave to begin */
    char *path;
    uint64_t total_nbytes;
    pthread_t thread;
    bth_lock lock;          /* of the rest; only in the process that has the thread (X11) */
    pthread_cond_t changed; /* one of the two events came */
    bool staged, done;
    bool told; /* somebody has waited for the end */
    berth_error error;
};

/* ---- the job's own thread ---- */

static void set_staged(void *context)
{
    berth_job *job = context;

    (void)bth_lock_take(&job->lock);
    job->staged = true;
    pthread_cond_broadcast(&job->changed);
    bth_lock_give(&job->lock);
}

static void set_done(berth_job *job, const berth_error *error)
{
    (void)bth_lock_take(&job->lock);
    job->error = *error;
    job->done = true;
    pthread_cond_broadcast(&job->changed);
    bth_lock_give(&job->lock);
}

static void *carry_out(void *argument)
{
    berth_job *job = argument;
    berth_error error;

    bth_thread_begin();
    bth_error_clear(&error);
    job->operation.staged = set_staged;
    job->operation.staged_context = job;
    if (bth_operation_transfer(&job->operation, &error) == 0)
        bth_operation_finish(&job->operation, &error);
    bth_operation_end(&job->operation, &error);
    set_done(job, &error);
    return NULL;
}

/* ---- begin ---- */

static void release(berth_job *job)
{
    if (bth_lock_is_ours(&job->lock)) {
        pthread_cond_destroy(&job->changed);
        bth_lock_end(&job->lock);
    }
    bth_release(job->path);
    bth_release(job);
}

/* Keeps what the operation borrows; the rest is the caller's until begin returns. */
static berth_job *make(const bth_request *request, berth_error *error)
{
    berth_job *job = bth_allocate_zeroed(sizeof *job);

    if (!job) {
        bth_fail_memory(error, sizeof *job);
        return NULL;
    }
    bth_lock_begin(&job->lock);
    pthread_cond_init(&job->changed, NULL);
    job->request = *request;
    job->staged = request->snapshot;
    if (request->sink) {
        job->sink = *request->sink;
        job->request.sink = &job->sink;
    }
    if (request->path) {
        job->path = bth_duplicate(request->path, strlen(request->path));
        job->request.path = job->path;
        if (!job->path) {
            bth_fail_memory(error, strlen(request->path));
            release(job);
            return NULL;
        }
    }
    return job;
}

static int start(berth_job *job, berth_error *error)
{
    BTH_HOLD_FILE_LIMIT(); /* room is taken on this thread */
    if (bth_operation_begin(&job->operation, &job->request, error) < 0)
        return error->code;
    job->total_nbytes = job->operation.plan->nbytes;
    int failure = bth_thread_start(&job->thread, carry_out, job);
    if (failure != 0)
        return bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                              "the job's thread cannot be started");
    return 0;
}

/* `flags`: what is not known to the caller of this is refused. */
static int begin(bth_request *request, uint32_t flags, berth_job **job, berth_error *error)
{
    if (!job)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "the place for the job is NULL");
    *job = NULL;
    if (flags & ~BERTH_SAVE_SNAPSHOT)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "unknown flags 0x%x",
                        flags & ~BERTH_SAVE_SNAPSHOT);
    request->snapshot = flags & BERTH_SAVE_SNAPSHOT;
    berth_job *made = make(request, error);
    if (!made)
        return error->code;
    if (start(made, error) < 0) {
        bth_operation_end(&made->operation, error);
        release(made);
        return error->code;
    }
    *job = made;
    return 0;
}

int berth_save_begin(const char *path, const berth_value *value, uint32_t flags,
                     const berth_params *call, berth_job **job, berth_error *error)
{
    bth_request request = {.value = value, .to = BTH_TO_PATH, .path = path, .call = call};

    BTH_ERROR_BEGIN(error);
    return begin(&request, flags, job, error);
}

int berth_save_sink_begin(const berth_sink *sink, const char *archive_name,
                          const berth_value *value, uint32_t flags, const berth_params *call,
                          berth_job **job, berth_error *error)
{
    bth_request request = {
        .value = value, .to = BTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BTH_ERROR_BEGIN(error);
    return begin(&request, flags, job, error);
}

/* `flags`: of the records, with those of the job. */
static int begin_records(bth_request *request, const berth_new_record *records, size_t n_records,
                         uint32_t flags, berth_job **job, berth_error *error)
{
    request->records = records;
    request->n_records = n_records;
    request->is_records = true;
    request->flags = flags & ~BERTH_SAVE_SNAPSHOT;
    return begin(request, flags & BERTH_SAVE_SNAPSHOT, job, error);
}

int berth_save_records_begin(const char *path, const char *archive_name,
                             const berth_new_record *records, size_t n_records, uint32_t flags,
                             const berth_params *call, berth_job **job, berth_error *error)
{
    bth_request request = {.to = BTH_TO_PATH, .path = path, .archive = archive_name, .call = call};

    BTH_ERROR_BEGIN(error);
    return begin_records(&request, records, n_records, flags, job, error);
}

int berth_save_records_sink_begin(const berth_sink *sink, const char *archive_name,
                                  const berth_new_record *records, size_t n_records, uint32_t flags,
                                  const berth_params *call, berth_job **job, berth_error *error)
{
    bth_request request = {.to = BTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BTH_ERROR_BEGIN(error);
    return begin_records(&request, records, n_records, flags, job, error);
}

/* ---- from any thread ---- */

/* X11: in a child nothing more comes of a job, and who asks whether it has ended shall not wait. */
static bool is_lost(const berth_job *job)
{
    return !bth_lock_is_ours(&job->lock);
}

static int check(const berth_job *job, berth_error *error)
{
    if (!job)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the job is NULL");
    return is_lost(job) ? bth_fail_forked(error, "job") : 0;
}

int berth_job_wait_staged(berth_job *job, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (check(job, error) < 0)
        return error->code;
    (void)bth_lock_take(&job->lock);
    while (!job->staged && !job->done)
        pthread_cond_wait(&job->changed, &job->lock.mutex);
    if (!job->staged)
        *error = job->error;
    bth_lock_give(&job->lock);
    return error->code;
}

int berth_job_wait(berth_job *job, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (check(job, error) < 0)
        return error->code;
    (void)bth_lock_take(&job->lock);
    while (!job->done)
        pthread_cond_wait(&job->changed, &job->lock.mutex);
    job->told = true;
    *error = job->error;
    bth_lock_give(&job->lock);
    return error->code;
}

bool berth_job_is_staged(berth_job *job)
{
    BTH_HOLD_CANCEL(true);
    if (!job || is_lost(job))
        return job != NULL;
    (void)bth_lock_take(&job->lock);
    bool staged = job->staged || job->done;
    bth_lock_give(&job->lock);
    return staged;
}

bool berth_job_is_done(berth_job *job)
{
    BTH_HOLD_CANCEL(true);
    if (!job || is_lost(job))
        return job != NULL;
    (void)bth_lock_take(&job->lock);
    bool done = job->done;
    bth_lock_give(&job->lock);
    return done;
}

void berth_job_progress(berth_job *job, uint64_t *done_nbytes, uint64_t *total_nbytes)
{
    if (done_nbytes)
        *done_nbytes = job ? atomic_load(&job->operation.done_nbytes) : 0;
    if (total_nbytes)
        *total_nbytes = job ? job->total_nbytes : 0;
}

bool berth_job_cancel(berth_job *job)
{
    return job && !is_lost(job) && bth_operation_cancel(&job->operation);
}

void berth_job_free(berth_job *job)
{
    BTH_HOLD_CANCEL(true);
    if (!job)
        return;
    if (is_lost(job)) { /* What the thread was at stays: plan, copies, the parent's temporary. */
        release(job);
        return;
    }
    pthread_join(job->thread, NULL);
    /* A failure that nobody has heard of. */
    if (!job->told && job->error.code != BERTH_OK && job->error.code != BERTH_E_CANCELLED)
        bth_log("%s", job->error.message);
    release(job);
}
