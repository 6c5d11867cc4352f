/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that are tensors: strided, Parameter, sparse, nested, with attributes. */
#include "format/values/node.h"
#include "format/values/value.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define TENSOR_FLAGS (BERTH_REQUIRES_GRAD | BERTH_CONJ | BERTH_NEG | BERTH_META)

static bool tensor_check_parts_are_of_tree(berth_tree *tree, const berth_tensor *tensor)
{
    if (tensor->storage && tensor->storage->tree != tree)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the storage is of another tree");
    return (!tensor->scales || bth_tree_check_owns_value(tree, tensor->scales, "scales")) &&
           (!tensor->zero_points ||
            bth_tree_check_owns_value(tree, tensor->zero_points, "zero points"));
}

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

/* Shape and stride in memory of the tree, the stride made if there is none. */
static bool tensor_copy_dimensions(berth_tree *tree, berth_tensor *tensor)
{
    if (tensor->rank < 0 || tensor->rank > BERTH_MAX_RANK)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a tensor of rank %d (0 to %d)", tensor->rank,
                               BERTH_MAX_RANK);
    if (tensor->rank && !tensor->shape)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a tensor without a shape");
    size_t rank = (size_t)tensor->rank;
    int64_t *copy = bth_tree_allocate(tree, (2 * rank + 1) * sizeof(*copy));
    if (!copy)
        return false;
    copy[2 * rank] = 0;
    if (rank)
        memcpy(copy, tensor->shape, rank * sizeof(*copy));
    if (rank && tensor->stride)
        memcpy(copy + rank, tensor->stride, rank * sizeof(*copy));
    else
        bth_contiguous_stride(copy, tensor->rank, copy + rank);
    bool made = !tensor->stride;
    tensor->shape = copy;
    tensor->stride = copy + rank;
    if (made && rank && tensor->stride[0] == INT64_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "the strides of a tensor do not fit 64 bits");
    return true;
}

/* A storage of just this tensor over its data. */
static bool tensor_make_storage_of_data(berth_tree *tree, berth_tensor *tensor)
{
    berth_tensor meta = *tensor;
    meta.flags |= BERTH_META;
    meta.storage = NULL;
    uint64_t nbytes = 0;
    if (bth_tensor_check(&meta, &tree->error) < 0)
        return false;
    (void)bth_tensor_compute_end_in_storage(
        tensor, &nbytes); /* it does not overflow: see tensor_check_fits_storage() */
    if (!tensor->data && nbytes)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a tensor of %" PRIu64 " bytes without data or storage", nbytes);
    tensor->storage = berth_storage_new(tree, bth_dtype_to_storage_dtype(tensor->dtype),
                                        tensor->data, nbytes, NULL);
    return tensor->storage != NULL;
}

berth_value *berth_make_tensor(berth_tree *tree, const berth_tensor *given)
{
    if (!tree || !given)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the tensor is NULL");
    if (given->flags & ~TENSOR_FLAGS)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "unknown flags 0x%x of a tensor",
                               (unsigned)(given->flags & ~TENSOR_FLAGS));
    berth_tensor tensor = *given;
    if (!tensor_check_parts_are_of_tree(tree, &tensor) || !tensor_copy_dimensions(tree, &tensor))
        return NULL;
    if (!tensor.storage && !(tensor.flags & BERTH_META) &&
        !tensor_make_storage_of_data(tree, &tensor))
        return NULL;
    return bth_tensor_adopt(tree, &tensor);
}

/* ---- around a tensor ---- */

static bool value_is_unwrapped_tensor(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    return kind == BERTH_KIND_TENSOR || kind == BERTH_KIND_SPARSE || kind == BERTH_KIND_NESTED;
}

/*
 * Inside a PARAMETER or SUBCLASS is a plain tensor, or the other of the two with a plain tensor
 * inside. So no file can nest more than two.
 */
static bool wrap_check_inner_tensor(berth_tree *tree, berth_kind kind, const berth_value *inner)
{
    berth_kind other = kind == BERTH_KIND_PARAMETER ? BERTH_KIND_SUBCLASS : BERTH_KIND_PARAMETER;
    if (value_is_unwrapped_tensor(inner) ||
        (berth_value_kind(inner) == other &&
         value_is_unwrapped_tensor(berth_value_part(inner, BERTH_PART_INNER))))
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

/* COO: indices [sparse dimensions, n], values [n, dense dimensions …]. */
static bool coo_parts_agree(const int64_t *shape, int32_t rank, const berth_tensor *indices,
                            const berth_tensor *values)
{
    if (indices->rank != 2 || values->rank < 1 || indices->shape[1] != values->shape[0])
        return false;
    int32_t dense = values->rank - 1;
    return indices->shape[0] == rank - dense &&
           shape_slices_are_equal(shape, rank - dense, values->shape, 1, dense);
}

/*
 * CSR and kin: compressed [batch …, rows + 1], plain [batch …, n], values [batch …, n, block,
 * block, dense …]; the blocks only for BSR and BSC.
 */
static bool compressed_parts_agree(berth_layout_kind layout, const int64_t *shape, int32_t rank,
                                   const berth_tensor *compressed, const berth_tensor *plain,
                                   const berth_tensor *values)
{
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

static bool tensor_has_index_dtype(const berth_tensor *tensor)
{
    return tensor->dtype == BERTH_INT64 || tensor->dtype == BERTH_INT32;
}

/* The parts of a sparse tensor agree in shape (T4). */
static bool sparse_parts_agree(berth_layout_kind layout, const int64_t *shape, int32_t rank,
                               const berth_tensor *const parts[3])
{
    if (!tensor_has_index_dtype(parts[0]))
        return false;
    if (layout == BERTH_SPARSE_COO)
        return coo_parts_agree(shape, rank, parts[0], parts[1]);
    return tensor_has_index_dtype(parts[1]) &&
           compressed_parts_agree(layout, shape, rank, parts[0], parts[1], parts[2]);
}

/* In place of a part that a layout does not have; no shape agrees with it. */
static const berth_tensor no_part;

static size_t sparse_n_parts(berth_layout_kind layout)
{
    if (layout == BERTH_SPARSE_COO)
        return 2;
    return layout >= BERTH_SPARSE_CSR && layout <= BERTH_SPARSE_BSC ? 3 : 0;
}

/* Whether all n parts of a SPARSE or NESTED are tensors of the tree. */
static bool parts_check_and_get_tensors(berth_tree *tree, berth_kind kind,
                                        berth_value *const *parts, size_t n,
                                        const berth_tensor **tensors)
{
    if (!bth_tree_check_owns_items(tree, parts, n, "a part of a tensor"))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!(tensors[i] = berth_as_tensor(parts[i])))
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "part %zu of %s is %s, not a tensor", i,
                                   bth_kind_phrase(kind),
                                   bth_kind_phrase(berth_value_kind(parts[i])));
    return true;
}

