/* SPDX-License-Identifier: BSD-3-Clause */
/* Sequences: list, tuple, torch.Size, and shapes made from them. */
#include <assert.h>
#include <string.h>

#include "format/values/node.h"

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
