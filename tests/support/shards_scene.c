/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/shards_scene.h"

#include <stdlib.h>
#include <string.h>

/* Beyond the dimensions. HALVES: along dimension 2, in two slices along dimension 1. */
enum { WHOLE = 4, DEALT, HALVES };

static const struct sharded {
    const char *name;
    berth_dtype dtype;
    int32_t rank;
    int64_t shape[4];
    int along;
    const char *on; /* the tensor whose storage it is in, behind its elements */
} tensors[] = {
    {"rows", BERTH_FLOAT32, 2, {1001, 301}, 0, NULL},
    {"columns", BERTH_FLOAT32, 2, {37, 53}, 1, NULL},
    {"wide", BERTH_BFLOAT16, 2, {3000, 3001}, 1, NULL},
    {"cube0", BERTH_INT16, 4, {3, 5, 7, 11}, 0, NULL},
    {"cube1", BERTH_INT16, 4, {3, 5, 7, 11}, 1, NULL},
    {"cube2", BERTH_INT16, 4, {3, 5, 7, 11}, 2, NULL},
    {"cube3", BERTH_INT16, 4, {3, 5, 7, 11}, 3, NULL},
    {"halves", BERTH_FLOAT64, 4, {3, 5, 30, 11}, HALVES, NULL},
    {"few", BERTH_FLOAT64, 2, {40, 2}, 1, NULL}, /* more writers than columns: empty shards */
    {"bytes", BERTH_UINT8, 2, {9000, 7}, 1, NULL},
    {"complex", BERTH_COMPLEX64, 2, {9, 14}, 1, NULL},
    {"packed", BERTH_QUINT4X2, 2, {31, 24}, 1, NULL},
    {"long", BERTH_UINT8, 2, {5, 2500000}, 1, NULL}, /* with two writers the runs are long */
    {"scalar", BERTH_FLOAT64, 0, {0}, WHOLE, NULL},
    {"replica", BERTH_INT64, 1, {300000}, DEALT, NULL},
    {"first", BERTH_FLOAT32, 2, {50, 60}, 0, NULL},
    {"second", BERTH_FLOAT32, 2, {50, 60}, 1, "first"},
    {"empty", BERTH_FLOAT32, 2, {0, 5}, 1, NULL},
};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

static uint8_t *bytes_of[N_TENSORS];

static size_t elements_per_item(const struct sharded *tensor)
{
    return tensor->dtype == BERTH_QUINT4X2 ? 2 : 1;
}

static size_t tensor_nbytes(const struct sharded *tensor)
{
    size_t nbytes = berth_dtype_nbytes(tensor->dtype);

    for (int32_t i = 0; i < tensor->rank; i++)
        nbytes *= (size_t)tensor->shape[i];
    return nbytes / elements_per_item(tensor);
}

/* "second" lies behind "first". */
static void fill(void)
{
    uint32_t state = 7;

    for (size_t i = 0; i < N_TENSORS; i++) {
        size_t nbytes = tensor_nbytes(&tensors[i]);
        if (tensors[i].on)
            bytes_of[i] = bytes_of[i - 1] + nbytes;
        else if (!(bytes_of[i] = malloc(2 * nbytes + 1)))
            test_give_up("out of memory");
        for (size_t j = 0; j < nbytes; j++) {
            state = state * 1664525 + 1013904223;
            bytes_of[i][j] = (uint8_t)(state >> 24);
        }
    }
}

berth_value *shards_state_new(berth_tree *tree, bool is_outline)
{
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_storage *storage = NULL;

    if (!bytes_of[0])
        fill();
    for (size_t i = 0; i < N_TENSORS; i++) {
        size_t nbytes = tensor_nbytes(&tensors[i]);
        berth_tensor made = {
            .dtype = tensors[i].dtype, .rank = tensors[i].rank, .shape = tensors[i].shape};
        if (tensors[i].dtype == BERTH_QUINT4X2) {
            made.qscheme = BERTH_PER_TENSOR_AFFINE;
            made.scale = 0.5;
        }
        made.data = is_outline ? BERTH_ELSEWHERE : bytes_of[i];
        if (strcmp(tensors[i].name, "first") == 0)
            storage = berth_storage_new(tree, made.dtype, made.data, 2 * nbytes, NULL);
        if (tensors[i].on || strcmp(tensors[i].name, "first") == 0) {
            made.data = NULL;
            made.storage = storage;
            made.storage_offset = tensors[i].on ? (int64_t)(nbytes / sizeof(float)) : 0;
        }
        berth_dict_set(value, tensors[i].name, berth_make_tensor(tree, &made));
    }
    return value;
}

