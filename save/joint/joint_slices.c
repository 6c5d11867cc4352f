/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_slices.h"

#include <inttypes.h>
#include <stdlib.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"

/* Runs of a strided slice that are shorter would share most of their blocks with other writers. */
#define MIN_RUN_NBYTES ((uint64_t)1 << 20)

/* A slice of which runs are added. */
typedef struct slice_runs {
    const bth_ticket *ticket;
    const berth_slice *slice;
    bth_ticket_tensor tensor;
    bth_slice_parts *parts;
} slice_runs;

static int slice_fail(const slice_runs *runs, const char *what, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET, "%s", what);
}

/* ---- ranges ---- */

static int parts_append(bth_slice_parts *parts, const bth_joint_part *part, const uint8_t *bytes,
                        berth_error *error)
{
    if (parts->n == parts->room) {
        size_t room = parts->room * 2 + 16, nbytes = bth_array_nbytes(room, sizeof *parts->parts);
        struct bth_slice_part *grown = bth_reallocate(parts->parts, nbytes);
        if (!grown)
            return bth_fail_memory(error, nbytes);
        parts->parts = grown;
        parts->room = room;
    }
    parts->parts[parts->n++] = (struct bth_slice_part){*part, bytes};
    return 0;
}

/* If bytes are swapped, no element is cut, neither by the range nor by a block. */
static bool range_cuts_no_element(const bth_ticket_storage *storage, uint64_t at, uint64_t nbytes)
{
    uint64_t mask = storage->swap_nbytes - 1;

    return ((storage->data_offset | at | nbytes) & mask) == 0;
}

/* Adds bytes [at, at + nbytes) of the tensor's storage. */
static int slice_add_range(slice_runs *runs, uint64_t at, uint64_t nbytes, const uint8_t *bytes,
                           berth_error *error)
{
    const bth_ticket_storage *storage = &runs->ticket->storages[runs->tensor.storage];
    const bth_joint_part part = {.storage = runs->tensor.storage, .at = at, .nbytes = nbytes};

    if (at > storage->nbytes || nbytes > storage->nbytes - at)
        return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET,
                        "bytes %" PRIu64 " to %" PRIu64 " are not in its storage of %" PRIu64
                        " bytes",
                        at, at + nbytes, storage->nbytes);
    if (nbytes == 0)
        return 0;
    if (!bytes)
        return slice_fail(runs, "the data are NULL", error);
    if (!range_cuts_no_element(storage, at, nbytes))
        return slice_fail(runs,
                          "save.byteorder swaps its bytes, and an element is cut by the slice, or "
                          "by a block (save.storage_alignment=64 avoids that)",
                          error);
    return parts_append(runs->parts, &part, bytes, error);
}

/* ---- boxes ---- */

/* One box of a tensor, as runs of elements that lie one after the other. */
typedef struct slice_box {
    const int64_t *starts;
    const int64_t *lengths;
    int32_t n_outer; /* dimensions that a run does not cross */
    uint64_t run_elements;
    uint64_t n_runs;
    int64_t stride[BERTH_MAX_RANK];
} slice_box;

static int box_check_bounds(const slice_runs *runs, const slice_box *box, berth_error *error)
{
    for (int32_t i = 0; i < runs->tensor.rank; i++) {
        int64_t length = runs->tensor.shape[i], start = box->starts[i];
        if (start < 0 || box->lengths[i] < 0 || start > length || box->lengths[i] > length - start)
            return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET,
                            "%" PRId64 " elements from %" PRId64
                            " on are not in dimension %d of %" PRId64,
                            box->lengths[i], start, i, length);
    }
    return 0;
}

/* The box lies in the tensor, which has elements and is in its storage: no product overflows. */
static void box_find_runs(const slice_runs *runs, slice_box *box)
{
    int32_t last = runs->tensor.rank - 1; /* the last dimension that is cut */

    while (last >= 0 && box->lengths[last] == runs->tensor.shape[last])
        last--;
    box->run_elements = box->n_runs = 1;
    for (int32_t i = last < 0 ? 0 : last; i < runs->tensor.rank; i++)
        box->run_elements *= (uint64_t)box->lengths[i];
    for (int32_t i = 0; i < last; i++)
        box->n_runs *= (uint64_t)box->lengths[i];
    box->n_outer = last < 0 ? 0 : last;
    bth_contiguous_stride(runs->tensor.shape, runs->tensor.rank, box->stride);
}

/* The first element of run number n, in the row-major order of the tensor. */
static uint64_t box_first_element_of_run(const slice_runs *runs, const slice_box *box, uint64_t n)
{
    uint64_t element = 0;

    for (int32_t i = runs->tensor.rank; i-- > 0;) {
        uint64_t index = (uint64_t)box->starts[i];
        if (i < box->n_outer) {
            index += n % (uint64_t)box->lengths[i];
            n /= (uint64_t)box->lengths[i];
        }
        element += index * (uint64_t)box->stride[i];
    }
    return element;
}

/* Adds the elements [first, first + n) as bytes. With several elements in an item, no item is cut.
 */
