/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: the indices of sparse tensors. They are read in order through one buffer, whatever their
 * strides. What is refused is what torch.load refuses with check_sparse_tensor_invariants.
 */
#include <inttypes.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "format/values/walk.h"
#include "load/index_stream.h"

/*
 * Views can repeat their storage's elements, 2^60 times from 8 bytes. So a check reads at most this
 * many elements, and some times as many as the storages have.
 */
#define FREE_ELEMENTS ((uint64_t)1 << 28)
#define MAX_REPETITIONS 16

/* A sparse tensor. */
typedef struct sparse_tensor {
    berth_layout_kind layout;
    const int64_t *shape;
    const berth_tensor *parts[3];
    bool is_coalesced;
} sparse_tensor;

/* ---- COO ---- */

/* indices [sparse dimensions, n] */
typedef struct coo_check {
    bth_index_stream streams[BERTH_MAX_RANK]; /* one for each dimension */
    int64_t last[BERTH_MAX_RANK], now[BERTH_MAX_RANK];
    int32_t n_dimensions;
    const sparse_tensor *sparse;
} coo_check;

static int coo_take_index(coo_check *coo, int64_t i)
{
    for (int32_t d = 0; d < coo->n_dimensions; d++) {
        int64_t size = coo->sparse->shape[d];
        if (!bth_index_stream_next(&coo->streams[d], &coo->now[d]))
            return coo->streams[d].check->error->code;
        if (coo->now[d] < 0 || coo->now[d] >= size)
            return bth_index_stream_fail(&coo->streams[d],
                                         "indices[%d, %" PRId64 "] is %" PRId64
                                         ", but dimension %d has the size %" PRId64,
                                         d, i, coo->now[d], d, size);
    }
    return 0;
}

/* Whether the index comes after the last one, in the order of the elements. */
static bool coo_index_is_greater(const coo_check *coo)
{
    for (int32_t d = 0; d < coo->n_dimensions; d++)
        if (coo->now[d] != coo->last[d])
            return coo->now[d] > coo->last[d];
    return false;
}

static int coo_fail_not_coalesced(const coo_check *coo, int64_t i)
{
    char now[128], last[128];

    return bth_index_stream_fail(&coo->streams[0],
                                 "indices[:, %" PRId64
                                 "] is %s, but must come after %s: the tensor is "
                                 "marked as coalesced",
                                 i, bth_index_numbers_text(coo->now, coo->n_dimensions, "()", now),
                                 bth_index_numbers_text(coo->last, coo->n_dimensions, "()", last));
}

/* If all indices are one, as in an expanded view, only the first is read. */
static int64_t coo_count_different(const berth_tensor *indices)
{
    int64_t n = indices->shape[1];

    return n > 1 && indices->stride[1] == 0 ? 1 : n;
}

static int coo_check_indices(bth_indices_check *check, const sparse_tensor *sparse)
{
    const berth_tensor *indices = sparse->parts[0];
    int64_t n = coo_count_different(indices);
    coo_check coo = {.sparse = sparse, .n_dimensions = (int32_t)indices->shape[0]};

    for (int32_t d = 0; d < coo.n_dimensions; d++) {
        coo.streams[d] =
            bth_index_stream_begin(check, indices, d * indices->stride[0], indices->stride[1], n);
        bth_index_stream_set_buffer(&coo.streams[d], (size_t)d, (size_t)coo.n_dimensions);
    }
    for (int64_t i = 0; i < n && coo.n_dimensions > 0; i++) {
        if (coo_take_index(&coo, i) < 0)
            return check->error->code;
        if (sparse->is_coalesced && i > 0 && !coo_index_is_greater(&coo))
            return coo_fail_not_coalesced(&coo, i);
        memcpy(coo.last, coo.now, (size_t)coo.n_dimensions * sizeof *coo.now);
    }
    if (sparse->is_coalesced && n < indices->shape[1] && coo.n_dimensions > 0)
        return coo_fail_not_coalesced(&coo, 1);
    return 0;
}

/* ---- CSR, CSC, BSR, BSC ---- */

/* compressed [batch ..., rows + 1], plain [batch ..., n]; of CSC and BSC "rows" are columns. */
typedef struct compressed_check {
    const sparse_tensor *sparse;
    const berth_tensor *compressed, *plain;
    const char *compressed_name, *plain_name, *row_name;
    int32_t n_batch_dimensions;
    int64_t batch[BERTH_MAX_RANK];     /* the position of the batch that is checked */
    int64_t n_batches[BERTH_MAX_RANK]; /* 1: all have the same indices */
    int64_t n_rows, row_size, n;
    bth_index_stream rows, columns;
} compressed_check;

