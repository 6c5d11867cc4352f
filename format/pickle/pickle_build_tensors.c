/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What REDUCE builds of torch._utils and torch._tensor: tensors of every kind (FORMAT.md 6), each
 * checked against its storage by the value layer (T1, T2, T4), and BUILD.
 */
#include <string.h>

#include "format/pickle/pickle_machine.h"

/* Order of the arguments that all strided tensors share. */
enum { STORAGE, OFFSET, SIZE, STRIDE };

/* The value of an int of 64 bits. */
static int64_t argument_get_int64(const berth_value *value)
{
    return ((const struct int_node *)value)->value;
}

static uint32_t argument_get_requires_grad_flag(const berth_value *requires_grad)
{
    return requires_grad->flags & BTH_NODE_TRUE ? BERTH_REQUIRES_GRAD : 0;
}

/* Sets shape and stride to arrays that are kept with their nodes (P3). */
static bool tensor_read_shape(bth_unpickler *unpickler, berth_tensor *tensor, berth_value *size,
                              berth_value *stride)
{
    int32_t rank;
    if (!bth_value_as_shape(size, &tensor->shape, &tensor->rank) ||
        !bth_value_as_shape(stride, &tensor->stride, &rank))
        return false;
    if (rank == tensor->rank)
        return true;
    bth_unpickle_fail(unpickler, BERTH_E_TENSOR, "a tensor of %d sizes and %d strides",
                      (int)tensor->rank, (int)rank);
    return false;
}

/* A tensor of a storage node as _rebuild_tensor does; NULL: error or tree has failed. */
static berth_value *tensor_make(bth_unpickler *unpickler, berth_tensor *tensor,
                                berth_value *const *arguments)
{
    tensor->storage = ((const struct storage_node *)arguments[STORAGE])->storage;
    tensor->storage_offset = argument_get_int64(arguments[OFFSET]);
    if (!tensor_read_shape(unpickler, tensor, arguments[SIZE], arguments[STRIDE]))
        return NULL;
    return bth_tensor_adopt(unpickler->tree, tensor);
}

/* The dtype of tensors of a storage class; for PyTorch an untyped one holds bytes. */
static berth_dtype storage_class_tensor_dtype(const berth_value *storage)
{
    berth_dtype dtype = ((const struct storage_node *)storage)->dtype;
    return dtype == BERTH_DTYPE_NONE ? BERTH_UINT8 : dtype;
}

/*
 * {'conj': True, 'neg': True}. PyTorch checks only that the keys exist, so False would have two
 * readings and is refused. No program writes it.
 */
static bool tensor_read_metadata(bth_unpickler *unpickler, const bth_known *known,
                                 const berth_value *metadata, uint32_t *flags)
{
    for (size_t i = 0; i < berth_value_count(metadata); i++) {
        const berth_value *key = bth_value_key(metadata, i);
        const berth_value *value = bth_value_item(metadata, i);
        const char *name = berth_as_text(key, NULL);
        uint32_t flag = name && strcmp(name, "conj") == 0  ? BERTH_CONJ
                        : name && strcmp(name, "neg") == 0 ? BERTH_NEG
                                                           : 0;
        if (!flag || !bth_value_bool(value)) {
            bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                              "%s %s with other metadata than conj and neg, True", known->module,
                              known->name);
            return false;
        }
        *flags |= flag;
    }
    return true;
}

BTH_BUILDER(tensor_v1)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE])};
    return tensor_make(unpickler, &tensor, items);
}

BTH_BUILDER(tensor_v2)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE]),
                           .flags = argument_get_requires_grad_flag(items[4])};
    if (n > 6 && !tensor_read_metadata(unpickler, known, items[6], &tensor.flags))
        return NULL;
    return tensor_make(unpickler, &tensor, items);
}

BTH_BUILDER(tensor_v3)
{
    berth_tensor tensor = {.dtype = bth_value_as_dtype(items[6]),
                           .flags = argument_get_requires_grad_flag(items[4])};
    if (bth_value_storage_class(items[STORAGE]) != BERTH_DTYPE_NONE)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "%s %s wants an UntypedStorage as argument 1", known->module,
                                   known->name);
    if (n > 7 && !tensor_read_metadata(unpickler, known, items[7], &tensor.flags))
        return NULL;
    return tensor_make(unpickler, &tensor, items);
}

