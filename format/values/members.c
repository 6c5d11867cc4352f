/* SPDX-License-Identifier: BSD-3-Clause */
/* Items of containers; attributes; callable and arguments of inert objects. */
#include <assert.h>

#include "format/values/node.h"

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
    const struct table *table =
        bth_is_dict(bth_node_kind(value)) ? ((const struct dict_node *)value)->table : NULL;
    return table && i < table->size.count ? table->entries[i].key : NULL;
}

berth_value *berth_list_at(const berth_value *value, size_t i)
{
    return bth_is_dict(bth_node_kind(value)) ? NULL : bth_value_item(value, i);
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

/* ---- inert objects, and attributes ---- */

/* CALL keeps its arguments as the tuple that they came in. */
berth_value *bth_call_value(berth_tree *tree, berth_value *callable, berth_value *arguments,
                            bool new_object)
{
    assert(bth_value_tree(callable) == tree && bth_node_kind(arguments) == BERTH_KIND_TUPLE);
    struct call_node *node = bth_node_new(tree, BERTH_KIND_CALL, sizeof(*node));
    if (!node)
        return NULL;
    node->made_of[0] = callable;
    node->made_of[1] = arguments;
    if (new_object)
        node->head.flags |= BTH_NODE_TRUE;
    return &node->head;
}

int bth_call_extend(berth_value *call, berth_value *const *items, size_t n)
{
    berth_value **list = &((struct call_node *)call)->list_items;
    assert(bth_node_is(call, BERTH_KIND_CALL));
    if (n > 0 && !*list)
        *list = berth_make_list(bth_value_tree(call));
    return n == 0 ? 0 : *list ? bth_list_extend(*list, items, n) : BERTH_E_MEMORY;
}

int bth_call_set_items(berth_value *call, berth_value *const *items, size_t n)
{
    berth_value **dict = &((struct call_node *)call)->dict_items;
    assert(bth_node_is(call, BERTH_KIND_CALL));
    if (n > 0 && !*dict)
        *dict = berth_make_dict(bth_value_tree(call));
    return n == 0 ? 0 : *dict ? bth_dict_extend(*dict, items, n) : BERTH_E_MEMORY;
}

berth_value *bth_value_arguments(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_CALL) ? ((const struct call_node *)value)->made_of[1]
                                               : NULL;
}

bool bth_value_is_new_object(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_CALL) && value->flags & BTH_NODE_TRUE;
}

/* The pointer to a value's attributes; NULL if it can have none (yet). */
static berth_value **state_slot(const berth_value *value)
{
    switch (berth_value_kind(value)) {
    case BERTH_KIND_ORDERED_DICT: {
        struct table *table = ((const struct dict_node *)value)->table;
        return table ? &table->state : NULL;
    }
    case BERTH_KIND_TENSOR:
        return &((struct tensor_node *)(uintptr_t)value)->state;
    case BERTH_KIND_PARAMETER:
    case BERTH_KIND_SUBCLASS:
        return &((struct wrap_node *)(uintptr_t)value)->state;
    case BERTH_KIND_CALL:
        return &((struct call_node *)(uintptr_t)value)->state;
    default:
        return NULL;
    }
}

berth_value *berth_value_part(const berth_value *value, berth_part part)
{
    const struct call_node *call =
        bth_node_is(value, BERTH_KIND_CALL) ? (const struct call_node *)value : NULL;
    berth_value **state = part == BERTH_PART_STATE ? state_slot(value) : NULL;
    switch (part) {
    case BERTH_PART_INNER:
        if (bth_node_is(value, BERTH_KIND_PARAMETER) || bth_node_is(value, BERTH_KIND_SUBCLASS))
            return ((const struct wrap_node *)value)->inner;
        return call ? call->made_of[0] : NULL;
    case BERTH_PART_STATE:
        return state ? *state : NULL;
    case BERTH_PART_LIST_ITEMS:
        return call ? call->list_items : NULL;
    case BERTH_PART_DICT_ITEMS:
        return call ? call->dict_items : NULL;
    default:
        return NULL;
    }
}

int berth_value_set_state(berth_value *value, berth_value *state)
{
    berth_tree *tree = bth_value_tree(value);
    if (!tree || !bth_tree_owns(tree, state, "the state"))
        return tree ? tree->error.code : BERTH_E_ARGUMENT;
    if (value->kind == BERTH_KIND_ORDERED_DICT &&
        !bth_table_reserve(tree, (struct dict_node *)value, 0))
        return tree->error.code;
    berth_value **slot = state_slot(value);
    if (!slot)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s has no attributes",
                             bth_kind_phrase((berth_kind)value->kind));
    *slot = state;
    return 0;
}
