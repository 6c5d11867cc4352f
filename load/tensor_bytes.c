/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading: bytes of tensors and storages. */
#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"
#include "load/transfer/transfer.h"

/* ---- addresses ---- */

const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                              berth_error *error)
{
    const uint8_t *memory = NULL;
    uint64_t offset = 0;

    BTH_ERROR_BEGIN_QUICKLY(error);
    if (bth_checkpoint_find_caller_tensor(checkpoint, tensor, &offset, error) == 0) {
        bth_prefetch_consume(checkpoint, tensor, 0, -1);
        if (bth_storage_load_and_get_memory(checkpoint, tensor->storage, &memory, error) == 0) {
            /* T5: a storage is aligned for its own dtype. A tensor with wider elements may begin at
             * any byte of it. */
            size_t unit = bth_dtype_swap_nbytes(tensor->dtype);
            if ((uintptr_t)(memory + offset) % unit != 0)
                (void)bth_fail_status(
                    error, BERTH_E_UNSUPPORTED,
                    "the elements are not aligned to %zu bytes: copy them with berth_tensor_read",
                    unit);
        }
    }
    if (error->code == BERTH_OK)
        return memory + offset;
    (void)bth_error_in_tensor(checkpoint, tensor, error);
    (void)bth_error_in_checkpoint(checkpoint, error);
    return NULL;
}

/* "[2, 3]"; a long one ends with "...". */
static void shape_write(const int64_t *shape, int32_t rank, char *text, size_t text_nbytes)
{
    size_t n = 1;

    (void)snprintf(text, text_nbytes, "[");
    for (int32_t d = 0; d < rank; d++) {
        if (d > 0)
            n += (size_t)snprintf(text + n, text_nbytes - n, ", ");
        if (n + 32 >= text_nbytes) {
            n += (size_t)snprintf(text + n, text_nbytes - n, "...");
            break;
        }
        if (shape[d] < 0)
            n += (size_t)snprintf(text + n, text_nbytes - n, "any");
        else
            n += (size_t)snprintf(text + n, text_nbytes - n, "%lld", (long long)shape[d]);
    }
    (void)snprintf(text + n, text_nbytes - n, "]");
}

const void *berth_expect(berth_checkpoint *checkpoint, const char *name, berth_dtype dtype,
                         int32_t rank, const int64_t *shape, berth_error *error)
{
    char expected[160], found[160];

    BTH_ERROR_BEGIN(error);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, error);
    if (!tensor)
        return NULL;
    bool has_shape = rank == 0 || (rank > 0 && shape);
    bool fits = has_shape && tensor->rank == rank;
    for (int32_t d = 0; fits && d < rank; d++)
        fits = shape[d] == -1 || shape[d] == tensor->shape[d];
    /* Its elements as they are stored. */
    const char *trouble = !berth_tensor_is_contiguous(tensor) ? "is not contiguous"
                          : tensor->flags & BERTH_CONJ        ? "is a view that conjugates"
                          : tensor->flags & BERTH_NEG         ? "is a view that negates"
                                                              : NULL;
    if (!has_shape) {
        (void)bth_fail_argument(error, "berth_expect needs a rank and a shape");
    } else if (!tensor->storage) { /* which only a meta tensor has not */
        (void)bth_fail_argument(error, "\"%.100s\" is a meta tensor: it has no data", name);
    } else if (tensor->dtype != dtype) {
        (void)bth_fail_argument(error, "\"%.100s\" has elements of %s, expected: %s", name,
                                berth_dtype_name(tensor->dtype), berth_dtype_name(dtype));
    } else if (!fits) {
        shape_write(tensor->shape, tensor->rank, found, sizeof found);
        shape_write(shape, rank, expected, sizeof expected);
        (void)bth_fail_argument(error, "\"%.100s\" has the shape %s, expected: %s", name, found,
                                expected);
    } else if (trouble) {
        (void)bth_fail_status(error, BERTH_E_UNSUPPORTED,
                              "\"%.100s\" %s: berth_tensor_read copies its elements", name,
                              trouble);
    } else {
        return berth_tensor_data(checkpoint, tensor, error);
    }
    (void)bth_error_in_checkpoint(checkpoint, error);
    return NULL;
}

/* ---- rows of a tensor that is neither contiguous nor in memory ---- */

/* Bytes of rows that are read at a time, unless one row is longer. */
#define ROWS_NBYTES ((int64_t)1 << 20)

