/* SPDX-License-Identifier: BSD-3-Clause */
/* What torch.Tensor.__reduce_ex__ and its kin pickle: FORMAT.md 6. */
#include "format/pickle/pickle_emit.h"

#include <string.h>

#include "config/error.h"
#include "format/values/value.h"

#define RECORD "data.pkl"

/* ---- storages ---- */

/* PyTorch swaps by storage class and never an UntypedStorage (FORMAT.md 7). */
static void storage_check_foreign(bth_emitter *emitter, const berth_storage *storage,
                                  berth_dtype dtype)
{
    bool typed = bth_dtype_storage_class(dtype) != NULL;
    if (!typed && bth_dtype_swap_nbytes(dtype) > 1)
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "torch.%s cannot be saved in the other byte order: PyTorch would not swap it "
                 "back",
                 berth_dtype_name(dtype));
    if (typed && storage->nbytes % berth_dtype_nbytes(dtype) != 0)
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "a storage of %llu bytes, no multiple of torch.%s, cannot be saved in the other "
                 "byte order",
                 (unsigned long long)storage->nbytes, berth_dtype_name(dtype));
}

/* The number of a storage in the file, given when it is first used. */
static size_t storage_number(bth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    size_t *met = &emitter->met[storage->index];
    berth_dtype class = bth_dtype_of_storage(dtype);
    if (*met == 0) {
        emitter->storages[emitter->n_storages] = storage;
        emitter->dtypes[emitter->n_storages] = class;
        *met = ++emitter->n_storages;
    } else if (storage->nbytes > 0 && !bth_dtype_same_class(emitter->dtypes[*met - 1], class)) {
        const char *first = bth_dtype_storage_class(emitter->dtypes[*met - 1]);
        const char *second = bth_dtype_storage_class(class);
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "one storage is seen as %s and as %s: PyTorch cannot load such a file",
                 first ? first : "UntypedStorage", second ? second : "UntypedStorage");
    }
    return *met - 1;
}

static void storage_emit_key(bth_emitter *emitter, size_t number)
{
    char digits[24];
    size_t n = 0;
    size_t rest = number;
    do {
        digits[sizeof digits - ++n] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    bth_emit_text(emitter, digits + sizeof digits - n, n, &emitter->keys[number]);
}

void bth_emit_storage(bth_emitter *emitter, const berth_storage *storage, berth_dtype dtype)
{
    if (emitter->foreign)
        storage_check_foreign(emitter, storage, dtype);
    size_t number = storage_number(emitter, storage, dtype);
    const char *class = bth_dtype_storage_class(dtype);
    bth_emit_op(emitter, BTH_OP_MARK);
    bth_emit_constant(emitter, BTH_TEXT_STORAGE);
    bth_emit_global(emitter, class ? "torch" : "torch.storage", class ? class : "UntypedStorage");
    storage_emit_key(emitter, number);
    size_t location_nbytes = strlen(storage->location);
    int constant = bth_emit_find_constant(storage->location, location_nbytes);
    /* 'cpu' is a constant of torch's code; 'cuda:0' is put together each time. */
    bth_emit_text(emitter, storage->location, location_nbytes,
                  constant < 0 ? NULL : &emitter->constants[constant]);
    size_t item_nbytes = class ? berth_dtype_nbytes(dtype) : 1;
    bth_emit_int(emitter, (int64_t)(storage->nbytes / item_nbytes));
    bth_emit_tuple(emitter, 5, NULL);
    bth_emit_op(emitter, BTH_OP_BINPERSID);
}

static void tensor_emit_storage(bth_emitter *emitter, const berth_tensor *tensor)
{
    int64_t offset;
    const berth_storage *storage = bth_tensor_saved_storage(tensor, &offset);
    bth_emit_storage(emitter, storage, tensor->dtype);
    bth_emit_int(emitter, offset);
    bth_emit_ints(emitter, tensor->shape, tensor->rank);
    bth_emit_ints(emitter, tensor->stride, tensor->rank);
}

/* ---- parts of arguments ---- */

/* OrderedDict(): backward hooks, a new one each time. */
static void tensor_emit_hooks(bth_emitter *emitter)
{
    bth_emit_global(emitter, "collections", "OrderedDict");
    bth_emit_op(emitter, BTH_OP_EMPTY_TUPLE);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, NULL);
}

