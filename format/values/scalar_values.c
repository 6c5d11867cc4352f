/* SPDX-License-Identifier: BSD-3-Clause */
/* Scalars, constants and storages as values. */
#include "format/values/node.h"

#include <string.h>

/* ---- making ---- */

berth_value *berth_make_none(berth_tree *tree)
{
    if (!tree)
        return NULL;
    if (!tree->none)
        tree->none = bth_node_new_without_id(tree, BERTH_KIND_NONE, sizeof(berth_value));
    return tree->none;
}

berth_value *berth_make_bool(berth_tree *tree, bool value)
{
    if (!tree)
        return NULL;
    berth_value **node = &tree->bools[value];
    if (!*node) {
        *node = bth_node_new_without_id(tree, BERTH_KIND_BOOL, sizeof(berth_value));
        if (*node && value)
            (*node)->flags |= BTH_NODE_TRUE;
    }
    return *node;
}

berth_value *berth_make_int(berth_tree *tree, int64_t value)
{
    struct int_node *node = bth_node_new_without_id(tree, BERTH_KIND_INT, sizeof(*node));
    if (!node)
        return NULL;
    node->value = value;
    return &node->head;
}

/* Bytes of the shortest two's complement form. */
static size_t bigint_shortest(const uint8_t *bytes, size_t nbytes)
{
    while (nbytes > 1) {
        uint8_t sign = bytes[nbytes - 2] & 0x80 ? 0xff : 0;
        if (bytes[nbytes - 1] != sign)
            break;
        nbytes--;
    }
    return nbytes;
}

berth_value *bth_int_from_bytes(berth_tree *tree, const uint8_t *bytes, size_t nbytes)
{
    if (!bytes || nbytes == 0 || nbytes > 255)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "an integer of %zu bytes (1 to 255)",
                               nbytes);
    nbytes = bigint_shortest(bytes, nbytes);
    if (nbytes <= 8) {
        uint64_t integer = bytes[nbytes - 1] & 0x80 ? UINT64_MAX : 0;
        for (size_t i = nbytes; i-- > 0;)
            integer = integer << 8 | bytes[i];
        return berth_make_int(tree, (int64_t)integer);
    }
    struct big_node *node = bth_node_new_without_id(tree, BERTH_KIND_INT, sizeof(*node) + nbytes);
    if (!node)
        return NULL;
    node->head.flags |= BTH_NODE_BIG;
    node->nbytes = nbytes;
    memcpy(node->bytes, bytes, nbytes);
    return &node->head;
}

berth_value *berth_make_float(berth_tree *tree, double value)
{
    struct float_node *node = bth_node_new_without_id(tree, BERTH_KIND_FLOAT, BTH_FLOAT_NBYTES);
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

/* The tree's pointer to the only node of a constant; NULL: there is no such constant. */
static berth_value **constant_slot(berth_tree *tree, berth_kind kind, int number)
{
    if (kind == BERTH_KIND_DTYPE && number > BERTH_DTYPE_NONE && number < BERTH_DTYPE_COUNT)
        return &tree->dtypes[number];
    if (kind == BERTH_KIND_QSCHEME && number > BERTH_NOT_QUANTIZED &&
        number <= BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS)
        return &tree->qschemes[number];
    if (kind == BERTH_KIND_LAYOUT && number >= BERTH_SPARSE_COO && number <= BERTH_JAGGED)
        return &tree->layouts[number];
    return NULL;
}

berth_value *berth_make_constant(berth_tree *tree, berth_kind kind, int number)
{
    berth_value **slot = tree ? constant_slot(tree, kind, number) : NULL;
    if (!slot)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "no %s has the number %d",
                               berth_kind_name(kind), number);
    if (!*slot) {
        struct int_node *node = bth_node_new(tree, kind, sizeof(*node));
        if (!node)
            return NULL;
        node->value = number;
        *slot = &node->head;
    }
    return *slot;
}

berth_value *bth_storage_value_new(berth_tree *tree, berth_storage *storage, berth_dtype dtype)
{
    if (!storage || storage->tree != tree)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               storage ? "the storage is of another tree" : "the storage is NULL");
    struct storage_node *node = bth_node_new_uninitialized(tree, BERTH_KIND_STORAGE, sizeof(*node));
    if (!node)
        return NULL;
    node->storage = storage;
    node->dtype = dtype;
    return &node->head;
}

berth_value *berth_make_storage(berth_tree *tree, berth_storage *storage)
{
    return bth_storage_value_new(tree, storage, storage ? storage->dtype : BERTH_DTYPE_NONE);
}

/* ---- reading ---- */

bool bth_value_bool(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_BOOL) && value->flags & BTH_NODE_TRUE;
}

bool berth_as_bool(const berth_value *value, bool *result)
{
    *result = bth_value_bool(value);
    return bth_node_is(value, BERTH_KIND_BOOL);
}

bool berth_as_int(const berth_value *value, int64_t *integer)
{
    *integer = 0;
    if (!bth_node_is(value, BERTH_KIND_INT) || value->flags & BTH_NODE_BIG)
        return false;
    *integer = ((const struct int_node *)value)->value;
    return true;
}

double bth_value_real(const berth_value *value)
{
    bool is_number = bth_node_is(value, BERTH_KIND_FLOAT) || bth_node_is(value, BERTH_KIND_COMPLEX);
    return is_number ? ((const struct float_node *)value)->real : 0;
}

double bth_value_imaginary(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_COMPLEX) ? ((const struct float_node *)value)->imaginary
                                                  : 0;
}

bool berth_as_float(const berth_value *value, double *result)
{
    bool is_float = bth_node_is(value, BERTH_KIND_FLOAT);
    *result = is_float ? bth_value_real(value) : 0;
    return is_float;
}

bool berth_as_complex(const berth_value *value, double *real, double *imaginary)
{
    bool is_complex = bth_node_is(value, BERTH_KIND_COMPLEX);
    *real = is_complex ? bth_value_real(value) : 0;
    *imaginary = bth_value_imaginary(value);
    return is_complex;
}

bool berth_as_constant(const berth_value *value, berth_kind kind, int *number)
{
    *number = 0;
    if (kind == BERTH_KIND_LAYOUT && bth_node_is(value, BERTH_KIND_SPARSE))
        *number = ((const struct parts_node *)value)->layout;
    else if (kind == BERTH_KIND_DTYPE && bth_node_is(value, BERTH_KIND_STORAGE))
        *number = (int)((const struct storage_node *)value)->dtype;
    else if (bth_node_is(value, kind) && kind >= BERTH_KIND_DTYPE && kind <= BERTH_KIND_LAYOUT)
        *number = (int)((const struct int_node *)value)->value;
    return *number != 0; /* no constant has the number 0 */
}

int bth_value_constant(const berth_value *value, berth_kind kind)
{
    int number;
    (void)berth_as_constant(value, kind, &number);
    return number;
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
