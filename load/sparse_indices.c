/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: the indices of sparse tensors. They are read in order through one buffer, whatever their
 * strides. What is refused is what torch.load refuses with check_sparse_tensor_invariants.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"
#include "load/verify.h"

/*
 * Views can repeat their storage's elements, 2^60 times from 8 bytes. Where all repetitions are one
 * element, it is read once. Other views may cost this much, and so many times what it costs to read
 * the file's storages once.
 */
#define FREE_COST ((uint64_t)1 << 18)
#define MAX_REPETITIONS 16

/* The buffer that all streams share. The smallest holds 64 indices of each dimension. */
#define MIN_BUFFER_NBYTES ((size_t)1 << 15)
#define MAX_BUFFER_NBYTES ((size_t)1 << 20)

/* Indices that lie further apart are read one by one; others with the gaps between them. */
#define MAX_STRIDE 64

/* What one more read costs, in elements that are read. */
#define READ_COST 16

/* The check of one tensor, or of all. */
typedef struct indices_check {
    berth_checkpoint *checkpoint;
    const berth_params *params;
    bool leaves_out_deflated;
    bool is_planned;          /* by the first of two walks */
    berth_layout_kind layout; /* of the tensor that is checked */
    uint8_t *buffer;
    size_t buffer_nbytes;
    uint64_t max_cost;   /* of all reads */
    uint64_t total_cost; /* that they will have */
    uint64_t done_cost;
    berth_error *error;
} indices_check;

/* Elements of one part that lie at equal distances. */
typedef struct index_stream {
    indices_check *check;
    const berth_tensor *part;
    int64_t first;  /* in the storage */
    int64_t stride; /* > 0 */
    int64_t n;
    int64_t n_read;   /* into the buffer, since the beginning */
    int64_t n_buffer; /* in the buffer now */
    int64_t next;     /* of these */
    uint8_t *buffer;
    size_t buffer_nbytes;
} index_stream;

/* ---- streams of indices, in order ---- */

/*
 * n elements of a part, from its element `first` on. The stream is number `i` of `n_streams`, which
 * share the buffer. T2: the part was checked, and holds these elements.
 */
static index_stream index_stream_begin(indices_check *check, const berth_tensor *part,
                                       int64_t first, int64_t stride, int64_t n, size_t i,
                                       size_t n_streams)
{
    size_t nbytes = check->buffer_nbytes / n_streams / 8 * 8;

    return (index_stream){.check = check,
                          .part = part,
                          .first = part->storage_offset + first,
                          .stride = n > 1 ? stride : 1,
                          .n = n,
                          .buffer = check->buffer + i * nbytes,
                          .buffer_nbytes = nbytes};
}

/*
 * The cost of a stream: elements of the storage, gaps included, and that of its reads. T2: a view's
 * elements lie in their storage, so their number, gaps included, fits.
 */
static uint64_t index_stream_cost(int64_t stride, int64_t n)
{
    if (n == 0)
        return 0;
    if (n > 1 && stride > MAX_STRIDE)
        return (uint64_t)n * (1 + READ_COST);
    return (n > 1 ? (uint64_t)(n - 1) * (uint64_t)stride : 0) + 1 + READ_COST;
}

/* Tells the caller's params how much is done. */
static int indices_check_report(indices_check *check)
{
    const berth_params *params = check->params;
    const uint64_t nbytes = sizeof(int64_t);

    if (!params || !params->progress ||
        params->progress(params->progress_context, check->done_cost * nbytes,
                         check->total_cost * nbytes) == 0)
        return 0;
    return bth_fail_status(check->error, BERTH_E_CANCELLED, "cancelled");
}

/* Reads the next elements. */
static int index_stream_fill(index_stream *stream)
{
    indices_check *check = stream->check;
    int64_t item_nbytes = (int64_t)berth_dtype_nbytes(stream->part->dtype);
    int64_t fits = stream->stride > MAX_STRIDE
                       ? 1
                       : ((int64_t)stream->buffer_nbytes / item_nbytes - 1) / stream->stride + 1;
    int64_t left = stream->n - stream->n_read, n = left < fits ? left : fits;

    if (indices_check_report(check) < 0 ||
        bth_storage_read(
            check->checkpoint, stream->part->storage, stream->buffer,
            (size_t)(((n - 1) * stream->stride + 1) * item_nbytes),
            (uint64_t)((stream->first + stream->n_read * stream->stride) * item_nbytes),
            check->error) < 0)
        return check->error->code;
    check->done_cost += index_stream_cost(stream->stride, stream->n_read + n) -
                        index_stream_cost(stream->stride, stream->n_read);
    stream->n_read += n;
    stream->n_buffer = n;
    stream->next = 0;
    return 0;
}

