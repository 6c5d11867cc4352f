/* SPDX-License-Identifier: BSD-3-Clause */
/* Slices of tensors, as ranges of storages; and the ends of these, which neighbours share. */
#include "save/joint/joint_writer.h"

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

/* runs->data: nbytes > 0 that this process can read: the caller's, or a copy of those on a device,
 * which come to the host as a whole. */
static int slice_find_data(slice_runs *runs, uint64_t nbytes, berth_error *error)
{
    const berth_slice *slice = runs->slice;
    const uint8_t *data = slice->data;
    const uintptr_t address = (uintptr_t)data;

    runs->data = data;
    if (!data)
        return slice_fail(runs, "the data are NULL", error);
    if (slice->device) {
        bool fits = nbytes <= SIZE_MAX - sizeof(bth_slice_copy);
        bth_slice_copy *copy = fits ? bth_allocate(sizeof *copy + (size_t)nbytes) : NULL;
        bth_device_handle *device;
        if (copy) {
            copy->next = runs->parts->copies;
            runs->parts->copies = copy;
            runs->data = copy->bytes;
        } else
            (void)bth_fail_memory(error, nbytes);
        if (copy && bth_wing_device.open(slice->device, &device, error) == 0 &&
            bth_wing_device.check_memory(device, address, (size_t)nbytes, error) == 0)
            (void)bth_wing_device.copy_to_host_and_wait(device, copy->bytes, address,
                                                        (size_t)nbytes, slice->ready, error);
    } else if (!byte_can_be_read(data) || !byte_can_be_read(data + (nbytes - 1)))
        (void)bth_fail_argument(error,
                                "%llu bytes at 0x%zx are not memory that the host can read: if "
                                "they lie on a device, name it in berth_slice.device",
                                (unsigned long long)nbytes, (size_t)address);
    return bth_error_prefix(error, slice->name);
}

int bth_slice_parts_append(bth_slice_parts *parts, const bth_joint_part *part, const uint8_t *bytes,
                           berth_error *error)
{
    bth_slice_part *grown =
        bth_items_grow(parts->parts, parts->n, 1, &parts->room, sizeof *grown, error);

    if (!grown)
        return error->code;
    parts->parts = grown;
    parts->parts[parts->n++] = (bth_slice_part){.part = *part, .bytes = bytes};
    return 0;
}

/* If bytes are swapped, no element is cut, neither by the slice nor by a block. `edges`: all
 * offsets in the storage and lengths that have to be multiples. */
static int slice_check_swapped(const slice_runs *runs, uint64_t edges, berth_error *error)
{
    const bth_ticket_storage *storage = &runs->ticket->storages[runs->tensor.storage];
    uint64_t mask = storage->swap_nbytes - 1;

    if (((storage->data_offset | edges) & mask) == 0)
        return 0;
    return slice_fail(runs,
                      "save.byteorder swaps its bytes, and an element is cut by the slice, or by a "
                      "block (save.storage_alignment=64 avoids that)",
                      error);
}

/* ---- boxes ---- */

/*
 * A box of a tensor as runs on a grid. It lies in the tensor, which has elements and is in its
 * storage: no product overflows. Dimensions of the grid without gaps between them become one.
 * False: an item of several elements is cut.
 */