/* The parts agree (T4): the sizes of blocks divide the shape. */
static compressed_check compressed_begin(const sparse_tensor *sparse)
{
    bool by_row = sparse->layout == BERTH_SPARSE_CSR || sparse->layout == BERTH_SPARSE_BSR;
    bool blocked = sparse->layout == BERTH_SPARSE_BSR || sparse->layout == BERTH_SPARSE_BSC;
    int32_t last = sparse->parts[0]->rank - 1, plain_dimension = by_row ? last + 1 : last;
    int64_t block = blocked ? sparse->parts[2]->shape[plain_dimension + 1] : 1;
    compressed_check c = {.sparse = sparse,
                          .compressed = sparse->parts[0],
                          .plain = sparse->parts[1],
                          .compressed_name = by_row ? "crow_indices" : "ccol_indices",
                          .plain_name = by_row ? "col_indices" : "row_indices",
                          .row_name = by_row ? "row" : "column",
                          .n_batch_dimensions = last,
                          .n_rows = sparse->parts[0]->shape[last] - 1,
                          .row_size = sparse->shape[plain_dimension] / block,
                          .n = sparse->parts[1]->shape[last]};

    for (int32_t d = 0; d < last; d++) {
        bool is_one = c.compressed->stride[d] == 0 && (c.plain->stride[d] == 0 || c.n == 0);
        c.n_batches[d] = is_one && c.compressed->shape[d] > 0 ? 1 : c.compressed->shape[d];
    }
    return c;
}

/* Elements that the check reads; UINT64_MAX: too many for 64 bits. */
static uint64_t compressed_count_elements(const compressed_check *c)
{
    uint64_t n;

    if (!bth_try_add((uint64_t)c->n_rows + 1, (uint64_t)c->n, &n))
        n = UINT64_MAX;
    for (int32_t d = 0; d < c->n_batch_dimensions; d++)
        if (c->n_batches[d] == 0)
            return 0;
    for (int32_t d = 0; d < c->n_batch_dimensions; d++)
        if (!bth_try_multiply(n, (uint64_t)c->n_batches[d], &n))
            n = UINT64_MAX;
    return n;
}

/* The position of the last index that was taken: "[0, 5]". */
static const char *compressed_position_text(const compressed_check *c,
                                            const bth_index_stream *stream, char text[128])
{
    int64_t position[BERTH_MAX_RANK + 1];

    memcpy(position, c->batch, sizeof c->batch);
    position[c->n_batch_dimensions] = bth_index_stream_last(stream);
    return bth_index_numbers_text(position, c->n_batch_dimensions + 1, "[]", text);
}

static int compressed_fail_row(const compressed_check *c, int64_t value, int64_t min, int64_t max)
{
    char text[128];

    if (min != max)
        return bth_index_stream_fail(
            &c->rows, "%s%s is %" PRId64 ", but must be from %" PRId64 " to %" PRId64,
            c->compressed_name, compressed_position_text(c, &c->rows, text), value, min, max);
    return bth_index_stream_fail(&c->rows, "%s%s is %" PRId64 ", but must be %" PRId64,
                                 c->compressed_name, compressed_position_text(c, &c->rows, text),
                                 value, min);
}

/* One row begins at `begin`; *end: where the next one does. The first number is 0, the last is n.
 */
static int compressed_take_row_end(compressed_check *c, int64_t row, int64_t begin, int64_t *end)
{
    int64_t max = c->row_size < c->n - begin ? begin + c->row_size : c->n;
    char text[128];

    if (!bth_index_stream_next(&c->rows, end))
        return c->rows.check->error->code;
    if (row == 0)
        max = 0;
    if (*end < begin || *end > max)
        return compressed_fail_row(c, *end, begin, max);
    if (row < c->n_rows || *end == c->n)
        return 0;
    return bth_index_stream_fail(&c->rows, "%s%s is %" PRId64 ", but there are %" PRId64 " %s",
                                 c->compressed_name, compressed_position_text(c, &c->rows, text),
                                 *end, c->n, c->plain_name);
}

/* n plain indices of one row: inside its size, sorted and distinct. */
static int compressed_check_row(compressed_check *c, int64_t n, bool is_sorted)
{
    int64_t value, last = -1;
    char text[128];

    for (int64_t i = 0; i < n; i++) {
        if (!bth_index_stream_next(&c->columns, &value))
            return c->columns.check->error->code;
        if (value < 0 || value >= c->row_size)
            return bth_index_stream_fail(
                &c->columns, "%s%s is %" PRId64 ", but a %s has the size %" PRId64, c->plain_name,
                compressed_position_text(c, &c->columns, text), value, c->row_name, c->row_size);
        if (is_sorted && value <= last)
            return bth_index_stream_fail(&c->columns,
                                         "%s%s is %" PRId64 ", but must be greater than %" PRId64
                                         ", the one before it in its %s",
                                         c->plain_name,
                                         compressed_position_text(c, &c->columns, text), value,
                                         last, c->row_name);
        last = value;
    }
    return 0;
}