/* A row: one index of the first dimension. Units are elements. All rows fit the storage (T2). */
typedef struct row_measures {
    int64_t numel;   /* of one row */
    int64_t stride;  /* from one to the next */
    int64_t extent;  /* from its first element to behind its last */
    int64_t n_batch; /* rows that are read at a time */
} row_measures;

/* n > 0. Reads each batch of rows with the gaps in it, and gathers its elements. */
static int tensor_read_row_batches(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                   row_measures row, int64_t first, int64_t n, uint8_t *out,
                                   berth_error *error)
{
    int64_t item_nbytes = (int64_t)berth_dtype_nbytes(tensor->dtype);
    int64_t max_rows = row.n_batch < tensor->shape[0] ? row.n_batch : tensor->shape[0];
    size_t nbytes = (size_t)(((max_rows - 1) * row.stride + row.extent) * item_nbytes);
    uint8_t *bytes = bth_allocate(nbytes);

    if (!bytes)
        return bth_fail_memory(error, nbytes);
    while (n > 0 && error->code == 0) {
        int64_t begin = first / row.numel;
        int64_t n_rows = max_rows < tensor->shape[0] - begin ? max_rows : tensor->shape[0] - begin;
        int64_t left = (begin + n_rows) * row.numel - first, now = n < left ? n : left;
        int64_t elements = ((first + now - 1) / row.numel - begin) * row.stride + row.extent;
        int64_t offset = tensor->storage_offset + begin * row.stride;
        berth_tensor part = *tensor;
        part.storage_offset -= offset;
        if (bth_storage_read(checkpoint, tensor->storage, bytes, (size_t)(elements * item_nbytes),
                             (uint64_t)(offset * item_nbytes), error) == 0)
            bth_tensor_gather(&part, bytes, first, now, out);
        out += now * item_nbytes;
        first += now;
        n -= now;
    }
    bth_release(bytes);
    return error->code;
}

int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error)
{
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    const uint8_t *memory;

    if (n == 0)
        return 0;
    bth_prefetch_consume(checkpoint, tensor, first, n);
    bool is_contiguous = berth_tensor_is_contiguous(tensor);
    if (bth_dtype_elements_per_item(tensor->dtype) > 1) { /* they can begin inside a byte */
        uint64_t offset;
        if (!bth_tensor_begins_at_whole_byte(tensor, &offset) || first != 0 ||
            n != berth_tensor_numel(tensor) || !is_contiguous)
            return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                                   "elements of %s are smaller than a byte: only the whole of a "
                                   "contiguous tensor can be read",
                                   berth_dtype_name(tensor->dtype));
        return bth_storage_read(checkpoint, tensor->storage, buffer, berth_tensor_nbytes(tensor),
                                offset, error);
    }
    bool is_in_memory = bth_storage_is_loaded_or_will_be_mapped(checkpoint, tensor->storage);
    if (!is_contiguous && !is_in_memory) {
        const berth_storage *root = bth_storage_root(tensor->storage);
        bool is_on_device = bth_storage_get_target(checkpoint, root).range.device;
        int64_t max_numel = ROWS_NBYTES / (int64_t)item_nbytes;
        row_measures row = {.numel = berth_tensor_numel(tensor) / tensor->shape[0],
                            .stride = tensor->stride[0],
                            .extent = 1,
                            .n_batch = 1};
        for (int32_t d = 1; d < tensor->rank; d++)
            row.extent += (tensor->shape[d] - 1) * tensor->stride[d];
        /* Whether the rows are a small part of the storage. Else (many rows, or overlapping rows) a
         * batch is all of it, so that the storage is read once. */
        int64_t n_rows = (first + n - 1) / row.numel - first / row.numel;
        bool is_worth_it = (uint64_t)(n_rows * row.stride + row.extent) <=
                           tensor->storage->nbytes / item_nbytes / 2;
        if (!is_worth_it || row.stride == 0)
            row.n_batch = tensor->shape[0];
        else if (max_numel > row.extent)
            row.n_batch = 1 + (max_numel - row.extent) / row.stride;
        if (is_worth_it || is_on_device)
            return tensor_read_row_batches(checkpoint, tensor, row, first, n, buffer, error);
    }
    if ((!is_contiguous || is_in_memory) &&
        bth_storage_load_and_get_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    if (is_contiguous) /* if the storage is not in memory, only these elements are read */
        return bth_storage_read(checkpoint, tensor->storage, buffer, (uint64_t)n * item_nbytes,
                                (uint64_t)(tensor->storage_offset + first) * item_nbytes, error);
    bth_tensor_gather(tensor, memory, first, n, buffer);
    return 0;
}