static bool box_make(const bth_ticket_tensor *tensor, const int64_t *starts, const int64_t *lengths,
                     bth_short_box *box)
{
    const uint64_t per_item = (uint64_t)bth_dtype_elements_per_item(tensor->dtype);
    const uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    uint64_t first = 0, run_elements = 1, numel = 1, edges = 0;
    int32_t n_outer = tensor->rank - 1; /* dimensions that a run does not cross */
    int64_t stride[BERTH_MAX_RANK];

    bth_contiguous_stride(tensor->shape, tensor->rank, stride);
    while (n_outer > 0 && lengths[n_outer] == tensor->shape[n_outer])
        n_outer--;
    *box = (bth_short_box){.storage = tensor->storage, .n_runs = 1};
    for (int32_t i = 0; i < tensor->rank; i++) {
        uint64_t length = (uint64_t)lengths[i];
        first += (uint64_t)starts[i] * (uint64_t)stride[i];
        numel *= (uint64_t)tensor->shape[i];
        if (i >= n_outer) {
            run_elements *= length;
            continue;
        }
        box->n_runs *= length;
        edges |= length > 1 ? (uint64_t)stride[i] : 0;
        int32_t last = box->n_dims - 1;
        if (last >= 0 && lengths[i] == tensor->shape[i])
            length *= box->lengths[last];
        else
            last = box->n_dims++;
        box->lengths[last] = length;
        box->strides[last] = (uint64_t)stride[i] / per_item * item_nbytes;
    }
    /* A single run may end within an item, with its tensor. */
    edges |= first | (box->n_runs == 1 && first + run_elements == numel ? 0 : run_elements);
    box->run_nbytes =
        (run_elements + (box->n_runs == 1 ? per_item - 1 : 0)) / per_item * item_nbytes;
    box->at = tensor->offset + first / per_item * item_nbytes;
    box->end = box->at + box->run_nbytes;
    for (int32_t i = 0; i < box->n_dims; i++)
        box->end += (box->lengths[i] - 1) * box->strides[i];
    return (edges & (per_item - 1)) == 0; /* a power of two */
}

/* Long runs become parts, short ones a box. */
static int slice_add_box(slice_runs *runs, const int64_t *starts, const int64_t *lengths,
                         berth_error *error)
{
    const bth_ticket_tensor *tensor = &runs->tensor;
    bth_slice_parts *parts = runs->parts;
    bool is_empty = false;
    bth_short_box box;

    for (int32_t i = 0; i < tensor->rank; i++) {
        if (starts[i] < 0 || lengths[i] < 0 || starts[i] > tensor->shape[i] ||
            lengths[i] > tensor->shape[i] - starts[i])
            return bth_fail(error, BERTH_E_ARGUMENT, runs->slice->name, BERTH_NO_OFFSET,
                            "%" PRId64 " elements from %" PRId64
                            " on are not in dimension %d of %" PRId64,
                            lengths[i], starts[i], i, tensor->shape[i]);
        is_empty |= lengths[i] == 0;
    }
    if (is_empty)
        return 0;
    if (!tensor->is_contiguous)
        return slice_fail(runs, "it is not contiguous: give bytes of its storage", error);
    bool cuts_no_item = box_make(tensor, starts, lengths, &box);
    uint64_t edges = box.at | box.run_nbytes;
    for (int32_t i = 0; i < box.n_dims; i++)
        edges |= box.lengths[i] > 1 ? box.strides[i] : 0;
    const bool is_short = box.n_runs > 1 && box.run_nbytes < MIN_RUN_NBYTES;
    if (is_short && !runs->can_exchange)
        return bth_fail(error, BERTH_E_UNSUPPORTED, runs->slice->name, BERTH_NO_OFFSET,
                        "the slice lies in pieces of %" PRIu64
                        " bytes, and pieces shorter than %" PRIu64
                        " are not written side by side: slice the first dimension, give the whole "
                        "tensor to one writer, or give all writers an exchange (berth_params)",
                        box.run_nbytes, MIN_RUN_NBYTES);
    if (!cuts_no_item)
        return slice_fail(runs, "the slice cuts an item of several elements", error);
    if (slice_check_swapped(runs, edges, error) < 0 ||
        slice_find_data(runs, box.n_runs * box.run_nbytes, error) < 0)
        return error->code;
    box.bytes = runs->data;
    if (is_short) {
        bth_short_box *grown = bth_items_grow(parts->boxes, parts->n_boxes, 1, &parts->boxes_room,
                                              sizeof *grown, error);
        if (!grown)
            return error->code;
        parts->boxes = grown;
        parts->boxes[parts->n_boxes++] = box;
        return 0;
    }
    for (uint64_t i = 0; i < box.n_runs; i++) {
        const bth_joint_part part = {.storage = box.storage & BTH_MAX_JOINT_STORAGES,
                                     .at = bth_short_box_run_at(&box, i),
                                     .nbytes = box.run_nbytes};
        if (bth_slice_parts_append(parts, &part, box.bytes + i * box.run_nbytes, error) < 0)
            return error->code;
    }
    return 0;
}

