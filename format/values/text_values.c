/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Values without items: scalars, constants and storages; and those that hold text or bytes: str,
 * bytes, bytearray, device, global.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "format/values/node.h"

/* ---- scalars, constants, storages ---- */

berth_value *berth_make_int(berth_tree *tree, int64_t value)
{
    struct int_node *node = bth_node_new_without_id(tree, BERTH_KIND_INT, sizeof(*node));
    if (node)
        node->value = value;
    return (berth_value *)node;
}

berth_value *berth_make_float(berth_tree *tree, double value)
{
    struct float_node *node = bth_node_new_without_id(tree, BERTH_KIND_FLOAT, BTH_FLOAT_NBYTES);
    if (node)
        node->real = value;
    return (berth_value *)node;
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

berth_value *berth_make_constant(berth_tree *tree, berth_kind kind, int number)
{
    berth_value **slot = NULL; /* of the constant's only node */
    if (!tree)
        return NULL;
    if (kind == BERTH_KIND_NONE && number == 0)
        slot = &tree->none;
    if (kind == BERTH_KIND_BOOL && (number == 0 || number == 1))
        slot = &tree->bools[number];
    if (kind == BERTH_KIND_DTYPE && number > BERTH_DTYPE_NONE && number < BERTH_DTYPE_COUNT &&
        !bth_dtype_is_foreign((berth_dtype)number))
        slot = &tree->dtypes[number];
    if (kind == BERTH_KIND_QSCHEME && number > BERTH_NOT_QUANTIZED &&
        number <= BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS)
        slot = &tree->qschemes[number];
    if (kind == BERTH_KIND_LAYOUT && number >= BERTH_SPARSE_COO && number <= BERTH_JAGGED)
        slot = &tree->layouts[number];
    if (!slot)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "no %s has the number %d",
                               berth_kind_name(kind), number);
    if (!*slot && kind <= BERTH_KIND_BOOL) {
        *slot = bth_node_new_without_id(tree, kind, sizeof(berth_value));
        if (*slot && number)
            (*slot)->flags |= BTH_NODE_TRUE;
    } else if (!*slot) {
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

bool bth_value_bool(const berth_value *value)
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
    *number = bth_value_bool(value);
    if (kind <= BERTH_KIND_BOOL)
        return berth_value_kind(value) == kind;
    *number = 0;
    if (kind == BERTH_KIND_LAYOUT && bth_node_is(value, BERTH_KIND_SPARSE))
        *number = ((const struct parts_node *)value)->layout;
    else if (kind == BERTH_KIND_DTYPE && bth_node_is(value, BERTH_KIND_STORAGE))
        *number = (int)((const struct storage_node *)value)->dtype;
    else if (bth_node_is(value, kind) && kind >= BERTH_KIND_DTYPE && kind <= BERTH_KIND_LAYOUT)
        *number = (int)((const struct int_node *)value)->value;
    return *number != 0; /* no other constant has the number 0 */
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

/* ---- text and bytes ---- */

/* A STR or BYTES with a copy of the bytes; NULL: they are set afterwards. */
static berth_value *text_new(berth_tree *tree, berth_kind kind, const void *bytes, size_t nbytes)
{
    if (nbytes > UINT32_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "%s of %zu bytes (at most %u)",
                               berth_kind_name(kind), nbytes, UINT32_MAX);
    struct text_node *node = bth_node_new_uninitialized(tree, kind, sizeof(*node) + nbytes + 1);
    if (!node)
        return NULL;
    node->key.count = (uint32_t)nbytes;
    node->key.hash = 0;
    node->key.link = NULL;
    node->other = NULL;
    if (bytes)
        memcpy(node->data, bytes, nbytes);
    node->data[nbytes] = '\0';
    return &node->key.head;
}

berth_value *berth_make_str(berth_tree *tree, const char *text, size_t nbytes)
{
    if (!tree || (!text && nbytes))
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the text is NULL");
    for (size_t at = 0, n; at < nbytes; at += n) {
        uint64_t word; /* most text is ASCII */
        while (nbytes - at >= sizeof(word) &&
               (memcpy(&word, text + at, sizeof(word)), !(word & UINT64_C(0x8080808080808080))))
            at += sizeof(word);
        while (at < nbytes && (uint8_t)text[at] < 0x80)
            at++;
        if (at == nbytes)
            break;
        const uint8_t *sequence = (const uint8_t *)text + at;
        n = bth_utf8_sequence_nbytes(sequence, nbytes - at);
        /* Surrogates are allowed, each as three bytes, as with Python's surrogatepass. */
        if (n == 0 && nbytes - at >= 3 && sequence[0] == 0xed && sequence[1] >= 0xa0 &&
            sequence[1] <= 0xbf && (sequence[2] & 0xc0) == 0x80)
            n = 3;
        if (n == 0)
            return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "text that is not UTF-8 at its byte %zu",
                                   at);
    }
    return text_new(tree, BERTH_KIND_STR, text, nbytes);
}

berth_value *bth_bytes_from_latin1(berth_tree *tree, berth_value *value)
{
    assert(bth_value_tree(value) == tree && value->kind == BERTH_KIND_STR);
    struct text_node *text = (struct text_node *)value, *holder = text->other, *node;
    if (holder) { /* another bytes object that shares its bytes (P3: REDUCE never copies) */
        node = bth_node_new(tree, BERTH_KIND_BYTES, sizeof(*node));
        if (!node)
            return NULL;
        node->key.count = holder->key.count;
        node->other = holder;
        return &node->key.head;
    }
    node = (struct text_node *)text_new(tree, BERTH_KIND_BYTES, NULL, text->key.count);
    if (!node)
        return NULL;
    size_t n = 0;
    for (size_t at = 0; at < text->key.count; at++) {
        uint8_t byte = (uint8_t)text->data[at];
        if (byte > 0xc3)
            return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE, "latin1 text with a character above 255");
        if (byte >= 0x80)
            byte = (uint8_t)(byte << 6 | ((uint8_t)text->data[++at] & 0x3f));
        node->data[n++] = (char)byte;
    }
    node->data[n] = '\0';
    node->key.count = (uint32_t)n;
    text->other = node;
    return &node->key.head;
}

