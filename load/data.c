/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading: the bytes of tensors and storages. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "load/storages_load.h"
#include "load/transfer/read_into.h"

/*
 * T5: storages are aligned for what they hold, but a file may have a tensor of wide elements in the
 * middle of bytes.
 */
static int check_alignment(const berth_tensor *tensor, const uint8_t *first, berth_error *error)
{
    size_t unit = bth_dtype_swap_nbytes(tensor->dtype);

    if ((uintptr_t)first % unit == 0)
        return 0;
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET,
                    "the tensor's elements are not aligned to %zu bytes: berth_tensor_read copies "
                    "them",
                    unit);
}

const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                              berth_error *error)
{
    const uint8_t *memory = NULL;
    uint64_t offset = 0;

    BTH_ERROR_BEGIN_QUICKLY(error);
    if (bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        bth_prefetch_pass_tensor(checkpoint, tensor, 0, berth_tensor_numel(tensor));
        if (bth_tensor_first_byte(tensor, &offset, error) == 0 &&
            bth_storage_memory(checkpoint, tensor->storage, &memory, error) == 0)
            (void)check_alignment(tensor, memory + offset, error);
    }
    if (error->code == 0)
        return memory + offset;
    if (checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return NULL;
}

const void *berth_expect(berth_checkpoint *checkpoint, const char *name, berth_dtype dtype,
                         int32_t rank, const int64_t *shape, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const berth_value *value = berth_find(checkpoint, name, error);
    if (!value)
        return NULL;
    if (bth_tensor_check_expected(value, name, dtype, rank, shape, error) == 0)
        return berth_tensor_data(checkpoint, berth_as_tensor(value), error);
    (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return NULL;
}

static const berth_storage *root_of(const berth_tensor *tensor)
{
    return tensor->storage->root ? tensor->storage->root : tensor->storage;
}

const void *berth_storage_data(berth_checkpoint *checkpoint, const berth_storage *storage,
                               berth_error *error)
{
    const uint8_t *memory = NULL;

    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_storage(checkpoint, storage, error) == 0) {
        bth_prefetch_pass_storage(checkpoint, storage);
        (void)bth_storage_memory(checkpoint, storage, &memory, error);
    }
    if (error->code < 0 && checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code < 0 ? NULL : memory;
}

/* Sub-byte kinds only as a whole: their elements do not begin at bytes. */
static int read_subbyte(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                        int64_t n, void *buffer, berth_error *error)
{
    uint64_t offset;

    if (!bth_tensor_begins_at_byte(tensor, &offset) || first != 0 ||
        n != berth_tensor_numel(tensor) || !berth_tensor_is_contiguous(tensor))
        return bth_fail_subbyte(tensor, "only the whole of a contiguous tensor can be read", error);
    return bth_storage_read(checkpoint, tensor->storage, buffer, berth_tensor_nbytes(tensor),
                            offset, error);
}

/* ---- rows of what is neither mapped nor contiguous ---- */

/* Bytes of rows that are read at a time, unless one row is longer. */
#define ROWS_NBYTES ((int64_t)1 << 20)

/* What one index of the first dimension takes, in elements. Everything fits its storage (T2). */
typedef struct row_kind {
    int64_t numel;  /* of one row */
    int64_t stride; /* from one to the next */
    int64_t extent; /* from its first element to behind its last */
} row_kind;

static row_kind rows_of(const berth_tensor *tensor)
{
    row_kind row = {.numel = berth_tensor_numel(tensor) / tensor->shape[0],
                    .stride = tensor->stride[0],
                    .extent = 1};

    for (int32_t d = 1; d < tensor->rank; d++)
        row.extent += (tensor->shape[d] - 1) * tensor->stride[d];
    return row;
}

/* Whether a part of the storage is enough, and much less than all of it. */
static bool is_worth_it(const berth_tensor *tensor, row_kind row, int64_t first, int64_t n)
{
    int64_t n_rows = (first + n - 1) / row.numel - first / row.numel;
    uint64_t elements = (uint64_t)(n_rows * row.stride + row.extent);

    return elements <= tensor->storage->nbytes / berth_dtype_nbytes(tensor->dtype) / 2;
}

/* How many rows are read at a time. */
static int64_t rows_at_once(const berth_tensor *tensor, row_kind row)
{
    int64_t elements = ROWS_NBYTES / (int64_t)berth_dtype_nbytes(tensor->dtype);

    if (row.stride == 0)
        return tensor->shape[0];
    return elements > row.extent ? 1 + (elements - row.extent) / row.stride : 1;
}

/* n > 0. Each batch of rows with what lies between them, and of that the elements. */
static int read_rows(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                     int64_t n, uint8_t *out, berth_error *error)
{
    int64_t item_nbytes = (int64_t)berth_dtype_nbytes(tensor->dtype);
    row_kind row = rows_of(tensor);
    int64_t n_rows = rows_at_once(tensor, row);
    size_t room_nbytes = (size_t)(((n_rows - 1) * row.stride + row.extent) * item_nbytes);
    uint8_t *bytes = bth_allocate(room_nbytes);

    if (!bytes)
        return bth_fail_memory(error, room_nbytes);
    while (n > 0 && error->code == 0) {
        int64_t begin = first / row.numel;
        int64_t rows = tensor->shape[0] - begin < n_rows ? tensor->shape[0] - begin : n_rows;
        int64_t left = (begin + rows) * row.numel - first, now = n < left ? n : left;
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

/* ---- elements ---- */

/* From a device: all of the storage comes to the host for a moment. */
static int read_through(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                        int64_t n, void *buffer, berth_error *error)
{
    size_t nbytes = (size_t)tensor->storage->nbytes;
    uint8_t *bytes = bth_allocate(nbytes);

    if (!bytes)
        return bth_fail_memory(error, nbytes);
    if (bth_storage_read(checkpoint, tensor->storage, bytes, nbytes, 0, error) == 0)
        bth_tensor_gather(tensor, bytes, first, n, buffer);
    bth_release(bytes);
    return error->code;
}

/* Of what is neither memory nor mapped only they are read, not all of the storage. */
static int read_contiguous(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                           int64_t n, void *buffer, berth_error *error)
{
    uint64_t item_nbytes = berth_dtype_nbytes(tensor->dtype);
    const uint8_t *memory;

    if (bth_storage_is_at_hand(checkpoint, tensor->storage) &&
        bth_storage_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    return bth_storage_read(checkpoint, tensor->storage, buffer, (uint64_t)n * item_nbytes,
                            (uint64_t)(tensor->storage_offset + first) * item_nbytes, error);
}

int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error)
{
    const uint8_t *memory;

    if (n == 0)
        return 0;
    bth_prefetch_pass_tensor(checkpoint, tensor, first, n);
    if (bth_dtype_elements(tensor->dtype) > 1)
        return read_subbyte(checkpoint, tensor, first, n, buffer, error);
    if (berth_tensor_is_contiguous(tensor))
        return read_contiguous(checkpoint, tensor, first, n, buffer, error);
    bool at_hand = bth_storage_is_at_hand(checkpoint, tensor->storage);
    if (!at_hand && is_worth_it(tensor, rows_of(tensor), first, n))
        return read_rows(checkpoint, tensor, first, n, buffer, error);
    if (!at_hand && bth_storage_placed(checkpoint, root_of(tensor)).device)
        return read_through(checkpoint, tensor, first, n, buffer, error);
    if (bth_storage_memory(checkpoint, tensor->storage, &memory, error) < 0)
        return error->code;
    bth_tensor_gather(tensor, memory, first, n, buffer);
    return 0;
}

/* ---- slices ---- */

/* So few bytes in a row are gathered from what lies between them, too. */
#define RUN_MIN_NBYTES 512
/* Ranges that one transfer reads. */
#define RANGES_MAX 4096

/* The rows of a slice that lie together in the storage, in the order of the storage. */
typedef struct slice_runs {
    const berth_tensor *slice;
    int32_t n_inner; /* dimensions of one run: the last ones */
    int64_t numel;   /* of one run */
    int64_t n;       /* runs */
    uint64_t item_nbytes;
} slice_runs;

/* Whether every step of the outer dimensions goes behind all of the inner ones. */
static bool slice_is_ascending(const berth_tensor *slice, int32_t n_outer, int64_t run_numel)
{
    int64_t extent = run_numel;

    for (int32_t d = n_outer; d-- > 0;) {
        if (slice->shape[d] > 1 && slice->stride[d] < extent)
            return false;
        extent = (slice->shape[d] - 1) * slice->stride[d] + extent;
    }
    return true;
}

static slice_runs slice_divide(const berth_tensor *slice)
{
    slice_runs runs = {
        .slice = slice, .numel = 1, .n = 1, .item_nbytes = berth_dtype_nbytes(slice->dtype)};
    int32_t d = slice->rank;

    for (; d > 0 && (slice->stride[d - 1] == runs.numel || slice->shape[d - 1] == 1); d--)
        runs.numel *= slice->shape[d - 1];
    runs.n_inner = slice->rank - d;
    for (; d > 0; d--)
        runs.n *= slice->shape[d - 1];
    return runs;
}

/* Whether its runs are worth requests of their own, and are swapped as they are. */
static bool slice_is_worth_it(berth_checkpoint *checkpoint, const slice_runs *runs)
{
    const berth_storage *root = root_of(runs->slice);
    const bth_stored *stored = &checkpoint->storages.stored[root->index];

    return runs->n > 1 && (uint64_t)runs->numel * runs->item_nbytes >= RUN_MIN_NBYTES &&
           slice_is_ascending(runs->slice, runs->slice->rank - runs->n_inner, runs->numel) &&
           runs->item_nbytes % stored->unit == 0 && !stored->is_ambiguous &&
           checkpoint->config.load_check < BTH_CHECK_DATA &&
           !bth_storage_is_at_hand(checkpoint, runs->slice->storage) &&
           !bth_storage_placed(checkpoint, root).device;
}

/* The first element of run i, in the storage. */
static int64_t slice_run_offset(const slice_runs *runs, int64_t i)
{
    int64_t offset = runs->slice->storage_offset;

    for (int32_t d = runs->slice->rank - runs->n_inner; d-- > 0;) {
        offset += i % runs->slice->shape[d] * runs->slice->stride[d];
        i /= runs->slice->shape[d];
    }
    return offset;
}

static int slice_name(void *context, const bth_range *range, berth_error *error)
{
    return bth_error_in_storage(context, range->owner, error);
}

static int slice_read_runs(berth_checkpoint *checkpoint, const slice_runs *runs, bth_range *ranges,
                           uint8_t *buffer, berth_error *error)
{
    const berth_storage *storage = runs->slice->storage, *root = root_of(runs->slice);
    uint64_t base = root->offset + (storage->root ? storage->root_offset : 0);
    uint64_t nbytes = (uint64_t)runs->numel * runs->item_nbytes;

    for (int64_t i = 0; i < runs->n && error->code == 0;) {
        bth_transfer transfer = {.config = &checkpoint->config,
                                 .calls = {.context = checkpoint, .name = slice_name},
                                 .requests = {.ranges = ranges, .use = BTH_USE_CALLER}};
        size_t n = 0;
        for (; i < runs->n && n < RANGES_MAX; i++, buffer += nbytes)
            ranges[n++] = (bth_range){.owner = root,
                                      .offset = base + (uint64_t)slice_run_offset(runs, i) *
                                                           runs->item_nbytes,
                                      .nbytes = nbytes,
                                      .unit = checkpoint->storages.stored[root->index].unit,
                                      .memory = buffer};
        transfer.requests.n_ranges = n;
        (void)bth_transfer_once(&transfer, &checkpoint->source.reader,
                                checkpoint->prefetches.own != NULL, error);
    }
    return error->code;
}

static int slice_read(berth_checkpoint *checkpoint, const berth_tensor *slice, void *buffer,
                      berth_error *error)
{
    int64_t numel = berth_tensor_numel(slice);

    if (numel == 0)
        return 0;
    slice_runs runs = slice_divide(slice);
    if (bth_dtype_elements(slice->dtype) > 1 || !slice_is_worth_it(checkpoint, &runs))
        return bth_tensor_read(checkpoint, slice, 0, numel, buffer, error);
    bth_prefetch_pass_tensor(checkpoint, slice, 0, numel);
    size_t nbytes = (size_t)(runs.n < RANGES_MAX ? runs.n : RANGES_MAX) * sizeof(bth_range);
    bth_range *ranges = bth_allocate(nbytes);
    if (!ranges)
        return bth_fail_memory(error, nbytes);
    (void)slice_read_runs(checkpoint, &runs, ranges, buffer, error);
    bth_release(ranges);
    return error->code;
}

/* *slice views the elements of the slice; its shape is `lengths`. */
static int slice_of(const berth_tensor *tensor, const int64_t *starts, const int64_t *lengths,
                    berth_tensor *slice, berth_error *error)
{
    bool is_empty = false;

    *slice = *tensor;
    slice->shape = lengths;
    for (int32_t d = 0; d < tensor->rank; d++) {
        if (starts[d] < 0 || lengths[d] < 0 || starts[d] > tensor->shape[d] ||
            lengths[d] > tensor->shape[d] - starts[d])
            return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                            "dimension %d: %lld elements from %lld on, the tensor has %lld", (int)d,
                            (long long)lengths[d], (long long)starts[d],
                            (long long)tensor->shape[d]);
        is_empty = is_empty || lengths[d] == 0;
    }
    for (int32_t d = 0; d < tensor->rank && !is_empty; d++) /* T2: an empty one may lie outside */
        slice->storage_offset += starts[d] * tensor->stride[d];
    return 0;
}

int berth_tensor_read_slice(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                            const int64_t *starts, const int64_t *lengths, void *buffer,
                            berth_error *error)
{
    berth_tensor slice;

    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        if (tensor->rank > 0 && (!starts || !lengths))
            (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                           "berth_tensor_read_slice needs starts and lengths");
        else if (slice_of(tensor, starts, lengths, &slice, error) == 0) {
            if (!buffer && berth_tensor_numel(&slice) > 0)
                (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                               "there is no buffer");
            else
                (void)slice_read(checkpoint, &slice, buffer, error);
        }
    }
    if (error->code < 0 && checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}

/* ---- elements, in public ---- */

int berth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                      int64_t n, void *buffer, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0) {
        int64_t numel = berth_tensor_numel(tensor);
        if (first < 0 || n < 0 || first > numel || n > numel - first || (!buffer && n > 0))
            (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                           "%lld elements from %lld on are asked for, the tensor has %lld",
                           (long long)n, (long long)first, (long long)numel);
        else
            (void)bth_tensor_read(checkpoint, tensor, first, n, buffer, error);
    }
    if (error->code < 0 && checkpoint)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}
