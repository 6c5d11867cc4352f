/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves: the operation, on the caller's thread or a job's, and the public functions. */
#include "save/save_operation.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "config/option_row.h"
#include "config/options.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/syscalls.h"
#include "io/thread_pool.h"
#include "save/output_check.h"
#include "save/staging_slots.h"

enum { PHASE_OPEN, PHASE_CANCELLED, PHASE_FINAL };

/* ---- trace ---- */

static void operation_enter_trace(bth_operation *operation, const char *name, double begin_seconds)
{
    bth_trace_enter(&operation->traced, operation->config.trace, name,
                    operation->path ? operation->path : "a target without a path", begin_seconds);
}

void bth_operation_resume_trace(bth_operation *operation)
{
    if (operation->traced.number > 0 && !operation->traced.thread)
        operation_enter_trace(operation, operation->traced.name, bth_seconds());
}

double bth_operation_trace_stage(const char *name, double begin_seconds)
{
    double end_seconds = bth_seconds();

    BTH_TRACE(.category = "stage", .name = name, .begin_seconds = begin_seconds,
              .end_seconds = end_seconds);
    return end_seconds - begin_seconds;
}

/* ---- a snapshot: a copy of all of the caller's data that the plan reads ---- */

/* Alignment for direct writes to any disk. */
#define PAGE_NBYTES 4096

/* What io.memory_nbytes must leave for buffers; and for a staging buffer. */
#define MIN_BUFFER_NBYTES ((uint64_t)64 * 1024)
#define MIN_STAGING_NBYTES BTH_LARGE_PAGE_NBYTES

/* The caller's bytes, and short records beside them; but the pickle, which is the plan's own. */
static bool record_is_in_snapshot(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];

    return record->layout.nbytes > 0 && (!record->data || record->data != plan->pickled.bytes);
}

/* Allocates. If io.memory_nbytes is set, it must be enough for the copy and some buffers; the rest
 * of it is written to the configuration. */
static int snapshot_reserve(bth_snapshot *snapshot, const berth_plan *plan,
                            struct berth_config *config, berth_error *error)
{
    uint64_t min_nbytes = plan->n_devices > 0 ? MIN_STAGING_NBYTES : MIN_BUFFER_NBYTES;
    uint64_t max_nbytes = (uint64_t)config->io_memory_nbytes;

    for (size_t i = 0; i < plan->n_records; i++) {
        bth_range data = bth_plan_data_range(plan, i);
        if (!record_is_in_snapshot(plan, i))
            continue;
        if (snapshot->end == 0)
            snapshot->begin = data.offset;
        snapshot->end = data.offset + data.nbytes;
    }
    if (snapshot->end == 0)
        return 0;
    uint64_t before_nbytes = snapshot->begin % PAGE_NBYTES;
    uint64_t nbytes = snapshot->end - snapshot->begin + before_nbytes + PAGE_NBYTES - 1;
    if (max_nbytes > 0 && (max_nbytes < min_nbytes || nbytes > max_nbytes - min_nbytes))
        return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                        "a snapshot takes %llu bytes, and %llu for buffers; io.memory_nbytes is "
                        "%llu (%llu bytes missing)",
                        (unsigned long long)nbytes, (unsigned long long)min_nbytes,
                        (unsigned long long)max_nbytes,
                        (unsigned long long)(nbytes + min_nbytes - max_nbytes));
    if (max_nbytes > 0)
        config->io_memory_nbytes = (int64_t)(max_nbytes - nbytes);
    snapshot->memory = nbytes <= SIZE_MAX ? bth_allocate((size_t)nbytes) : NULL;
    if (!snapshot->memory)
        return bth_fail_memory(error, nbytes);
    /* Large pages are filled faster, and direct writes need no copy of them. */
    snapshot->pages.wanted = config->io_large_pages;
    bth_pages_begin(&snapshot->pages, &snapshot->front, snapshot->memory, (size_t)nbytes);
    uintptr_t page = ((uintptr_t)snapshot->memory + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    snapshot->bytes =
        (uint8_t *)snapshot->memory + (page - (uintptr_t)snapshot->memory) + before_nbytes;
    return 0;
}

