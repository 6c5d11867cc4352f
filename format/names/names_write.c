/* SPDX-License-Identifier: BSD-3-Clause */
/* The texts of names: steps, short names and paths. */
#include "format/names/names.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

/* ---- steps ---- */

const char *bth_step_attribute_name(const berth_value *parent, uint32_t step)
{
    static const char *const nested[] = {"buffer", "sizes", "strides", "storage_offsets"};
    static const char *const quantized[] = {"scales", "zero_points"};
    static const char *const sparse[][3] = {
        [BERTH_SPARSE_COO] = {"indices", "values"},
        [BERTH_SPARSE_CSR] = {"crow_indices", "col_indices", "values"},
        [BERTH_SPARSE_CSC] = {"ccol_indices", "row_indices", "values"},
        [BERTH_SPARSE_BSR] = {"crow_indices", "col_indices", "values"},
        [BERTH_SPARSE_BSC] = {"ccol_indices", "row_indices", "values"},
    };
    berth_kind kind = berth_value_kind(parent);
    switch (step) {
    case BTH_STEP_STATE:
        return "__dict__";
    case BTH_STEP_LIST_ITEMS:
        return "list_items";
    case BTH_STEP_DICT_ITEMS:
        return "dict_items";
    case BTH_STEP_INNER:
        return kind == BERTH_KIND_CALL ? "callable" : "data";
    default: /* only parts of tensors have names */
        if (!bth_kind_is_tensor(kind) || !bth_tensor_part(parent, step))
            return NULL;
        parent = bth_value_unwrap_tensor(parent);
        kind = berth_value_kind(parent);
        return kind == BERTH_KIND_TENSOR   ? quantized[step]
               : kind == BERTH_KIND_NESTED ? nested[step]
                                           : sparse[bth_value_layout(parent)][step];
    }
}

void bth_name_text_append_short_name_step(bth_name_text *out, const berth_value *parent,
                                          uint32_t index)
{
    const char *attribute = bth_step_attribute_name(parent, index);
    const berth_value *key = attribute ? NULL : bth_value_key(parent, index);
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    if (attribute)
        bth_name_text_append_text(out, attribute);
    else if (text)
        bth_name_text_append_bytes(out, text, nbytes);
    else if (key)
        bth_name_text_append_repr(out, key);
    else
        bth_name_text_append_format(out, "%" PRIu32, index);
}

void bth_name_text_append_path_step(bth_name_text *out, const berth_value *parent, uint32_t index)
{
    const char *attribute = bth_step_attribute_name(parent, index);
    if (attribute) {
        bth_name_text_append_text(out, ".");
        bth_name_text_append_text(out, attribute);
        return;
    }
    const berth_value *key = bth_value_key(parent, index);
    bth_name_text_append_text(out, "[");
    if (key)
        bth_name_text_append_repr(out, key);
    else
        bth_name_text_append_format(out, "%" PRIu32, index);
    bth_name_text_append_text(out, "]");
}

/* ---- entries ---- */

void bth_name_text_write_entry_name(bth_name_text *out, const bth_names *names, uint32_t entry,
                                    bool path)
{
    size_t n = 0;
    for (uint32_t at = entry; names->entries[at].parent != UINT32_MAX;
         at = names->entries[at].parent)
        n++;
    out->nbytes = 0;
    out->cut = out->failed = false;
    bth_name_text_append_bytes(out, "", 0);
    if (n == 0)
        return;
    uint32_t few[32], *chain = n <= 32 ? few : bth_allocate(n * sizeof(*chain));
    if (!chain) {
        out->failed = true;
        return;
    }
    n = 0;
    for (uint32_t at = entry; names->entries[at].parent != UINT32_MAX;
         at = names->entries[at].parent)
        chain[n++] = at;
    for (size_t i = n; i-- > 0;) {
        const struct names_entry *step = &names->entries[chain[i]];
        const berth_value *parent = names->entries[step->parent].value;
        if (!path && i + 1 < n)
            bth_name_text_append_text(out, ".");
        if (path)
            bth_name_text_append_path_step(out, parent, step->index);
        else
            bth_name_text_append_short_name_step(out, parent, step->index);
    }
    if (chain != few)
        bth_release(chain);
}

/* Without NULs, which would end a name, and without surrogates, which are not UTF-8. There is a NUL
 * behind the last byte. */
static bool text_can_be_name(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (text[i] == '\0' || ((uint8_t)text[i] == 0xed && (uint8_t)text[i + 1] >= 0xa0))
            return false;
    return true;
}

const char *bth_names_tensor_root_key(const bth_names *names, size_t i, bool any_form)
{
    const struct names_entry *entry = &names->entries[names->tensors[i]];
    const berth_value *key = entry->parent == 0 ? bth_value_key(names->root, entry->index) : NULL;
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    return text && (any_form || text[0] != '[') && text_can_be_name(text, nbytes) ? text : NULL;
}

int bth_names_write_tensor_name_and_path(const bth_names *names, size_t i, bth_name_text *name,
                                         bth_name_text *path, berth_error *error)
{
    if (i >= names->n_tensors)
        return bth_fail_argument(error, "no tensor %zu of %u", i, names->n_tensors);
    uint32_t entry = names->tensors[i];
    bool shared = names->entries[entry].hash & BTH_NAME_SHARED;
    name->limit = BTH_MAX_NAME_NBYTES;
    bth_name_text_write_entry_name(name, names, entry, shared);
    if (!shared && !name->failed && !name->cut) {
        /* It must not begin like a path, or be empty, as only the root's is. */
        bool can_be_used = name->nbytes == 0 ? names->entries[entry].parent == UINT32_MAX
                                             : name->text[0] != '[' && name->text[0] != '.' &&
                                                   text_can_be_name(name->text, name->nbytes);
        if (!can_be_used)
            bth_name_text_write_entry_name(name, names, entry, true);
    }
    path->limit = BTH_MAX_NAME_NBYTES;
    bth_name_text_write_entry_name(path, names, entry, true);
    if (name->failed || path->failed)
        return bth_fail_memory(error, name->nbytes + path->nbytes);
    if (path->cut)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the name of tensor %zu has more than %zu bytes", i,
                               BTH_MAX_NAME_NBYTES);
    return 0;
}

int bth_names_allocate_tensor_name_and_path(const bth_names *names, size_t i, char **name,
                                            char **path, berth_error *error)
{
    bth_name_text texts[2] = {{0}, {0}};
    int code = bth_names_write_tensor_name_and_path(names, i, &texts[0], &texts[1], error);
    for (int k = 0; k < 2 && code < 0; k++) {
        bth_release(texts[k].text);
        texts[k].text = NULL;
    }
    *name = texts[0].text;
    *path = texts[1].text;
    return code;
}
