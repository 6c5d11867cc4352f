/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads what a program of torch.export says of its weights. All of it is checked before it is used.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/json/exported.h"
#include "format/json/json_parse.h"
#include "format/values/value.h"

/* A name of a record in this format is shorter than this. */
#define MAX_RECORD_NBYTES 512
/* A weight has some 250 bytes and at least 5 objects. */
#define MIN_OBJECT_NBYTES 8
/* Source: torch/_export/serde/schema.py, Layout.Strided. */
#define LAYOUT_STRIDED 7

/* One weight, while it is read. */
typedef struct weight {
    const bth_exported_text *text;
    berth_tree *tree;
    const char *name;
    const json_t *entry; /* what the text says of it */
    const json_t *meta;  /* its tensor_meta */
    char record[MAX_RECORD_NBYTES];
    berth_tensor tensor;
    int64_t shape[BERTH_MAX_RANK], stride[BERTH_MAX_RANK];
} weight;

/* By the number in the text. Source: torch/_export/serde/schema.py, ScalarType. */
static const berth_dtype dtypes[] = {[1] = BERTH_UINT8,
                                     [2] = BERTH_INT8,
                                     [3] = BERTH_INT16,
                                     [4] = BERTH_INT32,
                                     [5] = BERTH_INT64,
                                     [6] = BERTH_FLOAT16,
                                     [7] = BERTH_FLOAT32,
                                     [8] = BERTH_FLOAT64,
                                     [9] = BERTH_COMPLEX32,
                                     [10] = BERTH_COMPLEX64,
                                     [11] = BERTH_COMPLEX128,
                                     [12] = BERTH_BOOL,
                                     [13] = BERTH_BFLOAT16,
                                     [28] = BERTH_UINT16,
                                     [29] = BERTH_FLOAT8_E4M3FN,
                                     [30] = BERTH_FLOAT8_E5M2,
                                     [31] = BERTH_FLOAT8_E4M3FNUZ,
                                     [32] = BERTH_FLOAT8_E5M2FNUZ,
                                     [33] = BERTH_FLOAT8_E8M0FNU,
                                     [34] = BERTH_UINT32,
                                     [35] = BERTH_UINT64};

static int weight_fail(const weight *of, int code, const char *why, berth_error *error)
{
    (void)bth_fail(error, code, of->text->record, of->text->offset, "\"%.100s\": %s", of->name,
                   why);
    return error->code;
}

/* ---- one weight ---- */

/* E2: a strided tensor of a known dtype, with sizes and strides. */
static int weight_read_meta(weight *of, berth_error *error)
{
    int64_t dtype = bth_json_read_size(json_object_get(of->meta, "dtype"));
    berth_tensor *tensor = &of->tensor;
    if (!json_is_false(json_object_get(of->entry, "use_pickle")))
        return weight_fail(of, BERTH_E_UNSUPPORTED,
                           "a tensor subclass, which torch.export stores as a pickle of its own: "
                           "only torch.export.load reads it, and runs what is in it",
                           error);
    if (!json_is_object(of->meta))
        return weight_fail(of, BERTH_E_ARCHIVE, "it has no tensor_meta", error);
    if (dtype >= 0 && dtype < (int64_t)(sizeof dtypes / sizeof *dtypes))
        tensor->dtype = dtypes[dtype];
    if (tensor->dtype == BERTH_DTYPE_NONE)
        return weight_fail(of, BERTH_E_UNSUPPORTED, "its dtype is not known", error);
    if (bth_json_read_size(json_object_get(of->meta, "layout")) != LAYOUT_STRIDED)
        return weight_fail(of, BERTH_E_UNSUPPORTED, "it is no strided tensor", error);
    tensor->rank = bth_json_read_sizes(json_object_get(of->meta, "sizes"), true, of->shape);
    tensor->shape = of->shape;
    tensor->stride = of->stride;
    tensor->storage_offset =
        bth_json_read_size(json_object_get(json_object_get(of->meta, "storage_offset"), "as_int"));
    if (tensor->rank < 0 || tensor->storage_offset < 0 ||
        bth_json_read_sizes(json_object_get(of->meta, "strides"), true, of->stride) != tensor->rank)
        return weight_fail(of, BERTH_E_TENSOR, "its sizes, strides or offset are no numbers",
                           error);
    return 0;
}