/* ---- copying ---- */

/* In tiles of an image without CRCs, which is rendered into the snapshot. */
typedef struct copying {
    bth_image image;
    bth_snapshot *snapshot;
    uint64_t tile_nbytes;
    unsigned n_workers;
    uint8_t *scratch;
    bth_staging_slots slots; /* where storages lie on devices: each worker has one */
} copying;

static int snapshot_copy_tile(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    copying *copy = context;
    bth_snapshot *snapshot = copy->snapshot;
    uint64_t begin = snapshot->begin + task * copy->tile_nbytes;
    bth_tile tile = {.offset = begin,
                     .nbytes = (size_t)bth_min(snapshot->end - begin, copy->tile_nbytes),
                     .bytes = snapshot->bytes + (begin - snapshot->begin),
                     .scratch = copy->scratch + worker * copy->image.plan->max_header_nbytes,
                     .slot = copy->slots.n > 0 ? &copy->slots.slots[worker] : NULL};

    if (tile.slot && bth_wing_slots.begin(tile.slot, &tile, error) < 0)
        return error->code;
    double begin_seconds = bth_trace_seconds();
    bth_pages_touch(&snapshot->pages, &snapshot->front, tile.bytes, tile.nbytes);
    (void)bth_image_render(&copy->image, &tile, error);
    BTH_TRACE(.category = "copy", .name = "copy tile", .begin_seconds = begin_seconds,
              .end_seconds = bth_seconds(), .offset = begin, .nbytes = tile.nbytes);
    return error->code;
}

/* Copies, and makes the plan read from the copy. Storages on devices come through the same staging
 * buffers as in a save without a snapshot. */
static int snapshot_take(bth_snapshot *snapshot, berth_plan *plan,
                         const struct berth_config *config, berth_error *error)
{
    bth_run_settings settings = bth_run_settings_of(config, plan, NULL);
    copying copy = {.image = {.plan = plan, .constraints.block_nbytes = 1},
                    .snapshot = snapshot,
                    .tile_nbytes = settings.tile_nbytes,
                    .n_workers = settings.n_workers};
    size_t scratch_nbytes = bth_array_nbytes(copy.n_workers, plan->max_header_nbytes);

    if (!snapshot->memory)
        return 0;
    copy.scratch = bth_allocate(scratch_nbytes);
    if (!copy.scratch)
        return bth_fail_memory(error, scratch_nbytes);
    if (plan->n_devices > 0) {
        const bth_staging_need need =
            bth_staging_slots_compute_need(&settings, settings.n_workers, settings.memory_nbytes);
        if (bth_wing_slots.open(&copy.slots, plan, &need, error) == 0) {
            copy.tile_nbytes = bth_min(copy.tile_nbytes, copy.slots.ring.buffer_nbytes);
            copy.n_workers = (unsigned)bth_min(copy.n_workers, copy.slots.n);
        }
    }
    if (error->code == BERTH_OK) {
        uint64_t n_tiles = (snapshot->end - snapshot->begin - 1) / copy.tile_nbytes + 1;
        bth_pool_run(copy.n_workers, n_tiles, snapshot_copy_tile, NULL, &copy, error);
    }
    if (copy.slots.n > 0)
        bth_wing_slots.close(&copy.slots);
    bth_release(copy.scratch);
    if (error->code != BERTH_OK)
        return error->code;
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_plan_record *record = &plan->records[i];
        if (!record_is_in_snapshot(plan, i))
            continue;
        record->data = snapshot->bytes + (record->layout.data_offset - snapshot->begin);
        record->read = NULL;
        record->storage = NULL;
        record->device = 0;
        record->swap_nbytes = 1;
    }
    plan->n_devices = 0; /* all of their bytes are copied */
    return 0;
}

/* ---- begin ---- */

