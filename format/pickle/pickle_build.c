/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What REDUCE, NEWOBJ and BUILD make. No code of a file is called: each known function has one here
 * that makes nodes. Tensors (FORMAT.md 6) are checked against their storages by the value layer
 * (T1, T2, T4).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/pickle/pickle_machine.h"

/* Makes the object of a REDUCE, of one row of pickle_globals.def, from checked arguments. NULL:
 * error or tree has failed. */
#define BUILDER(name)                                                                              \
    static berth_value *build_##name(bth_unpickler *unpickler,                                     \
                                     __attribute__((unused)) const bth_known *known,               \
                                     berth_value *const *items, __attribute__((unused)) size_t n)
#define BTH_CALLABLE(module, name, build, wanted, optional) BUILDER(build);
#include "format/pickle/pickle_globals.def"

static void *build_refuse(bth_unpickler *unpickler, const bth_known *known, const char *problem)
{
    return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "%s %s %s", known->module, known->name,
                               problem);
}

/* ---- values that are no tensors ---- */

/* Whether it is a FLOAT or an INT of 64 bits. */
static bool value_as_double(const berth_value *value, double *number)
{
    int64_t integer;
    bool is_int = berth_as_int(value, &integer);
    *number = is_int ? (double)integer : bth_value_real(value);
    return is_int || bth_node_is(value, BERTH_KIND_FLOAT);
}

BUILDER(ordered_dict)
{
    return bth_ordered_dict_from_pairs(unpickler->tree, n ? items[0] : NULL);
}

BUILDER(counter)
{
    return bth_counter_from_dict(unpickler->tree, n ? items[0] : NULL);
}

BUILDER(set)
{
    return bth_set_from_list(unpickler->tree, n ? items[0] : NULL);
}

BUILDER(size)
{
    return bth_size_from_tuple(unpickler->tree, items[0]);
}

BUILDER(complex)
{
    double real, imaginary; /* numbers, as their letters say */
    (void)value_as_double(items[0], &real);
    (void)value_as_double(items[1], &imaginary);
    return berth_make_complex(unpickler->tree, real, imaginary);
}

/* torch.device('cuda', 1), ('cuda') and ('cuda:1'). */
BUILDER(device)
{
    /* Those that PyTorch knows by itself. */
    static const char *const types[] = {
        "cpu",    "cuda", "ipu",  "xpu",  "mkldnn", "opengl",        "opencl",
        "ideep",  "hip",  "ve",   "fpga", "maia",   "xla",           "lazy",
        "vulkan", "mps",  "meta", "hpu",  "mtia",   "privateuseone",
    };
    size_t nbytes;
    const char *text = berth_as_text(items[0], &nbytes), *type = NULL;
    size_t type_nbytes = strcspn(text, ":");
    int64_t index = -1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strncmp(text, types[i], type_nbytes) == 0 && types[i][type_nbytes] == '\0')
            type = types[i];
    bool good = type && strlen(text) == nbytes;
    if (text[type_nbytes] == ':') {
        const char *digits = text + type_nbytes + 1;
        size_t n_digits = strspn(digits, "0123456789");
        good &= n == 1 && n_digits > 0 && n_digits <= 3 && digits[n_digits] == '\0';
        index = strtol(digits, NULL, 10);
    } else if (n == 2) {
        (void)berth_as_int(items[1], &index); /* it is an int: see reduce_check_arguments() */
        good &= index >= 0;
    }
    if (!good)
        return build_refuse(unpickler, known, "of text that names no device");
    return berth_make_device(unpickler->tree, type, index);
}

/* Of a str, as its letter says. */
static bool encoding_is_latin1(const berth_value *value)
{
    const char *name = berth_as_text(value, NULL);
    return strcmp(name, "latin1") == 0 || strcmp(name, "latin-1") == 0;
}

#define WANTS_LATIN1 "wants the encoding latin1"