static int slice_add_elements(slice_runs *runs, uint64_t first, uint64_t n, uint64_t numel,
                              const uint8_t *bytes, berth_error *error)
{
    uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(runs->tensor.dtype);
    uint64_t item_nbytes = berth_dtype_nbytes(runs->tensor.dtype);

    if (first % per_item != 0 || ((first + n) % per_item != 0 && first + n != numel))
        return slice_fail(runs, "the slice cuts an item of several elements", error);
    return slice_add_range(runs, runs->tensor.offset + first / per_item * item_nbytes,
                           (n + per_item - 1) / per_item * item_nbytes, bytes, error);
}

static int slice_fail_short_runs(const slice_runs *runs, uint64_t run_nbytes, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, runs->slice->name, BERTH_NO_OFFSET,
                    "the slice lies in pieces of %" PRIu64
                    " bytes, and pieces shorter than %" PRIu64
                    " are not written side by side: slice the first dimension, or give the whole "
                    "tensor to one writer",
                    run_nbytes, MIN_RUN_NBYTES);
}

static int slice_add_box(slice_runs *runs, slice_box *box, berth_error *error)
{
    const bth_ticket_tensor *tensor = &runs->tensor;
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = 0;

    if (box_check_bounds(runs, box, error) < 0)
        return error->code;
    for (int32_t i = 0; i < tensor->rank; i++)
        if (box->lengths[i] == 0)
            return 0;
    if (!tensor->is_contiguous)
        return slice_fail(runs, "it is not contiguous: give bytes of its storage", error);
    (void)bth_shape_numel(tensor->shape, tensor->rank, &numel);
    box_find_runs(runs, box);
    uint64_t run_nbytes =
        box->run_elements / (unsigned)bth_dtype_elements_per_item(tensor->dtype) * item_nbytes;
    if (box->n_runs > 1 && run_nbytes < MIN_RUN_NBYTES)
        return slice_fail_short_runs(runs, run_nbytes, error);
    const uint8_t *bytes = runs->slice->data;
    for (uint64_t i = 0; i < box->n_runs && error->code == BERTH_OK; i++)
        (void)slice_add_elements(runs, box_first_element_of_run(runs, box, i), box->run_elements,
                                 (uint64_t)numel, bytes ? bytes + i * run_nbytes : NULL, error);
    return error->code;
}

/* ---- slices ---- */

static int slice_add(slice_runs *runs, berth_error *error)
{
    static const int64_t zeros[BERTH_MAX_RANK];
    const berth_slice *slice = runs->slice;
    slice_box box = {.starts = slice->starts, .lengths = slice->lengths};

    switch (slice->kind) {
    case BERTH_SLICE_BYTES:
        return slice_add_range(runs, slice->offset, slice->nbytes, slice->data, error);
    case BERTH_SLICE_WHOLE:
        box = (slice_box){.starts = zeros, .lengths = runs->tensor.shape};
        return slice_add_box(runs, &box, error);
    case BERTH_SLICE_BOX:
        if (runs->tensor.rank > 0 && (!slice->starts || !slice->lengths))
            return slice_fail(runs, "starts or lengths are NULL", error);
        return slice_add_box(runs, &box, error);
    }
    return slice_fail(runs, "invalid kind of slice", error);
}

static int slice_part_compare(const void *a, const void *b)
{
    const bth_joint_part *one = &((const struct bth_slice_part *)a)->part;
    const bth_joint_part *other = &((const struct bth_slice_part *)b)->part;

    if (one->storage != other->storage)
        return one->storage < other->storage ? -1 : 1;
    return (one->at > other->at) - (one->at < other->at);
}

static int parts_sort_and_check_overlaps(const bth_ticket *ticket, bth_slice_parts *parts,
                                         berth_error *error)
{
    if (parts->n > 0)
        qsort(parts->parts, parts->n, sizeof *parts->parts, slice_part_compare);
    for (size_t i = 1; i < parts->n; i++) {
        const bth_joint_part *before = &parts->parts[i - 1].part, *part = &parts->parts[i].part;
        if (part->storage == before->storage && part->at < before->at + before->nbytes)
            return bth_fail(error, BERTH_E_ARGUMENT,
                            bth_ticket_name_of_storage(ticket, part->storage), BERTH_NO_OFFSET,
                            "two slices have byte %" PRIu64 " of its storage", part->at);
    }
    return 0;
}

int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bth_slice_parts *parts, berth_error *error)
{
    slice_runs runs = {.ticket = ticket, .parts = parts};

    *parts = (bth_slice_parts){0};
    if (!slices && n_slices > 0)
        return bth_fail_argument(error, "the slices are NULL");
    for (size_t i = 0; i < n_slices; i++) {
        runs.slice = &slices[i];
        if (BTH_CHECK_RESERVED(berth_slice, runs.slice, error) < 0)
            return bth_error_prefix_index(error, "slice", i);
        if (!slices[i].name || !bth_ticket_find_tensor(ticket, slices[i].name, &runs.tensor))
            return bth_fail(error, BERTH_E_NOT_FOUND, slices[i].name, BERTH_NO_OFFSET,
                            "slice %zu: the outline has no such tensor whose bytes are elsewhere",
                            i);
        if (slice_add(&runs, error) < 0)
            return error->code;
    }
    return parts_sort_and_check_overlaps(ticket, parts, error);
}