static int operation_copy_target(bth_operation *operation, const berth_target *target,
                                 berth_error *error)
{
    const char *wrong = "invalid kind of target";

    if (!target)
        return bth_fail_argument(error, "the target is NULL");
    switch (target->kind) {
    case BERTH_TARGET_PATH:
        wrong = target->path ? NULL : "the path is NULL";
        break;
    case BERTH_TARGET_FD:
        wrong = target->fd >= 0 ? NULL : "the descriptor is negative";
        break;
    case BERTH_TARGET_MEMORY:
        wrong = target->bytes && target->nbytes ? NULL : "bytes or nbytes is NULL";
        break;
    case BERTH_TARGET_SINK:
        wrong = target->sink && target->sink->write ? NULL : "the sink is NULL";
        break;
    }
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

static int operation_make_plan(bth_operation *operation, const berth_target *target,
                               const berth_content *content, berth_error *error)
{
    berth_stats *stats = &operation->stats;
    const char *path = target ? target->path : NULL; /* of a sink, too */
    const char *given = operation->params.archive_name;
    char *archive =
        given ? bth_duplicate_text(given, strlen(given)) : bth_archive_name_of_path(path);

    if (!archive)
        return bth_fail_memory(error, strlen(given ? given : path ? path : "archive"));
    operation->plan = bth_plan_make(archive, content, &operation->config, error);
    bth_release(archive);
    stats->plan_seconds = bth_operation_trace_stage("plan", operation->begin_seconds);
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

static int operation_open_target(bth_operation *operation, berth_error *error)
{
    const struct berth_config *config = &operation->config;
    bth_commit *commit = &operation->commit;
    uint64_t nbytes = operation->nbytes;

    switch (operation->target.kind) {
    case BERTH_TARGET_PATH:
        bth_commit_begin(commit, operation->path, nbytes, config, operation->is_shared,
                         *bth_base_choose(&operation->params, config) != '\0', error);
        if (error->code == BERTH_OK && commit->order) {
            operation->output = bth_output_of_fd(&commit->fd);
            operation->output.reason = operation->file.reason = commit->order;
        } else if (error->code == BERTH_OK)
            operation->output = bth_output_file_begin(&operation->file, commit->fd, nbytes, config);
        break;
    case BERTH_TARGET_FD:
        operation->output = bth_output_of_fd(&operation->target.fd);
        break;
    case BERTH_TARGET_MEMORY:
        if (nbytes <= SIZE_MAX)
            operation->memory = bth_allocate(nbytes > 0 ? (size_t)nbytes : 1);
        if (!operation->memory)
            bth_fail_memory(error, nbytes);
        operation->output = bth_output_of_memory(operation->memory);
        break;
    case BERTH_TARGET_SINK:
        operation->output = bth_output_of_sink(&operation->sink);
        operation->has_begun_sink = true;
        (void)bth_output_begin_sink(&operation->output, nbytes, error);
        break;
    }
    return error->code;
}

/* After the target: its file system is asked. */
static int operation_open_base(bth_operation *operation, berth_error *error)
{
    const char *path = bth_base_choose(&operation->params, &operation->config);
    bth_commit *commit = &operation->commit;
    bth_base *base = &operation->base;

    if (!*path)
        return 0;
    if (!operation->path)
        base->reason = BTH_BASE_ONLY_PATHS;
    else if (commit->in_place || commit->order)
        base->reason = "the file is written in place, or in order";
    else
        bth_base_open(base, path, operation->plan, &operation->file);
    operation->stats.base_reason = base->reason;
    return commit->is_sparse && base->fd < 0 ? bth_commit_reserve(commit, error) : 0;
}

static void operation_initialize_fields(bth_operation *operation, const berth_params *params)
{
    *operation = (bth_operation){.begin_seconds = bth_seconds(),
                                 .stats = {.method = "buffered", .reason = "nothing was written"},
                                 .commit = {.fd = -1, .target = BTH_NO_TARGET_FILE},
                                 .file = {.fd = -1, .direct = {.fd = -1}},
                                 .base = BTH_NO_BASE};
    if (params)
        operation->params = *params;
}

int bth_operation_begin(bth_operation *operation, const berth_target *target,
                        const berth_content *content, unsigned flags, const berth_params *params,
                        berth_error *error)
{
    bool is_snapshot = flags & BTH_OPERATION_SNAPSHOT;

    operation_initialize_fields(operation, params);
    operation->is_shared = flags & BTH_OPERATION_SHARED;
    if (operation_copy_target(operation, target, error) < 0 ||
        bth_config_copy_for_operation(params, &operation->config, error) < 0)
        return error->code;
    operation_enter_trace(operation, "save", operation->begin_seconds);
    if (operation_make_plan(operation, target, content, error) < 0)
        return error->code;
    if (operation->params.storage_stats && operation->params.n_storage_stats > 0) {
        size_t nbytes = operation->plan->n_records * sizeof *operation->storage_stats;
        operation->storage_stats = bth_allocate_zeroed(nbytes);
        if (!operation->storage_stats)
            return bth_fail_memory(error, nbytes);
    }
    if (is_snapshot &&
        snapshot_reserve(&operation->snapshot, operation->plan, &operation->config, error) < 0)
        return error->code;
    if (operation_open_target(operation, error) < 0 || operation_open_base(operation, error) < 0)
        return error->code;
    if (!is_snapshot)
        return 0;
    double begin = bth_seconds();
    snapshot_take(&operation->snapshot, operation->plan, &operation->config, error);
    operation->stats.copy_seconds = bth_operation_trace_stage("copy", begin);
    bth_pages_describe(&operation->snapshot.pages, &operation->stats);
    return error->code;
}

/* ---- until it is done ---- */

/* From any thread, any number of times. True: the target keeps its old content. False: it is too
 * late. */
static bool operation_cancel(bth_operation *operation)
{
    int phase = PHASE_OPEN;

    if (atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_CANCELLED))
        atomic_store(&operation->cancelled, true);
    return phase != PHASE_FINAL;
}

static int operation_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bth_operation *operation = context;
    const berth_params *params = &operation->params;

    atomic_store(&operation->done_nbytes, done_nbytes);
    if (params->progress &&
        params->progress(params->progress_context, done_nbytes, total_nbytes) != 0)
        (void)operation_cancel(operation);
    return atomic_load(&operation->cancelled);
}