/* {'neg': True, 'conj': True}, as torch._C._get_tensor_metadata orders it. */
static void tensor_emit_metadata(bth_emitter *emitter, uint32_t flags)
{
    bool both = (flags & BERTH_CONJ) && (flags & BERTH_NEG);
    bth_emit_op(emitter, BTH_OP_EMPTY_DICT);
    bth_emit_memo(emitter, NULL);
    if (both)
        bth_emit_op(emitter, BTH_OP_MARK);
    if (flags & BERTH_NEG) {
        bth_emit_text(emitter, "neg", 3, NULL);
        bth_emit_bool(emitter, true);
    }
    if (flags & BERTH_CONJ) {
        bth_emit_text(emitter, "conj", 4, NULL);
        bth_emit_bool(emitter, true);
    }
    bth_emit_op(emitter, both ? BTH_OP_SETITEMS : BTH_OP_SETITEM);
}

void bth_emit_qscheme(bth_emitter *emitter, berth_qscheme scheme)
{
    static const char *const names[] = {
        [BERTH_PER_TENSOR_AFFINE] = "per_tensor_affine",
        [BERTH_PER_TENSOR_SYMMETRIC] = "per_tensor_symmetric",
        [BERTH_PER_CHANNEL_AFFINE] = "per_channel_affine",
        [BERTH_PER_CHANNEL_SYMMETRIC] = "per_channel_symmetric",
        [BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS] = "per_channel_affine_float_qparams",
    };
    bth_emit_global(emitter, "torch", names[scheme]);
}

/* ---- arguments, piece by piece: the next inner value, or NULL when the tuple is made ---- */

static bool tensor_is_per_channel(const berth_tensor *tensor)
{
    return tensor->qscheme == BERTH_PER_CHANNEL_AFFINE ||
           tensor->qscheme == BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS;
}

static bool tensor_wants_grad(const bth_frame *frame, const berth_tensor *tensor)
{
    return !frame->detached && (tensor->flags & BERTH_REQUIRES_GRAD);
}

static void tensor_emit_plain(bth_emitter *emitter, const bth_frame *frame,
                              const berth_tensor *tensor)
{
    bth_emit_op(emitter, BTH_OP_MARK);
    tensor_emit_storage(emitter, tensor);
    bth_emit_bool(emitter, tensor_wants_grad(frame, tensor));
    tensor_emit_hooks(emitter);
    if (!bth_dtype_storage_class(tensor->dtype))
        bth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
    if (tensor->flags & (BERTH_CONJ | BERTH_NEG))
        tensor_emit_metadata(emitter, tensor->flags);
    bth_emit_op(emitter, BTH_OP_TUPLE);
    bth_emit_memo(emitter, NULL);
}

static void tensor_emit_meta(bth_emitter *emitter, const bth_frame *frame,
                             const berth_tensor *tensor)
{
    bth_emit_op(emitter, BTH_OP_MARK);
    bth_emit_global(emitter, "torch", berth_dtype_name(tensor->dtype));
    bth_emit_ints(emitter, tensor->shape, tensor->rank);
    bth_emit_ints(emitter, tensor->stride, tensor->rank);
    bth_emit_bool(emitter, tensor_wants_grad(frame, tensor));
    bth_emit_tuple(emitter, 4, NULL);
}

