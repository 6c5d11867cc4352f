/* SPDX-License-Identifier: BSD-3-Clause */
/* Sequences: list, tuple, torch.Size, and shapes made from them. */
#include <assert.h>
#include <string.h>

#include "format/values/node.h"

/* Items of containers: how many, the item or key of an index. */

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

/* ---- tuple ---- */

berth_value *bth_tuple_of(berth_tree *tree, berth_value *const *items, size_t n_items)
{
    if (n_items == 0 && !tree->empty_tuple)
        tree->empty_tuple =
            bth_node_new_without_id(tree, BERTH_KIND_TUPLE, sizeof(struct tuple_node));
    if (n_items == 0)
        return tree->empty_tuple;
    if (n_items > UINT32_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "a tuple of %zu items (at most %u)",
                               n_items, UINT32_MAX);
    size_t nbytes = sizeof(struct tuple_node) + n_items * sizeof(*items);
    struct tuple_node *node = bth_node_new_uninitialized(tree, BERTH_KIND_TUPLE, nbytes);
    if (!node)
        return NULL;
    node->key.count = (uint32_t)n_items;
    node->key.hash = 0;
    node->key.link = NULL;
    node->shape = NULL;
    for (size_t i = 0; i < n_items; i++)
        node->items[i] = items[i];
    return &node->key.head;
}

berth_value *berth_make_tuple(berth_tree *tree, berth_value *const *items, size_t n_items)
{
    if (!tree || (n_items <= UINT32_MAX &&
                  !bth_tree_check_owns_items(tree, items, n_items, "an item of a tuple")))
        return NULL;
    return bth_tuple_of(tree, items, n_items);
}

/* ---- list ---- */

berth_value *berth_make_list(berth_tree *tree)
{
    return bth_node_new(tree, BERTH_KIND_LIST, sizeof(struct list_node));
}

int bth_list_extend(berth_value *list, berth_value *const *items, size_t n)
{
    berth_tree *tree = bth_value_tree(list);
    struct list_node *node = (struct list_node *)list;
    assert(bth_node_is(list, BERTH_KIND_LIST));
    if (list->flags & BTH_NODE_USED)
        return bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                             "a list grows after another object was built from it");
    if (n == 0)
        return 0;
    struct list_items *grown =
        bth_tree_reserve_array(tree, node->items ? &node->items->size : NULL, n, sizeof(*grown),
                               sizeof(*items), UINT32_MAX);
    if (!grown)
        return tree->error.code;
    memcpy(grown->items + grown->size.count, items, n * sizeof(*items));
    grown->size.count += (uint32_t)n;
    grown->shape = NULL;
    node->items = grown;
    return 0;
}

int berth_list_append(berth_value *list, berth_value *item)
{
    berth_tree *tree = bth_value_tree(list);
    if (!bth_node_is(list, BERTH_KIND_LIST))
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is not a list",
                             bth_kind_phrase(bth_node_kind(list)));
    if (!bth_tree_check_owns_item(tree, item, "an item of a list", NULL, berth_value_count(list)))
        return tree->error.code;
    return bth_list_extend(list, &item, 1);
}

/* ---- torch.Size and shapes ---- */

static bool shape_get_item_int64(berth_tree *tree, const berth_value *item, size_t i,
                                 int64_t *integer)
{
    if (item->kind == BERTH_KIND_INT && !(item->flags & BTH_NODE_BIG)) {
        *integer = ((const struct int_node *)item)->value;
        return true;
    }
    if (item->kind == BERTH_KIND_INT)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "item %zu of a shape is beyond 64 bits", i);
    return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "item %zu of a shape is %s, not an int", i,
                           bth_kind_phrase((berth_kind)item->kind));
}

/* The cached shape of a TUPLE or a non-empty LIST. */
static int64_t **value_cached_shape_slot(berth_value *value)
{
    if (value->kind == BERTH_KIND_SIZE)
        value = ((struct wrap_node *)value)->inner;
    return value->kind == BERTH_KIND_TUPLE ? &((struct tuple_node *)value)->shape
                                           : &((struct list_node *)value)->items->shape;
}

