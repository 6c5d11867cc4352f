/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that are tensors: strided, Parameter, sparse, nested, with attributes. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/values/node.h"

#define TENSOR_FLAGS (BERTH_REQUIRES_GRAD | BERTH_CONJ | BERTH_NEG | BERTH_META)

berth_value *bth_tensor_adopt(berth_tree *tree, const berth_tensor *tensor)
{
    if (bth_tensor_check(tensor, &tree->error) < 0)
        return NULL;
    struct tensor_node *node = bth_node_new_uninitialized(tree, BERTH_KIND_TENSOR, sizeof(*node));
    if (!node)
        return NULL;
    node->state = NULL;
    node->tensor = *tensor;
    node->tensor.data = NULL;
    if (tensor->storage && tensor->storage->element == BERTH_DTYPE_NONE)
        tensor->storage->element = tensor->dtype;
    return &node->head;
}

berth_value *berth_make_tensor(berth_tree *tree, const berth_tensor *given)
{
    if (!tree || !given)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the tensor is NULL");
    if (given->flags & ~TENSOR_FLAGS)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "unknown flags 0x%x of a tensor",
                               (unsigned)(given->flags & ~TENSOR_FLAGS));
    if (given->storage && given->storage->tree != tree)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the storage is of another tree");
    if ((given->scales && !bth_tree_check_owns_value(tree, given->scales, "scales")) ||
        (given->zero_points && !bth_tree_check_owns_value(tree, given->zero_points, "zero points")))
        return NULL;
    if (given->rank < 0 || given->rank > BERTH_MAX_RANK)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a tensor of rank %d (0 to %d)", given->rank,
                               BERTH_MAX_RANK);
    if (given->rank && !given->shape)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a tensor without a shape");
    /* Shape and stride are in memory of the tree, the stride made if there is none. */
    size_t rank = (size_t)given->rank;
    int64_t *shape = bth_tree_allocate(tree, (2 * rank + 1) * sizeof(*shape));
    if (!shape)
        return NULL;
    int64_t *stride = shape + rank;
    stride[rank] = 0;
    if (rank)
        memcpy(shape, given->shape, rank * sizeof(*shape));
    if (rank && given->stride)
        memcpy(stride, given->stride, rank * sizeof(*stride));
    else
        bth_contiguous_stride(shape, given->rank, stride);
    if (rank && !given->stride && stride[0] == INT64_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "the strides of a tensor do not fit 64 bits");
    berth_tensor tensor = *given;
    tensor.shape = shape;
    tensor.stride = stride;
    if (tensor.storage || tensor.flags & BERTH_META)
        return bth_tensor_adopt(tree, &tensor);
    /* A storage of just this tensor over its data. */
    berth_tensor meta = tensor;
    meta.flags |= BERTH_META;
    uint64_t nbytes = 0;
    if (bth_tensor_check(&meta, &tree->error) < 0)
        return NULL;
    (void)bth_tensor_compute_end_in_storage(&tensor, &nbytes); /* checked: it does not overflow */
    if (!tensor.data && nbytes)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a tensor of %" PRIu64 " bytes without data or storage", nbytes);
    tensor.storage = berth_storage_new(tree, bth_dtype_to_storage_dtype(tensor.dtype), tensor.data,
                                       nbytes, NULL);
    return tensor.storage ? bth_tensor_adopt(tree, &tensor) : NULL;
}

/* ---- around a tensor ---- */

/* Inside a PARAMETER or SUBCLASS is a plain tensor, or the other of the two with a plain tensor
 * inside. So no file can nest more than two. */
static bool wrap_check_inner_tensor(berth_tree *tree, berth_kind kind, const berth_value *inner)
{
    berth_kind other = kind == BERTH_KIND_PARAMETER ? BERTH_KIND_SUBCLASS : BERTH_KIND_PARAMETER;
    bool is_other = berth_value_kind(inner) == other;
    const berth_value *plain = is_other ? berth_value_part(inner, BERTH_PART_INNER) : inner;
    if ((BTH_KIND(TENSOR) | BTH_KIND(SPARSE) | BTH_KIND(NESTED)) >> berth_value_kind(plain) & 1)
        return true;
    return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "%s around %s", bth_kind_phrase(kind),
                           bth_kind_phrase(berth_value_kind(inner)));
}