berth_value *bth_bytearray_from_bytes(berth_tree *tree, berth_value *bytes)
{
    assert(!bytes || (bth_value_tree(bytes) == tree && bytes->kind == BERTH_KIND_BYTES));
    if (!bytes)
        return berth_make_bytes(tree, BERTH_KIND_BYTEARRAY, NULL, 0);
    return bth_wrapper_node_new(tree, BERTH_KIND_BYTEARRAY, bytes);
}

berth_value *berth_make_bytes(berth_tree *tree, berth_kind kind, const void *bytes, size_t nbytes)
{
    const uint8_t *digits = bytes;
    bool is_array = kind == BERTH_KIND_BYTEARRAY;
    if (kind == BERTH_KIND_BYTES || is_array) {
        if (!tree || (!bytes && nbytes))
            return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the bytes are NULL");
        berth_value *value = text_new(tree, BERTH_KIND_BYTES, bytes, nbytes);
        return is_array ? bth_wrapper_node_new(tree, kind, value) : value;
    }
    if (kind != BERTH_KIND_INT)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "%s (%d) is not made of bytes",
                               berth_kind_name(kind), (int)kind);
    if (!bytes || nbytes == 0 || nbytes > 255)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "an integer of %zu bytes (1 to 255)",
                               nbytes);
    /* The shortest two's complement form: without bytes that only repeat the sign. */
    while (nbytes > 1 && digits[nbytes - 1] == (digits[nbytes - 2] & 0x80 ? 0xff : 0))
        nbytes--;
    if (nbytes <= 8) {
        uint64_t integer = digits[nbytes - 1] & 0x80 ? UINT64_MAX : 0;
        for (size_t i = nbytes; i-- > 0;)
            integer = integer << 8 | digits[i];
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

/* ---- device ---- */

berth_value *berth_make_device(berth_tree *tree, const char *type, int64_t index)
{
    size_t n = type ? strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    if (n == 0 || type[n] != '\0' || n >= sizeof(((struct device_node *)0)->type))
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "\"%.40s\" is not a device type",
                               type ? type : "");
    if (index > 127) /* PyTorch's DeviceIndex is an int8_t */
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "device index %" PRId64 " (at most 127)",
                               index);
    struct device_node *node = bth_node_new(tree, BERTH_KIND_DEVICE, sizeof(*node));
    if (!node)
        return NULL;
    memcpy(node->type, type, n + 1);
    node->index = index < 0 ? -1 : index;
    if (index < 0)
        memcpy(node->text, type, n + 1);
    else
        (void)snprintf(node->text, sizeof(node->text), "%.31s:%d", node->type, (int)index);
    return &node->head;
}

