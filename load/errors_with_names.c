/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors and storages that a caller passes: checks, names, and errors that carry these. */
#include "load/errors_with_names.h"

#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"

/* ---- checks ---- */

int bth_checkpoint_check_caller_storage(const berth_checkpoint *checkpoint,
                                        const berth_storage *storage, berth_error *error)
{
    if (!checkpoint || !storage)
        return bth_fail_argument(error, "the checkpoint or the storage is NULL");
    if (storage->tree != checkpoint->contents.tree)
        return bth_fail_argument(error, "the storage is of another checkpoint or tree");
    return 0;
}

int bth_checkpoint_check_caller_tensor(const berth_checkpoint *checkpoint,
                                       const berth_tensor *tensor, berth_error *error)
{
    if (!tensor)
        return bth_fail_argument(error, "the tensor is NULL");
    if (tensor->flags & BERTH_META)
        return bth_fail_argument(error, "a meta tensor has no data");
    if (bth_checkpoint_check_caller_storage(checkpoint, tensor->storage, error) < 0)
        return error->code;
    return bth_tensor_check(tensor, error);
}

int bth_checkpoint_find_caller_tensor(const berth_checkpoint *checkpoint,
                                      const berth_tensor *tensor, uint64_t *offset,
                                      berth_error *error)
{
    if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) < 0)
        return error->code;
    if (bth_tensor_begins_at_whole_byte(tensor, offset))
        return 0;
    return bth_fail_status(
        error, BERTH_E_UNSUPPORTED,
        "elements of %s are smaller than a byte: this tensor begins within a byte",
        berth_dtype_name(tensor->dtype));
}

/* ---- names ---- */

const bth_names *bth_checkpoint_names_locked(berth_checkpoint *checkpoint, berth_error *error)
{
    if (!checkpoint->contents.names)
        (void)bth_names_new(checkpoint->contents.root, &checkpoint->contents.names, error);
    return error->code < 0 ? NULL : checkpoint->contents.names;
}

const bth_names *bth_checkpoint_names(const berth_checkpoint *constant, berth_error *error)
{
    berth_checkpoint *checkpoint =
        (berth_checkpoint *)constant; /* fills its cache under its lock */

    bth_checkpoint_lock(checkpoint);
    const bth_names *names = bth_checkpoint_names_locked(checkpoint, error);
    bth_checkpoint_unlock(checkpoint);
    return names;
}

bool bth_tensor_find_name(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                          const berth_storage *storage, uint64_t offset, char *name,
                          size_t name_nbytes)
{
    berth_error ignored = {0};
    const bth_names *names = bth_checkpoint_names(checkpoint, &ignored);
    size_t n = names ? bth_names_tensor_count(names) : 0, found = n;
    char *text, *path;
    uint64_t begin;

    for (size_t i = n; i-- > 0;) {
        const berth_tensor *named = berth_as_tensor(bth_names_tensor_value(names, i));
        if (named && named == tensor) {
            found = i;
            break;
        }
        if (named && storage && named->storage &&
            (named->storage == storage || named->storage->root == storage) &&
            (offset == BERTH_NO_OFFSET ||
             (bth_tensor_begins_at_whole_byte(named, &begin) && begin == offset)))
            found = i;
    }
    if (found == n ||
        bth_names_allocate_tensor_name_and_path(names, found, &text, &path, &ignored) < 0)
        return false;
    (void)snprintf(name, name_nbytes, "%s", text);
    bth_release(text);
    bth_release(path);
    return name[0] != '\0'; /* "": the root is a tensor */
}

/* ---- errors ---- */

/* The storage may be NULL (a meta tensor); the tensor, too. */
static int error_add_record_and_tensor_name(const berth_checkpoint *checkpoint,
                                            const berth_storage *storage,
                                            const berth_tensor *tensor, uint64_t offset,
                                            berth_error *error)
{
    char record[sizeof error->record], name[100], quoted[sizeof name + 2];

    if (storage && checkpoint->contents.kind != BTH_CONTAINER_SAFETENSORS) {
        const char *format = bth_contents_are_zip(&checkpoint->contents) ? "data/%s" : "storage %s";
        (void)snprintf(record, sizeof record, format, bth_storage_root(storage)->key);
        (void)bth_error_add_record(error, record);
    }
    if (!bth_tensor_find_name(checkpoint, tensor, storage, offset, name, sizeof name))
        return error->code;
    (void)snprintf(quoted, sizeof quoted, "\"%s\"", name);
    return bth_error_prefix(error, quoted);
}

int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error)
{
    assert(error->code < 0);
    return error_add_record_and_tensor_name(checkpoint, storage, NULL, BERTH_NO_OFFSET, error);
}

int bth_error_in_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                        berth_error *error)
{
    const berth_storage *storage = NULL;
    uint64_t offset = BERTH_NO_OFFSET;
    berth_error refused;

    if (error->code == BERTH_OK || error->record[0] || !checkpoint || !tensor)
        return error->code;
    /* T2: of a tensor that is refused, only the address is used. */
    bth_error_clear(&refused);
    if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, &refused) == 0) {
        storage = tensor->storage;
        if (!bth_tensor_begins_at_whole_byte(tensor, &offset))
            offset = BERTH_NO_OFFSET;
    }
    return error_add_record_and_tensor_name(checkpoint, storage, tensor, offset, error);
}

int bth_error_in_checkpoint(const berth_checkpoint *checkpoint, berth_error *error)
{
    return checkpoint ? bth_error_prefix(error, checkpoint->source.reader.name) : error->code;
}
