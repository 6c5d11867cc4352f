/* SPDX-License-Identifier: BSD-3-Clause */
/* A planned file without the bytes of its storages, rendered where it is wanted. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "save/image.h"

static int plan_check_range(const berth_plan *plan, size_t nbytes, uint64_t offset,
                            berth_error *error)
{
    if (!plan)
        return bth_fail_argument(error, "the plan is NULL");
    if (!plan->pickled.bytes && !plan->header)
        return bth_fail_argument(error, "the plan is of records, which the caller has");
    if (offset > plan->nbytes || nbytes > plan->nbytes - offset)
        return bth_fail_argument(error, "%zu bytes from byte %llu on are not inside a file of %llu",
                                 nbytes, (unsigned long long)offset,
                                 (unsigned long long)plan->nbytes);
    return 0;
}

int berth_plan_read(const berth_plan *plan, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error)
{
    bth_tile tile = {.offset = offset, .nbytes = nbytes, .bytes = buffer};
    bth_image image = {.plan = plan, .without_storages = true, .constraints = {.block_nbytes = 1}};

    BTH_ERROR_BEGIN(error);
    if (plan_check_range(plan, nbytes, offset, error) < 0 || nbytes == 0)
        return error->code;
    if (!buffer)
        return bth_fail_argument(error, "the buffer is NULL");
    tile.scratch = bth_allocate(plan->max_header_nbytes);
    if (!tile.scratch)
        return bth_fail_memory(error, plan->max_header_nbytes);
    memset(buffer, 0, nbytes);
    memset(image.id, '0', sizeof image.id);
    (void)bth_image_render(&image, &tile, error);
    bth_release(tile.scratch);
    return error->code;
}