const char *bth_stats_find_slowest_stage(const berth_stats *stats)
{
    if (stats->moved_nbytes == 0)
        return NULL;
    if (stats->disk_seconds > stats->render_seconds && stats->disk_seconds > stats->device_seconds)
        return "disk";
    return stats->device_seconds > stats->render_seconds ? "device" : "processor";
}

static int operation_watch(void *context)
{
    return operation_report_progress(context, 0, ((bth_operation *)context)->nbytes);
}

/* What the base has, too, need not be written. */
static int operation_clone_base(bth_operation *operation, berth_error *error)
{
    bth_base *base = &operation->base;
    const bth_base_work work = {.plan = operation->plan,
                                .own = operation->parts,
                                .to = &operation->file,
                                .folder = operation->commit.target.folder};
    double begin = bth_seconds();

    if (base->fd < 0)
        return 0;
    (void)bth_base_clone(base, &work, &operation->config, operation_watch, operation,
                         &operation->stats, error);
    operation->stats.base_reason = base->reason;
    operation->parts = base->parts;
    for (size_t i = work.own.n_present; operation->storage_stats && i < base->parts.n_present; i++)
        operation->storage_stats[base->parts.present[i].record].shared_nbytes +=
            base->parts.present[i].range.nbytes;
    (void)bth_operation_trace_stage("base", begin);
    return error->code;
}

