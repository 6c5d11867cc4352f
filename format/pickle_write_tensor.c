/* SPDX-License-Identifier: BSD-3-Clause */
/* What torch.Tensor.__reduce_ex__ and its kin pickle: FORMAT.md 6. */
#include "format/pickle_emit.h"

#include <string.h>

#include "config/error.h"
#include "format/tensor.h"

#define RECORD "data.pkl"

/* ---- storages ---- */

/* PyTorch swaps by storage class and never an UntypedStorage (FORMAT.md 7). */
static void check_foreign(berth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    bool typed = berth_dtype_storage_class(dtype) != NULL;
    if (!typed && berth_dtype_swap_nbytes(dtype) > 1)
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "torch.%s cannot be saved in the other byte order: PyTorch would not swap it "
                   "back",
                   berth_dtype_name(dtype));
    if (typed && storage->nbytes % berth_dtype_nbytes(dtype) != 0)
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "a storage of %llu bytes, no multiple of torch.%s, cannot be saved in the other "
                   "byte order",
                   (unsigned long long)storage->nbytes, berth_dtype_name(dtype));
}

/* The number of a storage in the file, given at first meeting. */
static size_t meet_storage(berth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    size_t *met = &emitter->met[storage->index];
    berth_dtype class = berth_dtype_of_storage(dtype);
    if (*met == 0) {
        emitter->storages[emitter->n_storages] = storage;
        emitter->dtypes[emitter->n_storages] = class;
        *met = ++emitter->n_storages;
    } else if (storage->nbytes > 0 && !berth_dtype_same_class(emitter->dtypes[*met - 1], class)) {
        const char *first = berth_dtype_storage_class(emitter->dtypes[*met - 1]);
        const char *second = berth_dtype_storage_class(class);
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "one storage is seen as %s and as %s: PyTorch cannot load such a file",
                   first ? first : "UntypedStorage", second ? second : "UntypedStorage");
    }
    return *met - 1;
}

