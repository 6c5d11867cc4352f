/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Keys of dicts (P4): each node is hashed once; then a comparison takes constant time. Of equal
 * str, bytes or tuples one node is canonical, and the others link to it. So two tuples are equal if
 * the canonical nodes of their items are the same. Numbers are compared by value, as in Python.
 */
#include "base/memory.h"
#include "base/seeded_hash.h"
#include "format/values/node.h"
#include "format/values/walk.h"

#include <math.h>
#include <string.h>

/* ---- hashing ---- */

enum { MAX_SHORT_NBYTES = 64 };

/* A number as a key: its sort, and its value. Numbers of different sorts are never equal. */
struct number {
    enum { INTEGER, BIG, REAL, COMPLEX, BY_IDENTITY, NO_NUMBER } sort;
    int64_t integer;
    double real;
    double imaginary;
};

static struct number key_number_from_double(double real)
{
    /* cppcheck does not understand hexadecimal constants. */
    const double limit = 9223372036854775808.0; /* 2^63 */
    if (isnan(real))                            /* equal to itself alone, by identity */
        return (struct number){.sort = BY_IDENTITY};
    if (real >= -limit && real < limit && real == (double)(int64_t)real)
        return (struct number){.sort = INTEGER, .integer = (int64_t)real};
    return (struct number){.sort = REAL, .real = real};
}

/* An integer beyond 64 bits is equal to a float if it has its value: 2**70 == 2.0**70. */
static struct number key_number_from_bigint(const struct big_node *node)
{
    size_t i = (size_t)node->nbytes - 1;
    double real = (int8_t)node->bytes[i];
    while (i-- > 0) {
        double higher = real * 256;
        real = higher + node->bytes[i];
        if (real - higher != node->bytes[i]) /* it was rounded, or is infinite */
            return (struct number){.sort = BIG};
    }
    return (struct number){.sort = REAL, .real = real};
}

static struct number key_number_from_value(const berth_value *key)
{
    const struct float_node *node = (const struct float_node *)key;
    switch (key->kind) {
    case BERTH_KIND_BOOL:
        return (struct number){.sort = INTEGER, .integer = key->flags & BTH_NODE_TRUE};
    case BERTH_KIND_INT:
        if (key->flags & BTH_NODE_BIG)
            return key_number_from_bigint((const struct big_node *)key);
        return (struct number){.sort = INTEGER, .integer = ((const struct int_node *)key)->value};
    case BERTH_KIND_FLOAT:
        return key_number_from_double(node->real);
    case BERTH_KIND_COMPLEX:
        if (isnan(node->real) || isnan(node->imaginary))
            return (struct number){.sort = BY_IDENTITY};
        if (node->imaginary == 0)
            return key_number_from_double(node->real);
        return (struct number){.sort = COMPLEX,
                               .real = node->real + 0.0, /* -0.0 == 0.0 */
                               .imaginary = node->imaginary + 0.0};
    default:
        return (struct number){.sort = NO_NUMBER};
    }
}

static uint64_t double_to_bits(double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof(bits));
    return bits;
}

static uint32_t key_number_hash(const berth_tree *tree, const berth_value *key,
                                struct number number)
{
    const struct big_node *big = (const struct big_node *)key;
    switch (number.sort) {
    case INTEGER:
        return bth_hash_fold_to_u32(bth_hash_mix(tree->seed, (uint64_t)number.integer));
    case BIG:
        return bth_tree_hash_bytes(tree, big->bytes, (size_t)big->nbytes);
    case REAL:
        return bth_hash_fold_to_u32(bth_hash_mix(tree->seed + 1, double_to_bits(number.real)));
    case COMPLEX:
        return bth_hash_fold_to_u32(
            bth_hash_mix(bth_hash_mix(tree->seed + 2, double_to_bits(number.real)),
                         double_to_bits(number.imaginary)));
    default:
        return bth_hash_fold_to_u32(bth_hash_mix(tree->seed + 3, (uint64_t)(uintptr_t)key));
    }
}

static bool key_number_equal(const berth_value *a, struct number x, const berth_value *b,
                             struct number y)
{
    if (x.sort != y.sort)
        return false;
    switch (x.sort) {
    case INTEGER:
        return x.integer == y.integer;
    case BIG: {
        const struct big_node *m = (const struct big_node *)a, *n = (const struct big_node *)b;
        return m->nbytes == n->nbytes && memcmp(m->bytes, n->bytes, (size_t)m->nbytes) == 0;
    }
    case REAL:
    case COMPLEX:
        return double_to_bits(x.real) == double_to_bits(y.real) &&
               double_to_bits(x.imaginary) == double_to_bits(y.imaginary);
    default:
        return a == b;
    }
}