static const int64_t no_shape[1] = {0};

bool bth_value_as_shape(berth_value *value, const int64_t **shape, int32_t *rank)
{
    berth_tree *tree = bth_value_tree(value);
    *shape = no_shape;
    *rank = 0;
    assert(tree);
    if (value->kind != BERTH_KIND_TUPLE && value->kind != BERTH_KIND_SIZE &&
        value->kind != BERTH_KIND_LIST)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "%s for a shape, not a tuple of ints",
                               bth_kind_phrase((berth_kind)value->kind));
    size_t n, stride;
    berth_value *const *items = bth_node_items(value, &n, &stride);
    if (n > BERTH_MAX_RANK)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a shape of %zu items (at most %d)", n,
                               BERTH_MAX_RANK);
    if (n == 0)
        return true;
    int64_t **slot = value_cached_shape_slot(value);
    if (!*slot) {
        int64_t *made = bth_tree_allocate_inline(tree, n * sizeof(*made));
        for (size_t i = 0; made && i < n; i++)
            if (!shape_get_item_int64(tree, items[i], i, &made[i]))
                return false;
        *slot = made;
    }
    *shape = *slot;
    *rank = (int32_t)n;
    return *slot != NULL;
}

/* Whether all items are ints. Each tuple is checked once, however often it is used (P3). */
static bool tuple_check_ints(berth_tree *tree, berth_value *tuple)
{
    size_t n, stride;
    berth_value *const *items = bth_node_items(tuple, &n, &stride);
    for (size_t i = 0; i < n && !(tuple->flags & BTH_NODE_INTS); i++) {
        int64_t integer;
        if (!shape_get_item_int64(tree, items[i], i, &integer))
            return false;
    }
    tuple->flags |= BTH_NODE_INTS;
    return true;
}

berth_value *bth_size_from_tuple(berth_tree *tree, berth_value *tuple)
{
    assert(bth_value_tree(tuple) == tree && tuple->kind == BERTH_KIND_TUPLE);
    const int64_t *shape;
    int32_t rank;
    bool ints = ((const struct tuple_node *)tuple)->key.count > BERTH_MAX_RANK
                    ? tuple_check_ints(tree, tuple)
                    : bth_value_as_shape(tuple, &shape, &rank);
    return ints ? bth_wrapper_node_new(tree, BERTH_KIND_SIZE, tuple) : NULL;
}

berth_value *berth_make_size(berth_tree *tree, const int64_t *shape, int32_t rank)
{
    berth_value *items[BERTH_MAX_RANK];
    if (rank < 0 || rank > BERTH_MAX_RANK || (!shape && rank))
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "a torch.Size of %d items (0 to %d)", rank,
                               BERTH_MAX_RANK);
    for (int32_t i = 0; i < rank; i++)
        items[i] = berth_make_int(tree, shape[i]); /* berth_make_tuple refuses NULL */
    berth_value *tuple = berth_make_tuple(tree, items, (size_t)rank);
    return tuple ? bth_size_from_tuple(tree, tuple) : NULL;
}

/* SIZE: the array is made with the node where it can be one (rank <= 64). */
const int64_t *berth_as_size(const berth_value *value, int32_t *rank)
{
    *rank = 0;
    if (berth_value_kind(value) == BERTH_KIND_SPARSE) {
        const struct parts_node *node = (const struct parts_node *)value;
        *rank = node->rank;
        return node->shape;
    }
    if (berth_value_kind(value) != BERTH_KIND_SIZE)
        return NULL;
    const struct tuple_node *tuple =
        (const struct tuple_node *)((const struct wrap_node *)value)->inner;
    *rank = (int32_t)tuple->key.count;
    return tuple->key.count ? tuple->shape : no_shape;
}