/* ---- shards ---- */

/* The elements of the box that was just set, as a tensor of its own. */
static void *copy_box(const struct sharded *tensor, const uint8_t *bytes, const int64_t *starts,
                      const int64_t *lengths)
{
    size_t per_item = elements_per_item(tensor), item = berth_dtype_nbytes(tensor->dtype);
    size_t stride, at, n_rows = 1, row;
    int32_t last = tensor->rank - 1;
    uint8_t *copy = malloc(tensor_nbytes(tensor) + 1), *out = copy;

    row = (size_t)lengths[last] * item / per_item;
    for (int32_t i = 0; i < last; i++)
        n_rows *= (size_t)lengths[i];
    for (size_t n = 0; n < n_rows && row > 0; n++, out += row) {
        size_t rest = n;
        stride = (size_t)tensor->shape[last] * item / per_item;
        at = (size_t)starts[last] * item / per_item;
        for (int32_t i = last; i-- > 0; rest /= (size_t)lengths[i]) {
            at += ((size_t)starts[i] + rest % (size_t)lengths[i]) * stride;
            stride *= (size_t)tensor->shape[i];
        }
        memcpy(out, bytes + at, row);
    }
    return copy;
}

/* Elements [begin, end) along a dimension; and, if `half` is 0 or 1, that half along dimension 1.
 */
static void add_box(writer_shards *shards, size_t i, int along, int64_t begin, int64_t end,
                    int half)
{
    int64_t *starts = shards->starts[shards->n], *lengths = shards->lengths[shards->n];

    for (int32_t d = 0; d < tensors[i].rank; d++) {
        starts[d] = d == along ? begin : 0;
        lengths[d] = d == along ? end - begin : tensors[i].shape[d];
    }
    if (half >= 0) {
        starts[1] = half;
        lengths[1] = half == 0 ? 1 : tensors[i].shape[1] - 1;
    }
    void *copy = copy_box(&tensors[i], bytes_of[i], starts, lengths);
    shards->copies[shards->n] = copy;
    shards->slices[shards->n++] = berth_slice_of(tensors[i].name, starts, lengths, copy);
}

static void take_shard(writer_shards *shards, size_t i, size_t n_writers, size_t writer)
{
    int along = tensors[i].along == HALVES ? 2 : tensors[i].along;
    int64_t unit = (int64_t)elements_per_item(&tensors[i]), n = (int64_t)n_writers;
    int64_t length = tensors[i].shape[along] / unit, number = (int64_t)writer;
    int64_t begin = length * number / n * unit, end = length * (number + 1) / n * unit;

    if (tensors[i].along != HALVES)
        add_box(shards, i, along, begin, end, -1);
    for (int half = 0; tensors[i].along == HALVES && half < 2; half++)
        add_box(shards, i, along, begin, end, half);
}

void shards_take(writer_shards *shards, size_t n_writers, size_t writer)
{
    *shards = (writer_shards){0};
    for (size_t i = 0; i < N_TENSORS; i++) {
        if (tensor_nbytes(&tensors[i]) == 0)
            continue; /* its storage is nobody's */
        if (tensors[i].along == DEALT) {
            uint64_t offset, nbytes;
            berth_deal_bytes(1, tensor_nbytes(&tensors[i]), n_writers, writer, &offset, &nbytes);
            shards->slices[shards->n++] =
                berth_slice_bytes(tensors[i].name, offset, nbytes, bytes_of[i] + offset);
        } else if (tensors[i].along != WHOLE)
            take_shard(shards, i, n_writers, writer);
        else if (writer == n_writers - 1)
            shards->slices[shards->n++] = berth_slice_whole(tensors[i].name, bytes_of[i]);
    }
}

void shards_free(writer_shards *shards)
{
    for (size_t i = 0; i < MAX_SHARDS; i++)
        free(shards->copies[i]);
}
