/* SPDX-License-Identifier: BSD-3-Clause */
/* The public functions of saving: plan, run, commit, and what they have to tell. */
#include <string.h>
#include <time.h>

#include "config/error.h"
#include "config/memory.h"
#include "save/commit.h"
#include "save/names.h"
#include "save/run.h"

/* One save from its call to its return. */
typedef struct save_job {
    struct berth_config config;
    const berth_call *call;
    berth_stats stats;
    double begin_seconds;
    char *archive; /* top folder */
    berth_plan *plan;
} save_job;

/* What is saved: a value, or records. */
typedef struct save_content {
    const berth_value *value;
    const berth_new_record *records;
    size_t n_records;
    uint32_t flags;
    bool is_records;
} save_content;

static double now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* `archive`: the caller's name for the top folder; NULL: that of the path. */
static int name_archive(save_job *job, const char *archive, const char *path, berth_error *error)
{
    if (archive)
        job->archive = berth_duplicate(archive, strlen(archive));
    else
        job->archive = berth_archive_name_of_path(path);
    return job->archive ? 0 : berth_fail_memory(error, archive ? strlen(archive) : strlen(path));
}

/* Takes the snapshot of the configuration and plans. */
static int job_begin(save_job *job, const save_content *content, const char *archive,
                     const char *path, const berth_call *call, berth_error *error)
{
    *job = (save_job){.call = call, .begin_seconds = now()};
    job->stats.method = "buffered";
    job->stats.reason = "nothing was written";
    if (berth_config_resolve(call, &job->config, error) < 0 ||
        name_archive(job, archive, path ? path : "", error) < 0)
        return error->code;
    if (content->is_records)
        berth_plan_records(job->archive, content->records, content->n_records, content->flags,
                           &job->config, &job->plan, error);
    else
        berth_plan_value(job->archive, content->value, &job->config, &job->plan, error);
    job->stats.plan_seconds = now() - job->begin_seconds;
    if (error->code != BERTH_OK)
        return error->code;
    job->stats.asked_nbytes = job->plan->asked_nbytes;
    job->stats.n_records = job->plan->n_records;
    job->stats.n_storages = job->plan->n_storages;
    return 0;
}

static int job_run(save_job *job, const berth_output *output, berth_error *error)
{
    berth_run_settings settings = berth_run_settings_of(&job->config, job->call);
    berth_run_facts facts = {0};
    double begin = now();

    job->stats.reason = output->reason;
    berth_run(job->plan, output, &settings, &facts, error);
    job->stats.transfer_seconds = now() - begin;
    job->stats.moved_nbytes = facts.moved_nbytes;
    job->stats.n_requests = facts.n_requests;
    return error->code;
}

/* Tells the statistics, on success and on failure, and frees. */
static void job_end(save_job *job)
{
    job->stats.total_seconds = now() - job->begin_seconds;
    if (job->call && job->call->stats)
        *job->call->stats = job->stats;
    berth_plan_free(job->plan);
    berth_release(job->archive);
}

/* ---- to a path ---- */

static int commit_run(save_job *job, const char *path, berth_error *error)
{
    berth_commit commit;

    if (berth_commit_begin(&commit, path, job->plan->nbytes, job->config.save_durability, error) <
        0)
        return error->code;
    berth_output output = berth_output_of_file(&commit.fd);
    if (job_run(job, &output, error) < 0) {
        berth_commit_abort(&commit);
        return error->code;
    }
    double begin = now();
    berth_commit_finish(&commit, error);
    job->stats.sync_seconds = now() - begin;
    return error->code;
}

static int save_to_path(const char *path, const char *archive, const save_content *content,
                        const berth_call *call, berth_error *error)
{
    save_job job;

    if (!path)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the path is NULL");
    if (job_begin(&job, content, archive, path, call, error) == 0)
        commit_run(&job, path, error);
    job_end(&job);
    return berth_error_prefix(error, path);
}

