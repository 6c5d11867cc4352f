/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * REDUCE and NEWOBJ: checks the kinds of arguments (P1) and chooses the builder. No code of a file
 * is called: each known global has a function that builds nodes.
 */
#include <stdio.h>
#include <string.h>

#include "format/pickle/pickle_machine.h"

/* ---- argument shapes ---- */

/* What a letter of pickle_globals.def stands for. */
static const struct letter {
    uint32_t kinds; /* bits; 0: any */
    const char *words;
} letters[128] = {
#define KIND(name) (UINT32_C(1) << BERTH_KIND_##name)
    ['S'] = {KIND(STORAGE), "a storage"},
    ['i'] = {KIND(INT), "an int of 64 bits"},
    ['h'] = {KIND(TUPLE) | KIND(SIZE), "a tuple of ints"},
    ['b'] = {KIND(BOOL), "a bool"},
    ['f'] = {KIND(FLOAT) | KIND(INT), "a float"},
    ['D'] = {KIND(DTYPE), "a dtype"},
    ['o'] = {KIND(NONE) | KIND(ORDERED_DICT), "an empty OrderedDict"},
    ['m'] = {KIND(DICT) | KIND(NONE), "a dict"},
    ['s'] = {KIND(STR), "a str"},
    ['Y'] = {KIND(BYTES) | KIND(STR), "bytes"},
    ['l'] = {KIND(LIST), "a list"},
    ['d'] = {KIND(DICT), "a dict"},
    ['u'] = {KIND(TUPLE), "a tuple"},
    ['L'] = {KIND(LAYOUT), "a layout"},
    ['t'] = {KIND(TENSOR), "a tensor"},
    /* Not one with attributes: PyTorch's Parameters are made without them. */
    ['T'] = {KIND(TENSOR) | KIND(SPARSE) | KIND(NESTED), "a tensor"},
#undef KIND
};

static bool argument_has_expected_kind(char letter, const berth_value *value)
{
    uint32_t kinds = letters[(unsigned char)letter].kinds;
    if (kinds && !(kinds >> value->kind & 1))
        return false;
    if (value->kind == BERTH_KIND_INT && kinds)
        return !(value->flags & BTH_NODE_BIG);
    return letter != 'o' || bth_is_no_hooks(value);
}

static int reduce_fail_count(bth_unpickler *unpickler, const bth_known *known, size_t n)
{
    const char *plural = known->max_arguments == 1 ? "" : "s";
    if (known->min_arguments == known->max_arguments)
        (void)bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s %s wants %d argument%s, got %zu",
                                known->module, known->name, known->max_arguments, plural, n);
    else
        (void)bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                "%s %s wants %d %s %d argument%s, got %zu", known->module,
                                known->name, known->min_arguments,
                                known->max_arguments == known->min_arguments + 1 ? "or" : "to",
                                known->max_arguments, plural, n);
    return BERTH_E_PICKLE;
}

static int reduce_check_arguments(bth_unpickler *unpickler, const bth_known *known,
                                  berth_value *const *items, size_t n)
{
    const char *wanted = known->arguments;
    if (n < known->min_arguments || n > known->max_arguments)
        return reduce_fail_count(unpickler, known, n);
    for (size_t i = 0; i < n; i++)
        if (!argument_has_expected_kind(wanted[i], items[i]))
            return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                     "%s %s wants %s as argument %zu, got %s", known->module,
                                     known->name, letters[(unsigned char)wanted[i]].words, i + 1,
                                     berth_kind_name(bth_node_kind(items[i])));
    return 0;
}

static const bth_builder builders[] = {
#define BTH_CALLABLE(module, name, build, wanted, optional) [BTH_BUILD_##build] = bth_build_##build,
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

static bool type_is_torch_tensor(const berth_value *value)
{
    const bth_known *type = bth_node_known_global(value);
    return type && type->what == BTH_IS_TENSOR_CLASS && type->number == BERTH_DTYPE_NONE;
}

/* A class by its name, or one within another: getattr(Outer, 'Inner'). */
static bool value_can_be_inert_class(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_GLOBAL) || bth_node_is(value, BERTH_KIND_CALL);
}

