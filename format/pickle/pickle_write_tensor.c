/* SPDX-License-Identifier: BSD-3-Clause */
/* What torch.Tensor.__reduce_ex__ and its kin pickle: FORMAT.md 6. */
#include "format/pickle/pickle_emitter.h"

#include <string.h>

#include "base/error.h"

/* ---- storages ---- */

void bth_emit_storage(bth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    const char *class = bth_dtype_storage_class(dtype);
    size_t item_nbytes = class ? berth_dtype_nbytes(dtype) : 1;
    /* PyTorch swaps by storage class and never an UntypedStorage (FORMAT.md 7). */
    if (emitter->foreign && !class && bth_dtype_swap_nbytes(dtype) > 1)
        BTH_EMIT_REFUSE(
            emitter,
            "torch.%s cannot be saved in the other byte order: PyTorch would not swap it "
            "back",
            berth_dtype_name(dtype));
    if (emitter->foreign && storage->nbytes % item_nbytes != 0)
        BTH_EMIT_REFUSE(
            emitter,
            "a storage of %llu bytes, not a multiple of torch.%s, cannot be saved in the other "
            "byte order",
            (unsigned long long)storage->nbytes, berth_dtype_name(dtype));
    /* Storages are numbered in the order of their first use. */
    bth_pickled *out = &emitter->out;
    size_t *position = &emitter->positions[storage->index];
    berth_dtype saved = bth_dtype_to_storage_dtype(dtype);
    if (*position == 0) {
        out->storages[out->n_storages] = storage;
        out->dtypes[out->n_storages] = saved;
        *position = ++out->n_storages;
    } else if (storage->nbytes > 0 &&
               !bth_storage_dtypes_are_compatible(out->dtypes[*position - 1], saved)) {
        const char *first = bth_dtype_storage_class(out->dtypes[*position - 1]);
        const char *second = bth_dtype_storage_class(saved);
        BTH_EMIT_REFUSE(emitter,
                        "one storage is used as %s and as %s: PyTorch cannot load such a file",
                        first ? first : "UntypedStorage", second ? second : "UntypedStorage");
    }
    size_t number = *position - 1;
    char digits[24];
    size_t n = 0;
    size_t rest = number;
    do {
        digits[sizeof digits - ++n] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    size_t location_nbytes = strlen(storage->location);
    int constant = bth_constant_text_find(storage->location, location_nbytes);
    bth_emit_op(emitter, BTH_OP_MARK);
    bth_emit_text(emitter, "storage", 7, &emitter->constants[BTH_TEXT_STORAGE]);
    bth_emit_global(emitter, class ? "torch" : "torch.storage", class ? class : "UntypedStorage");
    bth_emit_text(emitter, digits + sizeof digits - n, n, &emitter->keys[number]);
    /* 'cpu' is a constant of torch's code; 'cuda:0' is put together each time. */
    bth_emit_text(emitter, storage->location, location_nbytes,
                  constant < 0 ? NULL : &emitter->constants[constant]);
    bth_emit_int(emitter, (int64_t)(storage->nbytes / item_nbytes));
    bth_emit_tuple_end(emitter, 5, NULL);
    bth_emit_op(emitter, BTH_OP_BINPERSID);
}

static void tensor_emit_storage_and_shape(bth_emitter *emitter, const berth_tensor *tensor)
{
    int64_t offset;
    const berth_storage *storage = bth_tensor_saved_storage(tensor, &offset);
    bth_emit_storage(emitter, storage, tensor->dtype);
    bth_emit_int(emitter, offset);
    bth_emit_ints(emitter, tensor->shape, tensor->rank);
    bth_emit_ints(emitter, tensor->stride, tensor->rank);
}

/* ---- parts of arguments ---- */

/* requires_grad and backward hooks; a Parameter's .data has no grad, and hooks are never saved. */
static void tensor_emit_grad_and_hooks(bth_emitter *emitter, bool requires_grad)
{
    bth_emit_bool(emitter, requires_grad);
    bth_emit_ordered_dict(emitter, NULL);
}

void bth_emit_qscheme(bth_emitter *emitter, berth_qscheme scheme)
{
    static const char *const names[] = {
#define BTH_QSCHEME_GLOBAL(name, qscheme) [qscheme] = name,
#include "format/pickle/pickle_globals.def"
    };
    bth_emit_global(emitter, "torch", names[scheme]);
}

/* ---- parts of a value ---- */

/* The value to rebuild, without its attributes. It has none of its own: bth_emit_tensor(). */
static const berth_value *value_unwrap_subclass(const berth_value *value)
{
    bool is_around = berth_value_kind(value) == BERTH_KIND_SUBCLASS;
    return is_around ? berth_value_part(value, BERTH_PART_INNER) : value;
}

/* NULL for anything but a TENSOR, also for values around one. */
static const berth_tensor *value_as_bare_tensor(const berth_value *value)
{
    return berth_value_kind(value) == BERTH_KIND_TENSOR ? berth_as_tensor(value) : NULL;
}

static bool tensor_is_per_channel(const berth_tensor *tensor)
{
    return !(tensor->flags & BERTH_META) &&
           (tensor->qscheme == BERTH_PER_CHANNEL_AFFINE ||
            tensor->qscheme == BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS);
}

/* Emits the arguments of a tensor that has no inner values; false if it has some. */
static bool tensor_try_emit_arguments_at_once(bth_emitter *emitter, const berth_value *inner,
                                              bool is_detached)
{
    const berth_tensor *tensor = value_as_bare_tensor(inner);
    if (!tensor || tensor_is_per_channel(tensor))
        return false;
    bool requires_grad = !is_detached && tensor->flags & BERTH_REQUIRES_GRAD;
    bth_emit_op(emitter, BTH_OP_MARK);
    if (tensor->flags & BERTH_META) {
        bth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
        bth_emit_ints(emitter, tensor->shape, tensor->rank);
        bth_emit_ints(emitter, tensor->stride, tensor->rank);
        bth_emit_bool(emitter, requires_grad);
    } else if (tensor->qscheme != BERTH_NOT_QUANTIZED) {
        tensor_emit_storage_and_shape(emitter, tensor);
        bth_emit_qscheme(emitter, tensor->qscheme);
        bth_emit_float(emitter, tensor->scale);
        bth_emit_int(emitter, tensor->zero_point);
        bth_emit_tuple_end(emitter, 3, NULL);
        tensor_emit_grad_and_hooks(emitter, requires_grad);
    } else {
        tensor_emit_storage_and_shape(emitter, tensor);
        tensor_emit_grad_and_hooks(emitter, requires_grad);
        if (!bth_dtype_storage_class(tensor->dtype))
            bth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
        /* {'neg': True, 'conj': True}, as torch._C._get_tensor_metadata orders it. */
        bool conj = tensor->flags & BERTH_CONJ, neg = tensor->flags & BERTH_NEG;
        if (conj || neg) {
            bth_emit_op(emitter, BTH_OP_EMPTY_DICT);
            bth_emit_memoize(emitter, NULL);
            if (conj && neg)
                bth_emit_op(emitter, BTH_OP_MARK);
            if (neg) {
                bth_emit_text(emitter, "neg", 3, NULL);
                bth_emit_bool(emitter, true);
            }
            if (conj) {
                bth_emit_text(emitter, "conj", 4, NULL);
                bth_emit_bool(emitter, true);
            }
            bth_emit_op(emitter, conj && neg ? BTH_OP_SETITEMS : BTH_OP_SETITEM);
        }
    }
    bth_emit_tuple_end(emitter, 4, NULL); /* or more */
    return true;
}

/* ---- other arguments: the next inner value, or NULL when the tuple is complete ---- */

static const berth_value *per_channel_emit_until_inner_value(bth_emitter *emitter,
                                                             const bth_walk_frame *frame,
                                                             const berth_value *inner)
{
    const berth_tensor *tensor = berth_as_tensor(inner);
    if (frame->step == 0) {
        bth_emit_op(emitter, BTH_OP_MARK);
        tensor_emit_storage_and_shape(emitter, tensor);
        bth_emit_op(emitter, BTH_OP_MARK);
        /* PyTorch writes this one for affine with float parameters too. */
        bth_emit_qscheme(emitter, BERTH_PER_CHANNEL_AFFINE);
    }
    if (frame->step < 2)
        return frame->step == 0 ? tensor->scales : tensor->zero_points;
    bth_emit_int(emitter, tensor->axis);
    bth_emit_tuple_end(emitter, 4, NULL);
    bool is_detached = frame->note & BTH_NOTE_DETACHED;
    tensor_emit_grad_and_hooks(emitter, !is_detached && tensor->flags & BERTH_REQUIRES_GRAD);
    bth_emit_tuple_end(emitter, 7, NULL);
    return NULL;
}

/* Sparse: (layout, (part, …, size)), of a COO tensor with is_coalesced. Nested: (part, …). */
static const berth_value *tensor_parts_emit_until_inner_value(bth_emitter *emitter,
                                                              const berth_value *inner, uint32_t i)
{
    bool is_sparse = berth_value_kind(inner) == BERTH_KIND_SPARSE;
    if (i == 0 && is_sparse)
        bth_emit_tensor_layout(emitter, bth_value_layout(inner));
    if (i == 0)
        bth_emit_op(emitter, BTH_OP_MARK);
    const berth_value *part = bth_tensor_part(inner, i);
    if (part)
        return part;
    if (is_sparse) {
        int32_t rank;
        const int64_t *shape = berth_as_size(inner, &rank);
        bth_emit_torch_size(emitter, shape, rank, NULL);
        if (bth_value_layout(inner) == BERTH_SPARSE_COO)
            bth_emit_bool(emitter, (berth_value_flags(inner) & BERTH_COALESCED));
    }
    bth_emit_tuple_end(emitter, 4, NULL);
    if (is_sparse)
        bth_emit_tuple_end(emitter, 2, NULL);
    return NULL;
}

/* (data, requires_grad, hooks), and the attributes as a fourth where there are some. */
static const berth_value *parameter_emit_until_inner_value(bth_emitter *emitter,
                                                           const berth_value *value, uint32_t i)
{
    const berth_value *inner = value_unwrap_subclass(value),
                      *state = berth_value_part(value, BERTH_PART_STATE);
    if (i == 0) {
        bth_emit_tuple_mark(emitter, state ? 4 : 3);
        return berth_value_part(inner, BERTH_PART_INNER);
    }
    if (i == 1) {
        tensor_emit_grad_and_hooks(emitter, (berth_value_flags(inner) & BERTH_REQUIRES_GRAD));
        if (state)
            return state;
    }
    bth_emit_tuple_end(emitter, state ? 4 : 3, NULL);
    return NULL;
}

/* ---- the reduce around them ---- */

/* Whether attributes come through _rebuild_from_type_v2; a Parameter has its own function. */
static bool tensor_is_rebuilt_from_type(const berth_value *value)
{
    return berth_value_kind(value) == BERTH_KIND_SUBCLASS &&
           berth_value_kind(value_unwrap_subclass(value)) != BERTH_KIND_PARAMETER;
}

static void tensor_emit_reduce_and_memo(bth_emitter *emitter, const berth_value *value,
                                        uint32_t notes)
{
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memoize(emitter,
                     notes & BTH_NOTE_DETACHED ? NULL : bth_emitter_memo_slot(emitter, value));
}

void bth_emit_tensor_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value, *argument = NULL;
    const berth_value *inner = value_unwrap_subclass(value);
    berth_kind kind = berth_value_kind(inner);
    if (frame->note & BTH_NOTE_TYPE) {
        frame->note &= ~(uint32_t)BTH_NOTE_TYPE;
        (void)tensor_try_emit_arguments_at_once(emitter, inner, false);
    }
    frame->step++;                    /* 0 at first */
    if (frame->note & BTH_NOTE_STATE) /* (function, type, arguments, state) */
        bth_emit_tuple_end(emitter, 4, NULL);
    else if (kind == BERTH_KIND_SPARSE || kind == BERTH_KIND_NESTED)
        argument = tensor_parts_emit_until_inner_value(emitter, inner, frame->step);
    else if (kind == BERTH_KIND_PARAMETER)
        argument = parameter_emit_until_inner_value(emitter, value, frame->step);
    else if (tensor_is_per_channel(berth_as_tensor(inner))) /* another one is complete */
        argument = per_channel_emit_until_inner_value(emitter, frame, inner);
    if (argument && frame->step == 0 && kind == BERTH_KIND_PARAMETER) {
        bth_emit_tensor(emitter, argument, BTH_NOTE_DETACHED);
    } else if (argument) {
        bth_emit_value(emitter, argument);
    } else if (tensor_is_rebuilt_from_type(value) && !(frame->note & BTH_NOTE_STATE)) {
        frame->note |= BTH_NOTE_STATE;
        bth_emit_value(emitter, berth_value_part(value, BERTH_PART_STATE));
    } else {
        tensor_emit_reduce_and_memo(emitter, value, frame->note);
        bth_walk_pop(&emitter->walk);
    }
}

