/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of any format that appear whole or not at all: a save without a plan (X7). */
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/file.h"
#include "save/save_error.h"
#include "save/save_operation.h"

struct berth_atomic_file {
    bth_operation operation;
    _Atomic uint64_t n_requests, written_nbytes;
    atomic_bool has_failed;
    berth_error failure; /* of the first write that failed */
};

/* X11: in a child of fork, the file is its parent's. */
static int atomic_check_file_and_process(const berth_atomic_file *file, berth_error *error)
{
    if (!file)
        return bth_fail_argument(error, "the file is NULL");
    return file->operation.commit.process == bth_process_unique_number()
               ? 0
               : bth_fail_forked(error, "file");
}

static int atomic_end(berth_atomic_file *file, berth_error *error)
{
    int status = bth_operation_end(&file->operation, error);

    bth_release(file);
    return status;
}

int berth_atomic_begin(const char *path, uint64_t nbytes, const berth_params *params,
                       berth_atomic_file **file, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (!file)
        return bth_fail_argument(error, "file is NULL");
    *file = NULL;
    berth_atomic_file *made = bth_allocate_zeroed(sizeof *made);
    if (!made)
        return bth_fail_memory(error, sizeof *made);
    if (bth_operation_begin_atomic_file(&made->operation, path, nbytes, params, error) < 0)
        return atomic_end(made, error);
    bth_operation_suspend_trace(&made->operation);
    *file = made;
    return 0;
}

/* Several threads may write at once: each has a scope of its own. */
static int atomic_write_piece(const bth_operation *operation, struct iovec *piece, uint64_t offset,
                              berth_error *error)
{
    bth_trace_scope traced = {.number = operation->traced.number};
    bth_trace_span request = {.category = "request,write,disk",
                              .name = "write",
                              .offset = offset,
                              .begin_seconds = bth_seconds()};
    size_t nbytes = piece->iov_len;

    if (traced.number > 0)
        bth_trace_enter(&traced, operation->config.trace, operation->traced.name, operation->path,
                        request.begin_seconds);
    bth_trace_begin_request();
    if (operation->output.write(operation->output.context, piece, 1, offset, error) == 0)
        request.nbytes = nbytes;
    request.end_seconds = bth_seconds();
    bth_trace_end_request(&request, true);
    bth_trace_leave_lazily(&traced);
    return error->code;
}

int berth_atomic_write(berth_atomic_file *file, const void *bytes, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (atomic_check_file_and_process(file, error) < 0)
        return error->code;
    const bth_operation *operation = &file->operation;
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = nbytes};
    if (offset > operation->nbytes || nbytes > operation->nbytes - offset) {
        bth_fail(error, BERTH_E_ARGUMENT, NULL, offset,
                 "%zu bytes do not fit into a file of %llu bytes", nbytes,
                 (unsigned long long)operation->nbytes);
        return bth_error_prefix(error, operation->path);
    }
    if (atomic_write_piece(operation, &piece, offset, error) < 0) {
        if (!atomic_exchange(&file->has_failed, true))
            file->failure = *error;
        return bth_error_prefix(error, operation->path);
    }
    atomic_fetch_add(&file->n_requests, 1);
    atomic_fetch_add(&file->written_nbytes, nbytes);
    return 0;
}

int berth_atomic_commit(berth_atomic_file *file, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    int status = atomic_check_file_and_process(file, error);
    if (!file)
        return status;
    bth_operation *operation = &file->operation;
    operation->stats.moved_nbytes = atomic_load(&file->written_nbytes);
    operation->stats.n_requests = atomic_load(&file->n_requests);
    operation->stats.transfer_seconds = bth_seconds() - operation->begin_seconds;
    bth_operation_resume_trace(operation);
    if (status == 0 && atomic_load(&file->has_failed))
        *error = file->failure;
    else if (status == 0)
        bth_operation_finish(operation, error);
    return atomic_end(file, error);
}

void berth_atomic_abort(berth_atomic_file *file)
{
    berth_error ignored;

    BTH_HOLD_CANCEL(true);
    bth_error_clear(&ignored);
    if (file)
        (void)atomic_end(file, &ignored);
}
