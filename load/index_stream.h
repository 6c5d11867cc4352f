/* SPDX-License-Identifier: BSD-3-Clause */
/* The indices of a sparse tensor, read in order through one buffer, whatever their strides (T6). */
#ifndef BTH_LOAD_INDEX_STREAM_H
#define BTH_LOAD_INDEX_STREAM_H

#include <string.h>

#include "load/checkpoint.h"

/* The buffer that all streams share. The smallest holds 64 indices of each dimension. */
#define BTH_MIN_INDEX_BUFFER_NBYTES ((size_t)1 << 15)
#define BTH_MAX_INDEX_BUFFER_NBYTES ((size_t)1 << 20)

/* Indices that lie further apart are read one by one; others with the gaps between them. */
#define BTH_MAX_INDEX_STRIDE 64

/* What one more read costs, in elements that are read. */
#define BTH_INDEX_READ_COST 16

/* The check of one tensor, or of all. */
typedef struct bth_indices_check {
    berth_checkpoint *checkpoint;
    const berth_params *params;
    berth_layout_kind layout; /* of the tensor that is checked */
    uint8_t *buffer;
    size_t buffer_nbytes;
    uint64_t max_cost;   /* of all reads */
    uint64_t total_cost; /* that they will have */
    uint64_t done_cost;
    berth_error *error;
} bth_indices_check;

/* Elements of one part that lie at equal distances. */
typedef struct bth_index_stream {
    bth_indices_check *check;
    const berth_tensor *part;
    int64_t first;  /* in the storage */
    int64_t stride; /* > 0 */
    int64_t n;
    int64_t n_read;   /* into the buffer, since the beginning */
    int64_t n_buffer; /* in the buffer now */
    int64_t next;     /* of these */
    uint8_t *buffer;
    size_t buffer_nbytes;
} bth_index_stream;

/*
 * n elements of a part, from its element `first` on. The stream is number `i` of `n_streams`, which
 * share the buffer. T2: the part was checked, and holds these elements.
 */
bth_index_stream bth_index_stream_begin(bth_indices_check *check, const berth_tensor *part,
                                        int64_t first, int64_t stride, int64_t n);
void bth_index_stream_set_buffer(bth_index_stream *stream, size_t i, size_t n_streams);

/* The cost of a stream: elements of the storage, gaps included, and that of its reads. */
uint64_t bth_index_stream_cost(int64_t stride, int64_t n);
/* Tells the caller's params how much is done. */
int bth_indices_check_report(bth_indices_check *check);

/* Reads the next elements. */
int bth_index_stream_fill(bth_index_stream *stream);

/* The next index; it must have one. False: it could not be read. */
static inline bool bth_index_stream_next(bth_index_stream *stream, int64_t *value)
{
    int32_t narrow;

    if (stream->next == stream->n_buffer && bth_index_stream_fill(stream) < 0)
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
static inline int64_t bth_index_stream_last(const bth_index_stream *stream)
{
    return stream->n_read - stream->n_buffer + stream->next - 1;
}

/*
 * BERTH_E_TENSOR, about the index that was taken last: adds byte, record and name, and that of the
 * layout, and what can be done.
 */
__attribute__((format(printf, 2, 3))) int bth_index_stream_fail(const bth_index_stream *stream,
                                                                const char *format, ...);
/* The same about the whole part. */
__attribute__((format(printf, 3, 4))) int bth_index_part_fail(const bth_indices_check *check,
                                                              const berth_tensor *part,
                                                              const char *format, ...);

/* "(1, 2)", or "[1, 2]"; a long one is cut. Returns `text`. */
const char *bth_index_numbers_text(const int64_t *numbers, int32_t n, const char brackets[2],
                                   char text[128]);

#endif
