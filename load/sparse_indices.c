/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: the indices of sparse tensors. They are read in order through one buffer, whatever their
 * strides. What is refused is what torch.load refuses with check_sparse_tensor_invariants.
 */
#include <inttypes.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "load/index_stream.h"

/*
 * Views can repeat their storage's elements, 2^60 times from 8 bytes. Where all repetitions are one
 * element, it is read once. Other views may cost this much, and so many times what it costs to read
 * the file's storages once.
 */
#define FREE_COST ((uint64_t)1 << 18)
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

/* UINT64_MAX: beyond 64 bits. */
static uint64_t coo_cost(const berth_tensor *indices)
{
    uint64_t cost = bth_index_stream_cost(indices->stride[1], coo_count_different(indices));

    return bth_try_multiply(cost, (uint64_t)indices->shape[0], &cost) ? cost : UINT64_MAX;
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
    int64_t n_row_stream, n_column_stream; /* of all batches, if these lie side by side */
    bth_index_stream rows, columns;
} compressed_check;

/* Elements of all batches, if they lie one behind the other; else those of one batch. */
static int64_t part_count_in_one_stream(const berth_tensor *part)
{
    int32_t last = part->rank - 1;
    int64_t n = part->shape[last];

    if (berth_tensor_numel(part) == 0) /* T2: its sizes may be any */
        return n;
    for (int32_t d = last; d-- > 0; n *= part->shape[d])
        if (part->shape[d] != 1 && part->stride[d] != n)
            return part->shape[last];
    return n;
}

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
                          .n = sparse->parts[1]->shape[last],
                          .n_row_stream = part_count_in_one_stream(sparse->parts[0]),
                          .n_column_stream = part_count_in_one_stream(sparse->parts[1])};

    for (int32_t d = 0; d < last; d++) {
        bool is_one = c.compressed->stride[d] == 0 && (c.plain->stride[d] == 0 || c.n == 0);
        c.n_batches[d] = is_one && c.compressed->shape[d] > 0 ? 1 : c.compressed->shape[d];
    }
    return c;
}

static bool compressed_has_batches(const compressed_check *c)
{
    for (int32_t d = 0; d < c->n_batch_dimensions; d++)
        if (c->n_batches[d] == 0)
            return false;
    return true;
}

/* The cost of one part; n_per_batch of its elements are in a batch. UINT64_MAX: beyond 64 bits. */
static uint64_t compressed_cost_of_part(const compressed_check *c, int64_t n_per_batch,
                                        int64_t n_stream)
{
    uint64_t cost = bth_index_stream_cost(1, n_stream);

    for (int32_t d = 0; d < c->n_batch_dimensions && n_stream == n_per_batch; d++)
        if (!bth_try_multiply(cost, (uint64_t)c->n_batches[d], &cost))
            cost = UINT64_MAX;
    return cost;
}

/* UINT64_MAX: beyond 64 bits. */
static uint64_t compressed_cost(const compressed_check *c)
{
    uint64_t cost, rows, columns;

    if (!compressed_has_batches(c))
        return 0;
    rows = c->n_rows > 0 ? compressed_cost_of_part(c, c->n_rows + 1, c->n_row_stream) : 0;
    columns = compressed_cost_of_part(c, c->n, c->n_column_stream);
    return bth_try_add(rows, columns, &cost) ? cost : UINT64_MAX;
}

/* The position of the last index that was taken: "[0, 5]". */
static const char *compressed_position_text(const compressed_check *c,
                                            const bth_index_stream *stream, char text[128])
{
    int64_t position[BERTH_MAX_RANK + 1];

    memcpy(position, c->batch, sizeof c->batch);
    position[c->n_batch_dimensions] =
        bth_index_stream_last(stream) % (stream == &c->rows ? c->n_rows + 1 : c->n);
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
    int64_t begin = 0, end = 0;

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

/* A stream of all batches just goes on. */
static void compressed_begin_batch(compressed_check *c, bth_indices_check *check, bool is_first)
{
    int64_t row = 0, column = 0;

    for (int32_t d = 0; d < c->n_batch_dimensions; d++) {
        row += c->batch[d] * c->compressed->stride[d];
        column += c->n > 0 ? c->batch[d] * c->plain->stride[d] : 0;
    }
    if (is_first || c->n_row_stream == c->n_rows + 1) {
        c->rows = bth_index_stream_begin(check, c->compressed, row, 1, c->n_row_stream);
        bth_index_stream_set_buffer(&c->rows, 0, 2);
    }
    if (is_first || c->n_column_stream == c->n) {
        c->columns = bth_index_stream_begin(check, c->plain, column, 1, c->n_column_stream);
        bth_index_stream_set_buffer(&c->columns, 1, 2);
    }
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
    bool is_first = true;

    if (compressed_check_parts(check, &c) < 0 || compressed_cost(&c) == 0)
        return check->error->code;
    do {
        compressed_begin_batch(&c, check, is_first);
        if (compressed_check_rows(&c) < 0)
            return check->error->code;
        is_first = false;
    } while (compressed_next_batch(&c));
    return 0;
}

/* ---- one tensor ---- */

static sparse_tensor value_get_sparse(const berth_value *value)
{
    sparse_tensor sparse = {.is_coalesced = berth_value_flags(value) & BERTH_COALESCED};
    int32_t rank;

    sparse.layout = (berth_layout_kind)bth_value_layout(value);
    int n_parts = sparse.layout == BERTH_SPARSE_COO ? 2 : 3;
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

static uint64_t sparse_cost(const sparse_tensor *sparse)
{
    if (sparse->layout == BERTH_SPARSE_COO)
        return coo_cost(sparse->parts[0]);
    const compressed_check c = compressed_begin(sparse);
    return compressed_cost(&c);
}

/* ---- all tensors of a value ---- */

/* Bytes of the storages; UINT64_MAX: beyond 64 bits. T1: the file has them, or unfolds to them. */
static uint64_t checkpoint_count_bytes(const berth_checkpoint *checkpoint)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!storage->root && !bth_try_add(nbytes, storage->nbytes, &nbytes))
            return UINT64_MAX;
    }
    return nbytes;
}