/* The next index; it must have one. False: it could not be read. */
static inline bool index_stream_next(index_stream *stream, int64_t *value)
{
    int32_t narrow;

    if (stream->next == stream->n_buffer && index_stream_fill(stream) < 0)
        return false;
    int64_t at = stream->next++ * stream->stride;
    if (stream->part->dtype == BERTH_INT64) {
        memcpy(value, stream->buffer + at * 8, sizeof *value);
        return true;
    }
    memcpy(&narrow, stream->buffer + at * 4, sizeof narrow);
    *value = narrow;
    return true;
}

/* The number of the index that was taken last. */
static inline int64_t index_stream_last(const index_stream *stream)
{
    return stream->n_read - stream->n_buffer + stream->next - 1;
}

/* ---- errors ---- */

/* "(1, 2)", or "[1, 2]"; a long one is cut. Returns `text`. */
static const char *index_numbers_text(const int64_t *numbers, int32_t n, const char brackets[2],
                                      char text[128])
{
    const size_t nbytes = 128;
    size_t at = (size_t)snprintf(text, nbytes, "%c", brackets[0]);

    for (int32_t i = 0; i < n && at < nbytes - 32; i++)
        at += (size_t)snprintf(text + at, nbytes - at, "%s%" PRId64, i ? ", " : "", numbers[i]);
    (void)snprintf(text + at, nbytes - at, "%s%c", at < nbytes - 32 ? "" : ", …", brackets[1]);
    return text;
}

/*
 * BERTH_E_TENSOR, about the index that was taken last, or the whole part if none was. Adds its
 * byte, which one of a deflated storage has not in the file, record and name, that of the layout,
 * and what can be done.
 */
__attribute__((format(printf, 2, 3))) static int index_stream_fail(const index_stream *stream,
                                                                   const char *format, ...)
{
    const indices_check *check = stream->check;
    const berth_tensor *part = stream->part;
    const berth_storage *storage = part->storage, *root = bth_storage_root(storage);
    uint64_t offset = BERTH_NO_OFFSET;
    char message[512];
    va_list arguments;

    if (stream->n_read > 0 && !bth_storage_deflated_record(root)) {
        int64_t element = stream->first + index_stream_last(stream) * stream->stride;
        offset = root->offset + storage->root_offset +
                 (uint64_t)element * berth_dtype_nbytes(part->dtype);
    }
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    (void)bth_fail(check->error, BERTH_E_TENSOR, NULL, offset,
                   "%s; PyTorch's check_sparse_tensor_invariants refuses this %s tensor, too; "
                   "load.check=directory opens it unchecked",
                   message, bth_layout_names[check->layout]);
    return bth_error_in_tensor(check->checkpoint, part, check->error);
}

/* A sparse tensor. */
typedef struct sparse_tensor {
    berth_layout_kind layout;
    const int64_t *shape;
    const berth_tensor *parts[3];
    int n_index_parts; /* the first of them */
    bool is_coalesced;
} sparse_tensor;

/* ---- COO ---- */

/* indices [sparse dimensions, n] */
typedef struct coo_check {
    index_stream streams[BERTH_MAX_RANK]; /* one for each dimension */
    int64_t last[BERTH_MAX_RANK], now[BERTH_MAX_RANK];
    int32_t n_dimensions;
} coo_check;

static int coo_fail_not_coalesced(const coo_check *coo, int64_t i)
{
    char now[128], last[128];

    return index_stream_fail(&coo->streams[0],
                             "indices[:, %" PRId64 "] is %s, but must come after %s: the tensor is "
                             "marked as coalesced",
                             i, index_numbers_text(coo->now, coo->n_dimensions, "()", now),
                             index_numbers_text(coo->last, coo->n_dimensions, "()", last));
}