/* ---- slices ---- */

static int slice_add(slice_runs *runs, berth_error *error)
{
    static const int64_t zeros[BERTH_MAX_RANK];
    const berth_slice *slice = runs->slice;
    const uint64_t at = slice->offset, nbytes = slice->nbytes;
    const uint64_t all = runs->ticket->storages[runs->tensor.storage].nbytes;
    const bth_joint_part part = {
        .storage = runs->tensor.storage & BTH_MAX_JOINT_STORAGES, .at = at, .nbytes = nbytes};

    if (slice->kind == BERTH_SLICE_WHOLE)
        return slice_add_box(runs, zeros, runs->tensor.shape, error);
    if (slice->kind == BERTH_SLICE_BOX && runs->tensor.rank > 0 &&
        (!slice->starts || !slice->lengths))
        return slice_fail(runs, "starts or lengths are NULL", error);
    if (slice->kind == BERTH_SLICE_BOX)
        return slice_add_box(runs, slice->starts, slice->lengths, error);
    if (slice->kind != BERTH_SLICE_BYTES)
        return slice_fail(runs, "invalid kind of slice", error);
    if (at > all || nbytes > all - at)
        return bth_fail(error, BERTH_E_ARGUMENT, slice->name, BERTH_NO_OFFSET,
                        "bytes %" PRIu64 " to %" PRIu64 " are not in its storage of %" PRIu64
                        " bytes",
                        at, at + nbytes, all);
    if (nbytes == 0)
        return 0;
    if (slice_find_data(runs, nbytes, error) < 0 ||
        slice_check_swapped(runs, at | nbytes, error) < 0)
        return error->code;
    return bth_slice_parts_append(runs->parts, &part, runs->data, error);
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

int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bool can_exchange, bth_slice_parts *parts, berth_error *error)
{
    slice_runs runs = {.ticket = ticket, .can_exchange = can_exchange, .parts = parts};
    size_t *at = NULL; /* where the tensor of each begins in the ticket */

    *parts = (bth_slice_parts){0};
    if (!slices && n_slices > 0)
        return bth_fail_argument(error, "the slices are NULL");
    (void)bth_ticket_find_tensors_of_slices(ticket, slices, n_slices, &at, error);
    for (size_t i = 0; i < n_slices && error->code == BERTH_OK; i++) {
        runs.slice = &slices[i];
        if (BTH_CHECK_RESERVED(berth_slice, runs.slice, error) < 0)
            (void)bth_error_prefix_index(error, "slice", i);
        else if (!bth_ticket_next_tensor(ticket, &at[i], &runs.tensor))
            (void)bth_fail(error, BERTH_E_NOT_FOUND, slices[i].name, BERTH_NO_OFFSET,
                           "slice %zu: the outline has no such tensor whose bytes are elsewhere",
                           i);
        else
            (void)slice_add(&runs, error);
    }
    bth_release(at);
    bth_slice_parts_sort(parts);
    for (size_t i = 1; i < parts->n && error->code == BERTH_OK; i++) {
        const bth_joint_part *before = &parts->parts[i - 1].part, *part = &parts->parts[i].part;
        if (part->storage == before->storage && part->at < before->at + before->nbytes)
            (void)bth_fail(error, BERTH_E_ARGUMENT,
                           bth_ticket_name_of_storage(ticket, part->storage), BERTH_NO_OFFSET,
                           "two slices have byte %" PRIu64 " of its storage", part->at);
    }
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

/* ---- chains ---- */

/* Whether the part would have a middle as the first of a chain, or as the last one. */
static bool part_has_middle(const bth_ticket *ticket, bth_joint_part part, bool is_first)
{
    part.is_chained_behind = is_first;
    part.is_chained_before = !is_first;
    return bth_joint_part_split(ticket, &part).middle.nbytes > 0;
}

void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts)
{
    bth_slice_part *part = parts->parts;

    for (size_t first = 0, behind; first < parts->n; first = behind) {
        size_t last = first;
        while (last + 1 < parts->n &&
               bth_joint_parts_can_chain(ticket, &part[last].part, &part[last + 1].part))
            last++;
        behind = last + 1;
        while (first < last && !part_has_middle(ticket, part[first].part, true))
            first++;
        while (first < last && !part_has_middle(ticket, part[last].part, false))
            last--;
        for (; first < last; first++) {
            part[first].part.is_chained_behind = 1;
            part[first + 1].part.is_chained_before = 1;
        }
    }
}