berth_value *berth_make_parameter(berth_tree *tree, berth_value *tensor, bool requires_grad)
{
    if (!bth_tree_check_owns_value(tree, tensor, "the tensor of a Parameter") ||
        !wrap_check_inner_tensor(tree, BERTH_KIND_PARAMETER, tensor))
        return NULL;
    berth_value *value = bth_wrapper_node_new(tree, BERTH_KIND_PARAMETER, tensor);
    if (value && requires_grad)
        value->flags |= BTH_NODE_TRUE;
    return value;
}

berth_value *berth_make_subclass(berth_tree *tree, berth_value *tensor, berth_value *state)
{
    if (!bth_tree_check_owns_value(tree, tensor, "the tensor with attributes") ||
        !bth_tree_check_owns_value(tree, state, "the attributes of a tensor") ||
        !wrap_check_inner_tensor(tree, BERTH_KIND_SUBCLASS, tensor))
        return NULL;
    berth_value *value = bth_wrapper_node_new(tree, BERTH_KIND_SUBCLASS, tensor);
    if (value)
        ((struct wrap_node *)value)->state = state;
    return value;
}

berth_value *bth_inert_subclass_new(berth_tree *tree, berth_value *type, berth_value *tensor,
                                    berth_value *state)
{
    berth_value *value = berth_make_subclass(tree, tensor, state);
    if (value)
        ((struct wrap_node *)value)->type = type;
    return value;
}

/* ---- sparse ---- */

/* Whether sizes [at, at + n) of a shape equal those of another, from other_at on. */
static bool shape_slices_are_equal(const int64_t *shape, int32_t at, const int64_t *other,
                                   int32_t other_at, int32_t n)
{
    return memcmp(shape + at, other + other_at, (size_t)n * sizeof(*shape)) == 0;
}

/* The parts of a sparse tensor agree in shape (T4). */
static bool sparse_parts_agree(berth_layout_kind layout, const int64_t *shape, int32_t rank,
                               const berth_tensor *const parts[3])
{
    bool is_coo = layout == BERTH_SPARSE_COO;
    for (int i = 0; i < (is_coo ? 1 : 2); i++)
        if (parts[i]->dtype != BERTH_INT64 && parts[i]->dtype != BERTH_INT32)
            return false;
    if (is_coo) { /* indices [sparse dimensions, n], values [n, dense dimensions …] */
        const berth_tensor *indices = parts[0], *values = parts[1];
        int32_t dense = values->rank - 1;
        return indices->rank == 2 && values->rank >= 1 && indices->shape[1] == values->shape[0] &&
               indices->shape[0] == rank - dense &&
               shape_slices_are_equal(shape, rank - dense, values->shape, 1, dense);
    }
    /* CSR and kin: compressed [batch …, rows + 1], plain [batch …, n], values [batch …, n, block,
     * block, dense …]; the blocks only for BSR and BSC. */
    const berth_tensor *compressed = parts[0], *plain = parts[1], *values = parts[2];
    bool blocked = layout == BERTH_SPARSE_BSR || layout == BERTH_SPARSE_BSC;
    bool by_row = layout == BERTH_SPARSE_CSR || layout == BERTH_SPARSE_BSR;
    int32_t batch = compressed->rank - 1;
    int32_t dense_at = batch + 1 + (blocked ? 2 : 0);
    if (batch < 0 || plain->rank != batch + 1 || values->rank < dense_at ||
        rank != batch + 2 + values->rank - dense_at)
        return false;
    int64_t row_block = blocked ? values->shape[batch + 1] : 1;
    int64_t column_block = blocked ? values->shape[batch + 2] : 1;
    if (row_block <= 0 || column_block <= 0 || shape[batch] % row_block ||
        shape[batch + 1] % column_block)
        return false;
    int64_t n_compressed = by_row ? shape[batch] / row_block : shape[batch + 1] / column_block;
    return compressed->shape[batch] - 1 == n_compressed &&
           shape_slices_are_equal(shape, 0, compressed->shape, 0, batch) &&
           shape_slices_are_equal(shape, 0, plain->shape, 0, batch) &&
           shape_slices_are_equal(plain->shape, 0, values->shape, 0, batch + 1) &&
           shape_slices_are_equal(shape, batch + 2, values->shape, dense_at,
                                  values->rank - dense_at);
}