static struct parts_node *node_new_with_parts(berth_tree *tree, berth_kind kind,
                                              berth_value *const *parts, size_t n)
{
    struct parts_node *node = bth_node_new(tree, kind, sizeof(*node) + n * sizeof(*parts));
    if (!node)
        return NULL;
    node->n_parts = (uint8_t)n;
    memcpy(node->parts, parts, n * sizeof(*parts));
    return node;
}

static bool sparse_check(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                         int32_t rank, berth_value *const *parts)
{
    size_t n = sparse_n_parts(layout);
    const berth_tensor *tensors[3] = {&no_part, &no_part, &no_part};
    assert(rank >= 0 && rank <= BERTH_MAX_RANK && (rank == 0 || shape));
    if (n == 0)
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "a sparse tensor of layout %d and rank %d",
                               (int)layout, rank);
    if (!parts_check_and_get_tensors(tree, BERTH_KIND_SPARSE, parts, n, tensors))
        return false;
    int64_t numel;
    for (int32_t i = 0; i < rank; i++)
        if (shape[i] < 0)
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                                   "a sparse tensor with the negative size %" PRId64, shape[i]);
    if (bth_shape_numel(shape, rank, &numel) && sparse_parts_agree(layout, shape, rank, tensors))
        return true;
    return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                           "the parts of a sparse tensor do not fit its shape");
}

berth_value *bth_sparse_adopt(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                              int32_t rank, berth_value *const *parts, bool is_coalesced)
{
    if (!sparse_check(tree, layout, shape, rank, parts))
        return NULL;
    struct parts_node *node =
        node_new_with_parts(tree, BERTH_KIND_SPARSE, parts, sparse_n_parts(layout));
    if (!node)
        return NULL;
    node->shape = shape;
    node->rank = rank;
    node->layout = (uint8_t)layout;
    if (is_coalesced && layout == BERTH_SPARSE_COO)
        node->head.flags |= BTH_NODE_COALESCED;
    return &node->head;
}

berth_value *berth_make_sparse(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                               int32_t rank, berth_value *const *parts, bool is_coalesced)
{
    if (!tree || !parts || rank < 0 || rank > BERTH_MAX_RANK || (rank && !shape))
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a sparse tensor of rank %d without parts or shape", rank);
    int64_t *copy = bth_tree_allocate(tree, ((size_t)rank + 1) * sizeof(*copy));
    if (!copy)
        return NULL;
    copy[rank] = 0;
    if (rank)
        memcpy(copy, shape, (size_t)rank * sizeof(*copy));
    return bth_sparse_adopt(tree, layout, copy, rank, parts, is_coalesced);
}

/* ---- nested ---- */

/* sizes and strides [n, dimensions], offsets [n]; all without items if there is no tensor (T4). */
static bool nested_parts_agree(const berth_tensor *sizes, const berth_tensor *strides,
                               const berth_tensor *offsets)
{
    if (sizes->dtype != BERTH_INT64 || strides->dtype != BERTH_INT64 ||
        offsets->dtype != BERTH_INT64 || sizes->rank != strides->rank || sizes->rank > 2 ||
        !shape_slices_are_equal(sizes->shape, 0, strides->shape, 0, sizes->rank))
        return false;
    int64_t n = sizes->rank == 2 ? sizes->shape[0] : 0;
    return offsets->rank == 1 && offsets->shape[0] == n;
}

berth_value *berth_make_nested(berth_tree *tree, berth_value *const parts[4])
{
    const berth_tensor *tensors[4];
    if (!parts || !parts_check_and_get_tensors(tree, BERTH_KIND_NESTED, parts, 4, tensors))
        return NULL;
    if (!nested_parts_agree(tensors[1], tensors[2], tensors[3]))
        return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR, "the parts of a nested tensor do not agree");
    struct parts_node *node = node_new_with_parts(tree, BERTH_KIND_NESTED, parts, 4);
    return node ? &node->head : NULL;
}

/* ---- reading ---- */

static bool state_is_dict_or_none(const berth_value *value)
{
    return berth_value_kind(value) == BERTH_KIND_NONE || berth_value_kind(value) == BERTH_KIND_DICT;
}

bool bth_value_can_be_state(const berth_value *value)
{
    return state_is_dict_or_none(value) ||
           (berth_value_kind(value) == BERTH_KIND_TUPLE && berth_value_count(value) == 2 &&
            state_is_dict_or_none(bth_value_item(value, 0)) &&
            state_is_dict_or_none(bth_value_item(value, 1)));
}

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
