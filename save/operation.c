/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/operation.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "save/archive_name.h"
#include "save/run.h"

enum { PHASE_OPEN, PHASE_CANCELLED, PHASE_FINAL };

/* ---- begin ---- */

static int check_destination(const bth_request *request, berth_error *error)
{
    const char *bad = NULL;

    if (request->to == BTH_TO_PATH && !request->path)
        bad = "the path is NULL";
    else if (request->to == BTH_TO_SINK && (!request->sink || !request->sink->write))
        bad = "the sink is NULL";
    else if (request->to == BTH_TO_FD && request->fd < 0)
        bad = "the descriptor is negative";
    if (bad)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "%s", bad);
    return 0;
}

static int name_archive(bth_operation *operation, berth_error *error)
{
    const bth_request *request = operation->request;
    const char *given = request->archive;
    const char *path = request->path ? request->path : "";

    if (!given && request->call && request->path)
        given = request->call->archive_name;
    if (given)
        operation->archive = bth_duplicate(given, strlen(given));
    else
        operation->archive = bth_archive_name_of_path(path);
    return operation->archive ? 0 : bth_fail_memory(error, strlen(given ? given : path));
}

static int make_plan(bth_operation *operation, berth_error *error)
{
    const bth_request *request = operation->request;

    if (request->is_records)
        bth_plan_records(operation->archive, request->records, request->n_records, request->flags,
                         &operation->config, &operation->plan, error);
    else
        bth_plan_value(operation->archive, request->value, &operation->config, &operation->plan,
                       error);
    operation->stats.plan_seconds = bth_seconds() - operation->begin_seconds;
    if (error->code != BERTH_OK)
        return error->code;
    operation->stats.asked_nbytes = operation->plan->asked_nbytes;
    operation->stats.device_nbytes = operation->plan->device_nbytes;
    operation->stats.n_records = operation->plan->n_records;
    operation->stats.n_storages = operation->plan->n_storages;
    if (operation->call.storage_stats && operation->call.n_storage_stats > 0 &&
        request->to != BTH_TO_NOTHING)
        operation->storage_stats = bth_storage_stats_new(operation->plan, error);
    return error->code;
}

static int allocate_memory(bth_output_memory *memory, uint64_t nbytes, berth_error *error)
{
    memory->nbytes = nbytes;
    if (nbytes <= SIZE_MAX)
        memory->bytes = bth_allocate((size_t)nbytes);
    return memory->bytes ? 0 : bth_fail_memory(error, nbytes);
}

static void open_file(bth_operation *operation)
{
    int fd = operation->commit.fd;
    uint64_t nbytes = operation->plan->nbytes;
    const bth_output_method method = bth_output_method_choose(&operation->config, fd, nbytes);

    operation->output = bth_output_file_begin(&operation->file, fd, nbytes, &method);
}

static int open_output(bth_operation *operation, berth_error *error)
{
    const bth_request *request = operation->request;
    uint64_t nbytes = operation->plan->nbytes;

    switch (request->to) {
    case BTH_TO_NOTHING:
        break;
    case BTH_TO_PATH:
        if (bth_commit_begin(&operation->commit, request->path, nbytes,
                             operation->config.save_durability, error) == 0)
            open_file(operation);
        break;
    case BTH_TO_SINK:
        operation->output = bth_output_of_sink(request->sink);
        break;
    case BTH_TO_FD:
        operation->output = bth_output_of_fd(&request->fd);
        break;
    case BTH_TO_MEMORY:
        if (allocate_memory(request->memory, nbytes, error) == 0)
            operation->output = bth_output_of_memory(request->memory);
        break;
    }
    return error->code;
}

static int take_snapshot(bth_operation *operation, berth_error *error)
{
    double begin = bth_seconds();

    bth_snapshot_take(&operation->snapshot, operation->plan, &operation->config, error);
    operation->stats.copy_seconds = bth_seconds() - begin;
    return error->code;
}

int bth_operation_begin(bth_operation *operation, const bth_request *request, berth_error *error)
{
    *operation = (bth_operation){.request = request,
                                 .begin_seconds = bth_seconds(),
                                 .stats = {.method = "buffered", .reason = "nothing was written"},
                                 .commit = {.fd = -1, .target = BTH_NO_TARGET_FILE},
                                 .file = {.fd = -1, .direct = {.fd = -1}}};
    if (request->call)
        operation->call = *request->call;
    if (check_destination(request, error) < 0 ||
        bth_config_resolve(request->call, &operation->config, error) < 0 ||
        name_archive(operation, error) < 0 || make_plan(operation, error) < 0)
        return error->code;
    if (request->snapshot &&
        bth_snapshot_reserve(&operation->snapshot, operation->plan, &operation->config, error) < 0)
        return error->code;
    if (open_output(operation, error) < 0)
        return error->code;
    return request->snapshot ? take_snapshot(operation, error) : 0;
}

