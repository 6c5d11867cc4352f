/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes a safetensors header: the same bytes as the safetensors package's, but for its control
 * characters. */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/json/safetensors.h"
#include "format/values/value.h"

/* NULL: out of memory. */
static json_t *entry_make_json(const berth_tensor *tensor, uint64_t begin)
{
    json_t *shape = json_array();
    uint64_t end = begin + berth_tensor_nbytes(tensor);
    for (int32_t i = 0; i < tensor->rank; i++) {
        bool doubles = tensor->dtype == BERTH_FLOAT4_E2M1FN_X2 && i == tensor->rank - 1;
        if (json_array_append_new(shape, json_integer(tensor->shape[i] * (doubles ? 2 : 1))) < 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", bth_safetensors_dtype_name(tensor->dtype),
                     "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* NULL: out of memory. */
static json_t *header_make_json(const bth_safetensors_new *contents)
{
    json_t *header = json_object(), *metadata = contents->has_metadata ? json_object() : NULL;
    uint64_t at = 0;
    int failed = 0;
    for (size_t i = 0; i < contents->n_texts && !failed; i++)
        failed = json_object_set_new(metadata, contents->texts[i].key,
                                     json_string(contents->texts[i].text));
    if (contents->has_metadata && !failed)
        failed = json_object_set(header, "__metadata__", metadata);
    json_decref(metadata);
    for (size_t i = 0; i < contents->n_entries && !failed; i++) {
        const bth_safetensors_entry *entry = &contents->entries[i];
        failed = json_object_set_new(header, entry->name, entry_make_json(entry->tensor, at));
        at += berth_tensor_nbytes(entry->tensor);
    }
    if (!failed)
        return header;
    json_decref(header);
    return NULL;
}

/* The length, the text of the JSON, and spaces. NULL: out of memory. */
static uint8_t *header_make_bytes(const json_t *header, size_t padded)
{
    uint8_t *bytes = bth_allocate(BTH_SAFETENSORS_LENGTH_NBYTES + padded);
    if (!bytes)
        return NULL;
    for (int i = 0; i < BTH_SAFETENSORS_LENGTH_NBYTES; i++)
        bytes[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    memset(bytes + BTH_SAFETENSORS_LENGTH_NBYTES, ' ', padded);
    if (json_dumpb(header, (char *)bytes + BTH_SAFETENSORS_LENGTH_NBYTES, padded, JSON_COMPACT) > 0)
        return bytes;
    bth_release(bytes);
    return NULL;
}

int bth_safetensors_write(const bth_safetensors_new *contents, uint8_t **bytes, size_t *nbytes,
                          berth_error *error)
{
    json_t *header = header_make_json(contents);
    size_t n = header ? json_dumpb(header, NULL, 0, JSON_COMPACT) : 0, padded = (n + 7) / 8 * 8;
    if (n == 0)
        (void)bth_fail_memory(error, contents->n_entries * sizeof(json_t));
    else if (padded > BTH_SAFETENSORS_MAX_HEADER_NBYTES)
        (void)bth_fail_status(error, BERTH_E_UNSUPPORTED,
                              "safetensors headers have at most %d bytes, this one would have %zu: "
                              "use fewer tensors in a file, or shorter names",
                              BTH_SAFETENSORS_MAX_HEADER_NBYTES, padded);
    else if (!(*bytes = header_make_bytes(header, padded)))
        (void)bth_fail_memory(error, padded);
    else
        *nbytes = BTH_SAFETENSORS_LENGTH_NBYTES + padded;
    json_decref(header);
    return error->code;
}
