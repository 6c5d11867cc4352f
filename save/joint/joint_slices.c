/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_slices.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "io/devices.h"
#include "io/file.h"
#include "io/syscalls.h"

/* Runs of a strided slice that are shorter would share most of their blocks with other writers. */
#define MIN_RUN_NBYTES ((uint64_t)1 << 20)

/* A slice of which runs are added. */
typedef struct slice_runs {
    const bth_ticket *ticket;
    const berth_slice *slice;
    const uint8_t *data; /* of the slice, on the host */
    bth_ticket_tensor tensor;
    bool can_exchange;
    bth_slice_parts *parts;
} slice_runs;

static int slice_fail(const slice_runs *runs, const char *what, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET, "%s", what);
}

/* ---- the bytes of slices ---- */

/*
 * False only if the system says so. It may forbid the first question, and it moves none of the
 * memory that a driver maps (VM_IO, VM_PFNMAP), such as pinned memory of some devices; but it
 * copies that into a pipe.
 */
static bool byte_can_be_read(const uint8_t *address)
{
    uint8_t byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    const struct iovec from = {.iov_base = (void *)(uintptr_t)address, .iov_len = 1};
    int ends[2];

    if (bth_system.process_vm_readv(getpid(), &to, 1, &from, 1, 0) >= 0)
        return true;
    bool is_forbidden = errno != EFAULT;
    if (bth_system.pipe2(ends, O_CLOEXEC) < 0)
        return is_forbidden;
    bool can_be_copied = bth_system.write(ends[1], address, 1) == 1 || errno != EFAULT;
    bth_file_close(ends[0]);
    bth_file_close(ends[1]);
    return can_be_copied;
}

/* Those on a device come to the host, as a whole. */
static int slice_copy_from_device(slice_runs *runs, uint64_t nbytes, berth_error *error)
{
    const berth_slice *slice = runs->slice;
    const uintptr_t address = (uintptr_t)slice->data;
    bool fits = nbytes <= SIZE_MAX - sizeof(bth_slice_copy);
    bth_slice_copy *copy = fits ? bth_allocate(sizeof *copy + (size_t)nbytes) : NULL;
    bth_device_handle *device;

    if (!copy)
        return bth_fail_memory(error, nbytes);
    copy->next = runs->parts->copies;
    runs->parts->copies = copy;
    runs->data = copy->bytes;
    if (bth_wing_device.open(slice->device, &device, error) < 0 ||
        bth_wing_device.check_memory(device, address, (size_t)nbytes, error) < 0)
        return error->code;
    return bth_wing_device.copy_to_host_and_wait(device, copy->bytes, address, (size_t)nbytes,
                                                 slice->ready, error);
}

/* runs->data: bytes that this process can read: the caller's, or a copy of those on a device. */
static int slice_find_data(slice_runs *runs, uint64_t nbytes, berth_error *error)
{
    const uint8_t *data = runs->slice->data;

    runs->data = data;
    if (!data || nbytes == 0)
        return 0;
    if (runs->slice->device)
        (void)slice_copy_from_device(runs, nbytes, error);
    else if (!byte_can_be_read(data) || !byte_can_be_read(data + (nbytes - 1)))
        (void)bth_fail_argument(error,
                                "%llu bytes at 0x%zx are not memory that the host can read: if "
                                "they lie on a device, name it in berth_slice.device",
                                (unsigned long long)nbytes, (size_t)(uintptr_t)data);
    return error->code < 0 ? bth_error_prefix(error, runs->slice->name) : 0;
}

/* ---- ranges ---- */

/* Room for one more item behind n; returns the items, NULL on failure. */
static void *items_grow(void *items, size_t n, size_t *room, size_t item_nbytes, berth_error *error)
{
    if (n < *room)
        return items;
    size_t more = *room * 2 + 16, nbytes = bth_array_nbytes(more, item_nbytes);
    void *grown = bth_reallocate(items, nbytes);
    if (!grown)
        bth_fail_memory(error, nbytes);
    else
        *room = more;
    return grown;
}

int bth_slice_parts_append(bth_slice_parts *parts, const bth_joint_part *part, const uint8_t *bytes,
                           berth_error *error)
{
    bth_slice_part *grown =
        items_grow(parts->parts, parts->n, &parts->room, sizeof *parts->parts, error);

    if (!grown)
        return error->code;
    parts->parts = grown;
    parts->parts[parts->n++] = (bth_slice_part){.part = *part, .bytes = bytes};
    return 0;
}

/* If bytes are swapped, no element is cut, neither by the range nor by a block. */
static bool range_cuts_no_element(const bth_ticket_storage *storage, uint64_t at, uint64_t nbytes)
{
    uint64_t mask = storage->swap_nbytes - 1;

    return ((storage->data_offset | at | nbytes) & mask) == 0;
}