/* E3: the record is there. Weights with the same record share its storage. */
static int weight_find_storage(weight *of, berth_error *error)
{
    const char *path = json_string_value(json_object_get(of->entry, "path_name"));
    const size_t skipped = sizeof "data/" - 1; /* it is in no key */
    berth_dtype dtype = bth_dtype_to_storage_dtype(of->tensor.dtype);
    const json_t *device = json_object_get(of->meta, "device");
    const char *type = json_string_value(json_object_get(device, "type"));
    int64_t index = bth_json_read_size(json_object_get(device, "index"));
    char location[32]; /* "cpu", "cuda:0", as PyTorch names devices */
    uint64_t nbytes;
    int n =
        snprintf(of->record, sizeof of->record, BTH_EXPORTED_WEIGHTS_PREFIX "%s", path ? path : "");
    if (!path || n >= (int)sizeof of->record ||
        !of->text->find_record(of->text->context, of->record, &nbytes))
        return weight_fail(of, BERTH_E_ARCHIVE, "the archive does not hold its record", error);
    if (nbytes == 0 && berth_tensor_numel(&of->tensor) != 0)
        return weight_fail(of, BERTH_E_UNSUPPORTED,
                           "its record is empty: the program was exported without weights "
                           "(FakeTensorMode)",
                           error);
    if (nbytes % berth_dtype_nbytes(of->tensor.dtype) != 0)
        return weight_fail(of, BERTH_E_TENSOR,
                           "its record does not hold a whole number of its elements", error);
    int location_nbytes = index < 0 ? snprintf(location, sizeof location, "%s", type ? type : "cpu")
                                    : snprintf(location, sizeof location, "%s:%lld",
                                               type ? type : "cpu", (long long)index);
    if (location_nbytes >= (int)sizeof location)
        return weight_fail(of, BERTH_E_UNSUPPORTED, "its device has no name of PyTorch's", error);
    of->tensor.storage =
        bth_tree_find_or_add_storage(of->tree, of->record + skipped, (size_t)n - skipped, dtype,
                                     nbytes, location, (size_t)location_nbytes);
    return of->tensor.storage ? 0 : berth_tree_error(of->tree, error);
}

/* ---- all weights ---- */

/* E1: {"config": {name: weight}}. */
int bth_exported_read_weights(const bth_exported_text *text, berth_tree *tree,
                              berth_value **weights, berth_error *error)
{
    bth_json_text parsed = {.bytes = text->bytes,
                            .nbytes = text->nbytes,
                            .what = "the list of weights",
                            .record = text->record,
                            .offset = text->offset,
                            .min_object_nbytes = MIN_OBJECT_NBYTES};
    json_t *json = bth_json_parse(&parsed, error);
    if (!json)
        return error->code;
    const json_t *entries = json_object_get(json, "config");
    *weights = berth_make_dict(tree, BERTH_KIND_DICT);
    if (!json_is_object(entries))
        (void)bth_fail(error, BERTH_E_ARCHIVE, text->record, text->offset,
                       "the list of weights has no config");
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)entries, name, entry)
    {
        weight of = {.text = text,
                     .tree = tree,
                     .name = name,
                     .entry = entry,
                     .meta = json_object_get(entry, "tensor_meta")};
        if (weight_read_meta(&of, error) < 0 || weight_find_storage(&of, error) < 0)
            break;
        bool is_parameter = json_is_true(json_object_get(entry, "is_param"));
        bool requires_grad = json_is_true(json_object_get(of.meta, "requires_grad"));
        if (!is_parameter && requires_grad)
            of.tensor.flags |= BERTH_REQUIRES_GRAD;
        berth_value *value = berth_make_tensor(tree, &of.tensor);
        if (value && is_parameter)
            value = berth_make_parameter(tree, value, requires_grad);
        if (!value) {
            char quoted[128];
            (void)berth_tree_error(tree, error);
            (void)snprintf(quoted, sizeof quoted, "\"%.100s\"", name);
            (void)bth_error_prefix(error, quoted);
            break;
        }
        if (berth_dict_set(*weights, name, value) < 0)
            break;
    }
    if (error->code == BERTH_OK)
        (void)berth_tree_error(tree, error); /* of a dict that stays empty, too */
    json_decref(json);
    return error->code;
}