/* The keyed node of a STR, BYTES, TUPLE or SIZE; NULL for other kinds. */
static struct keyed *key_unwrap_text_or_tuple(const berth_value *key)
{
    switch (key->kind) {
    case BERTH_KIND_STR:
    case BERTH_KIND_BYTES:
        return (struct keyed *)(uintptr_t)&bth_text_node_with_bytes(key)->key;
    case BERTH_KIND_TUPLE:
        return (struct keyed *)(uintptr_t)key;
    case BERTH_KIND_SIZE: /* torch.Size([1]) == (1,) */
        return (struct keyed *)((const struct wrap_node *)key)->inner;
    default:
        return NULL;
    }
}

/* Short texts, which are compared in constant time, have no canonical node. */
static bool key_is_short(const struct keyed *node)
{
    return node->head.kind != BERTH_KIND_TUPLE && node->count <= MAX_SHORT_NBYTES;
}

static const struct keyed *key_get_canonical_node(const struct keyed *node)
{
    return node->head.flags & BTH_NODE_KEY_ALIAS ? node->link : node;
}

uint32_t bth_key_hash(const berth_tree *tree, const berth_value *key)
{
    const struct keyed *keyed = key_unwrap_text_or_tuple(key);
    if (keyed)
        return keyed->hash;
    if (key->kind == BERTH_KIND_DEVICE) {
        const struct device_node *node = (const struct device_node *)key;
        return bth_tree_hash_bytes(tree, node->text, strlen(node->text)) + 1;
    }
    /* None and dtypes by their only node; inert by identity */
    return key_number_hash(tree, key, key_number_from_value(key));
}

static bool key_same_content(const struct keyed *a, const struct keyed *b)
{
    if (a->hash != b->hash || a->count != b->count || a->head.kind != b->head.kind)
        return false;
    if (a->head.kind != BERTH_KIND_TUPLE)
        return memcmp(((const struct text_node *)a)->data, ((const struct text_node *)b)->data,
                      a->count) == 0;
    const struct tuple_node *x = (const struct tuple_node *)a, *y = (const struct tuple_node *)b;
    for (uint32_t i = 0; i < a->count; i++)
        if (!bth_key_equal(x->items[i], y->items[i]))
            return false;
    return true;
}

bool bth_key_equal(const berth_value *a, const berth_value *b)
{
    if (a == b)
        return true;
    const struct keyed *x = key_unwrap_text_or_tuple(a), *y = key_unwrap_text_or_tuple(b);
    if (x || y)
        return x && y &&
               (key_is_short(x) ? key_same_content(x, y)
                                : key_get_canonical_node(x) == key_get_canonical_node(y));
    if (a->kind == BERTH_KIND_DEVICE && b->kind == BERTH_KIND_DEVICE)
        return strcmp(((const struct device_node *)a)->text,
                      ((const struct device_node *)b)->text) == 0;
    return key_number_equal(a, key_number_from_value(a), b, key_number_from_value(b));
}

/* ---- canonical nodes ---- */

static bool key_table_grow_if_full(berth_tree *tree)
{
    struct key_table *keys = &tree->keys;
    if (keys->chains && keys->count <= keys->mask * 2)
        return true;
    size_t n = keys->chains ? (keys->mask + 1) * 2 : 64;
    struct keyed **chains = bth_tree_allocate(tree, n * sizeof(struct keyed *));
    if (!chains)
        return false;
    memset(chains, 0, n * sizeof(struct keyed *));
    for (size_t i = 0; keys->chains && i <= keys->mask; i++)
        for (struct keyed *node = keys->chains[i], *next; node; node = next) {
            next = node->link;
            node->link = chains[node->hash & (n - 1)];
            chains[node->hash & (n - 1)] = node;
        }
    bth_tree_release_allocation(tree, keys->chains,
                                keys->chains ? (keys->mask + 1) * sizeof(*chains) : 0);
    keys->chains = chains;
    keys->mask = n - 1;
    return true;
}

/* Links a hashed node to the canonical one of its kind, or makes it that. */
static bool key_link_or_make_canonical(berth_tree *tree, struct keyed *node)
{
    if (!key_table_grow_if_full(tree))
        return false;
    struct keyed **chain = &tree->keys.chains[node->hash & tree->keys.mask];
    struct keyed *same = *chain;
    while (same && !key_same_content(same, node))
        same = same->link;
    if (same) {
        node->link = same;
        node->head.flags |= BTH_NODE_KEY_ALIAS;
        return true;
    }
    node->link = *chain;
    node->head.flags |= BTH_NODE_KEY_CANONICAL;
    *chain = node;
    tree->keys.count++;
    return true;
}

