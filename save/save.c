/* SPDX-License-Identifier: BSD-3-Clause */
/* The public functions of saving that return when it is done, and plans. */
#include "config/error.h"
#include "config/memory.h"
#include "io/file_limit.h"
#include "save/operation.h"

static int carry_out(const bth_request *request, berth_error *error)
{
    bth_operation operation;

    BTH_HOLD_FILE_LIMIT();
    if (bth_operation_begin(&operation, request, error) == 0 &&
        bth_operation_transfer(&operation, error) == 0)
        bth_operation_finish(&operation, error);
    return bth_operation_end(&operation, error);
}

int berth_save(const char *path, const berth_value *value, const berth_params *call,
               berth_error *error)
{
    const bth_request request = {.value = value, .to = BTH_TO_PATH, .path = path, .call = call};

    BTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_records(const char *path, const char *archive_name, const berth_new_record *records,
                       size_t n_records, uint32_t flags, const berth_params *call,
                       berth_error *error)
{
    const bth_request request = {.records = records,
                                 .n_records = n_records,
                                 .is_records = true,
                                 .flags = flags,
                                 .to = BTH_TO_PATH,
                                 .path = path,
                                 .archive = archive_name,
                                 .call = call};

    BTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_sink(const berth_sink *sink, const char *archive_name, const berth_value *value,
                    const berth_params *call, berth_error *error)
{
    const bth_request request = {
        .value = value, .to = BTH_TO_SINK, .sink = sink, .archive = archive_name, .call = call};

    BTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_records_sink(const berth_sink *sink, const char *archive_name,
                            const berth_new_record *records, size_t n_records, uint32_t flags,
                            const berth_params *call, berth_error *error)
{
    const bth_request request = {.records = records,
                                 .n_records = n_records,
                                 .is_records = true,
                                 .flags = flags,
                                 .to = BTH_TO_SINK,
                                 .sink = sink,
                                 .archive = archive_name,
                                 .call = call};

    BTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_fd(int fd, const char *archive_name, const berth_value *value,
                  const berth_params *call, berth_error *error)
{
    const bth_request request = {
        .value = value, .to = BTH_TO_FD, .fd = fd, .archive = archive_name, .call = call};

    BTH_ERROR_BEGIN(error);
    return carry_out(&request, error);
}

int berth_save_memory(void **bytes, size_t *nbytes, const char *archive_name,
                      const berth_value *value, const berth_params *call, berth_error *error)
{
    bth_output_memory memory = {0};
    const bth_request request = {.value = value,
                                 .to = BTH_TO_MEMORY,
                                 .memory = &memory,
                                 .archive = archive_name,
                                 .call = call};

    BTH_ERROR_BEGIN(error);
    if (!bytes || !nbytes)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "bytes or nbytes is NULL");
    *bytes = NULL;
    *nbytes = 0;
    if (carry_out(&request, error) < 0) {
        bth_release(memory.bytes);
        return error->code;
    }
    *bytes = memory.bytes;
    *nbytes = (size_t)memory.nbytes;
    return 0;
}

/* ---- plans ---- */

berth_plan *berth_plan_new(const char *path, const berth_value *value, const berth_params *call,
                           berth_error *error)
{
    const bth_request request = {.value = value, .to = BTH_TO_NOTHING, .path = path, .call = call};
    bth_operation operation;

    BTH_ERROR_BEGIN(error);
    bth_operation_begin(&operation, &request, error);
    berth_plan *plan = operation.plan;
    operation.plan = NULL;
    bth_operation_end(&operation, error);
    return plan;
}