int bth_operation_transfer(bth_operation *operation, berth_error *error)
{
    const berth_plan *plan = operation->plan;
    berth_stats *stats = &operation->stats;
    bth_run_settings settings = bth_run_settings_of(&operation->config, plan, &operation->output);
    bth_output output = operation->output;
    bth_output_check *check = NULL;
    double begin = bth_seconds();

    if (operation_clone_base(operation, error) < 0)
        return error->code;
    settings.parts = operation->parts;
    settings.storage_stats = operation->storage_stats;
    settings.progress = operation_report_progress;
    settings.progress_context = operation;
    settings.cancelled = &operation->cancelled;
    settings.staged = operation->staged;
    settings.staged_context = operation->staged_context;
    stats->reason = output.reason;
    if (operation->config.debug) { /* every byte is checked on its way to the output */
        check = bth_output_check_new(plan, &operation->output, error);
        if (check)
            output = bth_output_check_get_output(check);
        for (size_t i = 0; i < operation->parts.n_present && error->code == BERTH_OK; i++)
            bth_output_check_read_present(check, &operation->parts.present[i], error);
    }
    if (error->code == BERTH_OK && bth_run(plan, &output, &settings, stats, error) == 0 && check)
        bth_output_check_finish(check, error);
    bth_output_check_free(check);
    stats->memory_nbytes = bth_max(stats->memory_nbytes, operation->base.memory_nbytes);
    if (operation->path)
        stats->method = bth_output_file_method(&operation->file, &stats->reason);
    stats->transfer_seconds = bth_operation_trace_stage("transfer", begin);
    stats->limited_by = bth_stats_find_slowest_stage(stats);
    return error->code;
}

/* The last request of a sink. */
static void operation_finish_sink(bth_operation *operation, berth_error *error)
{
    const berth_sink *sink = &operation->sink;
    double begin = bth_trace_seconds();
    int failure = sink->steps->finish(sink->context);

    BTH_TRACE(.category = "request,write", .name = "complete", .begin_seconds = begin,
              .end_seconds = bth_seconds(), .n_requests = 1);
    operation->stats.n_requests++;
    if (failure != 0)
        (void)bth_sink_fail(error, failure, BERTH_NO_OFFSET);
}

int bth_operation_finish(bth_operation *operation, berth_error *error)
{
    const struct berth_sink_steps *steps = operation->sink.steps;
    static const char *const durabilities[] = {"none", "file", "full"};
    bth_commit *commit = &operation->commit;
    const bth_output_file *file = &operation->file;
    berth_stats *stats = &operation->stats;
    bool to_path = operation->path != NULL;
    uint64_t nbytes = operation->nbytes;
    double begin = bth_seconds();
    int phase = PHASE_OPEN;

    if (to_path && file->began_direct &&
        bth_round_up(nbytes, file->direct.block_nbytes) != nbytes &&
        bth_system.ftruncate(file->fd, (off_t)nbytes) < 0)
        bth_fail_system(error, errno, "cannot be cut to its size");
    else if (to_path && bth_commit_sync(commit, error) < 0)
        ;
    else if ((to_path && operation_report_progress(operation, nbytes, nbytes) != 0) ||
             !atomic_compare_exchange_strong(&operation->phase, &phase, PHASE_FINAL))
        bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    else if (to_path && bth_commit_replace(commit, error) == 0) {
        stats->placed = commit->in_place ? "in place" : "renamed";
        if (commit->reached >= 0)
            stats->durability = durabilities[commit->reached];
    } else if (steps && steps->finish)
        operation_finish_sink(operation, error);
    stats->sync_seconds = bth_operation_trace_stage("sync", begin);
    return error->code;
}

/* What it has got does not count. */
static void operation_abort_sink(bth_operation *operation, const berth_error *error)
{
    const berth_sink *sink = &operation->sink;
    double begin = bth_trace_seconds();

    if (!operation->has_begun_sink || error->code == BERTH_OK || !sink->steps ||
        !sink->steps->abort)
        return;
    sink->steps->abort(sink->context);
    BTH_TRACE(.category = "system", .name = "abort", .begin_seconds = begin,
              .end_seconds = bth_seconds());
}

