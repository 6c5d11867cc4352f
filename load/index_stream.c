/* SPDX-License-Identifier: BSD-3-Clause */
/* The indices of a sparse tensor, read in order, and errors about them. */
#include "load/index_stream.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle.h"

/* ---- streams ---- */

bth_index_stream bth_index_stream_begin(bth_indices_check *check, const berth_tensor *part,
                                        int64_t first, int64_t stride, int64_t n)
{
    return (bth_index_stream){.check = check,
                              .part = part,
                              .first = part->storage_offset + first,
                              .stride = n > 1 ? stride : 1,
                              .n = n};
}

void bth_index_stream_set_buffer(bth_index_stream *stream, size_t i, size_t n_streams)
{
    stream->buffer_nbytes = stream->check->buffer_nbytes / n_streams / 8 * 8;
    stream->buffer = stream->check->buffer + i * stream->buffer_nbytes;
}

/* Whether it is read one index at a time. */
static bool stride_is_large(int64_t stride)
{
    return stride > BTH_MAX_INDEX_STRIDE;
}

/* T2: a view's elements lie in their storage, so their number, gaps included, fits. */
uint64_t bth_index_stream_cost(int64_t stride, int64_t n)
{
    if (n == 0)
        return 0;
    if (n > 1 && stride_is_large(stride))
        return (uint64_t)n * (1 + BTH_INDEX_READ_COST);
    return (n > 1 ? (uint64_t)(n - 1) * (uint64_t)stride : 0) + 1 + BTH_INDEX_READ_COST;
}

int bth_indices_check_report(bth_indices_check *check)
{
    const berth_params *params = check->params;
    const uint64_t nbytes = sizeof(int64_t);

    if (!params || !params->progress ||
        params->progress(params->progress_context, check->done_cost * nbytes,
                         check->total_cost * nbytes) == 0)
        return 0;
    return bth_fail_status(check->error, BERTH_E_CANCELLED, "cancelled");
}

int bth_index_stream_fill(bth_index_stream *stream)
{
    bth_indices_check *check = stream->check;
    int64_t item_nbytes = (int64_t)berth_dtype_nbytes(stream->part->dtype);
    int64_t fits = stride_is_large(stream->stride)
                       ? 1
                       : ((int64_t)stream->buffer_nbytes / item_nbytes - 1) / stream->stride + 1;
    int64_t left = stream->n - stream->n_read, n = left < fits ? left : fits;

    if (bth_indices_check_report(check) < 0 ||
        bth_storage_read(
            check->checkpoint, stream->part->storage, stream->buffer,
            (size_t)(((n - 1) * stream->stride + 1) * item_nbytes),
            (uint64_t)((stream->first + stream->n_read * stream->stride) * item_nbytes),
            check->error) < 0)
        return check->error->code;
    check->done_cost += bth_index_stream_cost(stream->stride, stream->n_read + n) -
                        bth_index_stream_cost(stream->stride, stream->n_read);
    stream->n_read += n;
    stream->n_buffer = n;
    stream->next = 0;
    return 0;
}

/* ---- errors ---- */

const char *bth_index_numbers_text(const int64_t *numbers, int32_t n, const char brackets[2],
                                   char text[128])
{
    const size_t nbytes = 128;
    size_t at = (size_t)snprintf(text, nbytes, "%c", brackets[0]);

    for (int32_t i = 0; i < n && at < nbytes - 32; i++)
        at += (size_t)snprintf(text + at, nbytes - at, "%s%" PRId64, i ? ", " : "", numbers[i]);
    (void)snprintf(text + at, nbytes - at, "%s%c", at < nbytes - 32 ? "" : ", …", brackets[1]);
    return text;
}

/* The byte of an element of the storage; a deflated one has none in the file. */
static uint64_t part_find_byte(const bth_indices_check *check, const berth_tensor *part,
                               int64_t element)
{
    const berth_storage *storage = part->storage, *root = bth_storage_root(storage);

    if (check->checkpoint->storages.stored[root->index].deflated)
        return BERTH_NO_OFFSET;
    return root->offset + (storage->root ? storage->root_offset : 0) +
           (uint64_t)element * berth_dtype_nbytes(part->dtype);
}

static int part_fail(const bth_indices_check *check, const berth_tensor *part, uint64_t offset,
                     const char *message)
{
    (void)bth_fail(check->error, BERTH_E_TENSOR, NULL, offset,
                   "%s; PyTorch's check_sparse_tensor_invariants refuses this %s tensor, too; "
                   "load.check=directory opens it unchecked",
                   message, bth_layout_names[check->layout]);
    return bth_error_in_tensor(check->checkpoint, part, check->error);
}

int bth_index_part_fail(const bth_indices_check *check, const berth_tensor *part,
                        const char *format, ...)
{
    char message[512];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return part_fail(check, part, BERTH_NO_OFFSET, message);
}

int bth_index_stream_fail(const bth_index_stream *stream, const char *format, ...)
{
    int64_t element = stream->first + bth_index_stream_last(stream) * stream->stride;
    char message[512];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return part_fail(stream->check, stream->part,
                     part_find_byte(stream->check, stream->part, element), message);
}
