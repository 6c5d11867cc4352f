/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs: saves that a thread of their own carries out. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/thread.h"
#include "save/operation.h"

struct berth_job {
    berth_operation operation;
    berth_request request;
    berth_sink sink; /* copies of what the caller gave to begin */
    char *path;
    uint64_t total_nbytes;
    pthread_t thread;
    pthread_mutex_t lock;   /* of the rest */
    pthread_cond_t changed; /* one of the two events came */
    bool staged, done;
    bool told; /* somebody has waited for the end */
    berth_error error;
};

/* ---- the job's own thread ---- */

static void set_staged(void *context)
{
    berth_job *job = context;

    pthread_mutex_lock(&job->lock);
    job->staged = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static void set_done(berth_job *job, const berth_error *error)
{
    pthread_mutex_lock(&job->lock);
    job->error = *error;
    job->done = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static void *carry_out(void *argument)
{
    berth_job *job = argument;
    berth_error error;

    berth_error_clear(&error);
    job->operation.staged = set_staged;
    job->operation.staged_context = job;
    if (berth_operation_transfer(&job->operation, &error) == 0)
        berth_operation_finish(&job->operation, &error);
    berth_operation_end(&job->operation, &error);
    set_done(job, &error);
    return NULL;
}

/* ---- begin ---- */

static void release(berth_job *job)
{
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    berth_release(job->path);
    berth_release(job);
}

/* Keeps what the operation borrows; the rest is the caller's until begin returns. */
static berth_job *make(const berth_request *request, berth_error *error)
{
    berth_job *job = berth_allocate_zeroed(sizeof *job);

    if (!job) {
        berth_fail_memory(error, sizeof *job);
        return NULL;
    }
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    job->request = *request;
    job->staged = request->snapshot;
    if (request->sink) {
        job->sink = *request->sink;
        job->request.sink = &job->sink;
    }
    if (request->path) {
        job->path = berth_duplicate(request->path, strlen(request->path));
        job->request.path = job->path;
        if (!job->path) {
            berth_fail_memory(error, strlen(request->path));
            release(job);
            return NULL;
        }
    }
    return job;
}

static int start(berth_job *job, berth_error *error)
{
    if (berth_operation_begin(&job->operation, &job->request, error) < 0)
        return error->code;
    job->total_nbytes = job->operation.plan->nbytes;
    int failure = berth_thread_start(&job->thread, carry_out, job);
    if (failure != 0)
        return berth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                                "the job's thread cannot be started");
    return 0;
}

/* `flags`: what is not known to the caller of this is refused. */
static int begin(berth_request *request, uint32_t flags, berth_job **job, berth_error *error)
{
    if (!job)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "the place for the job is NULL");
    *job = NULL;
    if (flags & ~BERTH_SAVE_SNAPSHOT)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "unknown flags 0x%x",
                          flags & ~BERTH_SAVE_SNAPSHOT);
    request->snapshot = flags & BERTH_SAVE_SNAPSHOT;
    berth_job *made = make(request, error);
    if (!made)
        return error->code;
    if (start(made, error) < 0) {
        berth_operation_end(&made->operation, error);
        release(made);
        return error->code;
    }
    *job = made;
    return 0;
}

int berth_save_begin(const char *path, const berth_value *value, uint32_t flags,
                     const berth_call *call, berth_job **job, berth_error *error)
{
    berth_request request = {.value = value, .to = BERTH_TO_PATH, .path = path, .call = call};

    BERTH_ERROR_BEGIN(error);
    return begin(&request, flags, job, error);
}

int berth_save_sink_begin(const berth_sink *sink, const char *archive_name,
                          const berth_value *value, uint32_t flags, const berth_call *call,
                          berth_job **job, berth_error *error)
{
    berth_request request = {
        .value = value, .to = BERTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BERTH_ERROR_BEGIN(error);
    return begin(&request, flags, job, error);
}

/* `flags`: of the records, with those of the job. */
static int begin_records(berth_request *request, const berth_new_record *records, size_t n_records,
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
                             const berth_call *call, berth_job **job, berth_error *error)
{
    berth_request request = {
        .to = BERTH_TO_PATH, .path = path, .archive = archive_name, .call = call};

    BERTH_ERROR_BEGIN(error);
    return begin_records(&request, records, n_records, flags, job, error);
}

int berth_save_records_sink_begin(const berth_sink *sink, const char *archive_name,
                                  const berth_new_record *records, size_t n_records, uint32_t flags,
                                  const berth_call *call, berth_job **job, berth_error *error)
{
    berth_request request = {
        .to = BERTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BERTH_ERROR_BEGIN(error);
    return begin_records(&request, records, n_records, flags, job, error);
}

/* ---- from any thread ---- */

static int fail_no_job(berth_error *error)
{
    return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the job is NULL");
}

int berth_job_wait_staged(berth_job *job, berth_error *error)
{
    BERTH_ERROR_BEGIN(error);
    if (!job)
        return fail_no_job(error);
    pthread_mutex_lock(&job->lock);
    while (!job->staged && !job->done)
        pthread_cond_wait(&job->changed, &job->lock);
    if (!job->staged)
        *error = job->error;
    pthread_mutex_unlock(&job->lock);
    return error->code;
}

int berth_job_wait(berth_job *job, berth_error *error)
{
    BERTH_ERROR_BEGIN(error);
    if (!job)
        return fail_no_job(error);
    pthread_mutex_lock(&job->lock);
    while (!job->done)
        pthread_cond_wait(&job->changed, &job->lock);
    job->told = true;
    *error = job->error;
    pthread_mutex_unlock(&job->lock);
    return error->code;
}

bool berth_job_is_staged(berth_job *job)
{
    if (!job)
        return false;
    pthread_mutex_lock(&job->lock);
    bool staged = job->staged || job->done;
    pthread_mutex_unlock(&job->lock);
    return staged;
}

bool berth_job_is_done(berth_job *job)
{
    if (!job)
        return false;
    pthread_mutex_lock(&job->lock);
    bool done = job->done;
    pthread_mutex_unlock(&job->lock);
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
    return job && berth_operation_cancel(&job->operation);
}

void berth_job_free(berth_job *job)
{
    if (!job)
        return;
    pthread_join(job->thread, NULL);
    /* A failure that nobody has heard of. */
    if (!job->told && job->error.code != BERTH_OK && job->error.code != BERTH_E_CANCELLED)
        berth_log("%s", job->error.message);
    release(job);
}