void bth_emit_tensor(bth_emitter *emitter, const berth_value *value, uint32_t notes)
{
    const berth_value *inner = value_unwrap_subclass(value);
    const berth_value *state = berth_value_part(value, BERTH_PART_STATE);
    const berth_value *type = berth_value_part(value, BERTH_PART_TYPE); /* NULL: not inert */
    const berth_tensor *tensor = value_as_bare_tensor(inner);
    berth_kind kind = berth_value_kind(inner);
    bool has_type = tensor_is_rebuilt_from_type(value);
    char problem[200];
    /* P5: PyTorch saves and loads per-tensor and per-channel affine only. Attributes must be those
     * that our reader and PyTorch's accept. Nothing is left out silently. */
    if (tensor && (tensor->qscheme == BERTH_PER_TENSOR_SYMMETRIC ||
                   tensor->qscheme == BERTH_PER_CHANNEL_SYMMETRIC))
        BTH_EMIT_REFUSE(
            emitter, "symmetrically quantized tensors cannot be saved: PyTorch cannot load them");
    else if (tensor && bth_dtype_is_foreign(tensor->dtype))
        BTH_EMIT_REFUSE(emitter, "PyTorch has no dtype %s: only a safetensors file can hold it",
                        berth_dtype_name(tensor->dtype));
    else if (berth_value_part(inner, BERTH_PART_STATE))
        BTH_EMIT_REFUSE(
            emitter,
            "%s cannot be saved with attributes of its own: berth_make_subclass gives it some",
            bth_kind_phrase(kind));
    else if (!type && !bth_value_can_be_state(state))
        BTH_EMIT_REFUSE(emitter, "attributes of a tensor cannot be saved as %s: they are a dict",
                        bth_kind_phrase(berth_value_kind(state)));
    else if (!type && !bth_state_attributes_are_allowed(state, problem, sizeof problem))
        BTH_EMIT_REFUSE(emitter, "a tensor cannot be saved with %s", problem);
    else if (kind == BERTH_KIND_PARAMETER &&
             berth_value_kind(berth_value_part(inner, BERTH_PART_INNER)) == BERTH_KIND_SUBCLASS)
        BTH_EMIT_REFUSE(
            emitter,
            "a Parameter cannot be saved around a tensor with attributes: PyTorch would lose "
            "them");
    if (emitter->error->code != BERTH_OK)
        return;
    emitter->out.has_nested |= kind == BERTH_KIND_NESTED;
    const char *function;
    if (kind == BERTH_KIND_PARAMETER)
        function = value == inner ? "_rebuild_parameter" : "_rebuild_parameter_with_state";
    else if (!tensor)
        function = kind == BERTH_KIND_SPARSE ? "_rebuild_sparse_tensor" : "_rebuild_nested_tensor";
    else if (tensor->flags & BERTH_META)
        function = "_rebuild_meta_tensor_no_storage";
    else if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        function = "_rebuild_qtensor";
    else
        function =
            bth_dtype_storage_class(tensor->dtype) ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3";
    if (has_type) {
        bth_emit_global(emitter, "torch._tensor", "_rebuild_from_type_v2");
        bth_emit_op(emitter, BTH_OP_MARK);
    }
    bth_emit_global(emitter, "torch._utils", function);
    if (type) {
        bth_emit_push_value(emitter, value, notes | BTH_NOTE_TYPE);
        bth_emit_value(emitter, type);
        return;
    }
    if (has_type)
        bth_emit_global(emitter, "torch", "Tensor");
    if (tensor_try_emit_arguments_at_once(emitter, inner, notes & BTH_NOTE_DETACHED) && !has_type)
        tensor_emit_reduce_and_memo(emitter, value, notes);
    else
        bth_emit_push_value(emitter, value, notes);
}
