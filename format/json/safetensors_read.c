/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads a safetensors header. It is checked before it is used: known dtypes, shapes that agree with
 * the offsets, no gaps, no overlaps, no name twice.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/json/json_parse.h"
#include "format/json/safetensors.h"
#include "format/values/value.h"

/* An object that describes a tensor has at least 49. */
#define MIN_OBJECT_NBYTES 32

/* One tensor of the header, until all are sorted by their bytes. */
typedef struct header_tensor {
    const char *name;
    size_t index; /* in the header */
    berth_dtype dtype;
    uint64_t begin, end; /* of its bytes, from the end of the header on */
    const json_t *shape;
} header_tensor;

typedef struct header_reading {
    json_t *json;
    uint64_t data_offset; /* of the first tensor, in the file */
    uint64_t data_nbytes;
    header_tensor *tensors;
    size_t n_tensors;
    berth_tree *tree;
    bth_safetensors *contents;
} header_reading;

/* The arguments of the text begin with the name of a tensor of the header, or __metadata__. */
#define FAIL_IN_TENSOR(error, code, text, ...)                                                     \
    bth_fail_status(error, code, "\"%.100s\": " text, __VA_ARGS__)

/* S4: a map of texts. */
static int header_read_metadata(header_reading *reading, const json_t *metadata, berth_error *error)
{
    const char *key;
    json_t *text;
    if (json_is_null(metadata))
        return 0;
    bool is_map = json_is_object(metadata);
    berth_value *dict = berth_make_dict(reading->tree, BERTH_KIND_DICT);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, text)
    {
        is_map &= json_is_string(text);
        if (is_map && berth_dict_set(dict, key,
                                     berth_make_str(reading->tree, json_string_value(text),
                                                    json_string_length(text))) < 0)
            return berth_tree_error(reading->tree, error);
    }
    if (!is_map)
        return FAIL_IN_TENSOR(error, BERTH_E_ARCHIVE, "it is no map of texts", "__metadata__");
    reading->contents->metadata = dict;
    return 0;
}

