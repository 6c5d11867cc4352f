/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes a safetensors header: the same bytes as the safetensors package's, but for its control
 * characters. */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "format/json/safetensors.h"
#include "format/values/value.h"

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
        const berth_tensor *tensor = contents->entries[i].tensor;
        uint64_t begin = at;
        json_t *shape = json_array();
        at += berth_tensor_nbytes(tensor);
        for (int32_t k = 0; k < tensor->rank && !failed; k++) {
            int64_t per_item =
                k == tensor->rank - 1 ? bth_safetensors_elements_per_item(tensor->dtype) : 1;
            failed = json_array_append_new(shape, json_integer(tensor->shape[k] * per_item));
        }
        /* It takes the shape, even where it fails. */
        json_t *entry =
            json_pack("{s:s,s:o,s:[I,I]}", "dtype", bth_safetensors_dtype_name(tensor->dtype),
                      "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)at);
        failed |= json_object_set_new(header, contents->entries[i].name, entry);
    }
    if (!failed)
        return header;
    json_decref(header);
    return NULL;
}

int bth_safetensors_write(const bth_safetensors_new *contents, uint8_t **bytes, size_t *nbytes,
                          berth_error *error)
{
    json_t *header = header_make_json(contents);
    size_t n = header ? json_dumpb(header, NULL, 0, JSON_COMPACT) : 0, padded = (n + 7) / 8 * 8;
    uint8_t *made = NULL;
    if (n == 0)
        (void)bth_fail_memory(error, contents->n_entries * sizeof(json_t));
    else if (padded > BTH_SAFETENSORS_MAX_HEADER_NBYTES)
        (void)bth_fail_status(error, BERTH_E_UNSUPPORTED,
                              "safetensors headers have at most %d bytes, this one would have %zu: "
                              "use fewer tensors in a file, or shorter names",
                              BTH_SAFETENSORS_MAX_HEADER_NBYTES, padded);
    else if (!(made = bth_allocate(BTH_SAFETENSORS_LENGTH_NBYTES + padded)))
        (void)bth_fail_memory(error, padded);
    if (made) {
        char *text = (char *)made + BTH_SAFETENSORS_LENGTH_NBYTES;
        bth_put_u64(made, padded);
        memset(text, ' ', padded); /* behind the JSON spaces are left */
        if (json_dumpb(header, text, padded, JSON_COMPACT) > 0) {
            *bytes = made;
            *nbytes = BTH_SAFETENSORS_LENGTH_NBYTES + padded;
        } else {
            bth_release(made);
            (void)bth_fail_memory(error, padded);
        }
    }
    json_decref(header);
    return error->code;
}