/* ---- until it is done ---- */

bool bth_operation_cancel(bth_operation *operation)
{
    int phase = PHASE_OPEN;

    if (atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_CANCELLED))
        atomic_store(&operation->cancelled, true);
    return phase != PHASE_FINAL;
}

/* From here on a cancel comes too late. False: one came before. */
static bool make_final(bth_operation *operation)
{
    int phase = PHASE_OPEN;

    return atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_FINAL);
}

static int tell_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bth_operation *operation = context;
    const berth_params *call = &operation->call;

    atomic_store(&operation->done_nbytes, done_nbytes);
    if (call->progress && call->progress(call->progress_context, done_nbytes, total_nbytes) != 0)
        (void)bth_operation_cancel(operation);
    return atomic_load(&operation->cancelled);
}

/* What is left to do for a file of our own, and what it has to tell. */
static void end_file(bth_operation *operation, berth_error *error)
{
    berth_stats *stats = &operation->stats;

    if (error->code == BERTH_OK)
        bth_output_file_cut(&operation->file, operation->plan->nbytes, error);
    stats->method = bth_output_file_method(&operation->file, &stats->reason);
}

static void tell_facts(bth_operation *operation, const bth_run_stats *facts)
{
    berth_stats *stats = &operation->stats;

    stats->moved_nbytes = facts->moved_nbytes;
    stats->n_requests = facts->n_requests;
    stats->memory_nbytes = facts->memory_nbytes;
    stats->device_seconds = facts->device_seconds;
    stats->render_seconds = facts->render_seconds;
    stats->crc32_seconds = facts->crc32_seconds;
    stats->disk_seconds = facts->write_seconds;
    if (facts->moved_nbytes == 0)
        return;
    stats->limited_by = "processor";
    if (facts->device_seconds > facts->render_seconds)
        stats->limited_by = "device";
    if (facts->write_seconds > facts->render_seconds &&
        facts->write_seconds > facts->device_seconds)
        stats->limited_by = "disk";
}

int bth_operation_transfer(bth_operation *operation, berth_error *error)
{
    bth_run_settings settings =
        bth_run_settings_of(&operation->config, operation->plan, &operation->output);
    bth_run_stats facts = {0};
    double begin = bth_seconds();

    settings.storage_stats = operation->storage_stats;
    settings.progress = tell_progress;
    settings.progress_context = operation;
    settings.cancelled = &operation->cancelled;
    settings.staged = operation->staged;
    settings.staged_context = operation->staged_context;
    operation->stats.reason = operation->output.reason;
    bth_run(operation->plan, &operation->output, &settings, &facts, error);
    if (operation->request->to == BTH_TO_PATH)
        end_file(operation, error);
    operation->stats.transfer_seconds = bth_seconds() - begin;
    tell_facts(operation, &facts);
    return error->code;
}

int bth_operation_finish(bth_operation *operation, berth_error *error)
{
    bool to_path = operation->request->to == BTH_TO_PATH;
    uint64_t nbytes = operation->plan->nbytes;
    double begin = bth_seconds();

    if (to_path && bth_commit_sync(&operation->commit, error) < 0)
        ;
    else if ((to_path && tell_progress(operation, nbytes, nbytes) != 0) || !make_final(operation))
        bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    else if (to_path)
        bth_commit_replace(&operation->commit, error);
    operation->stats.sync_seconds = bth_seconds() - begin;
    return error->code;
}

static void tell_storages(bth_operation *operation)
{
    const berth_params *call = &operation->call;

    if (operation->plan && call->storage_stats)
        bth_storage_stats_report(operation->storage_stats, operation->plan, &operation->stats,
                                 call->storage_stats, call->n_storage_stats);
    bth_release(operation->storage_stats);
    operation->storage_stats = NULL;
}

int bth_operation_end(bth_operation *operation, berth_error *error)
{
    const bth_request *request = operation->request;

    bth_output_file_end(&operation->file);
    bth_commit_abort(&operation->commit);
    tell_storages(operation);
    berth_plan_free(operation->plan);
    operation->plan = NULL;
    bth_snapshot_free(&operation->snapshot);
    bth_release(operation->archive);
    operation->archive = NULL;
    operation->stats.total_seconds = bth_seconds() - operation->begin_seconds;
    if (operation->call.stats)
        *operation->call.stats = operation->stats;
    if (request->to == BTH_TO_PATH && request->path)
        return bth_error_prefix(error, request->path);
    return error->code;
}
