/* SPDX-License-Identifier: BSD-3-Clause */
/* Values: the scalars, the singletons, and what every kind is asked. */
#include "format/values/node.h"

#include <string.h>

berth_kind berth_value_kind(const berth_value *value)
{
    return value ? (berth_kind)value->kind : BERTH_KIND_NONE;
}

const char *bth_kind_phrase(berth_kind kind)
{
    static const char *const phrases[] = {
        [BERTH_KIND_NONE] = "None",
        [BERTH_KIND_BOOL] = "a bool",
        [BERTH_KIND_INT] = "an int",
        [BERTH_KIND_FLOAT] = "a float",
        [BERTH_KIND_COMPLEX] = "a complex",
        [BERTH_KIND_STR] = "a str",
        [BERTH_KIND_BYTES] = "bytes",
        [BERTH_KIND_BYTEARRAY] = "a bytearray",
        [BERTH_KIND_LIST] = "a list",
        [BERTH_KIND_TUPLE] = "a tuple",
        [BERTH_KIND_DICT] = "a dict",
        [BERTH_KIND_ORDERED_DICT] = "an OrderedDict",
        [BERTH_KIND_COUNTER] = "a Counter",
        [BERTH_KIND_SET] = "a set",
        [BERTH_KIND_SIZE] = "a torch.Size",
        [BERTH_KIND_DEVICE] = "a torch.device",
        [BERTH_KIND_DTYPE] = "a torch.dtype",
        [BERTH_KIND_QSCHEME] = "a torch.qscheme",
        [BERTH_KIND_LAYOUT] = "a torch.layout",
        [BERTH_KIND_STORAGE] = "a storage",
        [BERTH_KIND_TENSOR] = "a tensor",
        [BERTH_KIND_SPARSE] = "a sparse tensor",
        [BERTH_KIND_NESTED] = "a nested tensor",
        [BERTH_KIND_PARAMETER] = "a Parameter",
        [BERTH_KIND_SUBCLASS] = "a tensor with attributes",
        [BERTH_KIND_GLOBAL] = "a global",
        [BERTH_KIND_CALL] = "an object",
    };
    return (size_t)kind < sizeof(phrases) / sizeof(*phrases) ? phrases[kind] : "unknown";
}

const char *berth_kind_name(berth_kind kind)
{
    const char *phrase = bth_kind_phrase(kind);
    if (strncmp(phrase, "a ", 2) == 0)
        return phrase + 2;
    return strncmp(phrase, "an ", 3) == 0 ? phrase + 3 : phrase;
}

/* ---- making ---- */

berth_value *berth_make_none(berth_tree *tree)
{
    if (!tree)
        return NULL;
    if (!tree->none)
        tree->none = bth_node_new_plain(tree, BERTH_KIND_NONE, sizeof(berth_value));
    return tree->none;
}

berth_value *berth_make_bool(berth_tree *tree, bool value)
{
    if (!tree)
        return NULL;
    berth_value **node = &tree->bools[value];
    if (!*node) {
        *node = bth_node_new_plain(tree, BERTH_KIND_BOOL, sizeof(berth_value));
        if (*node && value)
            (*node)->flags |= BTH_NODE_TRUE;
    }
    return *node;
}

berth_value *berth_make_int(berth_tree *tree, int64_t value)
{
    struct int_node *node = bth_node_new_plain(tree, BERTH_KIND_INT, sizeof(*node));
    if (!node)
        return NULL;
    node->value = value;
    return &node->head;
}

/* Bytes of the shortest two's complement form. */
static size_t shortest(const uint8_t *bytes, size_t nbytes)
{
    while (nbytes > 1) {
        uint8_t sign = bytes[nbytes - 2] & 0x80 ? 0xff : 0;
        if (bytes[nbytes - 1] != sign)
            break;
        nbytes--;
    }
    return nbytes;
}

berth_value *berth_make_bigint(berth_tree *tree, const uint8_t *bytes, size_t nbytes)
{
    if (!tree)
        return NULL;
    if (!bytes || nbytes == 0 || nbytes > 255) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "an integer of %zu bytes (1 to 255)", nbytes);
        return NULL;
    }
    nbytes = shortest(bytes, nbytes);
    if (nbytes <= 8) {
        uint64_t integer = bytes[nbytes - 1] & 0x80 ? UINT64_MAX : 0;
        for (size_t i = nbytes; i-- > 0;)
            integer = integer << 8 | bytes[i];
        return berth_make_int(tree, (int64_t)integer);
    }
    struct big_node *node = bth_node_new_plain(tree, BERTH_KIND_INT, sizeof(*node) + nbytes);
    if (!node)
        return NULL;
    node->head.flags |= BTH_NODE_BIG;
    node->nbytes = nbytes;
    memcpy(node->bytes, bytes, nbytes);
    return &node->head;
}