static int slice_fail_swapped_cut(const slice_runs *runs, berth_error *error)
{
    return slice_fail(runs,
                      "save.byteorder swaps its bytes, and an element is cut by the slice, or by a "
                      "block (save.storage_alignment=64 avoids that)",
                      error);
}

/* Adds bytes [at, at + nbytes) of the tensor's storage. */
static int slice_add_range(slice_runs *runs, uint64_t at, uint64_t nbytes, const uint8_t *bytes,
                           berth_error *error)
{
    const bth_ticket_storage *storage = &runs->ticket->storages[runs->tensor.storage];
    const bth_joint_part part = {
        .storage = runs->tensor.storage & BTH_MAX_JOINT_STORAGES, .at = at, .nbytes = nbytes};

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
        return slice_fail_swapped_cut(runs, error);
    return bth_slice_parts_append(runs->parts, &part, bytes, error);
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

/* ---- short runs ---- */

/* The tensor is contiguous and in its storage, and the box in the tensor. Dimensions of the grid
 * without gaps between them become one. */
static bth_short_box short_box_of(const slice_runs *runs, const slice_box *box, uint64_t run_nbytes)
{
    uint64_t first = box_first_element_of_run(runs, box, 0);
    uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(runs->tensor.dtype);
    uint64_t item_nbytes = berth_dtype_nbytes(runs->tensor.dtype);
    bth_short_box made = {.storage = runs->tensor.storage,
                          .at = runs->tensor.offset + first / per_item * item_nbytes,
                          .run_nbytes = run_nbytes,
                          .n_runs = box->n_runs,
                          .bytes = runs->data};

    for (int32_t i = 0; i < box->n_outer; i++) {
        uint64_t length = (uint64_t)box->lengths[i];
        int32_t last = made.n_dims - 1;
        if (last >= 0 && box->lengths[i] == runs->tensor.shape[i])
            length *= made.lengths[last];
        else
            last = made.n_dims++;
        made.lengths[last] = length;
        made.strides[last] = (uint64_t)box->stride[i] / per_item * item_nbytes;
    }
    made.end = made.at + run_nbytes;
    for (int32_t i = 0; i < made.n_dims; i++)
        made.end += (made.lengths[i] - 1) * made.strides[i];
    return made;
}

static int slice_add_short_box(slice_runs *runs, const slice_box *box, uint64_t run_nbytes,
                               berth_error *error)
{
    const bth_ticket_storage *storage = &runs->ticket->storages[runs->tensor.storage];
    uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(runs->tensor.dtype);
    uint64_t elements = box_first_element_of_run(runs, box, 0) | box->run_elements, strides = 0;
    bth_slice_parts *parts = runs->parts;

    if (!runs->can_exchange)
        return bth_fail(error, BERTH_E_UNSUPPORTED, runs->slice->name, BERTH_NO_OFFSET,
                        "the slice lies in pieces of %" PRIu64
                        " bytes, and pieces shorter than %" PRIu64
                        " are not written side by side: slice the first dimension, give the whole "
                        "tensor to one writer, or give all writers an exchange (berth_params)",
                        run_nbytes, MIN_RUN_NBYTES);
    if (!runs->data)
        return slice_fail(runs, "the data are NULL", error);
    for (int32_t i = 0; i < box->n_outer; i++)
        if (box->lengths[i] > 1)
            elements |= (uint64_t)box->stride[i];
    if (elements & (per_item - 1)) /* a power of two: a run begins or ends within an item */
        return slice_fail(runs, "the slice cuts an item of several elements", error);
    const bth_short_box made = short_box_of(runs, box, run_nbytes);
    for (int32_t i = 0; i < made.n_dims; i++)
        if (made.lengths[i] > 1)
            strides |= made.strides[i];
    if (!range_cuts_no_element(storage, made.at | strides, run_nbytes))
        return slice_fail_swapped_cut(runs, error);
    bth_short_box *grown =
        items_grow(parts->boxes, parts->n_boxes, &parts->boxes_room, sizeof *parts->boxes, error);
    if (!grown)
        return error->code;
    parts->boxes = grown;
    parts->boxes[parts->n_boxes++] = made;
    return 0;
}

static int slice_add_box(slice_runs *runs, slice_box *box, berth_error *error)
{
    const bth_ticket_tensor *tensor = &runs->tensor;
    uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(tensor->dtype);
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = 0;
    bool is_empty = false;

    for (int32_t i = 0; i < tensor->rank; i++) {
        int64_t length = tensor->shape[i], start = box->starts[i];
        if (start < 0 || box->lengths[i] < 0 || start > length || box->lengths[i] > length - start)
            return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET,
                            "%" PRId64 " elements from %" PRId64
                            " on are not in dimension %d of %" PRId64,
                            box->lengths[i], start, i, length);
        is_empty |= box->lengths[i] == 0;
    }
    if (is_empty)
        return 0;
    if (!tensor->is_contiguous)
        return slice_fail(runs, "it is not contiguous: give bytes of its storage", error);
    (void)bth_shape_numel(tensor->shape, tensor->rank, &numel);
    box_find_runs(runs, box);
    uint64_t n_items = box->n_runs * box->run_elements / per_item;
    if (box->n_runs == 1) /* it may end within an item, with its tensor */
        n_items = (box->run_elements + per_item - 1) / per_item;
    if (slice_find_data(runs, n_items * item_nbytes, error) < 0)
        return error->code;
    uint64_t run_nbytes = box->run_elements / per_item * item_nbytes;
    if (box->n_runs > 1 && run_nbytes < MIN_RUN_NBYTES)
        return slice_add_short_box(runs, box, run_nbytes, error);
    const uint8_t *bytes = runs->data;
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
    uint64_t nbytes = slice->nbytes;
    slice_box box = {.starts = slice->starts, .lengths = slice->lengths};

    switch (slice->kind) {
    case BERTH_SLICE_BYTES: /* of too many, none is looked at */
        if (nbytes > runs->ticket->storages[runs->tensor.storage].nbytes)
            nbytes = 0;
        if (slice_find_data(runs, nbytes, error) < 0)
            return error->code;
        return slice_add_range(runs, slice->offset, slice->nbytes, runs->data, error);
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
    const bth_joint_part *one = &((const bth_slice_part *)a)->part;
    const bth_joint_part *other = &((const bth_slice_part *)b)->part;

    if (one->storage != other->storage)
        return one->storage < other->storage ? -1 : 1;
    return (one->at > other->at) - (one->at < other->at);
}

void bth_slice_parts_sort(bth_slice_parts *parts)
{
    if (parts->n > 0)
        qsort(parts->parts, parts->n, sizeof *parts->parts, slice_part_compare);
}

static int parts_sort_and_check_overlaps(const bth_ticket *ticket, bth_slice_parts *parts,
                                         berth_error *error)
{
    bth_slice_parts_sort(parts);
    for (size_t i = 1; i < parts->n; i++) {
        const bth_joint_part *before = &parts->parts[i - 1].part, *part = &parts->parts[i].part;
        if (part->storage == before->storage && part->at < before->at + before->nbytes)
            return bth_fail(error, BERTH_E_ARGUMENT,
                            bth_ticket_name_of_storage(ticket, part->storage), BERTH_NO_OFFSET,
                            "two slices have byte %" PRIu64 " of its storage", part->at);
    }
    return 0;
}

/* at[i]: where the tensor of slices[i] begins in the ticket. */
static int slices_add(slice_runs *runs, const berth_slice *slices, size_t n, size_t *at,
                      berth_error *error)
{
    for (size_t i = 0; i < n; i++) {
        runs->slice = &slices[i];
        if (BTH_CHECK_RESERVED(berth_slice, runs->slice, error) < 0)
            return bth_error_prefix_index(error, "slice", i);
        if (at[i] == BTH_NO_TENSOR || !bth_ticket_tensor_at(runs->ticket, &at[i], &runs->tensor))
            return bth_fail(error, BERTH_E_NOT_FOUND, slices[i].name, BERTH_NO_OFFSET,
                            "slice %zu: the outline has no such tensor whose bytes are elsewhere",
                            i);
        if (slice_add(runs, error) < 0)
            return error->code;
    }
    return 0;
}

int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bool can_exchange, bth_slice_parts *parts, berth_error *error)
{
    slice_runs runs = {.ticket = ticket, .can_exchange = can_exchange, .parts = parts};
    size_t *at = NULL;

    *parts = (bth_slice_parts){0};
    if (!slices && n_slices > 0)
        return bth_fail_argument(error, "the slices are NULL");
    if (bth_ticket_find_tensors(ticket, slices, n_slices, &at, error) == 0 &&
        slices_add(&runs, slices, n_slices, at, error) == 0)
        (void)parts_sort_and_check_overlaps(ticket, parts, error);
    bth_release(at);
    return error->code;
}

void bth_slice_parts_free_all(bth_slice_parts *parts)
{
    bth_release(parts->parts);
    bth_release(parts->boxes);
    bth_release(parts->fragments);
    for (bth_slice_copy *copy = parts->copies, *next; copy; copy = next) {
        next = copy->next;
        bth_release(copy);
    }
}
