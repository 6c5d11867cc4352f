/* SPDX-License-Identifier: BSD-3-Clause */
/* Kinds and their names; items of containers: how many, the item or key of an index. */
#include <string.h>

#include "format/values/node.h"

/* ---- kinds ---- */

berth_kind berth_value_kind(const berth_value *value)
{
    return value ? (berth_kind)value->kind : BERTH_KIND_NONE;
}

const char *bth_kind_phrase(berth_kind kind)
{
    static const char *const phrases[] = {[BERTH_KIND_NONE] = "None",
                                          [BERTH_KIND_BOOL] = "a bool",
                                          [BERTH_KIND_INT] = "an int",
                                          [BERTH_KIND_FLOAT] = "a float",
                                          [BERTH_KIND_COMPLEX] = "a complex",
                                          [BERTH_KIND_STR] = "a str",
                                          [BERTH_KIND_BYTES] = "bytes",
                                          [BERTH_KIND_BYTEARRAY] = "a bytearray",
                                          [BERTH_KIND_LIST] = "a list",
                                          [BERTH_KIND_TUPLE] = "a tuple",
                                          [BERTH_KIND_DICT] = "a dict",
                                          [BERTH_KIND_ORDERED_DICT] = "an OrderedDict",
                                          [BERTH_KIND_COUNTER] = "a Counter",
                                          [BERTH_KIND_SET] = "a set",
                                          [BERTH_KIND_SIZE] = "a torch.Size",
                                          [BERTH_KIND_DEVICE] = "a torch.device",
                                          [BERTH_KIND_DTYPE] = "a torch.dtype",
                                          [BERTH_KIND_QSCHEME] = "a torch.qscheme",
                                          [BERTH_KIND_LAYOUT] = "a torch.layout",
                                          [BERTH_KIND_STORAGE] = "a storage",
                                          [BERTH_KIND_TENSOR] = "a tensor",
                                          [BERTH_KIND_SPARSE] = "a sparse tensor",
                                          [BERTH_KIND_NESTED] = "a nested tensor",
                                          [BERTH_KIND_PARAMETER] = "a Parameter",
                                          [BERTH_KIND_SUBCLASS] = "a tensor with attributes",
                                          [BERTH_KIND_GLOBAL] = "a global",
                                          [BERTH_KIND_CALL] = "an object"};
    return (size_t)kind < sizeof(phrases) / sizeof(*phrases) ? phrases[kind] : "unknown";
}

const char *berth_kind_name(berth_kind kind)
{
    const char *phrase = bth_kind_phrase(kind);
    if (strncmp(phrase, "a ", 2) == 0)
        return phrase + 2;
    return strncmp(phrase, "an ", 3) == 0 ? phrase + 3 : phrase;
}

/* ---- items ---- */

berth_value *const *bth_node_items(const berth_value *value, size_t *n, size_t *stride)
{
    *stride = 1;
    *n = 0;
    if (bth_node_is(value, BERTH_KIND_CALL))
        value = ((const struct call_node *)value)->made_of[1];
    else if (bth_node_is(value, BERTH_KIND_SIZE))
        value = ((const struct wrap_node *)value)->inner;
    switch (bth_node_kind(value)) {
    case BERTH_KIND_TUPLE:
        *n = ((const struct tuple_node *)value)->key.count;
        return ((const struct tuple_node *)value)->items;
    case BERTH_KIND_LIST: {
        const struct list_items *items = ((const struct list_node *)value)->items;
        *n = items ? items->size.count : 0;
        return items ? items->items : NULL;
    }
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
    case BERTH_KIND_SET: {
        const struct table *table = ((const struct dict_node *)value)->table;
        *stride = sizeof(*table->entries) / sizeof(value);
        *n = table ? table->size.count : 0;
        return table ? &table->entries->value : NULL;
    }
    case BERTH_KIND_SPARSE:
    case BERTH_KIND_NESTED:
        *n = ((const struct parts_node *)value)->n_parts;
        return ((const struct parts_node *)value)->parts;
    default:
        return NULL;
    }
}

size_t berth_value_count(const berth_value *value)
{
    size_t n, stride;
    (void)bth_node_items(value, &n, &stride);
    return n;
}

berth_value *bth_value_item(const berth_value *value, size_t i)
{
    size_t n, stride;
    berth_value *const *items = bth_node_items(value, &n, &stride);
    return i < n ? items[i * stride] : NULL;
}

berth_value *bth_value_key(const berth_value *value, size_t i)
{
    const struct table *table = bth_dict_table(value);
    return table && i < table->size.count ? table->entries[i].key : NULL;
}

berth_value *berth_value_at(const berth_value *value, size_t i)
{
    return bth_kind_is_dict(bth_node_kind(value)) ? NULL : bth_value_item(value, i);
}

bool berth_dict_at(const berth_value *dict, size_t i, berth_value **key, berth_value **item)
{
    berth_value *found = bth_value_key(dict, i);
    if (key)
        *key = found;
    if (item)
        *item = found ? bth_value_item(dict, i) : NULL;
    return found != NULL;
}