static bool key_is_prepared(const struct keyed *node)
{
    return node->head.flags & (BTH_NODE_KEY_CANONICAL | BTH_NODE_KEY_ALIAS);
}

static bool key_prepare_text(berth_tree *tree, struct keyed *node)
{
    const struct text_node *text = (const struct text_node *)node;
    node->hash = bth_tree_hash_bytes(tree, text->data, node->count);
    if (!key_is_short(node))
        return key_link_or_make_canonical(tree, node);
    node->head.flags |= BTH_NODE_KEY_CANONICAL;
    return true;
}

static bool key_is_hashable(const berth_tree *tree, const berth_value *value)
{
    switch (value->kind) {
    case BERTH_KIND_NONE:
    case BERTH_KIND_BOOL:
    case BERTH_KIND_INT:
    case BERTH_KIND_FLOAT:
    case BERTH_KIND_COMPLEX:
    case BERTH_KIND_DTYPE:
    case BERTH_KIND_DEVICE:
    case BERTH_KIND_CALL: /* inert: by identity, as objects without __eq__ are in Python */
        return true;
    case BERTH_KIND_GLOBAL:
        return value->flags & BTH_NODE_TRUE;
    default:
        return key_unwrap_text_or_tuple(value) != NULL ||
               (tree->has_inert && bth_kind_is_tensor(bth_node_kind(value)));
    }
}

/*
 * Uses the canonical nodes of items that have one: hashes of 32-bit hashes would collide
 * after about 65,536 levels.
 */
static uint32_t key_tuple_hash(const berth_tree *tree, const struct tuple_node *tuple)
{
    uint64_t hash = bth_hash_mix(tree->seed + 4, tuple->key.count);
    for (uint32_t i = 0; i < tuple->key.count; i++) {
        const struct keyed *keyed = key_unwrap_text_or_tuple(tuple->items[i]);
        hash = bth_hash_mix(hash, keyed && !key_is_short(keyed)
                                      ? (uint64_t)(uintptr_t)key_get_canonical_node(keyed)
                                      : bth_key_hash(tree, tuple->items[i]));
    }
    return bth_hash_fold_to_u32(hash);
}

/* The next item of a tuple, from its cursor on, that is a tuple not yet canonical. */
static struct keyed *key_prepare_until_inner_tuple(berth_tree *tree, struct keyed *node,
                                                   const char *what)
{
    const struct tuple_node *tuple = (const struct tuple_node *)node;
    while (node->hash < node->count) {
        berth_value *item = tuple->items[node->hash];
        struct keyed *keyed = key_unwrap_text_or_tuple(item);
        if (!key_is_hashable(tree, item))
            return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "%s cannot be %s",
                                   bth_kind_phrase((berth_kind)item->kind), what);
        node->hash++;
        if (!keyed || key_is_prepared(keyed))
            continue;
        if (keyed->head.kind == BERTH_KIND_TUPLE)
            return keyed;
        if (!key_prepare_text(tree, keyed))
            return NULL;
    }
    return NULL;
}

/*
 * Bottom-up, without recursion and without a stack (P3): until a tuple is hashed, its `hash` is the
 * position in it and its `link` the tuple around it.
 */
static bool key_prepare_tuple(berth_tree *tree, struct keyed *node, const char *what)
{
    node->link = NULL;
    node->hash = 0;
    while (node) {
        struct keyed *child = key_prepare_until_inner_tuple(tree, node, what);
        if (child) {
            child->link = node;
            child->hash = 0;
            node = child;
            continue;
        }
        if (tree->error.code != BERTH_OK)
            return false;
        struct keyed *parent = node->link;
        node->hash = key_tuple_hash(tree, (const struct tuple_node *)node);
        if (!key_link_or_make_canonical(tree, node))
            return false;
        node = parent;
    }
    return true;
}

bool bth_key_prepare(berth_tree *tree, berth_value *value, const char *what)
{
    if (!key_is_hashable(tree, value))
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "%s cannot be %s",
                               bth_kind_phrase((berth_kind)value->kind), what);
    struct keyed *keyed = key_unwrap_text_or_tuple(value);
    if (!keyed || key_is_prepared(keyed))
        return true;
    if (keyed->head.kind != BERTH_KIND_TUPLE)
        return key_prepare_text(tree, keyed);
    return key_prepare_tuple(tree, keyed, what);
}
