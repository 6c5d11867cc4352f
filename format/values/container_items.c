/* SPDX-License-Identifier: BSD-3-Clause */
/* Items of containers: how many, the item or key of an index. */
#include "format/values/node.h"

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
    const struct table *table =
        bth_kind_is_dict(bth_node_kind(value)) ? ((const struct dict_node *)value)->table : NULL;
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
