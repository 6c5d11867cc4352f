/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of any format that appear whole or not at all: what a save does, without a plan (X7). */
#include "config/error.h"
#include "config/lock.h"
#include "config/memory.h"
#include "config/options.h"
#include "io/clock.h"
#include "io/file_limit.h"
#include "save/commit.h"
#include "save/output_file.h"

#include <string.h>

struct berth_atomic_file {
    char *path;
    uint64_t nbytes;
    bth_commit commit;
    bth_output_file output_file;
    bth_output output;
    berth_params call; /* its config is not looked at any more */
    double begin_seconds;
    _Atomic uint64_t n_requests, written_nbytes;
    atomic_bool has_failed;
    berth_error failure; /* the first write's that failed */
};

static void release(berth_atomic_file *file)
{
    bth_output_file_end(&file->output_file);
    bth_commit_abort(&file->commit);
    bth_release(file->path);
    bth_release(file);
}

/* X11: in a child that was forked, it is its parent's. */
static int check(const berth_atomic_file *file, berth_error *error)
{
    if (!file)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the file is NULL");
    return file->commit.process == bth_process() ? 0 : bth_fail_forked(error, "file");
}

static berth_atomic_file *make(const char *path, uint64_t nbytes, const berth_params *call,
                               berth_error *error)
{
    berth_atomic_file *file = bth_allocate_zeroed(sizeof *file);

    if (!file) {
        bth_fail_memory(error, sizeof *file);
        return NULL;
    }
    file->commit = (bth_commit){.fd = -1, .target = BTH_NO_TARGET_FILE};
    file->output_file = (bth_output_file){.fd = -1, .direct = {.fd = -1}};
    file->nbytes = nbytes;
    if (call)
        file->call = *call;
    file->begin_seconds = bth_seconds();
    file->path = bth_duplicate(path, strlen(path));
    if (!file->path) {
        bth_fail_memory(error, strlen(path));
        release(file);
        return NULL;
    }
    return file;
}

/* Through the page cache: who writes in pieces of any size has no blocks to write directly. */
static int start(berth_atomic_file *file, const struct berth_config *config, berth_error *error)
{
    const bth_output_method method = {.is_durable = config->save_durability != BTH_DURABILITY_NONE,
                                      .reason = "it is written in pieces of any size"};

    if (bth_commit_begin(&file->commit, file->path, file->nbytes, config->save_durability, error) <
        0)
        return bth_error_prefix(error, file->path);
    file->output =
        bth_output_file_begin(&file->output_file, file->commit.fd, file->nbytes, &method);
    return 0;
}

int berth_atomic_begin(const char *path, uint64_t nbytes, const berth_params *call,
                       berth_atomic_file **file, berth_error *error)
{
    struct berth_config config;

    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (!file || !path)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the %s is NULL",
                        path ? "place for the file" : "path");
    *file = NULL;
    if (bth_config_resolve(call, &config, error) < 0)
        return error->code;
    berth_atomic_file *made = make(path, nbytes, call, error);
    if (!made)
        return error->code;
    if (start(made, &config, error) < 0) {
        release(made);
        return error->code;
    }
    *file = made;
    return 0;
}

int berth_atomic_write(berth_atomic_file *file, const void *bytes, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (check(file, error) < 0)
        return error->code;
    if (offset > file->nbytes || nbytes > file->nbytes - offset) {
        bth_fail(error, BERTH_E_ARGUMENT, NULL, offset,
                 "%zu bytes do not fit into a file of %llu bytes", nbytes,
                 (unsigned long long)file->nbytes);
        return bth_error_prefix(error, file->path);
    }
    if (file->output.write(file->output.context, bytes, nbytes, offset, error) < 0) {
        (void)bth_error_prefix(error, file->path);
        if (!atomic_exchange(&file->has_failed, true))
            file->failure = *error;
        return error->code;
    }
    atomic_fetch_add(&file->n_requests, 1);
    atomic_fetch_add(&file->written_nbytes, nbytes);
    return 0;
}

static void report(const berth_atomic_file *file, double sync_begin)
{
    berth_stats stats = {.asked_nbytes = file->nbytes,
                         .moved_nbytes = atomic_load(&file->written_nbytes),
                         .n_requests = atomic_load(&file->n_requests)};
    double now = bth_seconds();

    stats.method = bth_output_file_method(&file->output_file, &stats.reason);
    stats.transfer_seconds = sync_begin - file->begin_seconds;
    stats.sync_seconds = now - sync_begin;
    stats.total_seconds = now - file->begin_seconds;
    if (file->call.stats)
        *file->call.stats = stats;
}

/* Until the rename it can be cancelled, as any save. */
static int check_cancelled(const berth_atomic_file *file, berth_error *error)
{
    const berth_params *call = &file->call;

    if (call->progress && call->progress(call->progress_context, file->nbytes, file->nbytes) != 0)
        return bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
    return 0;
}

int berth_atomic_commit(berth_atomic_file *file, berth_error *error)
{
    double sync_begin = bth_seconds();

    BTH_ERROR_BEGIN(error);
    if (check(file, error) == 0 && atomic_load(&file->has_failed))
        *error = file->failure;
    else if (error->code == BERTH_OK && bth_commit_sync(&file->commit, error) == 0 &&
             check_cancelled(file, error) == 0)
        (void)bth_commit_replace(&file->commit, error);
    if (file) {
        report(file, sync_begin);
        if (!atomic_load(&file->has_failed))
            (void)bth_error_prefix(error, file->path);
        release(file);
    }
    return error->code;
}

void berth_atomic_abort(berth_atomic_file *file)
{
    BTH_HOLD_CANCEL(true);
    if (file)
        release(file);
}
