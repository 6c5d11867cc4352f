/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/save_operation.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"
#include "save/output_check.h"
#include "save/save_error.h"

enum { PHASE_OPEN, PHASE_CANCELLED, PHASE_FINAL };

/* ---- trace ---- */

static void operation_enter_trace(bth_operation *operation, const char *name, double begin_seconds)
{
    bth_trace_enter(&operation->traced, operation->config.trace, name,
                    operation->path ? operation->path : "a target without a path", begin_seconds);
}

void bth_operation_suspend_trace(bth_operation *operation)
{
    bth_trace_leave(&operation->traced, bth_trace_seconds(), NULL, NULL);
}

void bth_operation_resume_trace(bth_operation *operation)
{
    if (operation->traced.number > 0 && !operation->traced.thread)
        operation_enter_trace(operation, operation->traced.name, bth_seconds());
}

/* A stage on the thread of the operation; returns its seconds. */
static double operation_trace_stage(const char *name, double begin_seconds)
{
    double end_seconds = bth_seconds();

    BTH_TRACE(.category = "stage", .name = name, .begin_seconds = begin_seconds,
              .end_seconds = end_seconds);
    return end_seconds - begin_seconds;
}

/* ---- begin ---- */

/* Returns why the target is invalid; NULL: it is valid. */
static const char *operation_why_target_is_invalid(const berth_target *target)
{
    if (!target)
        return "the target is NULL";
    switch (target->kind) {
    case BERTH_TARGET_PATH:
        return target->path ? NULL : "the path is NULL";
    case BERTH_TARGET_FD:
        return target->fd >= 0 ? NULL : "the descriptor is negative";
    case BERTH_TARGET_MEMORY:
        return target->bytes && target->nbytes ? NULL : "bytes or nbytes is NULL";
    case BERTH_TARGET_SINK:
        return target->sink && target->sink->write ? NULL : "the sink is NULL";
    }
    return "invalid kind of target";
}

static int operation_copy_target(bth_operation *operation, const berth_target *target,
                                 berth_error *error)
{
    const char *wrong = operation_why_target_is_invalid(target);

    if (wrong)
        return bth_fail_argument(error, "%s", wrong);
    if (BTH_CHECK_RESERVED(berth_target, target, error) < 0 ||
        (target->kind == BERTH_TARGET_SINK &&
         BTH_CHECK_RESERVED(berth_sink, target->sink, error) < 0))
        return error->code;
    operation->target = *target;
    if (target->kind == BERTH_TARGET_MEMORY) {
        *target->bytes = NULL;
        *target->nbytes = 0;
    }
    if (target->kind == BERTH_TARGET_SINK) {
        operation->sink = *target->sink;
        operation->target.sink = &operation->sink;
    }
    if (target->kind != BERTH_TARGET_PATH)
        return 0;
    operation->path = bth_duplicate_text(target->path, strlen(target->path));
    operation->target.path = operation->path;
    return operation->path ? 0 : bth_fail_memory(error, strlen(target->path));
}

static char *operation_choose_archive_name(const berth_target *target, const berth_params *params,
                                           berth_error *error)
{
    const char *path = target && target->kind == BERTH_TARGET_PATH ? target->path : NULL;
    const char *given = params->archive_name;
    char *name = given ? bth_duplicate_text(given, strlen(given)) : bth_archive_name_of_path(path);

    if (!name)
        bth_fail_memory(error, strlen(given ? given : path ? path : "archive"));
    return name;
}

static int operation_make_plan(bth_operation *operation, const berth_target *target,
                               const berth_content *content, berth_error *error)
{
    berth_stats *stats = &operation->stats;
    char *archive = operation_choose_archive_name(target, &operation->params, error);

    if (!archive)
        return error->code;
    operation->plan = bth_plan_make(archive, content, &operation->config, error);
    bth_release(archive);
    stats->plan_seconds = operation_trace_stage("plan", operation->begin_seconds);
    if (!operation->plan)
        return error->code;
    operation->nbytes = operation->plan->nbytes;
    stats->requested_nbytes = operation->plan->requested_nbytes;
    stats->device_nbytes = operation->plan->device_nbytes;
    stats->n_records = operation->plan->n_records;
    stats->n_storages = operation->plan->n_storages;
    stats->n_left_out = operation->plan->n_left_out;
    return 0;
}

static int operation_open_file(bth_operation *operation, berth_error *error)
{
    const struct berth_config *config = &operation->config;

    bth_commit *commit = &operation->commit;

    if (bth_commit_begin(commit, operation->path, operation->nbytes, config, operation->is_shared,
                         error) < 0)
        return error->code;
    if (commit->order) {
        operation->output = bth_output_of_fd(&commit->fd);
        operation->output.reason = operation->file.reason = commit->order;
    } else
        operation->output =
            bth_output_file_begin(&operation->file, commit->fd, operation->nbytes, config);
    return 0;
}