int berth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                      int64_t n, void *buffer, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) == 0) {
        int64_t numel = berth_tensor_numel(tensor);
        if (first < 0 || n < 0 || first > numel || n > numel - first)
            (void)bth_fail_argument(
                error, "%lld elements from element %lld on were requested, but the tensor has %lld",
                (long long)n, (long long)first, (long long)numel);
        else if (!buffer && n > 0)
            (void)bth_fail_argument(error, "the buffer is NULL");
        else if (bth_tensor_read(checkpoint, tensor, first, n, buffer, error) == 0)
            (void)bth_tensor_resolve_bits(tensor, n, buffer, error);
    }
    (void)bth_error_in_tensor(checkpoint, tensor, error);
    return bth_error_in_checkpoint(checkpoint, error);
}

int bth_storage_read_elements_for_save(const berth_storage *storage, const berth_tensor *tensor,
                                       int64_t first, int64_t n, void *buffer, berth_error *error)
{
    bth_storage_state *stored = storage->context;

    (void)bth_tensor_read(stored->checkpoint, tensor, first, n, buffer, error);
    return bth_error_in_checkpoint(stored->checkpoint, error);
}

/* ---- slices ---- */

/* Shorter runs are read together with all gaps between them, */
#define RUN_MIN_NBYTES 512
/* those in a file with a page or more between them only if they are shorter than this. */
#define RUN_SPARSE_MIN_NBYTES 64
/* Shorter runs are read together with gaps below a page. */
#define RUN_EXACT_MIN_NBYTES 2048
/* Longer ones with gaps of this part of a run. */
#define RUN_GAP_PART 20
/* Ranges that one transfer reads. */
#define MAX_RANGES 4096

/* A slice as runs: elements of a run are adjacent in the storage. */
typedef struct slice_runs {
    const berth_tensor *slice;
    int32_t n_inner; /* the last dimensions form a run */
    int64_t numel;   /* of one run */
    int64_t n;       /* number of runs */
    uint64_t item_nbytes;
} slice_runs;

/*
 * Whether the runs are read one by one, as ranges of transfers. Not if they are not in the
 * storage's order, or overlap; nor if they are short, and either the gaps are, too, or a request
 * may cost more than a call of the system.
 */
static bool slice_is_read_by_runs(berth_checkpoint *checkpoint, const slice_runs *runs)
{
    const berth_tensor *slice = runs->slice;
    const berth_storage *root = bth_storage_root(slice->storage);
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    int32_t n_outer = slice->rank - runs->n_inner;
    uint64_t nbytes = (uint64_t)runs->numel * runs->item_nbytes;
    int64_t extent = runs->numel;

    if (runs->n <= 1)
        return false;
    for (int32_t d = n_outer; d-- > 0;) {
        if (slice->shape[d] > 1 && slice->stride[d] < extent)
            return false;
        extent = (slice->shape[d] - 1) * slice->stride[d] + extent;
    }
    uint64_t gap_nbytes = (uint64_t)(slice->stride[n_outer - 1] - runs->numel) * runs->item_nbytes;
    if (nbytes < RUN_MIN_NBYTES &&
        (nbytes < RUN_SPARSE_MIN_NBYTES || !bth_reader_is_near(&checkpoint->source.reader) ||
         gap_nbytes < BTH_PAGE_NBYTES))
        return false;
    return runs->item_nbytes % stored->unit == 0 && !stored->is_ambiguous &&
           checkpoint->config.load_check < BTH_CHECK_DATA && !stored->deflated &&
           !bth_storage_is_loaded_or_will_be_mapped(checkpoint, slice->storage) &&
           !bth_storage_get_target(checkpoint, root).range.device;
}

/*
 * Gaps between runs are read, up to a length. From a file in memory, runs of 2 KiB and more take
 * less time one by one than with gaps of their size, shorter ones more; docs/performance.md has the
 * figures. What a request for a URL costs is not known: the gaps are those of all transfers (0).
 */