BUILDER(encode)
{
    if (!encoding_is_latin1(items[1]))
        return build_refuse(unpickler, known, WANTS_LATIN1);
    return bth_bytes_from_latin1(unpickler->tree, items[0]);
}

/* bytearray(), bytearray(bytes), and as Python before 3.8 wrote it, bytearray(text, 'latin-1'). */
BUILDER(bytearray)
{
    berth_value *bytes = n ? items[0] : NULL;
    if (n == 2 ? !encoding_is_latin1(items[1]) : n == 1 && bth_node_kind(bytes) != BERTH_KIND_BYTES)
        return build_refuse(unpickler, known, WANTS_LATIN1);
    if (n && bth_node_kind(bytes) == BERTH_KIND_STR)
        bytes = bth_bytes_from_latin1(unpickler->tree, bytes);
    if (n && !bytes)
        return NULL;
    return bth_bytearray_from_bytes(unpickler->tree, bytes);
}

BUILDER(layout)
{
    const char *name = berth_as_text(items[0], NULL);
    for (int layout = BERTH_SPARSE_COO; layout <= BERTH_JAGGED; layout++)
        if (strcmp(name, bth_layout_names[layout]) == 0)
            return berth_make_constant(unpickler->tree, BERTH_KIND_LAYOUT, layout);
    return build_refuse(unpickler, known, "of an unknown layout");
}

/* ---- tensors of a storage ---- */

/* Order of the arguments that all strided tensors share. */
enum { STORAGE, OFFSET, SIZE, STRIDE };

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
    tensor->storage_offset = ((const struct int_node *)arguments[OFFSET])->value;
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

/* {'conj': True, 'neg': True}. PyTorch checks only that the keys exist, so False would have two
 * readings and is refused. No program writes it. */
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
        if (!flag || !bth_value_bool(value))
            return build_refuse(unpickler, known, "with other metadata than conj and neg, True");
        *flags |= flag;
    }
    return true;
}

BUILDER(tensor_v1)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE])};
    return tensor_make(unpickler, &tensor, items);
}

BUILDER(tensor_v2)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE]),
                           .flags = argument_get_requires_grad_flag(items[4])};
    if (n > 6 && !tensor_read_metadata(unpickler, known, items[6], &tensor.flags))
        return NULL;
    return tensor_make(unpickler, &tensor, items);
}

BUILDER(tensor_v3)
{
    berth_tensor tensor = {.dtype = bth_value_as_dtype(items[6]),
                           .flags = argument_get_requires_grad_flag(items[4])};
    if (bth_value_as_dtype(items[STORAGE]) != BERTH_DTYPE_NONE)
        return build_refuse(unpickler, known, "wants an UntypedStorage as argument 1");
    if (n > 7 && !tensor_read_metadata(unpickler, known, items[7], &tensor.flags))
        return NULL;
    return tensor_make(unpickler, &tensor, items);
}

BUILDER(meta)
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

/* Of (qscheme, scale, zero_point), or per channel (qscheme, scales, zero_points, axis). */
BUILDER(qtensor)
{
    berth_tensor tensor = {.dtype = storage_class_tensor_dtype(items[STORAGE]),
                           .flags = argument_get_requires_grad_flag(items[5])};
    berth_value *const *parts = items;
    size_t n_parts = bth_node_tuple_items(items[4], &parts);
    bool good = false;
    if (n_parts > 0)
        tensor.qscheme = (berth_qscheme)bth_value_constant(parts[0], BERTH_KIND_QSCHEME);
    switch (tensor.qscheme) {
    case BERTH_PER_TENSOR_AFFINE:
        good = n_parts == 3 && value_as_double(parts[1], &tensor.scale) &&
               berth_as_int(parts[2], &tensor.zero_point);
        break;
    case BERTH_PER_CHANNEL_AFFINE:
    case BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS:
        good = n_parts == 4 && value_can_be_tensor_part(unpickler, parts[1]) &&
               value_can_be_tensor_part(unpickler, parts[2]) &&
               berth_as_int(parts[3], &tensor.axis);
        if (good) {
            tensor.scales = parts[1];
            tensor.zero_points = parts[2];
        }
        break;
    default: /* PyTorch neither writes nor reads the symmetric schemes. */
        break;
    }
    if (!good)
        return build_refuse(unpickler, known,
                            "wants (per_tensor_affine, scale, zero_point) or "
                            "(per_channel_affine, scales, zero_points, axis) as argument 5");
    return tensor_make(unpickler, &tensor, items);
}