/* A SPARSE or NESTED, if all n parts are tensors of the tree; these are still to be compared. */
static struct parts_node *parts_node_new(berth_tree *tree, berth_kind kind,
                                         berth_value *const *parts, size_t n,
                                         const berth_tensor **tensors)
{
    if (!bth_tree_check_owns_items(tree, parts, n, "a part of a tensor"))
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!(tensors[i] = berth_as_tensor(parts[i])))
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "part %zu of %s is %s, not a tensor", i,
                                   bth_kind_phrase(kind),
                                   bth_kind_phrase(berth_value_kind(parts[i])));
    struct parts_node *node = bth_node_new(tree, kind, sizeof(*node) + n * sizeof(*parts));
    if (!node)
        return NULL;
    node->n_parts = (uint8_t)n;
    memcpy(node->parts, parts, n * sizeof(*parts));
    return node;
}

berth_value *bth_sparse_adopt(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                              int32_t rank, berth_value *const *parts, bool is_coalesced)
{
    size_t n = layout == BERTH_SPARSE_COO                                 ? 2
               : layout >= BERTH_SPARSE_CSR && layout <= BERTH_SPARSE_BSC ? 3
                                                                          : 0;
    /* In place of a part that a layout does not have; no shape agrees with it. */
    static const berth_tensor no_part;
    const berth_tensor *tensors[3] = {&no_part, &no_part, &no_part};
    assert(rank >= 0 && rank <= BERTH_MAX_RANK && (rank == 0 || shape));
    if (n == 0)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a sparse tensor of layout %d and rank %d",
                               (int)layout, rank);
    struct parts_node *node = parts_node_new(tree, BERTH_KIND_SPARSE, parts, n, tensors);
    if (!node)
        return NULL;
    for (int32_t i = 0; i < rank; i++)
        if (shape[i] < 0)
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                                   "a sparse tensor with the negative size %" PRId64, shape[i]);
    int64_t numel;
    if (!bth_shape_numel(shape, rank, &numel) || !sparse_parts_agree(layout, shape, rank, tensors))
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                               "the parts of a sparse tensor do not fit its shape");
    node->shape = shape;
    node->rank = rank;
    node->layout = (uint8_t)layout;
    if (is_coalesced && layout == BERTH_SPARSE_COO)
        node->head.flags |= BTH_NODE_COALESCED;
    return &node->head;
}

static berth_value *nested_new(berth_tree *tree, berth_value *const parts[4])
{
    const berth_tensor *tensors[4];
    struct parts_node *node = parts_node_new(tree, BERTH_KIND_NESTED, parts, 4, tensors);
    if (!node)
        return NULL;
    /* sizes and strides [n, dimensions], offsets [n]; all without items if there is no tensor
       (T4) */
    const berth_tensor *sizes = tensors[1], *strides = tensors[2], *offsets = tensors[3];
    if (sizes->dtype != BERTH_INT64 || strides->dtype != BERTH_INT64 ||
        offsets->dtype != BERTH_INT64 || sizes->rank != strides->rank || sizes->rank > 2 ||
        !shape_slices_are_equal(sizes->shape, 0, strides->shape, 0, sizes->rank) ||
        offsets->rank != 1 || offsets->shape[0] != (sizes->rank == 2 ? sizes->shape[0] : 0))
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "the parts of a nested tensor do not agree");
    return &node->head;
}