static int operation_open_memory(bth_operation *operation, berth_error *error)
{
    uint64_t nbytes = operation->nbytes;
    void *bytes = nbytes <= SIZE_MAX ? bth_allocate(nbytes > 0 ? (size_t)nbytes : 1) : NULL;

    operation->memory = bytes;
    operation->output = bth_output_of_memory(bytes);
    return bytes ? 0 : bth_fail_memory(error, nbytes);
}

static int operation_open_target(bth_operation *operation, berth_error *error)
{
    switch (operation->target.kind) {
    case BERTH_TARGET_PATH:
        operation_open_file(operation, error);
        break;
    case BERTH_TARGET_FD:
        operation->output = bth_output_of_fd(&operation->target.fd);
        break;
    case BERTH_TARGET_MEMORY:
        operation_open_memory(operation, error);
        break;
    case BERTH_TARGET_SINK:
        operation->output = bth_output_of_sink(&operation->sink);
        break;
    }
    return error->code;
}

static int operation_copy_tensors(bth_operation *operation, berth_error *error)
{
    double begin = bth_seconds();

    bth_snapshot_take(&operation->snapshot, operation->plan, &operation->config, error);
    operation->stats.copy_seconds = operation_trace_stage("copy", begin);
    bth_pages_describe(&operation->snapshot.pages, &operation->stats);
    return error->code;
}

static int operation_allocate_storage_stats(bth_operation *operation, berth_error *error)
{
    size_t nbytes = operation->plan->n_records * sizeof *operation->storage_stats;

    if (!operation->params.storage_stats || operation->params.n_storage_stats == 0)
        return 0;
    operation->storage_stats = bth_allocate_zeroed(nbytes);
    return operation->storage_stats ? 0 : bth_fail_memory(error, nbytes);
}

static void operation_initialize_fields(bth_operation *operation, const berth_params *params)
{
    *operation = (bth_operation){.begin_seconds = bth_seconds(),
                                 .stats = {.method = "buffered", .reason = "nothing was written"},
                                 .commit = {.fd = -1, .target = BTH_NO_TARGET_FILE},
                                 .file = {.fd = -1, .direct = {.fd = -1}}};
    if (params)
        operation->params = *params;
}

int bth_operation_begin_plan_only(bth_operation *operation, const berth_target *target,
                                  const berth_content *content, const berth_params *params,
                                  berth_error *error)
{
    operation_initialize_fields(operation, params);
    if (bth_config_copy_for_operation(params, &operation->config, error) < 0)
        return error->code;
    return operation_make_plan(operation, target, content, error);
}

int bth_operation_begin(bth_operation *operation, const berth_target *target,
                        const berth_content *content, unsigned flags, const berth_params *params,
                        berth_error *error)
{
    bool snapshot = flags & BTH_OPERATION_SNAPSHOT;

    operation_initialize_fields(operation, params);
    operation->is_shared = flags & BTH_OPERATION_SHARED;
    if (operation_copy_target(operation, target, error) < 0 ||
        bth_config_copy_for_operation(params, &operation->config, error) < 0)
        return error->code;
    operation_enter_trace(operation, "save", operation->begin_seconds);
    if (operation_make_plan(operation, target, content, error) < 0)
        return error->code;
    if (operation_allocate_storage_stats(operation, error) < 0)
        return error->code;
    if (snapshot &&
        bth_snapshot_reserve(&operation->snapshot, operation->plan, &operation->config, error) < 0)
        return error->code;
    if (operation_open_target(operation, error) < 0)
        return error->code;
    return snapshot ? operation_copy_tensors(operation, error) : 0;
}

/* ---- until it is done ---- */

bool bth_operation_cancel(bth_operation *operation)
{
    int phase = PHASE_OPEN;

    if (atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_CANCELLED))
        atomic_store(&operation->cancelled, true);
    return phase != PHASE_FINAL;
}

/* After this a cancel is too late. False: the operation is cancelled. */
static bool operation_stop_accepting_cancel(bth_operation *operation)
{
    int phase = PHASE_OPEN;

    return atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_FINAL);
}

static int operation_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bth_operation *operation = context;
    const berth_params *params = &operation->params;

    atomic_store(&operation->done_nbytes, done_nbytes);
    if (params->progress &&
        params->progress(params->progress_context, done_nbytes, total_nbytes) != 0)
        (void)bth_operation_cancel(operation);
    return atomic_load(&operation->cancelled);
}

static void operation_set_stats_method(bth_operation *operation)
{
    berth_stats *stats = &operation->stats;

    if (operation->path)
        stats->method = bth_output_file_method(&operation->file, &stats->reason);
}