static int slice_read_runs(berth_checkpoint *checkpoint, const slice_runs *runs, bth_range *ranges,
                           uint8_t *buffer, berth_error *error)
{
    const berth_tensor *slice = runs->slice;
    const berth_storage *storage = slice->storage, *root = bth_storage_root(storage);
    uint64_t base = root->offset + storage->root_offset;
    uint64_t nbytes = (uint64_t)runs->numel * runs->item_nbytes, gap_nbytes = 0;
    bool through_cache = checkpoint->prefetches.own != NULL || nbytes < BTH_DIRECT_EXACT_MIN_NBYTES;

    if (bth_reader_is_near(&checkpoint->source.reader))
        gap_nbytes = nbytes < RUN_EXACT_MIN_NBYTES ? BTH_PAGE_NBYTES - 1
                                                   : bth_min(nbytes / RUN_GAP_PART, BTH_GAP_NBYTES);
    for (int64_t i = 0; i < runs->n && error->code == 0;) {
        bth_transfer transfer = {
            .config = &checkpoint->config,
            .calls = {.context = checkpoint, .name = bth_range_add_storage_to_error},
            .requests = {.ranges = ranges, .use = BTH_USE_CALLER, .gap_nbytes = gap_nbytes}};
        size_t n = 0;
        for (; i < runs->n && n < MAX_RANGES; i++, buffer += nbytes) {
            int64_t element = slice->storage_offset, left = i; /* the first of run i */
            for (int32_t d = slice->rank - runs->n_inner; d-- > 0; left /= slice->shape[d])
                element += left % slice->shape[d] * slice->stride[d];
            ranges[n++] = (bth_range){.owner = root,
                                      .offset = base + (uint64_t)element * runs->item_nbytes,
                                      .nbytes = nbytes,
                                      .unit = checkpoint->storages.stored[root->index].unit,
                                      .memory = buffer};
        }
        transfer.requests.n_ranges = n;
        (void)bth_transfer_once(&transfer, &checkpoint->source.reader, through_cache, error);
    }
    return error->code;
}

static int slice_read(berth_checkpoint *checkpoint, const berth_tensor *slice, void *buffer,
                      berth_error *error)
{
    int64_t numel = berth_tensor_numel(slice);

    if (numel == 0)
        return 0;
    if (!buffer)
        return bth_fail_argument(error, "the buffer is NULL");
    slice_runs runs = {
        .slice = slice, .numel = 1, .n = 1, .item_nbytes = berth_dtype_nbytes(slice->dtype)};
    int32_t d = slice->rank;
    for (; d > 0 && (slice->stride[d - 1] == runs.numel || slice->shape[d - 1] == 1); d--)
        runs.numel *= slice->shape[d - 1];
    runs.n_inner = slice->rank - d;
    for (; d > 0; d--)
        runs.n *= slice->shape[d - 1];
    if (bth_dtype_elements_per_item(slice->dtype) > 1 || !slice_is_read_by_runs(checkpoint, &runs))
        return bth_tensor_read(checkpoint, slice, 0, numel, buffer, error);
    bth_prefetch_consume(checkpoint, slice, 0, numel);
    size_t nbytes = (size_t)(runs.n < MAX_RANGES ? runs.n : MAX_RANGES) * sizeof(bth_range);
    bth_range *ranges = bth_allocate(nbytes);
    if (!ranges)
        return bth_fail_memory(error, nbytes);
    (void)slice_read_runs(checkpoint, &runs, ranges, buffer, error);
    bth_release(ranges);
    return error->code;
}

int berth_tensor_read_slice(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                            const int64_t *starts, const int64_t *lengths, void *buffer,
                            berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) == 0) {
        berth_tensor slice = *tensor; /* a view of it, with the shape `lengths` */
        bool is_empty = false;
        slice.shape = lengths;
        if (tensor->rank > 0 && (!starts || !lengths))
            (void)bth_fail_argument(error, "berth_tensor_read_slice needs starts and lengths");
        for (int32_t d = 0; d < tensor->rank && error->code == 0; d++) {
            if (starts[d] < 0 || lengths[d] < 0 || starts[d] > tensor->shape[d] ||
                lengths[d] > tensor->shape[d] - starts[d])
                (void)bth_fail_argument(error,
                                        "dimension %d: %lld elements from index %lld on were "
                                        "requested, but it has %lld",
                                        (int)d, (long long)lengths[d], (long long)starts[d],
                                        (long long)tensor->shape[d]);
            is_empty = is_empty || lengths[d] == 0;
        }
        /* T2: an empty one may lie outside. */
        for (int32_t d = 0; d < tensor->rank && error->code == 0 && !is_empty; d++)
            slice.storage_offset += starts[d] * tensor->stride[d];
        if (error->code == 0 && slice_read(checkpoint, &slice, buffer, error) == 0)
            (void)bth_tensor_resolve_bits(&slice, berth_tensor_numel(&slice), buffer, error);
    }
    (void)bth_error_in_tensor(checkpoint, tensor, error);
    return bth_error_in_checkpoint(checkpoint, error);
}
