/* SPDX-License-Identifier: BSD-3-Clause */
/* What the file holds: the names of its tensors, and whether a caller's tensor is one of them. */
#include <stdio.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "load/checkpoint.h"

/* ---- names ---- */

const bth_names *bth_contents_names(berth_checkpoint *checkpoint, berth_error *error)
{
    if (!checkpoint->contents.names)
        (void)bth_names_new(checkpoint->contents.root, &checkpoint->contents.names, error);
    return error->code < 0 ? NULL : checkpoint->contents.names;
}

const bth_names *bth_checkpoint_names(const berth_checkpoint *constant, berth_error *error)
{
    berth_checkpoint *checkpoint = (berth_checkpoint *)constant; /* its cache, under its mutex */

    bth_checkpoint_lock(checkpoint);
    const bth_names *names = bth_contents_names(checkpoint, error);
    bth_checkpoint_unlock(checkpoint);
    return names;
}

/* ---- tensors and storages ---- */

int bth_checkpoint_check_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                                 berth_error *error)
{
    if (!checkpoint || !storage)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "there is no checkpoint, or no storage");
    if (storage->tree != checkpoint->contents.tree)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "the storage is of another checkpoint or tree");
    return 0;
}

int bth_checkpoint_check_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                berth_error *error)
{
    if (!tensor)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "there is no tensor");
    if (tensor->flags & BERTH_META || !tensor->storage)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "a meta tensor has no data");
    if (bth_checkpoint_check_storage(checkpoint, tensor->storage, error) < 0)
        return error->code;
    return bth_tensor_check(tensor, error);
}

bool bth_tensor_begins_at_byte(const berth_tensor *tensor, uint64_t *offset)
{
    uint64_t elements = (uint64_t)bth_dtype_elements(tensor->dtype);

    *offset = 0;
    if (berth_tensor_numel(tensor) == 0)
        return true; /* T2: its offset may lie outside */
    *offset = (uint64_t)tensor->storage_offset / elements * berth_dtype_nbytes(tensor->dtype);
    return (uint64_t)tensor->storage_offset % elements == 0;
}

int bth_fail_subbyte(const berth_tensor *tensor, const char *what, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET, "%s of %s elements", what,
                    berth_dtype_name(tensor->dtype));
}

int bth_tensor_first_byte(const berth_tensor *tensor, uint64_t *offset, berth_error *error)
{
    if (bth_tensor_begins_at_byte(tensor, offset))
        return 0;
    return bth_fail_subbyte(tensor, "no address has an element within a byte", error);
}

int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error)
{
    char record[sizeof error->record];

    (void)snprintf(record, sizeof record, checkpoint->contents.is_stream ? "storage %s" : "data/%s",
                   storage->key);
    return bth_error_in(error, record);
}