berth_value *berth_make_float(berth_tree *tree, double value)
{
    struct float_node *node = bth_node_new_plain(tree, BERTH_KIND_FLOAT, BTH_FLOAT_NBYTES);
    if (!node)
        return NULL;
    node->real = value;
    return &node->head;
}

berth_value *berth_make_complex(berth_tree *tree, double real, double imaginary)
{
    struct float_node *node = bth_node_new(tree, BERTH_KIND_COMPLEX, sizeof(*node));
    if (!node)
        return NULL;
    node->real = real;
    node->imaginary = imaginary;
    return &node->head;
}

/* A node that the tree has once: *place. */
static berth_value *single(berth_tree *tree, berth_kind kind, berth_value **place, int value)
{
    if (!*place) {
        struct enum_node *node = bth_node_new(tree, kind, sizeof(*node));
        if (!node)
            return NULL;
        node->value = value;
        *place = &node->head;
    }
    return *place;
}

berth_value *berth_make_dtype(berth_tree *tree, berth_dtype dtype)
{
    if (!tree)
        return NULL;
    if (dtype == BERTH_DTYPE_NONE || (unsigned)dtype >= BERTH_DTYPE_COUNT) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "no such dtype: %d", (int)dtype);
        return NULL;
    }
    return single(tree, BERTH_KIND_DTYPE, &tree->dtypes[dtype], (int)dtype);
}

berth_value *berth_make_qscheme(berth_tree *tree, berth_qscheme qscheme)
{
    if (!tree)
        return NULL;
    if (qscheme == BERTH_NOT_QUANTIZED ||
        (unsigned)qscheme > BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "no such quantization scheme: %d", (int)qscheme);
        return NULL;
    }
    return single(tree, BERTH_KIND_QSCHEME, &tree->qschemes[qscheme], (int)qscheme);
}

berth_value *berth_make_layout(berth_tree *tree, berth_layout_kind layout)
{
    if (!tree)
        return NULL;
    if (layout < BERTH_SPARSE_COO || layout > BERTH_JAGGED) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "no such layout: %d", (int)layout);
        return NULL;
    }
    return single(tree, BERTH_KIND_LAYOUT, &tree->layouts[layout], (int)layout);
}

berth_value *bth_storage_value_as(berth_tree *tree, berth_storage *storage, berth_dtype dtype)
{
    if (!tree)
        return NULL;
    if (!storage || storage->tree != tree) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT,
                      storage ? "the storage is of another tree" : "the storage is NULL");
        return NULL;
    }
    struct storage_node *node = bth_node_raw(tree, BERTH_KIND_STORAGE, sizeof(*node));
    if (!node)
        return NULL;
    node->storage = storage;
    node->dtype = dtype;
    return &node->head;
}

berth_value *berth_make_storage(berth_tree *tree, berth_storage *storage)
{
    return bth_storage_value_as(tree, storage, berth_storage_dtype(storage));
}

/* CALL keeps its arguments as the tuple that they came in. */
berth_value *bth_call_value(berth_tree *tree, berth_value *callable, berth_value *arguments,
                            bool new_object)
{
    if (!tree || !bth_tree_owns(tree, callable, "what is called") ||
        !bth_tree_owns(tree, arguments, "the arguments"))
        return NULL;
    if (arguments->kind != BERTH_KIND_TUPLE) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "the arguments are %s, not a tuple",
                      bth_kind_phrase((berth_kind)arguments->kind));
        return NULL;
    }
    struct call_node *node = bth_node_new(tree, BERTH_KIND_CALL, sizeof(*node));
    if (!node)
        return NULL;
    node->callable = callable;
    node->arguments = (struct tuple_node *)arguments;
    if (new_object)
        node->head.flags |= BTH_NODE_TRUE;
    return &node->head;
}

static struct call_node *call_of(berth_value *call)
{
    return berth_value_kind(call) == BERTH_KIND_CALL ? (struct call_node *)call : NULL;
}

int bth_call_extend(berth_value *call, berth_value *const *items, size_t n)
{
    berth_tree *tree = bth_value_tree(call);
    struct call_node *node = call_of(call);
    if (!node)
        return BERTH_E_ARGUMENT;
    if (n == 0)
        return 0;
    if (!node->list_items)
        node->list_items = berth_make_list(tree); /* to NULL nothing is appended */
    return bth_list_extend(node->list_items, items, n);
}

int bth_call_set_items(berth_value *call, berth_value *const *items, size_t n)
{
    berth_tree *tree = bth_value_tree(call);
    struct call_node *node = call_of(call);
    if (!node)
        return BERTH_E_ARGUMENT;
    if (n == 0)
        return 0;
    if (!node->dict_items)
        node->dict_items = berth_make_dict(tree); /* as above */
    return bth_dict_extend(node->dict_items, items, n);
}

/* ---- asking ---- */

static bool is(const berth_value *value, berth_kind kind)
{
    return value && value->kind == kind;
}

bool berth_as_bool(const berth_value *value)
{
    return is(value, BERTH_KIND_BOOL) && value->flags & BTH_NODE_TRUE;
}