const char *bth_value_device_type_and_index(const berth_value *value, int64_t *index)
{
    if (berth_value_kind(value) != BERTH_KIND_DEVICE)
        return NULL;
    const struct device_node *node = (const struct device_node *)value;
    *index = node->index;
    return node->type;
}

/* ---- global ---- */

berth_value *bth_global_new(berth_tree *tree, const char *module, size_t module_nbytes,
                            const char *name, size_t name_nbytes, bool is_inert)
{
    if (module_nbytes > UINT32_MAX / 2 || name_nbytes > UINT32_MAX / 2)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "a global's name of %zu bytes",
                               name_nbytes);
    size_t nbytes = sizeof(struct global_node) + module_nbytes * 2 + name_nbytes + 3;
    struct global_node *node = bth_node_new(tree, BERTH_KIND_GLOBAL, nbytes);
    if (!node)
        return NULL;
    node->module_nbytes = (uint32_t)module_nbytes;
    node->name_nbytes = (uint32_t)name_nbytes;
    char *text = node->text;
    memcpy(text, module, module_nbytes);
    text[module_nbytes] = ' ';
    memcpy(text + module_nbytes + 1, name, name_nbytes);
    memcpy(text + module_nbytes + name_nbytes + 2, module, module_nbytes);
    if (is_inert)
        node->head.flags |= BTH_NODE_TRUE;
    return &node->head;
}

void bth_value_global_module_and_name(const berth_value *value, const char **module,
                                      const char **name)
{
    *module = *name = NULL;
    if (berth_value_kind(value) != BERTH_KIND_GLOBAL)
        return;
    const struct global_node *node = (const struct global_node *)value;
    *name = node->text + node->module_nbytes + 1;
    *module = *name + node->name_nbytes + 1;
}

/* ---- reading ---- */

const char *berth_as_text(const berth_value *value, size_t *nbytes)
{
    size_t ignored = 0;
    nbytes = nbytes ? nbytes : &ignored;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_STR: {
        const struct text_node *node = (const struct text_node *)value;
        *nbytes = node->key.count;
        return node->data;
    }
    case BERTH_KIND_GLOBAL: {
        const struct global_node *node = (const struct global_node *)value;
        *nbytes = (size_t)node->module_nbytes + node->name_nbytes + 1;
        return node->text;
    }
    case BERTH_KIND_DEVICE: {
        const struct device_node *node = (const struct device_node *)value;
        *nbytes = strlen(node->text);
        return node->text;
    }
    default:
        *nbytes = 0;
        return NULL;
    }
}

const uint8_t *berth_as_bytes(const berth_value *value, size_t *nbytes)
{
    size_t ignored = 0;
    nbytes = nbytes ? nbytes : &ignored;
    *nbytes = 0;
    if (bth_node_is(value, BERTH_KIND_INT) && value->flags & BTH_NODE_BIG) {
        const struct big_node *node = (const struct big_node *)value;
        *nbytes = (size_t)node->nbytes;
        return node->bytes;
    }
    if (berth_value_kind(value) == BERTH_KIND_BYTEARRAY)
        value = ((const struct wrap_node *)value)->inner;
    if (berth_value_kind(value) != BERTH_KIND_BYTES)
        return NULL;
    const struct text_node *holder = bth_text_node_with_bytes(value);
    *nbytes = holder->key.count;
    return (const uint8_t *)holder->data;
}