int berth_save(const char *path, const berth_value *value, const berth_call *call,
               berth_error *error)
{
    const save_content content = {.value = value};

    BERTH_ERROR_BEGIN(error);
    return save_to_path(path, NULL, &content, call, error);
}

int berth_save_records(const char *path, const char *archive_name, const berth_new_record *records,
                       size_t n_records, uint32_t flags, const berth_call *call, berth_error *error)
{
    const save_content content = {
        .records = records, .n_records = n_records, .flags = flags, .is_records = true};

    BERTH_ERROR_BEGIN(error);
    return save_to_path(path, archive_name, &content, call, error);
}

/* ---- elsewhere ---- */

static int save_to_output(const berth_output *output, const char *archive,
                          const save_content *content, const berth_call *call, berth_error *error)
{
    save_job job;

    if (job_begin(&job, content, archive, NULL, call, error) == 0)
        job_run(&job, output, error);
    job_end(&job);
    return error->code;
}

static int save_to_sink(const berth_sink *sink, const char *archive, const save_content *content,
                        const berth_call *call, berth_error *error)
{
    if (!sink || !sink->write)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the sink is NULL");
    berth_output output = berth_output_of_sink(sink);
    return save_to_output(&output, archive, content, call, error);
}

int berth_save_sink(const berth_sink *sink, const char *archive_name, const berth_value *value,
                    const berth_call *call, berth_error *error)
{
    const save_content content = {.value = value};

    BERTH_ERROR_BEGIN(error);
    return save_to_sink(sink, archive_name, &content, call, error);
}

int berth_save_records_sink(const berth_sink *sink, const char *archive_name,
                            const berth_new_record *records, size_t n_records, uint32_t flags,
                            const berth_call *call, berth_error *error)
{
    const save_content content = {
        .records = records, .n_records = n_records, .flags = flags, .is_records = true};

    BERTH_ERROR_BEGIN(error);
    return save_to_sink(sink, archive_name, &content, call, error);
}

int berth_save_fd(int fd, const char *archive_name, const berth_value *value,
                  const berth_call *call, berth_error *error)
{
    const save_content content = {.value = value};
    berth_output output = berth_output_of_fd(&fd);

    BERTH_ERROR_BEGIN(error);
    if (fd < 0)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "the descriptor is negative");
    return save_to_output(&output, archive_name, &content, call, error);
}

static int run_to_memory(save_job *job, berth_output_memory *memory, berth_error *error)
{
    memory->nbytes = job->plan->nbytes;
    if (memory->nbytes <= SIZE_MAX)
        memory->bytes = berth_allocate((size_t)memory->nbytes);
    if (!memory->bytes)
        return berth_fail_memory(error, memory->nbytes);
    berth_output output = berth_output_of_memory(memory);
    return job_run(job, &output, error);
}

int berth_save_memory(void **bytes, size_t *nbytes, const char *archive_name,
                      const berth_value *value, const berth_call *call, berth_error *error)
{
    const save_content content = {.value = value};
    berth_output_memory memory = {0};
    save_job job;

    BERTH_ERROR_BEGIN(error);
    if (!bytes || !nbytes)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "bytes or nbytes is NULL");
    *bytes = NULL;
    *nbytes = 0;
    if (job_begin(&job, &content, archive_name, NULL, call, error) == 0)
        run_to_memory(&job, &memory, error);
    job_end(&job);
    if (error->code != BERTH_OK) {
        berth_release(memory.bytes);
        return error->code;
    }
    *bytes = memory.bytes;
    *nbytes = (size_t)memory.nbytes;
    return 0;
}

/* ---- plans ---- */

berth_plan *berth_save_plan(const char *path, const berth_value *value, const berth_call *call,
                            berth_error *error)
{
    const save_content content = {.value = value};
    save_job job;

    BERTH_ERROR_BEGIN(error);
    job_begin(&job, &content, NULL, path, call, error);
    berth_plan *plan = job.plan;
    job.plan = NULL;
    job_end(&job);
    return plan;
}