static void operation_set_stats_of_commit(bth_operation *operation)
{
    static const char *const durabilities[] = {"none", "file", "full"};
    const bth_commit *commit = &operation->commit;

    operation->stats.placed = commit->in_place ? "in place" : "renamed";
    if (commit->reached >= 0)
        operation->stats.durability = durabilities[commit->reached];
}

const char *bth_stats_find_slowest_stage(const berth_stats *stats)
{
    if (stats->moved_nbytes == 0)
        return NULL;
    if (stats->disk_seconds > stats->render_seconds && stats->disk_seconds > stats->device_seconds)
        return "disk";
    return stats->device_seconds > stats->render_seconds ? "device" : "processor";
}

/* Debug mode checks every byte on its way to the output. */
static int operation_run(bth_operation *operation, const bth_run_settings *settings,
                         berth_error *error)
{
    if (!operation->config.debug)
        return bth_run(operation->plan, &operation->output, settings, &operation->stats, error);
    bth_output_check *check = bth_output_check_new(operation->plan, &operation->output, error);
    if (!check)
        return error->code;
    bth_output output = bth_output_check_get_output(check);
    for (size_t i = 0; i < operation->parts.n_present && error->code == BERTH_OK; i++)
        bth_output_check_read_present(check, &operation->parts.present[i], error);
    if (error->code == BERTH_OK &&
        bth_run(operation->plan, &output, settings, &operation->stats, error) == 0)
        bth_output_check_finish(check, error);
    bth_output_check_free(check);
    return error->code;
}

int bth_operation_transfer(bth_operation *operation, berth_error *error)
{
    bth_run_settings settings =
        bth_run_settings_of(&operation->config, operation->plan, &operation->output);
    berth_stats *stats = &operation->stats;
    double begin = bth_seconds();

    settings.parts = operation->parts;
    settings.storage_stats = operation->storage_stats;
    settings.progress = operation_report_progress;
    settings.progress_context = operation;
    settings.cancelled = &operation->cancelled;
    settings.staged = operation->staged;
    settings.staged_context = operation->staged_context;
    stats->reason = operation->output.reason;
    operation_run(operation, &settings, error);
    operation_set_stats_method(operation);
    stats->transfer_seconds = operation_trace_stage("transfer", begin);
    stats->limited_by = bth_stats_find_slowest_stage(stats);
    return error->code;
}

int bth_operation_finish(bth_operation *operation, berth_error *error)
{
    bool to_path = operation->path != NULL;
    uint64_t nbytes = operation->nbytes;
    double begin = bth_seconds();

    operation_set_stats_method(operation);
    if (to_path && (bth_output_file_cut(&operation->file, nbytes, error) < 0 ||
                    bth_commit_sync(&operation->commit, error) < 0))
        ;
    else if ((to_path && operation_report_progress(operation, nbytes, nbytes) != 0) ||
             !operation_stop_accepting_cancel(operation))
        bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    else if (to_path && bth_commit_replace(&operation->commit, error) == 0)
        operation_set_stats_of_commit(operation);
    operation->stats.sync_seconds = operation_trace_stage("sync", begin);
    return error->code;
}

static void operation_report_stats(bth_operation *operation, const berth_error *error)
{
    const berth_params *params = &operation->params;
    double end_seconds;

    if (operation->plan && params->storage_stats)
        bth_storage_stats_fill_reports(operation->storage_stats, operation->plan, &operation->stats,
                                       params->storage_stats, params->n_storage_stats);
    end_seconds = bth_seconds();
    operation->stats.total_seconds = end_seconds - operation->begin_seconds;
    if (params->stats)
        *params->stats = operation->stats;
    bth_trace_leave(&operation->traced, end_seconds, &operation->stats, error);
}

/* Gives the memory to the caller, or frees it. */
static void operation_give_or_free_memory(bth_operation *operation, const berth_error *error)
{
    const berth_target *target = &operation->target;

    if (target->kind == BERTH_TARGET_MEMORY && error->code == BERTH_OK) {
        *target->bytes = operation->memory;
        *target->nbytes = (size_t)operation->nbytes;
    } else
        bth_release(operation->memory);
}

int bth_operation_end(bth_operation *operation, berth_error *error)
{
    bth_direct_close(&operation->file.direct);
    bth_commit_abort(&operation->commit);
    if (operation->commit.has_lost_old)
        (void)bth_error_append(error, "; its old content is lost, because it was written in place");
    operation_give_or_free_memory(operation, error);
    bth_release(operation->snapshot.memory);
    operation_report_stats(operation, error);
    berth_plan_free(operation->plan);
    bth_release(operation->storage_stats);
    if (operation->path)
        (void)bth_error_prefix(error, operation->path);
    bth_release(operation->path);
    return error->code;
}
