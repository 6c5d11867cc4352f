/* SPDX-License-Identifier: BSD-3-Clause */
/* What needs no JSON of safetensors: the dtypes, the length of a header, and tied names. */
#include "format/json/safetensors.h"

#include <string.h>

#include "base/error.h"
#include "format/values/value.h"

/* ---- dtypes ---- */

/* In the order in which the safetensors package writes them: larger items come first. */
static const struct {
    berth_dtype dtype;
    const char *name;
} dtypes[] = {{BERTH_UINT64, "U64"},
              {BERTH_INT64, "I64"},
              {BERTH_FLOAT64, "F64"},
              {BERTH_COMPLEX64, "C64"},
              {BERTH_FLOAT32, "F32"},
              {BERTH_UINT32, "U32"},
              {BERTH_INT32, "I32"},
              {BERTH_BFLOAT16, "BF16"},
              {BERTH_FLOAT16, "F16"},
              {BERTH_UINT16, "U16"},
              {BERTH_INT16, "I16"},
              {BERTH_FLOAT8_E5M2FNUZ, "F8_E5M2FNUZ"},
              {BERTH_FLOAT8_E4M3FNUZ, "F8_E4M3FNUZ"},
              {BERTH_FLOAT8_E8M0FNU, "F8_E8M0"},
              {BERTH_FLOAT8_E4M3FN, "F8_E4M3"},
              {BERTH_FLOAT8_E5M2, "F8_E5M2"},
              {BERTH_INT8, "I8"},
              {BERTH_UINT8, "U8"},
              {BERTH_FLOAT6_E3M2FN_X4, "F6_E3M2"},
              {BERTH_FLOAT6_E2M3FN_X4, "F6_E2M3"},
              {BERTH_FLOAT4_E2M1FN_X2, "F4"},
              {BERTH_BOOL, "BOOL"}};

enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

size_t bth_safetensors_dtype_position(berth_dtype dtype)
{
    size_t i = 0;
    while (i < N_DTYPES && dtypes[i].dtype != dtype)
        i++;
    return i;
}

const char *bth_safetensors_dtype_name(berth_dtype dtype)
{
    size_t i = bth_safetensors_dtype_position(dtype);
    return i < N_DTYPES ? dtypes[i].name : NULL;
}

berth_dtype bth_safetensors_dtype_from_name(const char *name)
{
    for (size_t i = 0; name && i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].dtype;
    return BERTH_DTYPE_NONE;
}

int64_t bth_safetensors_elements_per_item(berth_dtype dtype)
{
    return dtype == BERTH_FLOAT4_E2M1FN_X2 ? 2 : bth_dtype_is_foreign(dtype) ? 4 : 1;
}

/* ---- the length of the header ---- */

/* Other formats begin with texts or with numbers above this. */
#define MAX_ANNOUNCED_NBYTES UINT32_MAX

uint64_t bth_safetensors_header_nbytes(const uint8_t *head, size_t nbytes)
{
    uint64_t length = 0;
    if (nbytes < BTH_SAFETENSORS_HEAD_NBYTES || head[BTH_SAFETENSORS_LENGTH_NBYTES] != '{')
        return 0;
    for (size_t i = BTH_SAFETENSORS_LENGTH_NBYTES; i-- > 0;)
        length = length << 8 | head[i];
    return length >= 2 && length <= MAX_ANNOUNCED_NBYTES ? length : 0;
}

int bth_safetensors_check_length(uint64_t header_nbytes, uint64_t file_nbytes, berth_error *error)
{
    if (header_nbytes > BTH_SAFETENSORS_MAX_HEADER_NBYTES)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, 0,
                        "a safetensors header of %llu bytes: the format allows %d",
                        (unsigned long long)header_nbytes, BTH_SAFETENSORS_MAX_HEADER_NBYTES);
    if (header_nbytes > file_nbytes - BTH_SAFETENSORS_LENGTH_NBYTES)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, 0,
                        "a safetensors header of %llu bytes in a file of %llu" BTH_CUT_OFF,
                        (unsigned long long)header_nbytes, (unsigned long long)file_nbytes);
    return 0;
}

/* ---- tied names ---- */

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
        if (!tensor || strcmp(name, "format") == 0 || berth_dict_get(root, name))
            continue;
        /* S4: save_model keeps the first of tied names in their order. In a state_dict, their last
         * parts say what the tensor is in its module: "weight". A remark such as "best_layer":
         * "weight" has no parts. */
        const char *part = strrchr(name, '.'), *other_part = strrchr(other, '.');
        bool follows_rule =
            part && other_part && strcmp(part, other_part) == 0 && strcmp(name, other) > 0;
        if (by_rule && !follows_rule)
            continue;
        if (berth_dict_set(root, name, bth_tensor_adopt(tree, tensor)) < 0)
            return berth_tree_error(tree, error);
    }
    return 0;
}