/* Only PyTorch's own functions and plain tensors; inert also tensors of any class. */
BTH_BUILDER(from_type_v2)
{
    bool is_plain = type_is_torch_tensor(items[1]);
    bool is_allowed = is_plain || unpickler->rules->inert; /* reduce_is_kept_inert has looked */
    if (!function_rebuilds_tensor(items[0]) || !is_allowed)
        return BTH_UNPICKLE_REFUSE(
            unpickler, BERTH_E_PICKLE,
            "%s %s wants a _rebuild function and torch Tensor as first arguments", known->module,
            known->name);
    berth_value *tensor =
        reduce_check_and_build(unpickler, bth_node_known_global(items[0]), items[2]);
    if (tensor && !is_plain)
        return bth_inert_subclass_new(unpickler->tree, items[1], tensor, items[3]);
    return tensor ? bth_unpickle_make_subclass(unpickler, known, tensor, items[3]) : NULL;
}

/* ---- REDUCE and NEWOBJ ---- */

static berth_value *reduce_refuse(bth_unpickler *unpickler, const bth_known *known, const char *why)
{
    return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_FORBIDDEN, "%s of %s %s: %s",
                               bth_unpickle_opcode_name(unpickler), known->module, known->name,
                               why);
}

static berth_value *reduce_make_pending_value(bth_unpickler *unpickler, bth_pending pending)
{
    bth_pending *kept = bth_tree_allocate(unpickler->tree, sizeof *kept);
    if (!kept) {
        bth_unpickle_fail_by_tree_error(unpickler, "Parameter");
        return NULL;
    }
    *kept = pending;
    unpickler->has_pending = true;
    return (berth_value *)((uintptr_t)kept | BTH_TAG_PENDING);
}

/* Parameter(tensor, requires_grad): files from before 0.4, which set the rest by BUILD. */
static berth_value *reduce_begin_parameter(bth_unpickler *unpickler, const bth_known *known,
                                           berth_value *arguments)
{
    bth_known checked = *known;
    checked.arguments = "Tb";
    checked.min_arguments = 1;
    checked.max_arguments = 2;
    berth_value *const *items = &arguments;
    size_t n = bth_node_tuple_items(arguments, &items);
    if (reduce_check_arguments(unpickler, &checked, items, n) < 0)
        return NULL;
    return reduce_make_pending_value(
        unpickler,
        (bth_pending){.tensor = items[0], .requires_grad = n < 2 || bth_value_bool(items[1])});
}

/* FloatTensor(): BUILD sets its storage, offset, size and stride. */
static berth_value *reduce_begin_tensor(bth_unpickler *unpickler, const bth_known *known,
                                        berth_value *arguments)
{
    if (reduce_check_arguments(unpickler, known, &arguments, berth_value_count(arguments)) < 0)
        return NULL;
    return reduce_make_pending_value(unpickler, (bth_pending){.dtype = (berth_dtype)known->number});
}

/* NEWOBJ calls no __init__: allowed where that makes the same object as REDUCE. */
static bool reduce_newobj_is_allowed(const bth_known *known, berth_value *arguments)
{
    if (known->what == BTH_IS_PARAMETER_CLASS)
        return true;
    bool empty = berth_value_count(arguments) == 0;
    return empty && (known->what == BTH_IS_TENSOR_CLASS || known->build == BTH_BUILD_ordered_dict ||
                     known->build == BTH_BUILD_counter || known->build == BTH_BUILD_set);
}

/* _rebuild_from_type_v2 of an unknown function: kept as it is, on request (P1). */
static bool reduce_is_kept_inert(const bth_unpickler *unpickler, const bth_known *known,
                                 const berth_value *arguments)
{
    berth_value *const *items;
    return unpickler->rules->inert && known->build == BTH_BUILD_from_type_v2 &&
           bth_node_tuple_items(arguments, &items) == 4 &&
           !(function_rebuilds_tensor(items[0]) && value_can_be_inert_class(items[1]));
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
    if (new_object && !reduce_newobj_is_allowed(known, arguments))
        return reduce_refuse(unpickler, known, "no pickler makes it this way");
    switch (known->what) {
    case BTH_IS_CALLABLE:
        if (reduce_is_kept_inert(unpickler, known, arguments))
            return bth_call_new(unpickler->tree, callable, arguments, new_object);
        return reduce_check_and_build(unpickler, known, arguments);
    case BTH_IS_PARAMETER_CLASS:
        return reduce_begin_parameter(unpickler, known, arguments);
    case BTH_IS_TENSOR_CLASS:
        return reduce_begin_tensor(unpickler, known, arguments);
    default:
        return reduce_refuse(unpickler, known, "it may be named, but not called");
    }
}