/* ---- tensors of several parts ---- */

/* COO: (indices, values, size, is_coalesced), the last since 2.1. The others: three and size. */
BUILDER(sparse)
{
    berth_value *const *parts = items;
    const int64_t *shape;
    int32_t rank;
    berth_layout_kind layout = bth_value_layout(items[0]);
    bool coo = layout == BERTH_SPARSE_COO;
    bool compressed = layout >= BERTH_SPARSE_CSR && layout <= BERTH_SPARSE_BSC;
    size_t n_tensors = coo ? 2 : 3;
    size_t n_parts = bth_node_tuple_items(items[1], &parts);
    bool good = (coo && n_parts == 3) || ((coo || compressed) && n_parts == 4);
    for (size_t i = 0; good && i < n_tensors; i++)
        good = value_can_be_tensor_part(unpickler, parts[i]);
    if (!good || (coo && n_parts == 4 && bth_node_kind(parts[3]) != BERTH_KIND_BOOL))
        return build_refuse(unpickler, known, "of parts that make no sparse tensor");
    if (!bth_value_as_shape(parts[n_tensors], &shape, &rank))
        return NULL;
    bool is_coalesced = coo && n_parts == 4 && bth_value_bool(parts[3]);
    return bth_sparse_adopt(unpickler->tree, layout, shape, rank, parts, is_coalesced);
}

BUILDER(nested)
{
    return berth_make_nested(unpickler->tree, items);
}

BUILDER(parameter)
{
    return berth_make_parameter(unpickler->tree, items[0], bth_value_bool(items[1]));
}

/* P5: the names of its attributes are checked. */
static berth_value *unpickle_make_subclass(bth_unpickler *unpickler, const bth_known *known,
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
    /* PyTorch reads the dicts of a state now, so they must not grow later. */
    bool is_pair = bth_node_kind(state) == BERTH_KIND_TUPLE;
    for (size_t i = 0; i < (is_pair ? 2u : 1u); i++) {
        berth_value *part = is_pair ? bth_value_item(state, i) : state;
        if (bth_node_kind(part) == BERTH_KIND_DICT)
            part->flags |= BTH_NODE_USED | BTH_NODE_ATTRIBUTES;
    }
    return berth_make_subclass(unpickler->tree, tensor, state);
}

BUILDER(parameter_with_state)
{
    berth_value *parameter = build_parameter(unpickler, known, items, n);
    return parameter ? unpickle_make_subclass(unpickler, known, parameter, items[3]) : NULL;
}

/* ---- pending objects, and BUILD ---- */

/* Hooks are never saved: None or an empty OrderedDict stands for them. */
static bool is_no_hooks(const berth_value *value)
{
    berth_kind kind = bth_node_kind(value);
    return kind == BERTH_KIND_NONE ||
           (kind == BERTH_KIND_ORDERED_DICT && berth_value_count(value) == 0);
}

berth_value *bth_unpickle_resolve_pending(bth_unpickler *unpickler, berth_value *slot)
{
    bth_pending *pending = (bth_pending *)((uintptr_t)slot & ~(uintptr_t)BTH_TAG_BITS);
    if (pending->value)
        return pending->value;
    if (!pending->tensor)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "a tensor is used before its BUILD");
    pending->value = berth_make_parameter(unpickler->tree, pending->tensor, pending->requires_grad);
    if (!pending->value)
        bth_unpickle_fail_by_tree_error(unpickler, "torch.nn.parameter Parameter");
    return pending->value;
}