/* S2: a known dtype, and two offsets, inside the file. */
static int header_add_tensor(header_reading *reading, const char *name, const json_t *entry,
                             berth_error *error)
{
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    berth_dtype dtype = bth_safetensors_dtype_from_name(dtype_name);
    if (!dtype_name)
        return FAIL_IN_TENSOR(error, BERTH_E_ARCHIVE, "it has no dtype", name);
    if (dtype == BERTH_DTYPE_NONE)
        return FAIL_IN_TENSOR(error, BERTH_E_TENSOR, "PyTorch has no dtype for '%.32s'", name,
                              dtype_name);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return FAIL_IN_TENSOR(error, BERTH_E_ARCHIVE, "its data_offsets are no two integers", name);
    if (json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return FAIL_IN_TENSOR(error, BERTH_E_TENSOR, "its data_offsets are no range", name);
    uint64_t end_at = (uint64_t)json_integer_value(end);
    if (end_at > reading->data_nbytes)
        return FAIL_IN_TENSOR(error, BERTH_E_TENSOR,
                              "it ends %llu bytes behind the end of the file" BTH_CUT_OFF, name,
                              (unsigned long long)(end_at - reading->data_nbytes));
    reading->tensors[reading->n_tensors] =
        (header_tensor){.name = name,
                        .index = reading->n_tensors,
                        .dtype = dtype,
                        .begin = (uint64_t)json_integer_value(begin),
                        .end = end_at,
                        .shape = json_object_get(entry, "shape")};
    reading->n_tensors++;
    return 0;
}

/* S3: as many bytes as the shape and the dtype need. Makes the tensor; NULL: an error. */
static berth_value *header_make_tensor(header_reading *reading, const header_tensor *from,
                                       berth_error *error)
{
    int64_t shape[BERTH_MAX_RANK];
    int32_t rank = bth_json_read_sizes(from->shape, false, shape), last = rank - 1;
    berth_tensor tensor = {.dtype = from->dtype, .shape = shape, .rank = rank};
    uint64_t nbytes = from->end - from->begin, wanted = berth_dtype_nbytes(from->dtype);
    int64_t per_item = bth_safetensors_elements_per_item(from->dtype);
    bool fits = true;
    const char *why = NULL;
    if (rank < 0)
        why = "its shape is no list of at most 64 sizes";
    else if (per_item > 1 && (rank == 0 || shape[last] % per_item != 0))
        why = per_item == 2
                  ? "PyTorch has F4 in pairs only: its last dimension must be even"
                  : "Berth has F6 in fours only: its last dimension must be a multiple of 4";
    else if (per_item > 1)
        shape[last] /= per_item;
    for (int32_t i = 0; i < rank; i++)
        fits &= bth_try_multiply(wanted, (uint64_t)shape[i], &wanted);
    if (!why && (!fits || wanted != nbytes))
        why = "its shape and dtype do not fit its number of bytes";
    if (why) {
        (void)FAIL_IN_TENSOR(error, BERTH_E_TENSOR, "%s", from->name, why);
        return NULL;
    }
    berth_storage *storage = bth_storage_new_without_data(
        reading->tree, bth_dtype_to_storage_dtype(from->dtype), nbytes, NULL);
    if (storage)
        storage->offset = reading->data_offset + from->begin;
    tensor.storage = storage;
    berth_value *made = storage ? berth_make_tensor(reading->tree, &tensor) : NULL;
    if (!made)
        (void)berth_tree_error(reading->tree, error);
    return made;
}

static int compare_tensors(const void *left, const void *right)
{
    const header_tensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int header_read_entries(header_reading *reading, berth_error *error)
{
    size_t nbytes = bth_array_nbytes(json_object_size(reading->json) + 1, sizeof *reading->tensors);
    uint64_t at = 0;
    const char *name;
    json_t *entry;
    reading->tensors = bth_allocate(nbytes);
    if (!reading->tensors)
        return bth_fail_memory(error, nbytes);
    json_object_foreach(reading->json, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            (void)header_read_metadata(reading, entry, error);
        else
            (void)header_add_tensor(reading, name, entry, error);
        if (error->code < 0)
            return error->code;
    }
    /* S2: every byte of the data belongs to exactly one tensor. */
    qsort(reading->tensors, reading->n_tensors, sizeof *reading->tensors, compare_tensors);
    for (size_t i = 0; i < reading->n_tensors; i++) {
        if (reading->tensors[i].begin != at)
            return FAIL_IN_TENSOR(error, BERTH_E_TENSOR,
                                  "it overlaps another tensor, or follows a gap",
                                  reading->tensors[i].name);
        at = reading->tensors[i].end;
    }
    if (at != reading->data_nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, reading->data_offset + at,
                        "%llu bytes follow the last tensor",
                        (unsigned long long)(reading->data_nbytes - at));
    reading->contents->root = berth_make_dict(reading->tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < reading->n_tensors; i++) {
        berth_value *tensor = header_make_tensor(reading, &reading->tensors[i], error);
        if (!tensor)
            return error->code;
        if (berth_dict_set(reading->contents->root, reading->tensors[i].name, tensor) < 0)
            return berth_tree_error(reading->tree, error);
    }
    return 0;
}

int bth_safetensors_read(const uint8_t *head, uint64_t header_nbytes, uint64_t file_nbytes,
                         berth_tree *tree, bth_safetensors *contents, berth_error *error)
{
    uint64_t data_offset = BTH_SAFETENSORS_LENGTH_NBYTES + header_nbytes;
    header_reading reading = {.data_offset = data_offset,
                              .data_nbytes = file_nbytes - data_offset,
                              .tree = tree,
                              .contents = contents};
    bth_json_text text = {.bytes = head + BTH_SAFETENSORS_LENGTH_NBYTES,
                          .nbytes = (size_t)header_nbytes,
                          .what = "the safetensors header",
                          .offset = BTH_SAFETENSORS_LENGTH_NBYTES,
                          .min_object_nbytes = MIN_OBJECT_NBYTES,
                          .refuses_minus_zero = true}; /* as the package does */

    *contents = (bth_safetensors){0};
    reading.json = bth_json_parse(&text, error);
    if (reading.json && header_read_entries(&reading, error) == 0)
        (void)berth_tree_error(tree, error); /* of a dict that stays empty, too */
    bth_release(reading.tensors);
    json_decref(reading.json);
    return error->code;
}