BTH_BUILDER(meta)
{
    berth_tensor tensor = {.dtype = bth_value_as_dtype(items[0]),
                           .flags = BERTH_META | argument_get_requires_grad_flag(items[3])};
    if (!tensor_read_shape(unpickler, &tensor, items[1], items[2]))
        return NULL;
    return bth_tensor_adopt(unpickler->tree, &tensor);
}

/* ---- quantized ---- */

/* Inert, it can be of a class of its own: the parts of a tensor have the class of the whole. */
static bool value_can_be_tensor_part(const bth_unpickler *unpickler, const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_TENSOR) ||
           (unpickler->rules->inert && value->kind == BERTH_KIND_SUBCLASS &&
            berth_as_tensor(value));
}

/* (qscheme, scale, zero_point), or per channel (qscheme, scales, zero_points, axis) */
static bool quantizer_read(const bth_unpickler *unpickler, const berth_value *parameters,
                           berth_tensor *tensor)
{
    berth_value *const *items;
    size_t n = bth_node_tuple_items(parameters, &items);
    if (n == 0 || n > 4)
        return false;
    tensor->qscheme = bth_value_as_qscheme(items[0]);
    switch (tensor->qscheme) {
    case BERTH_PER_TENSOR_AFFINE:
        return n == 3 && bth_node_as_double(items[1], &tensor->scale) &&
               berth_as_int(items[2], &tensor->zero_point);
    case BERTH_PER_CHANNEL_AFFINE:
    case BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS:
        if (n != 4 || !value_can_be_tensor_part(unpickler, items[1]) ||
            !value_can_be_tensor_part(unpickler, items[2]))
            return false;
        tensor->scales = items[1];
        tensor->zero_points = items[2];
        return berth_as_int(items[3], &tensor->axis);
    default: /* PyTorch neither writes nor reads the symmetric schemes. */
        return false;
    }
}

BTH_BUILDER(qtensor)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE]),
                           .flags = argument_get_requires_grad_flag(items[5])};
    if (!quantizer_read(unpickler, items[4], &tensor))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "%s %s wants (per_tensor_affine, scale, zero_point) or "
                                   "(per_channel_affine, scales, zero_points, axis) as argument 5",
                                   known->module, known->name);
    return tensor_make(unpickler, &tensor, items);
}

/* ---- tensors of several parts ---- */

/* COO: (indices, values, size, is_coalesced), the last since 2.1. The others: three and size. */
BTH_BUILDER(sparse)
{
    berth_value *const *parts = items;
    const int64_t *shape;
    int32_t rank;
    berth_layout_kind layout = bth_value_layout(items[0]);
    bool coo = layout == BERTH_SPARSE_COO;
    bool compressed = layout >= BERTH_SPARSE_CSR && layout <= BERTH_SPARSE_BSC;
    size_t n_tensors = coo ? 2 : 3;
    size_t n_parts = bth_node_tuple_items(items[1], &parts);
    bool good = n_parts == n_tensors + 1 || (coo && n_parts == n_tensors + 2);
    for (size_t i = 0; good && i < n_tensors; i++)
        good = value_can_be_tensor_part(unpickler, parts[i]);
    if (good && n_parts == 4 && coo)
        good = bth_node_kind(parts[3]) == BERTH_KIND_BOOL;
    if (!good || !(coo || compressed))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "%s %s of parts that make no sparse tensor", known->module,
                                   known->name);
    if (!bth_value_as_shape(parts[n_tensors], &shape, &rank))
        return NULL;
    bool is_coalesced = coo && n_parts == 4 && bth_value_bool(parts[3]);
    return bth_sparse_adopt(unpickler->tree, layout, shape, rank, parts, is_coalesced);
}

BTH_BUILDER(nested)
{
    return berth_make_nested(unpickler->tree, items);
}

BTH_BUILDER(parameter)
{
    return berth_make_parameter(unpickler->tree, items[0], bth_value_bool(items[1]));
}

/*
 * PyTorch reads the dicts of a state now, so they must not grow later. Their names are checked.
 */
static void attributes_mark_used(berth_value *state)
{
    bool pair = bth_node_kind(state) == BERTH_KIND_TUPLE;
    for (size_t i = 0; i < (pair ? 2u : 1u); i++) {
        berth_value *part = pair ? bth_value_item(state, i) : state;
        if (bth_node_kind(part) == BERTH_KIND_DICT)
            part->flags |= BTH_NODE_USED | BTH_NODE_ATTRIBUTES;
    }
}