/* The second step of a Parameter or tensor from before 0.4. */
static int pending_finish_by_build(bth_unpickler *unpickler, bth_pending *pending,
                                   berth_value *state)
{
    berth_value *const *items = NULL;
    size_t n = bth_node_tuple_items(state, &items);
    bool once = !pending->value;
    if (pending->tensor) {
        if (!once || n != 3 || bth_node_kind(items[0]) != BERTH_KIND_BOOL ||
            bth_node_kind(items[1]) != BERTH_KIND_BOOL || !is_no_hooks(items[2]))
            return BTH_BAD_PICKLE(
                unpickler, "BUILD of a Parameter wants (requires_grad, volatile, hooks), once");
        pending->value =
            berth_make_parameter(unpickler->tree, pending->tensor, bth_value_bool(items[0]));
    } else {
        int64_t offset;
        if (!once || n != 4 || bth_node_kind(items[STORAGE]) != BERTH_KIND_STORAGE ||
            !berth_as_int(items[OFFSET], &offset) ||
            (pending->dtype != BERTH_DTYPE_NONE &&
             pending->dtype != storage_class_tensor_dtype(items[STORAGE])))
            return BTH_BAD_PICKLE(unpickler,
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
        return BTH_BAD_PICKLE(unpickler, "BUILD of an OrderedDict wants a dict, got %s",
                              berth_kind_name(bth_node_kind(state)));
    if (berth_value_part(slot, BERTH_PART_STATE))
        return BTH_BAD_PICKLE(unpickler, "BUILD of %s that has a state", bth_kind_phrase(kind));
    if (kind == BERTH_KIND_ORDERED_DICT)
        state->flags |= BTH_NODE_USED;
    if (berth_value_set_state(slot, state) < 0)
        return bth_unpickle_fail_by_tree_error(unpickler, "BUILD");
    return 0;
}

/* ---- the kinds of arguments ---- */

/* What a letter of pickle_globals.def stands for. */
static const struct letter {
    uint32_t kinds; /* bits; 0: any */
    const char *words;
} letters[128] = {
    ['S'] = {BTH_KIND(STORAGE), "a storage"},
    ['i'] = {BTH_KIND(INT), "an int of 64 bits"},
    ['h'] = {BTH_KIND(TUPLE) | BTH_KIND(SIZE), "a tuple of ints"},
    ['b'] = {BTH_KIND(BOOL), "a bool"},
    ['f'] = {BTH_KIND(FLOAT) | BTH_KIND(INT), "a float"},
    ['D'] = {BTH_KIND(DTYPE), "a dtype"},
    ['o'] = {BTH_KIND(NONE) | BTH_KIND(ORDERED_DICT), "an empty OrderedDict"},
    ['m'] = {BTH_KIND(DICT) | BTH_KIND(NONE), "a dict"},
    ['s'] = {BTH_KIND(STR), "a str"},
    ['Y'] = {BTH_KIND(BYTES) | BTH_KIND(STR), "bytes"},
    ['l'] = {BTH_KIND(LIST), "a list"},
    ['d'] = {BTH_KIND(DICT), "a dict"},
    ['u'] = {BTH_KIND(TUPLE), "a tuple"},
    ['L'] = {BTH_KIND(LAYOUT), "a layout"},
    ['t'] = {BTH_KIND(TENSOR), "a tensor"},
    /* Not one with attributes: PyTorch's Parameters are made without them. */
    ['T'] = {BTH_KIND(TENSOR) | BTH_KIND(SPARSE) | BTH_KIND(NESTED), "a tensor"},
};

static int reduce_check_arguments(bth_unpickler *unpickler, const bth_known *known,
                                  berth_value *const *items, size_t n)
{
    const char *wanted = known->arguments;
    if (n < known->min_arguments || n > known->max_arguments) {
        char most[16] = "";
        if (known->max_arguments > known->min_arguments)
            (void)snprintf(most, sizeof most, " %s %d",
                           known->max_arguments == known->min_arguments + 1 ? "or" : "to",
                           known->max_arguments);
        return BTH_BAD_PICKLE(unpickler, "%s %s wants %d%s argument%s, got %zu", known->module,
                              known->name, known->min_arguments, most,
                              known->max_arguments == 1 ? "" : "s", n);
    }
    for (size_t i = 0; i < n; i++) {
        const struct letter *letter = &letters[(unsigned char)wanted[i]];
        berth_kind kind = bth_node_kind(items[i]);
        bool fits =
            !letter->kinds || (letter->kinds >> kind & 1 &&
                               !(kind == BERTH_KIND_INT && items[i]->flags & BTH_NODE_BIG) &&
                               (wanted[i] != 'o' || is_no_hooks(items[i])));
        if (!fits)
            return BTH_BAD_PICKLE(unpickler, "%s %s wants %s as argument %zu, got %s",
                                  known->module, known->name, letter->words, i + 1,
                                  berth_kind_name(kind));
    }
    return 0;
}

static berth_value *(*const builders[])(bth_unpickler *unpickler, const bth_known *known,
                                        berth_value *const *items, size_t n) = {
#define BTH_CALLABLE(module, name, build, wanted, optional) [BTH_BUILD_##build] = build_##build,
#include "format/pickle/pickle_globals.def"
};

/* Checks the arguments of a known callable and builds (P1); NULL after a failure. */
static berth_value *reduce_check_and_build(bth_unpickler *unpickler, const bth_known *known,
                                           berth_value *arguments)
{
    berth_value *const *items = &arguments;
    size_t n = bth_node_tuple_items(arguments, &items);
    if (reduce_check_arguments(unpickler, known, items, n) < 0)
        return NULL;
    berth_value *value = builders[known->build](unpickler, known, items, n);
    if (!value && unpickler->error->code == BERTH_OK) {
        char subject[96];
        (void)snprintf(subject, sizeof subject, "%s %s", known->module, known->name);
        bth_unpickle_fail_by_tree_error(unpickler, subject);
    }
    return value;
}

/* ---- attributes ---- */

/* Of (function, type, its arguments, attributes): PyTorch's own function of a tensor. */
static bool function_rebuilds_tensor(const berth_value *value)
{
    const bth_known *function = bth_node_known_global(value);
    return function && strncmp(function->name, "_rebuild_", 9) == 0 &&
           function->build != BTH_BUILD_from_type_v2 &&
           function->build != BTH_BUILD_parameter && /* a Parameter would not stay one */
           function->build != BTH_BUILD_parameter_with_state;
}

/* Only PyTorch's own functions and plain tensors; inert also tensors of any class. */
BUILDER(from_type_v2)
{
    const bth_known *type = bth_node_known_global(items[1]);
    bool is_plain = type && type->what == BTH_IS_TENSOR_CLASS && type->number == BERTH_DTYPE_NONE;
    bool is_allowed = is_plain || unpickler->rules->inert; /* bth_unpickle_reduce has looked */
    if (!function_rebuilds_tensor(items[0]) || !is_allowed)
        return build_refuse(unpickler, known,
                            "wants a _rebuild function and torch Tensor as first arguments");
    berth_value *tensor =
        reduce_check_and_build(unpickler, bth_node_known_global(items[0]), items[2]);
    if (tensor && !is_plain)
        return bth_inert_subclass_new(unpickler->tree, items[1], tensor, items[3]);
    return tensor ? unpickle_make_subclass(unpickler, known, tensor, items[3]) : NULL;
}

/* ---- REDUCE and NEWOBJ ---- */

/* Parameter(tensor, requires_grad), or FloatTensor(): in files from before 0.4, BUILD sets the
 * rest. */
static berth_value *reduce_begin_pending(bth_unpickler *unpickler, const bth_known *known,
                                         berth_value *arguments)
{
    bool is_parameter = known->what == BTH_IS_PARAMETER_CLASS;
    berth_value *const *items = &arguments;
    size_t n = bth_node_tuple_items(arguments, &items);
    bth_known checked = *known;
    if (is_parameter)
        checked = (bth_known){known->module, known->name, .arguments = "Tb", .min_arguments = 1,
                              .max_arguments = 2};
    if (reduce_check_arguments(unpickler, &checked, items, n) < 0)
        return NULL;
    bth_pending *pending = bth_tree_allocate(unpickler->tree, sizeof *pending);
    if (!pending)
        return bth_unpickle_fail_by_tree_error(unpickler, "Parameter"), NULL;
    *pending = (bth_pending){0};
    if (is_parameter) {
        pending->tensor = items[0];
        pending->requires_grad = n < 2 || bth_value_bool(items[1]);
    } else {
        pending->dtype = (berth_dtype)known->number;
    }
    unpickler->has_pending = true;
    return (berth_value *)((uintptr_t)pending | BTH_TAG_PENDING);
}

berth_value *bth_unpickle_reduce(bth_unpickler *unpickler, berth_value *callable,
                                 berth_value *arguments, bool new_object)
{
    if (arguments->kind != BERTH_KIND_TUPLE)
        return BTH_UNPICKLE_REFUSE(
            unpickler, BERTH_E_PICKLE, "%s with %s for arguments, not a tuple",
            bth_unpickle_opcode_name(unpickler), bth_kind_phrase(bth_node_kind(arguments)));
    /* inert: what it calls was itself made by a call: getattr(Outer, 'Inner')(...) */
    if (callable->kind == BERTH_KIND_CALL)
        return bth_call_new(unpickler->tree, callable, arguments, new_object);
    if (callable->kind != BERTH_KIND_GLOBAL)
        return BTH_UNPICKLE_REFUSE(
            unpickler, BERTH_E_FORBIDDEN, "%s of %s, which is not a known function",
            bth_unpickle_opcode_name(unpickler), bth_kind_phrase(bth_node_kind(callable)));
    const bth_known *known = bth_node_known_global(callable);
    if (!known) /* inert: listed and saved again, never run */
        return bth_call_new(unpickler->tree, callable, arguments, new_object);
    /* NEWOBJ calls no __init__: allowed where that makes the same object as REDUCE. */
    bool is_class = known->what == BTH_IS_PARAMETER_CLASS || known->what == BTH_IS_TENSOR_CLASS;
    bool is_made_so = !new_object || known->what == BTH_IS_PARAMETER_CLASS ||
                      (berth_value_count(arguments) == 0 &&
                       (is_class || known->build == BTH_BUILD_ordered_dict ||
                        known->build == BTH_BUILD_counter || known->build == BTH_BUILD_set));
    if (!is_made_so || (!is_class && known->what != BTH_IS_CALLABLE))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_FORBIDDEN, "%s of %s %s: %s",
                                   bth_unpickle_opcode_name(unpickler), known->module, known->name,
                                   is_made_so ? "it may be named, but not called"
                                              : "no pickler makes it this way");
    if (is_class)
        return reduce_begin_pending(unpickler, known, arguments);
    /* _rebuild_from_type_v2 of an unknown function: kept as it is, on request (P1). */
    berth_value *const *items;
    if (unpickler->rules->inert && known->build == BTH_BUILD_from_type_v2 &&
        bth_node_tuple_items(arguments, &items) == 4 &&
        !(function_rebuilds_tensor(items[0]) && bth_node_can_be_inert_class(items[1])))
        return bth_call_new(unpickler->tree, callable, arguments, new_object);
    return reduce_check_and_build(unpickler, known, arguments);
}
