/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads a safetensors header. It is checked before it is used: known dtypes, shapes that agree with
 * the offsets, no gaps, no overlaps, no name twice.
 */
#include <stdio.h>
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

static int fail_in_tensor(const char *name, int code, const char *why, berth_error *error)
{
    char quoted[104];
    (void)snprintf(quoted, sizeof quoted, "\"%.100s\"", name);
    (void)bth_fail_status(error, code, "%s", why);
    return bth_error_prefix(error, quoted);
}

/* ---- __metadata__ ---- */

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
        return fail_in_tensor("__metadata__", BERTH_E_ARCHIVE, "it is no map of texts", error);
    reading->contents->metadata = dict;
    return 0;
}

/* ---- one tensor ---- */

/* F4 shapes count elements, PyTorch's count bytes of two. False: PyTorch has no such tensor. */
static bool shape_halve_f4(berth_dtype dtype, int64_t *shape, int32_t rank)
{
    if (dtype != BERTH_FLOAT4_E2M1FN_X2)
        return true;
    if (rank == 0 || shape[rank - 1] % 2 != 0)
        return false;
    shape[rank - 1] /= 2;
    return true;
}

static bool shape_has_nbytes(const int64_t *shape, int32_t rank, size_t item, uint64_t nbytes)
{
    uint64_t product = item;
    for (int32_t i = 0; i < rank; i++)
        if (!bth_try_multiply(product, (uint64_t)shape[i], &product))
            return false;
    return product == nbytes;
}

/* S2: two offsets, inside the file. */
static int tensor_read_offsets(header_tensor *tensor, const json_t *offsets, uint64_t data_nbytes,
                               berth_error *error)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    char why[128];
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return fail_in_tensor(tensor->name, BERTH_E_ARCHIVE, "its data_offsets are no two integers",
                              error);
    if (json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return fail_in_tensor(tensor->name, BERTH_E_TENSOR, "its data_offsets are no range", error);
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    if (tensor->end <= data_nbytes)
        return 0;
    (void)snprintf(why, sizeof why, "it ends %llu bytes behind the end of the file" BTH_CUT_OFF,
                   (unsigned long long)(tensor->end - data_nbytes));
    return fail_in_tensor(tensor->name, BERTH_E_TENSOR, why, error);
}

static int header_add_tensor(header_reading *reading, const char *name, const json_t *entry,
                             berth_error *error)
{
    header_tensor *tensor = &reading->tensors[reading->n_tensors];
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    char why[80];
    *tensor = (header_tensor){.name = name,
                              .index = reading->n_tensors,
                              .dtype = bth_safetensors_dtype_from_name(dtype_name),
                              .shape = json_object_get(entry, "shape")};
    if (!dtype_name)
        return fail_in_tensor(name, BERTH_E_ARCHIVE, "it has no dtype", error);
    if (tensor->dtype == BERTH_DTYPE_NONE) {
        (void)snprintf(why, sizeof why, "PyTorch has no dtype for '%.32s'", dtype_name);
        return fail_in_tensor(name, BERTH_E_TENSOR, why, error);
    }
    reading->n_tensors++;
    return tensor_read_offsets(tensor, json_object_get(entry, "data_offsets"), reading->data_nbytes,
                               error);
}

/* S3: as many bytes as the shape and the dtype need. Makes the tensor; NULL: an error. */
static berth_value *header_make_tensor(header_reading *reading, const header_tensor *from,
                                       berth_error *error)
{
    int64_t shape[BERTH_MAX_RANK];
    berth_tensor tensor = {.dtype = from->dtype, .shape = shape};
    uint64_t nbytes = from->end - from->begin;
    const char *why = NULL;
    tensor.rank = bth_json_read_sizes(from->shape, false, shape);
    if (tensor.rank < 0)
        why = "its shape is no list of at most 64 sizes";
    else if (!shape_halve_f4(from->dtype, shape, tensor.rank))
        why = "PyTorch has F4 in pairs only: its last dimension must be even";
    else if (!shape_has_nbytes(shape, tensor.rank, berth_dtype_nbytes(from->dtype), nbytes))
        why = "its shape and dtype do not fit its number of bytes";
    if (why) {
        (void)fail_in_tensor(from->name, BERTH_E_TENSOR, why, error);
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

/* ---- all tensors ---- */

static int compare_tensors(const void *left, const void *right)
{
    const header_tensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* S2: every byte of the data belongs to exactly one tensor. Sorts them. */
static int header_check_ranges(header_reading *reading, berth_error *error)
{
    uint64_t at = 0;
    qsort(reading->tensors, reading->n_tensors, sizeof *reading->tensors, compare_tensors);
    for (size_t i = 0; i < reading->n_tensors; i++) {
        if (reading->tensors[i].begin != at)
            return fail_in_tensor(reading->tensors[i].name, BERTH_E_TENSOR,
                                  "it overlaps another tensor, or follows a gap", error);
        at = reading->tensors[i].end;
    }
    if (at != reading->data_nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, reading->data_offset + at,
                        "%llu bytes follow the last tensor",
                        (unsigned long long)(reading->data_nbytes - at));
    return 0;
}

/* S4: save_model keeps the first of tied names in their order. In a state_dict, their last parts
 * say what the tensor is in its module: "weight". A remark such as "best_layer": "weight" has no
 * parts. */
static bool name_is_tied_by_rule(const char *name, const char *other)
{
    const char *part = strrchr(name, '.'), *other_part = strrchr(other, '.');
    return part && other_part && strcmp(part, other_part) == 0 && strcmp(name, other) > 0;
}

int bth_safetensors_add_tied_names(berth_tree *tree, bth_safetensors *contents, bool by_rule,
                                   berth_error *error)
{
    berth_value *root = contents->root, *metadata = contents->metadata;
    size_t n = berth_value_count(metadata);
    for (size_t i = 0; i < n; i++) {
        berth_value *key, *value;
        (void)berth_dict_at(metadata, i, &key, &value);
        const char *name = berth_as_text(key, NULL), *other = berth_as_text(value, NULL);
        const berth_tensor *tensor = berth_as_tensor(berth_dict_get(root, other));
        if (!tensor || strcmp(name, "format") == 0 || berth_dict_get(root, name) ||
            (by_rule && !name_is_tied_by_rule(name, other)))
            continue;
        if (berth_dict_set(root, name, bth_tensor_adopt(tree, tensor)) < 0)
            return berth_tree_error(tree, error);
    }
    return 0;
}

static int header_read_entries(header_reading *reading, berth_error *error)
{
    size_t nbytes = bth_array_nbytes(json_object_size(reading->json) + 1, sizeof *reading->tensors);
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
    if (header_check_ranges(reading, error) < 0)
        return error->code;
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
