/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of an object that are not items: what it wraps, its attributes; inert CALL objects. */
#include <assert.h>

#include "format/values/node.h"

/* ---- wrapped tensors ---- */

/* wrap_check_inner_tensor() bounds the depth. */
const berth_value *bth_value_unwrap_tensor(const berth_value *value)
{
    while (berth_value_kind(value) == BERTH_KIND_PARAMETER ||
           berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        value = ((const struct wrap_node *)value)->inner;
    return value;
}

const berth_tensor *berth_as_tensor(const berth_value *value)
{
    const berth_value *plain = bth_value_unwrap_tensor(value);
    return berth_value_kind(plain) == BERTH_KIND_TENSOR
               ? &((const struct tensor_node *)plain)->tensor
               : NULL;
}

/* ---- inert objects ---- */

/* CALL keeps its arguments as the tuple that they came in. */
berth_value *bth_call_new(berth_tree *tree, berth_value *callable, berth_value *arguments,
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

int bth_call_extend(berth_value *call, berth_value *const *items, size_t n, bool by_key)
{
    struct call_node *node = (struct call_node *)call;
    berth_value **container = by_key ? &node->dict_items : &node->list_items;
    berth_tree *tree = bth_value_tree(call);
    assert(bth_node_is(call, BERTH_KIND_CALL));
    if (n == 0)
        return 0;
    if (!*container)
        *container = by_key ? berth_make_dict(tree, BERTH_KIND_DICT) : berth_make_list(tree);
    if (!*container)
        return BERTH_E_MEMORY;
    return by_key ? bth_dict_extend(*container, items, n) : bth_list_extend(*container, items, n);
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

/* ---- attributes ---- */

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
    const struct call_node *call = (const struct call_node *)value;
    const struct wrap_node *wrap = (const struct wrap_node *)value;
    berth_kind kind = bth_node_kind(value);
    if (part == BERTH_PART_STATE) {
        berth_value **state = state_slot(value);
        return state ? *state : NULL;
    }
    if (kind == BERTH_KIND_CALL)
        return part == BERTH_PART_INNER        ? call->made_of[0]
               : part == BERTH_PART_LIST_ITEMS ? call->list_items
               : part == BERTH_PART_DICT_ITEMS ? call->dict_items
                                               : NULL;
    if (kind == BERTH_KIND_SUBCLASS && part == BERTH_PART_TYPE)
        return wrap->type;
    bool has_inner = kind == BERTH_KIND_SUBCLASS || kind == BERTH_KIND_PARAMETER;
    return has_inner && part == BERTH_PART_INNER ? wrap->inner : NULL;
}

int berth_value_set_state(berth_value *value, berth_value *state)
{
    berth_tree *tree = bth_value_tree(value);
    if (!tree || !bth_tree_check_owns_value(tree, state, "the state"))
        return tree ? tree->error.code : BERTH_E_ARGUMENT;
    if (value->kind == BERTH_KIND_ORDERED_DICT &&
        !bth_dict_reserve_entries(tree, (struct dict_node *)value, 0))
        return tree->error.code;
    berth_value **slot = state_slot(value);
    if (!slot)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s has no attributes",
                             bth_kind_phrase((berth_kind)value->kind));
    *slot = state;
    return 0;
}
