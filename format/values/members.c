/* SPDX-License-Identifier: BSD-3-Clause */
/* What containers and objects hold. */
#include "format/values/node.h"

static const struct tuple_node *call_arguments(const berth_value *call)
{
    return (const struct tuple_node *)((const struct call_node *)call)->made_of[1];
}

size_t berth_value_count(const berth_value *value)
{
    switch (berth_value_kind(value)) {
    case BERTH_KIND_LIST:
    case BERTH_KIND_TUPLE:
    case BERTH_KIND_SIZE: {
        size_t n;
        bth_node_items(value, &n);
        return n;
    }
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
    case BERTH_KIND_SET: {
        const struct table *table = ((const struct dict_node *)value)->table;
        return table ? table->count : 0;
    }
    case BERTH_KIND_SPARSE:
    case BERTH_KIND_NESTED:
        return ((const struct parts_node *)value)->n_parts;
    case BERTH_KIND_CALL:
        return call_arguments(value)->key.count;
    default:
        return 0;
    }
}

berth_value *bth_value_item(const berth_value *value, size_t i)
{
    if (i >= berth_value_count(value))
        return NULL;
    size_t n;
    switch (value->kind) {
    case BERTH_KIND_LIST:
    case BERTH_KIND_TUPLE:
    case BERTH_KIND_SIZE:
        return bth_node_items(value, &n)[i];
    case BERTH_KIND_SPARSE:
    case BERTH_KIND_NESTED:
        return ((const struct parts_node *)value)->parts[i];
    case BERTH_KIND_CALL:
        return call_arguments(value)->items[i];
    default:
        return ((const struct dict_node *)value)->table->entries[i].value;
    }
}

berth_value *bth_value_key(const berth_value *value, size_t i)
{
    const struct table *table =
        bth_is_dict(value) ? ((const struct dict_node *)value)->table : NULL;
    return table && i < table->count ? table->entries[i].key : NULL;
}

berth_value *berth_list_at(const berth_value *value, size_t i)
{
    return bth_is_dict(value) ? NULL : bth_value_item(value, i);
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

/* tensor_can_wrap() bounds the depth. */
const berth_value *bth_value_plain(const berth_value *value)
{
    while (berth_value_kind(value) == BERTH_KIND_PARAMETER ||
           berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        value = ((const struct wrap_node *)value)->inner;
    return value;
}

const berth_tensor *berth_as_tensor(const berth_value *value)
{
    const berth_value *plain = bth_value_plain(value);
    return berth_value_kind(plain) == BERTH_KIND_TENSOR
               ? &((const struct tensor_node *)plain)->tensor
               : NULL;
}