/* ---- fragments ---- */

/* What is exchanged of a part: so many bytes at its begin, and at its end. */
typedef struct part_ends {
    uint64_t head_nbytes;
    uint64_t tail_nbytes;
} part_ends;

/* J1, J2: only from blocks that lie in the storage as a whole. No offset is near 2^64: the ticket's
 * file has less than 2^63 bytes. */
static part_ends part_measure_fragments(const bth_ticket *ticket, const bth_joint_part *part)
{
    const bth_ticket_storage *storage = &ticket->storages[part->storage];
    uint64_t mask = ticket->block_nbytes - 1;
    uint64_t first = (storage->data_offset + mask) & ~mask;
    uint64_t behind = (storage->data_offset + storage->nbytes) & ~mask;
    uint64_t begin = storage->data_offset + part->at, end = begin + part->nbytes;
    part_ends ends = {0};

    if (begin >= first && begin < behind)
        ends.head_nbytes = bth_min((begin + mask) & ~mask, end) - begin;
    if (end > first && end <= behind)
        ends.tail_nbytes = end - bth_max(end & ~mask, begin + ends.head_nbytes);
    return ends;
}

uint64_t bth_fragments_count_nbytes(const bth_ticket *ticket, const bth_slice_parts *parts)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < parts->n; i++) {
        part_ends ends = part_measure_fragments(ticket, &parts->parts[i].part);
        nbytes += ends.head_nbytes + ends.tail_nbytes;
    }
    return nbytes;
}

/* Bytes [from, from + nbytes) of a part. There is room. */
static void fragments_add(bth_slice_parts *parts, const bth_slice_part *whole, uint64_t from,
                          uint64_t nbytes)
{
    bth_slice_part *added = &parts->fragments[parts->n_fragments];

    if (nbytes == 0)
        return;
    *added = (bth_slice_part){
        .part = {.storage = whole->part.storage, .at = whole->part.at + from, .nbytes = nbytes},
        .bytes = whole->bytes + from};
    parts->n_fragments++;
}

int bth_fragments_take(const bth_ticket *ticket, bth_slice_parts *parts, berth_error *error)
{
    size_t nbytes = bth_array_nbytes(2 * parts->n + 1, sizeof *parts->fragments), n = 0;

    parts->fragments = bth_allocate(nbytes);
    if (!parts->fragments)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < parts->n; i++) {
        bth_slice_part *part = &parts->parts[i];
        part_ends ends = part_measure_fragments(ticket, &part->part);
        uint64_t left = part->part.nbytes - ends.head_nbytes - ends.tail_nbytes;
        fragments_add(parts, part, 0, ends.head_nbytes);
        fragments_add(parts, part, part->part.nbytes - ends.tail_nbytes, ends.tail_nbytes);
        part->part.at += ends.head_nbytes;
        part->part.nbytes = left;
        part->bytes += ends.head_nbytes;
        if (left > 0)
            parts->parts[n++] = *part;
    }
    parts->n = n;
    return 0;
}