berth_value *berth_make_sparse(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                               int32_t rank, berth_value *const *parts, bool is_coalesced)
{
    if (!tree || !parts || rank < 0 || rank > BERTH_MAX_RANK || (rank && !shape))
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a sparse tensor of rank %d without parts or shape", rank);
    if (layout == BERTH_STRIDED && rank == 0)
        return nested_new(tree, parts);
    int64_t *copy = bth_tree_allocate(tree, ((size_t)rank + 1) * sizeof(*copy));
    if (!copy)
        return NULL;
    copy[rank] = 0;
    if (rank)
        memcpy(copy, shape, (size_t)rank * sizeof(*copy));
    return bth_sparse_adopt(tree, layout, copy, rank, parts, is_coalesced);
}

/* ---- attributes ---- */

bool bth_value_can_be_state(const berth_value *value)
{
    bool is_pair = bth_node_is(value, BERTH_KIND_TUPLE) && berth_value_count(value) == 2;
    for (size_t i = 0; i < (is_pair ? 2u : 1u); i++) {
        berth_kind kind = bth_node_kind(is_pair ? bth_value_item(value, i) : value);
        if (kind != BERTH_KIND_NONE && kind != BERTH_KIND_DICT)
            return false;
    }
    return true;
}

/*
 * The names of attributes that a file must not set in a tensor (P5). PyTorch sets all attributes of
 * a state by setattr (torch/_utils.py _set_obj_state): `data` replaces the elements,
 * `requires_grad` a flag, `__class__` the type, and others raise. No tensor saves them: they are
 * not in its __dict__.
 *
 * tensor_attributes.def has the names of all PyTorchs that were tried. Any other name is kept:
 * programs tag Parameters, also with leading underscores. Names like __this__ are Python's, and all
 * refused.
 */
static const char *const names[] = {
#define ATTRIBUTE(name, versions) name,
#include "format/values/tensor_attributes.def"
#undef ATTRIBUTE
};

static int attribute_compare(const void *name, const void *row)
{
    return strcmp(name, *(const char *const *)row);
}

bool bth_state_attributes_are_allowed(const berth_value *state, char *problem,
                                      size_t problem_nbytes)
{
    bool is_pair = bth_node_is(state, BERTH_KIND_TUPLE);
    for (size_t part = 0; part < (is_pair ? 2u : 1u); part++) {
        const berth_value *attributes = is_pair ? bth_value_item(state, part) : state;
        /* Many tensors can share a dict, so it is checked once (P3). */
        bool is_checked = attributes && attributes->flags & BTH_NODE_ATTRIBUTES;
        for (size_t i = 0; !is_checked && i < berth_value_count(attributes); i++) {
            const berth_value *key = bth_value_key(attributes, i);
            size_t nbytes = 0;
            const char *name = berth_as_text(key, &nbytes);
            if (bth_node_kind(key) != BERTH_KIND_STR)
                (void)snprintf(problem, problem_nbytes, "an attribute whose name is %s, not a str",
                               bth_kind_phrase(bth_node_kind(key)));
            else if ((nbytes >= 2 && memcmp(name, "__", 2) == 0 &&
                      memcmp(name + nbytes - 2, "__", 2) == 0) ||
                     (strlen(name) == nbytes && /* no NUL within */
                      bsearch(name, names, sizeof names / sizeof *names, sizeof *names,
                              attribute_compare)))
                (void)snprintf(problem, problem_nbytes,
                               "the attribute %.80s, which is the tensor's own: PyTorch would set "
                               "that",
                               name);
            else
                continue;
            return false;
        }
    }
    return true;
}

/* ---- reading ---- */

uint32_t berth_value_flags(const berth_value *value)
{
    if (berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        value = ((const struct wrap_node *)value)->inner;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_PARAMETER: /* its own flag counts, not that of its tensor */
        return value->flags & BTH_NODE_TRUE ? BERTH_REQUIRES_GRAD : 0;
    case BERTH_KIND_TENSOR:
        return ((const struct tensor_node *)value)->tensor.flags & BERTH_REQUIRES_GRAD;
    case BERTH_KIND_SPARSE:
        return value->flags & BTH_NODE_COALESCED ? BERTH_COALESCED : 0;
    default:
        return 0;
    }
}