static void emit_key(berth_emitter *emitter, size_t number)
{
    char digits[24];
    size_t n = 0;
    size_t rest = number;
    do {
        digits[sizeof digits - ++n] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    berth_emit_text(emitter, digits + sizeof digits - n, n, &emitter->keys[number]);
}

void berth_emit_storage(berth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    if (emitter->foreign)
        check_foreign(emitter, storage, dtype);
    size_t number = meet_storage(emitter, storage, dtype);
    const char *class = berth_dtype_storage_class(dtype);
    berth_emit_op(emitter, BERTH_OP_MARK);
    berth_emit_constant(emitter, BERTH_TEXT_STORAGE);
    berth_emit_global(emitter, class ? "torch" : "torch.storage", class ? class : "UntypedStorage");
    emit_key(emitter, number);
    size_t location_nbytes = strlen(storage->location);
    int constant = berth_emit_find_constant(storage->location, location_nbytes);
    /* 'cpu' is a constant of torch's code; 'cuda:0' is put together each time. */
    berth_emit_text(emitter, storage->location, location_nbytes,
                    constant < 0 ? NULL : &emitter->constants[constant]);
    size_t item_nbytes = class ? berth_dtype_nbytes(dtype) : 1;
    berth_emit_int(emitter, (int64_t)(storage->nbytes / item_nbytes));
    berth_emit_tuple(emitter, 5, NULL);
    berth_emit_op(emitter, BERTH_OP_BINPERSID);
}

static void emit_placed(berth_emitter *emitter, const berth_tensor *tensor)
{
    int64_t offset;
    const berth_storage *storage = berth_tensor_place(tensor, &offset);
    berth_emit_storage(emitter, storage, tensor->dtype);
    berth_emit_int(emitter, offset);
    berth_emit_ints(emitter, tensor->shape, tensor->rank);
    berth_emit_ints(emitter, tensor->stride, tensor->rank);
}

/* ---- parts of arguments ---- */

/* OrderedDict(): backward hooks, a new one each time. */
static void emit_hooks(berth_emitter *emitter)
{
    berth_emit_global(emitter, "collections", "OrderedDict");
    berth_emit_op(emitter, BERTH_OP_EMPTY_TUPLE);
    berth_emit_op(emitter, BERTH_OP_REDUCE);
    berth_emit_memo(emitter, NULL);
}

/* {'neg': True, 'conj': True}, as torch._C._get_tensor_metadata orders it. */
static void emit_metadata(berth_emitter *emitter, uint32_t flags)
{
    bool both = (flags & BERTH_CONJ) && (flags & BERTH_NEG);
    berth_emit_op(emitter, BERTH_OP_EMPTY_DICT);
    berth_emit_memo(emitter, NULL);
    if (both)
        berth_emit_op(emitter, BERTH_OP_MARK);
    if (flags & BERTH_NEG) {
        berth_emit_text(emitter, "neg", 3, NULL);
        berth_emit_bool(emitter, true);
    }
    if (flags & BERTH_CONJ) {
        berth_emit_text(emitter, "conj", 4, NULL);
        berth_emit_bool(emitter, true);
    }
    berth_emit_op(emitter, both ? BERTH_OP_SETITEMS : BERTH_OP_SETITEM);
}

void berth_emit_qscheme(berth_emitter *emitter, berth_qscheme scheme)
{
    static const char *const names[] = {
        [BERTH_PER_TENSOR_AFFINE] = "per_tensor_affine",
        [BERTH_PER_TENSOR_SYMMETRIC] = "per_tensor_symmetric",
        [BERTH_PER_CHANNEL_AFFINE] = "per_channel_affine",
        [BERTH_PER_CHANNEL_SYMMETRIC] = "per_channel_symmetric",
        [BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS] = "per_channel_affine_float_qparams",
    };
    berth_emit_global(emitter, "torch", names[scheme]);
}

/* ---- arguments, piece by piece: the next inner value, or NULL when the tuple is made ---- */

static bool is_per_channel(const berth_tensor *tensor)
{
    return tensor->qscheme == BERTH_PER_CHANNEL_AFFINE ||
           tensor->qscheme == BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS;
}

static bool wants_grad(const berth_frame *frame, const berth_tensor *tensor)
{
    return !frame->detached && (tensor->flags & BERTH_REQUIRES_GRAD);
}

static void emit_plain(berth_emitter *emitter, const berth_frame *frame, const berth_tensor *tensor)
{
    berth_emit_op(emitter, BERTH_OP_MARK);
    emit_placed(emitter, tensor);
    berth_emit_bool(emitter, wants_grad(frame, tensor));
    emit_hooks(emitter);
    if (!berth_dtype_storage_class(tensor->dtype))
        berth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
    if (tensor->flags & (BERTH_CONJ | BERTH_NEG))
        emit_metadata(emitter, tensor->flags);
    berth_emit_op(emitter, BERTH_OP_TUPLE);
    berth_emit_memo(emitter, NULL);
}

static void emit_meta(berth_emitter *emitter, const berth_frame *frame, const berth_tensor *tensor)
{
    berth_emit_op(emitter, BERTH_OP_MARK);
    berth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
    berth_emit_ints(emitter, tensor->shape, tensor->rank);
    berth_emit_ints(emitter, tensor->stride, tensor->rank);
    berth_emit_bool(emitter, wants_grad(frame, tensor));
    berth_emit_tuple(emitter, 4, NULL);
}

static const berth_value *next_of_quantized(berth_emitter *emitter, berth_frame *frame,
                                            const berth_tensor *tensor)
{
    if (frame->at == 0) {
        berth_emit_op(emitter, BERTH_OP_MARK);
        emit_placed(emitter, tensor);
    }
    if (!is_per_channel(tensor)) {
        berth_emit_qscheme(emitter, tensor->qscheme);
        berth_emit_float(emitter, tensor->scale);
        berth_emit_int(emitter, tensor->zero_point);
        berth_emit_tuple(emitter, 3, NULL);
    } else if (frame->at == 0) {
        berth_emit_op(emitter, BERTH_OP_MARK);
        /* PyTorch writes this one for affine with float parameters too. */
        berth_emit_qscheme(emitter, BERTH_PER_CHANNEL_AFFINE);
        return tensor->scales;
    } else if (frame->at == 1) {
        return tensor->zero_points;
    } else {
        berth_emit_int(emitter, tensor->axis);
        berth_emit_tuple(emitter, 4, NULL);
    }
    berth_emit_bool(emitter, wants_grad(frame, tensor));
    emit_hooks(emitter);
    berth_emit_tuple(emitter, 7, NULL);
    return NULL;
}

static const berth_value *next_of_dense(berth_emitter *emitter, berth_frame *frame)
{
    const berth_tensor *tensor = berth_value_tensor(frame->inner);
    if (tensor->qscheme != BERTH_NOT_QUANTIZED && !(tensor->flags & BERTH_META))
        return next_of_quantized(emitter, frame, tensor);
    if (tensor->flags & BERTH_META)
        emit_meta(emitter, frame, tensor);
    else
        emit_plain(emitter, frame, tensor);
    return NULL;
}

static const berth_value *next_of_sparse(berth_emitter *emitter, const berth_frame *frame)
{
    if (frame->at == 0) {
        berth_emit_layout(emitter, berth_value_layout(frame->inner));
        berth_emit_op(emitter, BERTH_OP_MARK);
    }
    if (frame->at < berth_value_count(frame->inner))
        return berth_value_item(frame->inner, frame->at);
    int32_t rank;
    const int64_t *shape = berth_value_shape(frame->inner, &rank);
    berth_emit_size(emitter, shape, rank, NULL);
    if (berth_value_layout(frame->inner) == BERTH_SPARSE_COO)
        berth_emit_bool(emitter, berth_value_is_coalesced(frame->inner));
    berth_emit_tuple(emitter, 4, NULL);
    berth_emit_tuple(emitter, 2, NULL);
    return NULL;
}

static const berth_value *next_of_nested(berth_emitter *emitter, const berth_frame *frame)
{
    if (frame->at == 0)
        berth_emit_op(emitter, BERTH_OP_MARK);
    if (frame->at < 4)
        return berth_value_item(frame->inner, frame->at);
    berth_emit_tuple(emitter, 4, NULL);
    return NULL;
}

/* (data, requires_grad, hooks), and the attributes as a fourth where there are some. */
static const berth_value *next_of_parameter(berth_emitter *emitter, const berth_frame *frame)
{
    const berth_value *state =
        frame->value != frame->inner ? berth_value_state(frame->value) : NULL;
    if (frame->at == 0) {
        if (state)
            berth_emit_op(emitter, BERTH_OP_MARK);
        return berth_value_inner(frame->inner);
    }
    if (frame->at == 1) {
        berth_emit_bool(emitter, berth_value_requires_grad(frame->inner));
        emit_hooks(emitter);
        if (state)
            return state;
    }
    berth_emit_tuple(emitter, state ? 4 : 3, NULL);
    return NULL;
}

static const berth_value *next_argument(berth_emitter *emitter, berth_frame *frame)
{
    switch (berth_value_kind(frame->inner)) {
    case BERTH_KIND_SPARSE:
        return next_of_sparse(emitter, frame);
    case BERTH_KIND_NESTED:
        return next_of_nested(emitter, frame);
    case BERTH_KIND_PARAMETER:
        return next_of_parameter(emitter, frame);
    default:
        return next_of_dense(emitter, frame);
    }
}

/* ---- the reduce around them ---- */

/* Whether attributes come through _rebuild_from_type_v2; a Parameter has its own function. */
static bool has_type(const berth_frame *frame)
{
    return frame->value != frame->inner && berth_value_kind(frame->inner) != BERTH_KIND_PARAMETER;
}

static void finish_reduce(berth_emitter *emitter, berth_frame *frame)
{
    berth_emit_op(emitter, BERTH_OP_REDUCE);
    berth_emit_memo(emitter, frame->detached ? NULL : berth_emit_slot(emitter, frame->value));
    berth_emit_pop(emitter);
}

/* After (function, type, arguments, state). */
static void step_type(berth_emitter *emitter, berth_frame *frame)
{
    berth_emit_tuple(emitter, 4, NULL);
    finish_reduce(emitter, frame);
}

static void step_arguments(berth_emitter *emitter, berth_frame *frame)
{
    bool is_data = frame->at == 0 && berth_value_kind(frame->inner) == BERTH_KIND_PARAMETER;
    const berth_value *argument = next_argument(emitter, frame);
    if (argument) {
        frame->at++;
        if (is_data)
            berth_emit_tensor(emitter, argument, true);
        else
            berth_emit_value(emitter, argument);
    } else if (has_type(frame)) {
        frame->step = step_type;
        berth_emit_value(emitter, berth_value_state(frame->value));
    } else {
        finish_reduce(emitter, frame);
    }
}

static const char *dense_function(const berth_tensor *tensor)
{
    if (tensor->flags & BERTH_META)
        return "_rebuild_meta_tensor_no_storage";
    if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        return "_rebuild_qtensor";
    return berth_dtype_storage_class(tensor->dtype) ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3";
}

static const char *rebuild_function(const berth_frame *frame)
{
    switch (berth_value_kind(frame->inner)) {
    case BERTH_KIND_SPARSE:
        return "_rebuild_sparse_tensor";
    case BERTH_KIND_NESTED:
        return "_rebuild_nested_tensor";
    case BERTH_KIND_PARAMETER:
        return frame->value == frame->inner ? "_rebuild_parameter"
                                            : "_rebuild_parameter_with_state";
    default:
        return dense_function(berth_value_tensor(frame->inner));
    }
}

/* torch.save and torch.load know per-tensor and per-channel affine only. */
static bool check_scheme(berth_emitter *emitter, const berth_value *value)
{
    const berth_tensor *tensor =
        berth_value_kind(value) == BERTH_KIND_TENSOR ? berth_value_tensor(value) : NULL;
    if (!tensor || (tensor->qscheme != BERTH_PER_TENSOR_SYMMETRIC &&
                    tensor->qscheme != BERTH_PER_CHANNEL_SYMMETRIC))
        return true;
    berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
               "symmetrically quantized tensors cannot be saved: PyTorch cannot load them");
    return false;
}