bool berth_as_int(const berth_value *value, int64_t *integer)
{
    *integer = 0;
    if (!is(value, BERTH_KIND_INT) || value->flags & BTH_NODE_BIG)
        return false;
    *integer = ((const struct int_node *)value)->value;
    return true;
}

const uint8_t *berth_as_bigint(const berth_value *value, size_t *nbytes)
{
    bool big = is(value, BERTH_KIND_INT) && value->flags & BTH_NODE_BIG;
    const struct big_node *node = (const struct big_node *)value;
    if (nbytes)
        *nbytes = big ? (size_t)node->nbytes : 0;
    return big ? node->bytes : NULL;
}

double berth_as_float(const berth_value *value)
{
    if (!is(value, BERTH_KIND_FLOAT) && !is(value, BERTH_KIND_COMPLEX))
        return 0;
    return ((const struct float_node *)value)->real;
}

double berth_value_imaginary(const berth_value *value)
{
    return is(value, BERTH_KIND_COMPLEX) ? ((const struct float_node *)value)->imaginary : 0;
}

berth_dtype berth_as_dtype(const berth_value *value)
{
    return is(value, BERTH_KIND_DTYPE) ? (berth_dtype)((const struct enum_node *)value)->value
                                       : BERTH_DTYPE_NONE;
}

berth_qscheme berth_as_qscheme(const berth_value *value)
{
    return is(value, BERTH_KIND_QSCHEME) ? (berth_qscheme)((const struct enum_node *)value)->value
                                         : BERTH_NOT_QUANTIZED;
}

berth_layout_kind berth_as_layout(const berth_value *value)
{
    if (is(value, BERTH_KIND_LAYOUT))
        return (berth_layout_kind)((const struct enum_node *)value)->value;
    if (is(value, BERTH_KIND_SPARSE))
        return (berth_layout_kind)((const struct parts_node *)value)->layout;
    return (berth_layout_kind)0;
}

berth_storage *berth_as_storage(const berth_value *value)
{
    return is(value, BERTH_KIND_STORAGE) ? ((const struct storage_node *)value)->storage : NULL;
}

berth_dtype bth_value_storage_class(const berth_value *value)
{
    return is(value, BERTH_KIND_STORAGE) ? ((const struct storage_node *)value)->dtype
                                         : BERTH_DTYPE_NONE;
}

berth_value *bth_value_arguments(const berth_value *value)
{
    return is(value, BERTH_KIND_CALL) ? &((const struct call_node *)value)->arguments->key.head
                                      : NULL;
}

berth_value *berth_value_list_items(const berth_value *value)
{
    return is(value, BERTH_KIND_CALL) ? ((const struct call_node *)value)->list_items : NULL;
}

berth_value *berth_value_dict_items(const berth_value *value)
{
    return is(value, BERTH_KIND_CALL) ? ((const struct call_node *)value)->dict_items : NULL;
}

bool bth_value_is_new_object(const berth_value *value)
{
    return is(value, BERTH_KIND_CALL) && value->flags & BTH_NODE_TRUE;
}

berth_value *berth_value_inner(const berth_value *value)
{
    if (is(value, BERTH_KIND_PARAMETER) || is(value, BERTH_KIND_SUBCLASS))
        return ((const struct wrap_node *)value)->inner;
    return is(value, BERTH_KIND_CALL) ? ((const struct call_node *)value)->callable : NULL;
}

/* Where a value keeps its attributes; NULL if it can have none (yet). */
static berth_value **state_place(const berth_value *value)
{
    switch (berth_value_kind(value)) {
    case BERTH_KIND_ORDERED_DICT: {
        struct table *table = ((const struct dict_node *)value)->table;
        return table ? &table->state : NULL;
    }
    case BERTH_KIND_TENSOR:
        return &((struct tensor_node *)(uintptr_t)value)->state;
    case BERTH_KIND_PARAMETER:
    case BERTH_KIND_SUBCLASS:
        return &((struct wrap_node *)(uintptr_t)value)->state;
    case BERTH_KIND_CALL:
        return &((struct call_node *)(uintptr_t)value)->state;
    default:
        return NULL;
    }
}

berth_value *berth_value_state(const berth_value *value)
{
    berth_value **place = state_place(value);
    return place ? *place : NULL;
}

int berth_value_set_state(berth_value *value, berth_value *state)
{
    berth_tree *tree = bth_value_tree(value);
    if (!tree)
        return BERTH_E_ARGUMENT;
    if (!bth_tree_owns(tree, state, "the state"))
        return tree->error.code;
    if (value->kind == BERTH_KIND_ORDERED_DICT &&
        !bth_table_reserve(tree, (struct dict_node *)value, 0))
        return tree->error.code;
    berth_value **place = state_place(value);
    if (!place)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s has no attributes",
                             bth_kind_phrase((berth_kind)value->kind));
    *place = state;
    return 0;
}