int bth_operation_end(bth_operation *operation, berth_error *error)
{
    const berth_target *target = &operation->target;
    const berth_params *params = &operation->params;
    berth_stats *stats = &operation->stats;

    operation_abort_sink(operation, error);
    bth_base_free(&operation->base);
    bth_direct_close(&operation->file.direct);
    bth_commit_abort(&operation->commit);
    if (operation->commit.has_lost_old)
        (void)bth_error_append(error, "; its old content is lost, because it was written in place");
    if (target->kind == BERTH_TARGET_MEMORY && error->code == BERTH_OK) {
        *target->bytes = operation->memory;
        *target->nbytes = (size_t)operation->nbytes;
    } else
        bth_release(operation->memory);
    bth_release(operation->snapshot.memory);
    if (operation->plan && params->storage_stats)
        bth_storage_stats_fill_reports(operation->storage_stats, operation->plan, stats,
                                       params->storage_stats, params->n_storage_stats);
    double end_seconds = bth_seconds();
    stats->total_seconds = end_seconds - operation->begin_seconds;
    if (params->stats)
        *params->stats = *stats;
    bth_trace_leave(&operation->traced, end_seconds, stats, error);
    berth_plan_free(operation->plan);
    bth_release(operation->storage_stats);
    if (operation->path)
        (void)bth_error_prefix(error, operation->path);
    bth_release(operation->path);
    return error->code;
}

/* The public functions of saving that return when the save has ended, and berth_plan_new. */

int berth_save_to(const berth_target *target, const berth_content *content,
                  const berth_params *params, berth_error *error)
{
    bth_operation operation;

    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (bth_operation_begin(&operation, target, content, 0, params, error) == 0 &&
        bth_operation_transfer(&operation, error) == 0)
        bth_operation_finish(&operation, error);
    return bth_operation_end(&operation, error);
}

int berth_save(const char *path, const berth_value *value, const berth_params *params,
               berth_error *error)
{
    const berth_target target = berth_to_path(path);
    const berth_content content = berth_of_value(value);

    return berth_save_to(&target, &content, params, error);
}

/* `target` only names the archive. */
berth_plan *berth_plan_new(const berth_target *target, const berth_content *content,
                           const berth_params *params, berth_plan_info *info, berth_error *error)
{
    bth_operation operation;

    BTH_ERROR_BEGIN(error);
    operation_initialize_fields(&operation, params);
    if (bth_config_copy_for_operation(params, &operation.config, error) == 0)
        operation_make_plan(&operation, target, content, error);
    berth_plan *plan = operation.plan;
    operation.plan = NULL;
    if (info)
        *info = plan ? (berth_plan_info){.nbytes = plan->nbytes, .n_records = plan->n_records}
                     : (berth_plan_info){0};
    bth_operation_end(&operation, error);
    return plan;
}

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

static void job_set_staged(void *job)
{
    job_set_event(job, &((berth_job *)job)->staged);
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
        bth_trace_leave(&made->operation.traced, bth_trace_seconds(), NULL, NULL);
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

/* Under the lock. A job that is done is staged, too: it reads nothing any more. */
static bool job_has_event(const berth_job *job, berth_job_event event)
{
    return job->done || (event == BERTH_JOB_STAGED && job->staged);
}

int berth_job_wait(berth_job *job, berth_job_event event, double seconds, berth_error *error)
{
    int result = 0;

    BTH_ERROR_BEGIN(error);
    if (!job)
        return bth_fail_argument(error, "the job is NULL");
    if (event != BERTH_JOB_STAGED && event != BERTH_JOB_DONE)
        return bth_fail_argument(error, "invalid event %d", (int)event);
    /* X11: a forked child has no thread for the job: its events never happen, and no call waits. */
    if (!bth_lock_is_of_this_process(&job->lock))
        return bth_fail_forked(error, "job");
    (void)bth_lock_acquire(&job->lock);
    struct timespec end = bth_time_after(seconds);
    while (!job_has_event(job, event) && result == 0)
        result = seconds < 0 ? pthread_cond_wait(&job->changed, &job->lock.mutex)
                             : pthread_cond_timedwait(&job->changed, &job->lock.mutex, &end);
    if (!job_has_event(job, event))
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
    return job && bth_lock_is_of_this_process(&job->lock) && operation_cancel(&job->operation);
}

void berth_job_free(berth_job *job)
{
    BTH_HOLD_CANCEL(true);
    if (!job)
        return;
    if (bth_lock_is_of_this_process(
            &job->lock)) { /* else plan, copies and temporary stay as the thread left them */
        pthread_join(job->thread, NULL);
        if (!job->waited_for && job->error.code != BERTH_OK && job->error.code != BERTH_E_CANCELLED)
            bth_log("%s", job->error.message);
    }
    job_free_memory(job);
}