/* Without rows PyTorch only compares the plain indices with the size. */
static int compressed_check_rows(compressed_check *c)
{
    int64_t begin = 0, end;

    if (c->n_rows == 0)
        return compressed_check_row(c, c->n, false);
    for (int64_t row = 0; row <= c->n_rows; row++) {
        if (compressed_take_row_end(c, row, begin, &end) < 0 ||
            compressed_check_row(c, end - begin, true) < 0)
            return c->rows.check->error->code;
        begin = end;
    }
    return 0;
}

static void compressed_begin_batch(compressed_check *c, bth_indices_check *check)
{
    int64_t row = 0, column = 0;

    for (int32_t d = 0; d < c->n_batch_dimensions; d++) {
        row += c->batch[d] * c->compressed->stride[d];
        column += c->n > 0 ? c->batch[d] * c->plain->stride[d] : 0;
    }
    c->rows = bth_index_stream_begin(check, c->compressed, row, 1, c->n_rows + 1);
    c->columns = bth_index_stream_begin(check, c->plain, column, 1, c->n);
    bth_index_stream_set_buffer(&c->rows, 0, 2);
    bth_index_stream_set_buffer(&c->columns, 1, 2);
}

/* False after the last. */
static bool compressed_next_batch(compressed_check *c)
{
    for (int32_t d = c->n_batch_dimensions; d-- > 0;) {
        if (++c->batch[d] < c->n_batches[d])
            return true;
        c->batch[d] = 0;
    }
    return false;
}

/* As PyTorch: the parts have one dtype, and each batch's indices lie side by side. */
static int compressed_check_parts(bth_indices_check *check, const compressed_check *c)
{
    const berth_tensor *parts[] = {c->compressed, c->plain};
    int32_t last = c->n_batch_dimensions;

    if (c->compressed->dtype != c->plain->dtype)
        return bth_index_part_fail(check, c->compressed, "%s are %s, but %s are %s",
                                   c->compressed_name, berth_dtype_name(c->compressed->dtype),
                                   c->plain_name, berth_dtype_name(c->plain->dtype));
    for (int i = 0; i < 2; i++)
        if (parts[i]->shape[last] > 1 && parts[i]->stride[last] != 1)
            return bth_index_part_fail(
                check, parts[i],
                "%s have the stride %" PRId64 " in the last dimension, but must have 1",
                i == 0 ? c->compressed_name : c->plain_name, parts[i]->stride[last]);
    return 0;
}

static int compressed_check_indices(bth_indices_check *check, const sparse_tensor *sparse)
{
    compressed_check c = compressed_begin(sparse);

    if (compressed_check_parts(check, &c) < 0 || compressed_count_elements(&c) == 0)
        return check->error->code;
    do {
        compressed_begin_batch(&c, check);
        if (compressed_check_rows(&c) < 0)
            return check->error->code;
    } while (compressed_next_batch(&c));
    return 0;
}

/* ---- one tensor ---- */

static sparse_tensor value_get_sparse(const berth_value *value)
{
    sparse_tensor sparse = {.is_coalesced = berth_value_flags(value) & BERTH_COALESCED};
    int32_t rank;
    int n_parts = berth_value_count(value) == 2 ? 2 : 3;

    sparse.layout = (berth_layout_kind)bth_value_layout(value);
    sparse.shape = berth_as_size(value, &rank);
    for (int i = 0; i < n_parts; i++)
        sparse.parts[i] = berth_as_tensor(bth_tensor_part(value, (uint32_t)i));
    return sparse;
}

static int sparse_count_index_parts(const sparse_tensor *sparse)
{
    return sparse->layout == BERTH_SPARSE_COO ? 1 : 2;
}

/* Indices without bytes cannot be wrong. */
static bool sparse_has_meta_indices(const sparse_tensor *sparse)
{
    return sparse->parts[0]->flags & BERTH_META ||
           (sparse_count_index_parts(sparse) == 2 && sparse->parts[1]->flags & BERTH_META);
}

static uint64_t sparse_count_elements(const sparse_tensor *sparse)
{
    if (sparse->layout == BERTH_SPARSE_COO)
        return (uint64_t)(sparse->parts[0]->shape[0] * coo_count_different(sparse->parts[0]));
    const compressed_check c = compressed_begin(sparse);
    return compressed_count_elements(&c);
}

