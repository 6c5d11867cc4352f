/* SPDX-License-Identifier: BSD-3-Clause */
/* The public functions of saving that return when the save has ended, and berth_plan_new. */
#include "base/error.h"
#include "io/file.h"
#include "save/save_operation.h"

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

berth_plan *berth_plan_new(const berth_target *target, const berth_content *content,
                           const berth_params *params, berth_plan_info *info, berth_error *error)
{
    bth_operation operation;

    BTH_ERROR_BEGIN(error);
    bth_operation_begin_plan_only(&operation, target, content, params, error);
    berth_plan *plan = operation.plan;
    operation.plan = NULL;
    if (info)
        *info = plan ? (berth_plan_info){.nbytes = plan->nbytes, .n_records = plan->n_records}
                     : (berth_plan_info){0};
    bth_operation_end(&operation, error);
    return plan;
}