/* P5 */
berth_value *bth_unpickle_make_subclass(bth_unpickler *unpickler, const bth_known *known,
                                        berth_value *tensor, berth_value *state)
{
    char problem[200];
    if (!bth_value_can_be_state(state))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "%s %s wants a dict as argument 4, got %s", known->module,
                                   known->name, berth_kind_name(bth_node_kind(state)));
    if (!bth_state_attributes_are_allowed(state, problem, sizeof problem))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "%s %s with %s", known->module,
                                   known->name, problem);
    attributes_mark_used(state);
    return berth_make_subclass(unpickler->tree, tensor, state);
}

BTH_BUILDER(parameter_with_state)
{
    berth_value *parameter = bth_build_parameter(unpickler, known, items, n);
    return parameter ? bth_unpickle_make_subclass(unpickler, known, parameter, items[3]) : NULL;
}

/* ---- BUILD ---- */

bool bth_is_no_hooks(const berth_value *value)
{
    berth_kind kind = bth_node_kind(value);
    return kind == BERTH_KIND_NONE ||
           (kind == BERTH_KIND_ORDERED_DICT && berth_value_count(value) == 0);
}

/* (requires_grad, volatile, hooks) */
static bool state_is_of_old_parameter(berth_value *const *items, size_t n)
{
    return n == 3 && bth_node_kind(items[0]) == BERTH_KIND_BOOL &&
           bth_node_kind(items[1]) == BERTH_KIND_BOOL && bth_is_no_hooks(items[2]);
}

/* (storage, offset, size, stride); dtype NONE: any storage class. */
static bool state_is_of_old_tensor(berth_value *const *items, size_t n, berth_dtype dtype)
{
    int64_t offset;
    return n == 4 && bth_node_kind(items[STORAGE]) == BERTH_KIND_STORAGE &&
           berth_as_int(items[OFFSET], &offset) &&
           (dtype == BERTH_DTYPE_NONE || storage_class_tensor_dtype(items[STORAGE]) == dtype);
}

/* The second step of a Parameter or tensor from before 0.4. */
static int pending_finish_by_build(bth_unpickler *unpickler, bth_pending *pending,
                                   berth_value *state)
{
    berth_value *const *items = NULL;
    size_t n = bth_node_tuple_items(state, &items);
    bool once = !pending->value;
    if (pending->tensor) {
        if (!once || !state_is_of_old_parameter(items, n))
            return bth_unpickle_fail(
                unpickler, BERTH_E_PICKLE,
                "BUILD of a Parameter wants (requires_grad, volatile, hooks), once");
        pending->value =
            berth_make_parameter(unpickler->tree, pending->tensor, bth_value_bool(items[0]));
    } else {
        if (!once || !state_is_of_old_tensor(items, n, pending->dtype))
            return bth_unpickle_fail(
                unpickler, BERTH_E_PICKLE,
                "BUILD of a tensor wants (storage, offset, size, stride), once");
        berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE])};
        pending->value = tensor_make(unpickler, &tensor, items);
    }
    return pending->value ? 0 : bth_unpickle_fail_by_tree_error(unpickler, "BUILD");
}

int bth_unpickle_build(bth_unpickler *unpickler, berth_value *slot, berth_value *state)
{
    if (bth_slot_tag(slot)) {
        uintptr_t pending = (uintptr_t)slot & ~(uintptr_t)BTH_TAG_BITS;
        return pending_finish_by_build(unpickler, (bth_pending *)pending, state);
    }
    berth_kind kind = bth_node_kind(slot);
    if (kind != BERTH_KIND_ORDERED_DICT && kind != BERTH_KIND_CALL)
        return bth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                                 "BUILD of %s: only OrderedDicts, and tensors and Parameters "
                                 "of old files, take a state",
                                 bth_kind_phrase(kind));
    if (kind == BERTH_KIND_ORDERED_DICT && bth_node_kind(state) != BERTH_KIND_DICT)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                 "BUILD of an OrderedDict wants a dict, got %s",
                                 berth_kind_name(bth_node_kind(state)));
    if (berth_value_part(slot, BERTH_PART_STATE))
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "BUILD of %s that has a state",
                                 bth_kind_phrase(kind));
    if (kind == BERTH_KIND_ORDERED_DICT)
        state->flags |= BTH_NODE_USED;
    if (berth_value_set_state(slot, state) < 0)
        return bth_unpickle_fail_by_tree_error(unpickler, "BUILD");
    return 0;
}