/* If all indices are one, as in an expanded view, only the first is read. */
static int64_t coo_count_different(const berth_tensor *indices)
{
    int64_t n = indices->shape[1];

    return n > 1 && indices->stride[1] == 0 ? 1 : n;
}

static int coo_check_indices(indices_check *check, const sparse_tensor *sparse)
{
    const berth_tensor *indices = sparse->parts[0];
    int64_t n = coo_count_different(indices);
    coo_check coo = {.n_dimensions = (int32_t)indices->shape[0]};

    for (int32_t d = 0; d < coo.n_dimensions; d++)
        coo.streams[d] =
            index_stream_begin(check, indices, d * indices->stride[0], indices->stride[1], n,
                               (size_t)d, (size_t)coo.n_dimensions);
    for (int64_t i = 0; i < n && coo.n_dimensions > 0; i++) {
        for (int32_t d = 0; d < coo.n_dimensions; d++) {
            int64_t size = sparse->shape[d];
            if (!index_stream_next(&coo.streams[d], &coo.now[d]))
                return check->error->code;
            if (coo.now[d] < 0 || coo.now[d] >= size)
                return index_stream_fail(&coo.streams[d],
                                         "indices[%d, %" PRId64 "] is %" PRId64
                                         ", but dimension %d has the size %" PRId64,
                                         d, i, coo.now[d], d, size);
        }
        if (sparse->is_coalesced && i > 0) {
            int32_t d = 0; /* the first dimension where it differs from the last one */
            while (d < coo.n_dimensions && coo.now[d] == coo.last[d])
                d++;
            if (d == coo.n_dimensions || coo.now[d] < coo.last[d])
                return coo_fail_not_coalesced(&coo, i);
        }
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
    index_stream rows, columns;
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

/* 0: there are no batches. UINT64_MAX: beyond 64 bits. */
static uint64_t compressed_cost(const compressed_check *c)
{
    const int64_t in_batch[] = {c->n_rows + 1, c->n};
    const int64_t in_stream[] = {c->n_row_stream, c->n_column_stream};
    uint64_t sum = 0;

    for (int32_t d = 0; d < c->n_batch_dimensions; d++)
        if (c->n_batches[d] == 0)
            return 0;
    for (int i = c->n_rows > 0 ? 0 : 1; i < 2; i++) {
        uint64_t cost = index_stream_cost(1, in_stream[i]);
        for (int32_t d = 0; d < c->n_batch_dimensions && in_stream[i] == in_batch[i]; d++)
            if (!bth_try_multiply(cost, (uint64_t)c->n_batches[d], &cost))
                cost = UINT64_MAX;
        if (!bth_try_add(sum, cost, &sum))
            return UINT64_MAX;
    }
    return sum;
}

/* The position of the last index that was taken: "[0, 5]". */
static const char *compressed_position_text(const compressed_check *c, const index_stream *stream,
                                            char text[128])
{
    int64_t position[BERTH_MAX_RANK + 1];

    memcpy(position, c->batch, sizeof c->batch);
    position[c->n_batch_dimensions] =
        index_stream_last(stream) % (stream == &c->rows ? c->n_rows + 1 : c->n);
    return index_numbers_text(position, c->n_batch_dimensions + 1, "[]", text);
}

/* One row begins at `begin`; *end: where the next one does. The first number is 0, the last is n.
 */
static int compressed_take_row_end(compressed_check *c, int64_t row, int64_t begin, int64_t *end)
{
    int64_t max = c->row_size < c->n - begin ? begin + c->row_size : c->n;
    char text[128];

    if (!index_stream_next(&c->rows, end))
        return c->rows.check->error->code;
    if (row == 0)
        max = 0;
    if (*end >= begin && *end <= max && (row < c->n_rows || *end == c->n))
        return 0;
    (void)compressed_position_text(c, &c->rows, text);
    if (*end >= begin && *end <= max)
        return index_stream_fail(&c->rows, "%s%s is %" PRId64 ", but there are %" PRId64 " %s",
                                 c->compressed_name, text, *end, c->n, c->plain_name);
    if (begin != max)
        return index_stream_fail(&c->rows,
                                 "%s%s is %" PRId64 ", but must be from %" PRId64 " to %" PRId64,
                                 c->compressed_name, text, *end, begin, max);
    return index_stream_fail(&c->rows, "%s%s is %" PRId64 ", but must be %" PRId64,
                             c->compressed_name, text, *end, begin);
}

/* n plain indices of one row: inside its size, sorted and distinct. */
static int compressed_check_row(compressed_check *c, int64_t n, bool is_sorted)
{
    int64_t value, last = -1;
    char text[128];

    for (int64_t i = 0; i < n; i++) {
        if (!index_stream_next(&c->columns, &value))
            return c->columns.check->error->code;
        if (value < 0 || value >= c->row_size)
            return index_stream_fail(
                &c->columns, "%s%s is %" PRId64 ", but a %s has the size %" PRId64, c->plain_name,
                compressed_position_text(c, &c->columns, text), value, c->row_name, c->row_size);
        if (is_sorted && value <= last)
            return index_stream_fail(&c->columns,
                                     "%s%s is %" PRId64 ", but must be greater than %" PRId64
                                     ", the one before it in its %s",
                                     c->plain_name, compressed_position_text(c, &c->columns, text),
                                     value, last, c->row_name);
        last = value;
    }
    return 0;
}

static int compressed_check_indices(indices_check *check, const sparse_tensor *sparse)
{
    compressed_check c = compressed_begin(sparse);
    const index_stream wholes[] = {{.check = check, .part = c.compressed},
                                   {.check = check, .part = c.plain}};
    int32_t d, last = c.n_batch_dimensions;

    /* As PyTorch: the parts have one dtype, and each batch's indices lie side by side. */
    if (c.compressed->dtype != c.plain->dtype)
        return index_stream_fail(&wholes[0], "%s are %s, but %s are %s", c.compressed_name,
                                 berth_dtype_name(c.compressed->dtype), c.plain_name,
                                 berth_dtype_name(c.plain->dtype));
    for (int i = 0; i < 2; i++)
        if (wholes[i].part->shape[last] > 1 && wholes[i].part->stride[last] != 1)
            return index_stream_fail(
                &wholes[i], "%s have the stride %" PRId64 " in the last dimension, but must have 1",
                i == 0 ? c.compressed_name : c.plain_name, wholes[i].part->stride[last]);
    if (compressed_cost(&c) == 0)
        return 0;
    for (bool is_first = true;; is_first = false) {
        int64_t row = 0, column = 0;
        for (d = 0; d < c.n_batch_dimensions; d++) {
            row += c.batch[d] * c.compressed->stride[d];
            column += c.n > 0 ? c.batch[d] * c.plain->stride[d] : 0;
        }
        /* A stream of all batches just goes on. */
        if (is_first || c.n_row_stream == c.n_rows + 1)
            c.rows = index_stream_begin(check, c.compressed, row, 1, c.n_row_stream, 0, 2);
        if (is_first || c.n_column_stream == c.n)
            c.columns = index_stream_begin(check, c.plain, column, 1, c.n_column_stream, 1, 2);
        /* Without rows PyTorch only compares the plain indices with the size. */
        if (c.n_rows == 0 && compressed_check_row(&c, c.n, false) < 0)
            return check->error->code;
        int64_t begin = 0, end = 0;
        for (int64_t i = 0; c.n_rows > 0 && i <= c.n_rows; i++, begin = end)
            if (compressed_take_row_end(&c, i, begin, &end) < 0 ||
                compressed_check_row(&c, end - begin, true) < 0)
                return check->error->code;
        /* The next batch, as one counts: 0 again, and one more in the dimension before. */
        for (d = c.n_batch_dimensions - 1; d >= 0 && ++c.batch[d] == c.n_batches[d]; d--)
            c.batch[d] = 0;
        if (d < 0)
            return 0;
    }
}

/* The tensor is valid, and of this checkpoint (T2). Adds its cost. */
static int sparse_check_and_add_cost(indices_check *check, const sparse_tensor *sparse)
{
    uint64_t cost;

    for (int i = 0; i < sparse->n_index_parts; i++)
        if (bth_checkpoint_check_caller_tensor(check->checkpoint, sparse->parts[i], check->error) <
            0)
            return check->error->code;
    if (sparse->layout == BERTH_SPARSE_COO) {
        const berth_tensor *indices = sparse->parts[0];
        cost = index_stream_cost(indices->stride[1], coo_count_different(indices));
        if (!bth_try_multiply(cost, (uint64_t)indices->shape[0], &cost))
            cost = UINT64_MAX;
    } else {
        const compressed_check c = compressed_begin(sparse);
        cost = compressed_cost(&c);
    }
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

static int enter_value(void *context, const berth_walk *walk, const berth_value *value)
{
    indices_check *check = context;
    int32_t rank;

    (void)walk;
    if (berth_value_kind(value) != BERTH_KIND_SPARSE)
        return 0;
    sparse_tensor sparse = {.layout = (berth_layout_kind)bth_value_layout(value),
                            .shape = berth_as_size(value, &rank),
                            .is_coalesced = berth_value_flags(value) & BERTH_COALESCED};
    sparse.n_index_parts = sparse.layout == BERTH_SPARSE_COO ? 1 : 2;
    for (int i = 0; i <= sparse.n_index_parts; i++)
        sparse.parts[i] = berth_as_tensor(bth_tensor_part(value, (uint32_t)i));
    for (int i = 0; i < sparse.n_index_parts; i++)
        if (sparse.parts[i]->flags & BERTH_META) /* indices without bytes cannot be wrong */
            return 0;
    for (int i = 0; i < sparse.n_index_parts && check->leaves_out_deflated; i++)
        if (bth_storage_deflated_record(sparse.parts[i]->storage))
            return 0;
    if (!check->is_planned)
        return sparse_check_and_add_cost(check, &sparse);
    check->layout = sparse.layout;
    return sparse.layout == BERTH_SPARSE_COO ? coo_check_indices(check, &sparse)
                                             : compressed_check_indices(check, &sparse);
}

/* Two walks: the first plans. */
static int indices_check_run(indices_check *check, const berth_value *value)
{
    const berth_checkpoint *checkpoint = check->checkpoint;
    berth_walker walker = {.enter = enter_value, .context = check};
    uint64_t nbytes = 0; /* of all storages. T1: the file has them, or unfolds to them */

    for (size_t i = 0; i < checkpoint->storages.n && nbytes < UINT64_MAX; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!storage->root && !bth_try_add(nbytes, storage->nbytes, &nbytes))
            nbytes = UINT64_MAX;
    }
    /* SAFETY.md, T6. */
    if (!bth_try_multiply(nbytes / sizeof(int32_t), MAX_REPETITIONS, &check->max_cost) ||
        !bth_try_add(check->max_cost, FREE_COST, &check->max_cost))
        check->max_cost = UINT64_MAX - 1;
    if (berth_value_walk(value, &walker, check->error) < 0 || check->total_cost == 0)
        return check->error->code;
    check->is_planned = true;
    /* Memory in proportion to the file (P3). */
    check->buffer_nbytes = (size_t)bth_max(bth_min(nbytes, MAX_BUFFER_NBYTES), MIN_BUFFER_NBYTES);
    check->buffer = bth_allocate(check->buffer_nbytes);
    if (!check->buffer)
        return bth_fail_memory(check->error, check->buffer_nbytes);
    if (berth_value_walk(value, &walker, check->error) == 0)
        (void)indices_check_report(check);
    bth_release(check->buffer);
    return check->error->code;
}

int berth_tensor_check_indices(berth_checkpoint *checkpoint, const berth_value *value,
                               const berth_params *params, berth_error *error)
{
    indices_check check = {.checkpoint = checkpoint, .params = params};

    BTH_ERROR_BEGIN(error);
    check.error = error;
    if (!checkpoint || !value)
        return bth_fail_argument(error, "the checkpoint or the value is NULL");
    if (!params || BTH_CHECK_RESERVED(berth_params, params, error) == 0)
        (void)indices_check_run(&check, value);
    return bth_error_in_checkpoint(checkpoint, error);
}

int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error)
{
    indices_check check = {.checkpoint = checkpoint,
                           .params = params,
                           .leaves_out_deflated = !checkpoint->config.load_inflate,
                           .error = error};

    return indices_check_run(&check, checkpoint->contents.root);
}