static const berth_value *next_of_quantized(bth_emitter *emitter, bth_frame *frame,
                                            const berth_tensor *tensor)
{
    if (frame->at == 0) {
        bth_emit_op(emitter, BTH_OP_MARK);
        tensor_emit_storage(emitter, tensor);
    }
    if (!tensor_is_per_channel(tensor)) {
        bth_emit_qscheme(emitter, tensor->qscheme);
        bth_emit_float(emitter, tensor->scale);
        bth_emit_int(emitter, tensor->zero_point);
        bth_emit_tuple(emitter, 3, NULL);
    } else if (frame->at == 0) {
        bth_emit_op(emitter, BTH_OP_MARK);
        /* PyTorch writes this one for affine with float parameters too. */
        bth_emit_qscheme(emitter, BERTH_PER_CHANNEL_AFFINE);
        return tensor->scales;
    } else if (frame->at == 1) {
        return tensor->zero_points;
    } else {
        bth_emit_int(emitter, tensor->axis);
        bth_emit_tuple(emitter, 4, NULL);
    }
    bth_emit_bool(emitter, tensor_wants_grad(frame, tensor));
    tensor_emit_hooks(emitter);
    bth_emit_tuple(emitter, 7, NULL);
    return NULL;
}

static const berth_value *next_of_dense(bth_emitter *emitter, bth_frame *frame)
{
    const berth_tensor *tensor = berth_as_tensor(frame->inner);
    if (tensor->qscheme != BERTH_NOT_QUANTIZED && !(tensor->flags & BERTH_META))
        return next_of_quantized(emitter, frame, tensor);
    if (tensor->flags & BERTH_META)
        tensor_emit_meta(emitter, frame, tensor);
    else
        tensor_emit_plain(emitter, frame, tensor);
    return NULL;
}

static const berth_value *next_of_sparse(bth_emitter *emitter, const bth_frame *frame)
{
    if (frame->at == 0) {
        bth_emit_layout(emitter, bth_value_layout(frame->inner));
        bth_emit_op(emitter, BTH_OP_MARK);
    }
    if (frame->at < berth_value_count(frame->inner))
        return bth_value_item(frame->inner, frame->at);
    int32_t rank;
    const int64_t *shape = berth_as_size(frame->inner, &rank);
    bth_emit_size(emitter, shape, rank, NULL);
    if (bth_value_layout(frame->inner) == BERTH_SPARSE_COO)
        bth_emit_bool(emitter, (berth_value_flags(frame->inner) & BERTH_COALESCED));
    bth_emit_tuple(emitter, 4, NULL);
    bth_emit_tuple(emitter, 2, NULL);
    return NULL;
}

static const berth_value *next_of_nested(bth_emitter *emitter, const bth_frame *frame)
{
    if (frame->at == 0)
        bth_emit_op(emitter, BTH_OP_MARK);
    if (frame->at < 4)
        return bth_value_item(frame->inner, frame->at);
    bth_emit_tuple(emitter, 4, NULL);
    return NULL;
}

/* (data, requires_grad, hooks), and the attributes as a fourth where there are some. */
static const berth_value *next_of_parameter(bth_emitter *emitter, const bth_frame *frame)
{
    const berth_value *state =
        frame->value != frame->inner ? berth_value_part(frame->value, BERTH_PART_STATE) : NULL;
    if (frame->at == 0) {
        if (state)
            bth_emit_op(emitter, BTH_OP_MARK);
        return berth_value_part(frame->inner, BERTH_PART_INNER);
    }
    if (frame->at == 1) {
        bth_emit_bool(emitter, (berth_value_flags(frame->inner) & BERTH_REQUIRES_GRAD));
        tensor_emit_hooks(emitter);
        if (state)
            return state;
    }
    bth_emit_tuple(emitter, state ? 4 : 3, NULL);
    return NULL;
}

static const berth_value *next_argument(bth_emitter *emitter, bth_frame *frame)
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
static bool tensor_has_type(const bth_frame *frame)
{
    return frame->value != frame->inner && berth_value_kind(frame->inner) != BERTH_KIND_PARAMETER;
}

static void tensor_finish_reduce(bth_emitter *emitter, bth_frame *frame)
{
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, frame->detached ? NULL : bth_emit_slot(emitter, frame->value));
    bth_emit_pop(emitter);
}

/* After (function, type, arguments, state). */
static void tensor_step_type(bth_emitter *emitter, bth_frame *frame)
{
    bth_emit_tuple(emitter, 4, NULL);
    tensor_finish_reduce(emitter, frame);
}