/* Elements that may be read: SAFETY.md, T6. */
static uint64_t checkpoint_max_elements(const berth_checkpoint *checkpoint)
{
    uint64_t n = FREE_ELEMENTS, more;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!bth_try_multiply(storage->nbytes / sizeof(int32_t), MAX_REPETITIONS, &more) ||
            !bth_try_add(n, more, &n))
            return UINT64_MAX - 1;
    }
    return n;
}

/* Adds what the check of a tensor reads. */
static int check_plan_tensor(bth_indices_check *check, const sparse_tensor *sparse)
{
    uint64_t n = sparse_count_elements(sparse);

    if (bth_try_add(check->n_total, n, &n) && n <= check->n_max) {
        check->n_total = n;
        return 0;
    }
    (void)bth_fail_status(check->error, BERTH_E_UNSUPPORTED,
                          "the indices of sparse tensors are views that repeat the bytes of their "
                          "storages too often to be checked");
    return bth_error_in_tensor(check->checkpoint, sparse->parts[0], check->error);
}

static int check_run_tensor(bth_indices_check *check, const sparse_tensor *sparse)
{
    return sparse->layout == BERTH_SPARSE_COO ? coo_check_indices(check, sparse)
                                              : compressed_check_indices(check, sparse);
}

static int check_allocate_buffer(bth_indices_check *check)
{
    if (!check->buffer && !(check->buffer = bth_allocate(BTH_INDEX_BUFFER_NBYTES)))
        return bth_fail_memory(check->error, BTH_INDEX_BUFFER_NBYTES);
    return 0;
}

static int check_caller_value(bth_indices_check *check, const berth_value *value)
{
    sparse_tensor sparse = value_get_sparse(value);

    if (sparse_has_meta_indices(&sparse))
        return 0;
    for (int i = 0; i < sparse_count_index_parts(&sparse); i++)
        if (bth_checkpoint_check_caller_tensor(check->checkpoint, sparse.parts[i], check->error) <
            0)
            return check->error->code;
    if (check_plan_tensor(check, &sparse) < 0 || check_allocate_buffer(check) < 0)
        return check->error->code;
    return check_run_tensor(check, &sparse);
}

int berth_tensor_check_indices(berth_checkpoint *checkpoint, const berth_value *value,
                               const berth_params *params, berth_error *error)
{
    bth_indices_check check = {.checkpoint = checkpoint, .params = params, .error = error};

    BTH_ERROR_BEGIN(error);
    check.error = error;
    while (berth_value_kind(value) == BERTH_KIND_PARAMETER ||
           berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        value = berth_value_part(value, BERTH_PART_INNER);
    if (!checkpoint || !value)
        return bth_fail_argument(error, "the checkpoint or the value is NULL");
    if (params && BTH_CHECK_RESERVED(berth_params, params, error) < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    check.n_max = checkpoint_max_elements(checkpoint);
    if (berth_value_kind(value) != BERTH_KIND_SPARSE)
        (void)bth_fail_argument(error, "the value is %s, not a sparse tensor",
                                bth_kind_phrase(berth_value_kind(value)));
    else
        (void)check_caller_value(&check, value);
    bth_release(check.buffer);
    return bth_error_in_checkpoint(checkpoint, error);
}

/* ---- all tensors ---- */

/* Whether load.inflate=off keeps its indices from being read. */
static bool sparse_cannot_be_read(const bth_indices_check *check, const sparse_tensor *sparse)
{
    if (sparse_has_meta_indices(sparse))
        return true;
    for (int i = 0; i < sparse_count_index_parts(sparse); i++)
        if (bth_storage_deflated_record(sparse->parts[i]->storage) &&
            !check->checkpoint->config.load_inflate)
            return true;
    return false;
}

static int check_enter_value(bth_indices_check *check, const berth_value *value,
                             int (*act)(bth_indices_check *, const sparse_tensor *))
{
    if (berth_value_kind(value) != BERTH_KIND_SPARSE)
        return 0;
    sparse_tensor sparse = value_get_sparse(value);
    return sparse_cannot_be_read(check, &sparse) ? 0 : act(check, &sparse);
}

static int check_enter_to_plan(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)walk;
    return check_enter_value(context, value, check_plan_tensor);
}

static int check_enter_to_run(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)walk;
    return check_enter_value(context, value, check_run_tensor);
}

int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error)
{
    bth_indices_check check = {.checkpoint = checkpoint, .params = params, .error = error};
    berth_walker plan = {.enter = check_enter_to_plan, .context = &check};
    berth_walker run = {.enter = check_enter_to_run, .context = &check};

    check.n_max = checkpoint_max_elements(checkpoint);
    if (berth_value_walk(checkpoint->contents.root, &plan, error) == 0 && check.n_total > 0 &&
        check_allocate_buffer(&check) == 0)
        (void)berth_value_walk(checkpoint->contents.root, &run, error);
    bth_release(check.buffer);
    return error->code;
}