/* P5: attributes as the readers take them, ours and PyTorch's; nothing is left out silently. */
static bool check_attributes(berth_emitter *emitter, const berth_frame *frame)
{
    const berth_value *state =
        frame->value == frame->inner ? NULL : berth_value_state(frame->value);
    char problem[200];
    if (berth_value_state(frame->inner))
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "%s cannot be saved with attributes of its own: berth_subclass gives it some",
                   berth_kind_phrase(berth_value_kind(frame->inner)));
    else if (!berth_value_is_state(state))
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "attributes of a tensor cannot be saved as %s: they are a dict",
                   berth_kind_phrase(berth_value_kind(state)));
    else if (!berth_attributes_are_good(state, problem, sizeof problem))
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "a tensor cannot be saved with %s", problem);
    else if (berth_value_kind(frame->inner) == BERTH_KIND_PARAMETER &&
             berth_value_kind(berth_value_inner(frame->inner)) == BERTH_KIND_SUBCLASS)
        berth_fail(
            emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
            "a Parameter cannot be saved around a tensor with attributes: PyTorch would lose "
            "them");
    return emitter->error->code == BERTH_OK;
}

void berth_emit_tensor(berth_emitter *emitter, const berth_value *value, bool detached)
{
    berth_frame frame = {.step = step_arguments, .value = value, .inner = value};
    if (berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        frame.inner = berth_value_inner(value);
    frame.detached = detached;
    if (!check_scheme(emitter, frame.inner) || !check_attributes(emitter, &frame))
        return;
    if (has_type(&frame)) {
        berth_emit_global(emitter, "torch._tensor", "_rebuild_from_type_v2");
        berth_emit_op(emitter, BERTH_OP_MARK);
        berth_emit_global(emitter, "torch._utils", rebuild_function(&frame));
        berth_emit_global(emitter, "torch", "Tensor");
    } else {
        berth_emit_global(emitter, "torch._utils", rebuild_function(&frame));
    }
    berth_emit_push(emitter, &frame);
}