static void tensor_step_arguments(bth_emitter *emitter, bth_frame *frame)
{
    bool is_data = frame->at == 0 && berth_value_kind(frame->inner) == BERTH_KIND_PARAMETER;
    const berth_value *argument = next_argument(emitter, frame);
    if (argument) {
        frame->at++;
        if (is_data)
            bth_emit_tensor(emitter, argument, true);
        else
            bth_emit_value(emitter, argument);
    } else if (tensor_has_type(frame)) {
        frame->step = tensor_step_type;
        bth_emit_value(emitter, berth_value_part(frame->value, BERTH_PART_STATE));
    } else {
        tensor_finish_reduce(emitter, frame);
    }
}

static const char *tensor_dense_function(const berth_tensor *tensor)
{
    if (tensor->flags & BERTH_META)
        return "_rebuild_meta_tensor_no_storage";
    if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        return "_rebuild_qtensor";
    return bth_dtype_storage_class(tensor->dtype) ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3";
}

static const char *tensor_rebuild_function(const bth_frame *frame)
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
        return tensor_dense_function(berth_as_tensor(frame->inner));
    }
}

/* torch.save and torch.load know per-tensor and per-channel affine only. */
static bool tensor_check_scheme(bth_emitter *emitter, const berth_value *value)
{
    const berth_tensor *tensor =
        berth_value_kind(value) == BERTH_KIND_TENSOR ? berth_as_tensor(value) : NULL;
    if (!tensor || (tensor->qscheme != BERTH_PER_TENSOR_SYMMETRIC &&
                    tensor->qscheme != BERTH_PER_CHANNEL_SYMMETRIC))
        return true;
    bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
             "symmetrically quantized tensors cannot be saved: PyTorch cannot load them");
    return false;
}

/* P5: attributes as the readers take them, ours and PyTorch's; nothing is left out silently. */
static bool tensor_check_attributes(bth_emitter *emitter, const bth_frame *frame)
{
    const berth_value *state =
        frame->value == frame->inner ? NULL : berth_value_part(frame->value, BERTH_PART_STATE);
    char problem[200];
    if (berth_value_part(frame->inner, BERTH_PART_STATE))
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "%s cannot be saved with attributes of its own: berth_make_subclass gives it some",
                 bth_kind_phrase(berth_value_kind(frame->inner)));
    else if (!bth_value_is_state(state))
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "attributes of a tensor cannot be saved as %s: they are a dict",
                 bth_kind_phrase(berth_value_kind(state)));
    else if (!bth_attributes_are_good(state, problem, sizeof problem))
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "a tensor cannot be saved with %s", problem);
    else if (berth_value_kind(frame->inner) == BERTH_KIND_PARAMETER &&
             berth_value_kind(berth_value_part(frame->inner, BERTH_PART_INNER)) ==
                 BERTH_KIND_SUBCLASS)
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "a Parameter cannot be saved around a tensor with attributes: PyTorch would lose "
                 "them");
    return emitter->error->code == BERTH_OK;
}

void bth_emit_tensor(bth_emitter *emitter, const berth_value *value, bool detached)
{
    bth_frame frame = {.step = tensor_step_arguments, .value = value, .inner = value};
    if (berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        frame.inner = berth_value_part(value, BERTH_PART_INNER);
    frame.detached = detached;
    if (!tensor_check_scheme(emitter, frame.inner) || !tensor_check_attributes(emitter, &frame))
        return;
    if (tensor_has_type(&frame)) {
        bth_emit_global(emitter, "torch._tensor", "_rebuild_from_type_v2");
        bth_emit_op(emitter, BTH_OP_MARK);
        bth_emit_global(emitter, "torch._utils", tensor_rebuild_function(&frame));
        bth_emit_global(emitter, "torch", "Tensor");
    } else {
        bth_emit_global(emitter, "torch._utils", tensor_rebuild_function(&frame));
    }
    bth_emit_push(emitter, &frame);
}