/* SAFETY.md, T6. */
static uint64_t max_cost_for(uint64_t storages_nbytes)
{
    uint64_t cost = storages_nbytes / sizeof(int32_t);

    if (!bth_try_multiply(cost, MAX_REPETITIONS, &cost) || !bth_try_add(cost, FREE_COST, &cost))
        return UINT64_MAX - 1;
    return cost;
}

/* The check of a value, and whether deflated indices are left out. */
typedef struct value_check {
    bth_indices_check check;
    bool leaves_out_deflated;
} value_check;

static bool value_check_leaves_out(const value_check *v, const sparse_tensor *sparse)
{
    if (sparse_has_meta_indices(sparse))
        return true;
    for (int i = 0; i < sparse_count_index_parts(sparse) && v->leaves_out_deflated; i++)
        if (bth_storage_deflated_record(sparse->parts[i]->storage))
            return true;
    return false;
}

/* The tensor is valid, and of this checkpoint (T2). Adds its cost. */
static int sparse_plan(bth_indices_check *check, const sparse_tensor *sparse)
{
    for (int i = 0; i < sparse_count_index_parts(sparse); i++)
        if (bth_checkpoint_check_caller_tensor(check->checkpoint, sparse->parts[i], check->error) <
            0)
            return check->error->code;
    uint64_t cost = sparse_cost(sparse);
    if (bth_try_add(check->total_cost, cost, &cost) && cost <= check->max_cost) {
        check->total_cost = cost;
        return 0;
    }
    (void)bth_fail_status(check->error, BERTH_E_UNSUPPORTED,
                          "the indices of sparse tensors are views that repeat the bytes of their "
                          "storages too often to be checked; load.check=directory opens them "
                          "unchecked");
    return bth_error_in_tensor(check->checkpoint, sparse->parts[0], check->error);
}

static int sparse_check(bth_indices_check *check, const sparse_tensor *sparse)
{
    check->layout = sparse->layout;
    return sparse->layout == BERTH_SPARSE_COO ? coo_check_indices(check, sparse)
                                              : compressed_check_indices(check, sparse);
}

static int enter_value(value_check *v, const berth_value *value,
                       int (*act)(bth_indices_check *, const sparse_tensor *))
{
    if (berth_value_kind(value) != BERTH_KIND_SPARSE)
        return 0;
    sparse_tensor sparse = value_get_sparse(value);
    return value_check_leaves_out(v, &sparse) ? 0 : act(&v->check, &sparse);
}

static int enter_to_plan(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)walk;
    return enter_value(context, value, sparse_plan);
}

static int enter_to_check(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)walk;
    return enter_value(context, value, sparse_check);
}

/* Memory in proportion to the file (P3). */
static int check_allocate_buffer(bth_indices_check *check, uint64_t storages_nbytes)
{
    size_t nbytes = BTH_MAX_INDEX_BUFFER_NBYTES;

    if (storages_nbytes < nbytes)
        nbytes = storages_nbytes < BTH_MIN_INDEX_BUFFER_NBYTES ? BTH_MIN_INDEX_BUFFER_NBYTES
                                                               : (size_t)storages_nbytes;
    check->buffer_nbytes = nbytes;
    check->buffer = bth_allocate(nbytes);
    return check->buffer ? 0 : bth_fail_memory(check->error, nbytes);
}

static int value_check_run(value_check *v, const berth_value *value)
{
    bth_indices_check *check = &v->check;
    uint64_t nbytes = checkpoint_count_bytes(check->checkpoint);
    berth_walker plan = {.enter = enter_to_plan, .context = v};
    berth_walker run = {.enter = enter_to_check, .context = v};

    check->max_cost = max_cost_for(nbytes);
    if (berth_value_walk(value, &plan, check->error) == 0 && check->total_cost > 0 &&
        check_allocate_buffer(check, nbytes) == 0 &&
        berth_value_walk(value, &run, check->error) == 0)
        (void)bth_indices_check_report(check);
    bth_release(check->buffer);
    return check->error->code;
}

int berth_tensor_check_indices(berth_checkpoint *checkpoint, const berth_value *value,
                               const berth_params *params, berth_error *error)
{
    value_check v = {.check = {.checkpoint = checkpoint, .params = params}};

    BTH_ERROR_BEGIN(error);
    v.check.error = error;
    if (!checkpoint || !value)
        return bth_fail_argument(error, "the checkpoint or the value is NULL");
    if (!params || BTH_CHECK_RESERVED(berth_params, params, error) == 0)
        (void)value_check_run(&v, value);
    return bth_error_in_checkpoint(checkpoint, error);
}

int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error)
{
    value_check v = {.check = {.checkpoint = checkpoint, .params = params, .error = error},
                     .leaves_out_deflated = !checkpoint->config.load_inflate};

    return value_check_run(&v, checkpoint->contents.root);
}
