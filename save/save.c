/* SPDX-License-Identifier: BSD-3-Clause */
/* The public functions of saving that return when it is done, and plans. */
#include "config/error.h"
#include "config/memory.h"
#include "io/file_limit.h"
#include "save/operation.h"

static int carry_out(const berth_request *request, berth_error *error)
{
    berth_operation operation;

    BERTH_HOLD_FILE_LIMIT();
    if (berth_operation_begin(&operation, request, error) == 0 &&
        berth_operation_transfer(&operation, error) == 0)
        berth_operation_finish(&operation, error);
    return berth_operation_end(&operation, error);
}

int berth_save(const char *path, const berth_value *value, const berth_call *call,
               berth_error *error)
{
    const berth_request request = {.value = value, .to = BERTH_TO_PATH, .path = path, .call = call};

    BERTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_records(const char *path, const char *archive_name, const berth_new_record *records,
                       size_t n_records, uint32_t flags, const berth_call *call, berth_error *error)
{
    const berth_request request = {.records = records,
                                   .n_records = n_records,
                                   .is_records = true,
                                   .flags = flags,
                                   .to = BERTH_TO_PATH,
                                   .path = path,
                                   .archive = archive_name,
                                   .call = call};

    BERTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_sink(const berth_sink *sink, const char *archive_name, const berth_value *value,
                    const berth_call *call, berth_error *error)
{
    const berth_request request = {
        .value = value, .to = BERTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BERTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_records_sink(const berth_sink *sink, const char *archive_name,
                            const berth_new_record *records, size_t n_records, uint32_t flags,
                            const berth_call *call, berth_error *error)
{
    const berth_request request = {.records = records,
                                   .n_records = n_records,
                                   .is_records = true,
                                   .flags = flags,
                                   .to = BERTH_TO_SINK,
                                   .sink = sink,
                                   .archive = archive_name,
                                   .call = call};

    BERTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_fd(int fd, const char *archive_name, const berth_value *value,
                  const berth_call *call, berth_error *error)
{
    const berth_request request = {
        .value = value, .to = BERTH_TO_FD, .fd = fd, .archive = archive_name, .call = call};

    BERTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_memory(void **bytes, size_t *nbytes, const char *archive_name,
                      const berth_value *value, const berth_call *call, berth_error *error)
{
    berth_output_memory memory = {0};
    const berth_request request = {.value = value,
                                   .to = BERTH_TO_MEMORY,
                                   .memory = &memory,
                                   .archive = archive_name,
                                   .call = call};

    BERTH_ERROR_BEGIN(error);
    if (!bytes || !nbytes)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "bytes or nbytes is NULL");
    *bytes = NULL;
    *nbytes = 0;
    if (carry_out(&request, error) < 0) {
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
    const berth_request request = {
        .value = value, .to = BERTH_TO_NOTHING, .path = path, .call = call};
    berth_operation operation;

    BERTH_ERROR_BEGIN(error);
    berth_operation_begin(&operation, &request, error);
    berth_plan *plan = operation.plan;
    operation.plan = NULL;
    berth_operation_end(&operation, error);
    return plan;
}
