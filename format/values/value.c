/* SPDX-License-Identifier: BSD-3-Clause */
/* Values: the scalars, the singletons, and what every kind is asked. */
#include "format/values/node.h"

#include <string.h>

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
    return bth_storage_value_as(tree, storage, storage ? storage->dtype : BERTH_DTYPE_NONE);
}

/* ---- asking ---- */

bool berth_as_bool(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_BOOL) && value->flags & BTH_NODE_TRUE;
}

bool berth_as_int(const berth_value *value, int64_t *integer)
{
    *integer = 0;
    if (!bth_node_is(value, BERTH_KIND_INT) || value->flags & BTH_NODE_BIG)
        return false;
    *integer = ((const struct int_node *)value)->value;
    return true;
}

const uint8_t *berth_as_bigint(const berth_value *value, size_t *nbytes)
{
    bool big = bth_node_is(value, BERTH_KIND_INT) && value->flags & BTH_NODE_BIG;
    const struct big_node *node = (const struct big_node *)value;
    if (nbytes)
        *nbytes = big ? (size_t)node->nbytes : 0;
    return big ? node->bytes : NULL;
}

double berth_as_float(const berth_value *value)
{
    if (!bth_node_is(value, BERTH_KIND_FLOAT) && !bth_node_is(value, BERTH_KIND_COMPLEX))
        return 0;
    return ((const struct float_node *)value)->real;
}

double berth_value_imaginary(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_COMPLEX) ? ((const struct float_node *)value)->imaginary
                                                  : 0;
}

berth_dtype berth_as_dtype(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_DTYPE)
               ? (berth_dtype)((const struct enum_node *)value)->value
               : BERTH_DTYPE_NONE;
}

berth_qscheme berth_as_qscheme(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_QSCHEME)
               ? (berth_qscheme)((const struct enum_node *)value)->value
               : BERTH_NOT_QUANTIZED;
}

berth_layout_kind berth_as_layout(const berth_value *value)
{
    if (bth_node_is(value, BERTH_KIND_LAYOUT))
        return (berth_layout_kind)((const struct enum_node *)value)->value;
    if (bth_node_is(value, BERTH_KIND_SPARSE))
        return (berth_layout_kind)((const struct parts_node *)value)->layout;
    return (berth_layout_kind)0;
}

berth_storage *berth_as_storage(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_STORAGE) ? ((const struct storage_node *)value)->storage
                                                  : NULL;
}

berth_dtype bth_value_storage_class(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_STORAGE) ? ((const struct storage_node *)value)->dtype
                                                  : BERTH_DTYPE_NONE;
}
