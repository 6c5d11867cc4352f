/* SPDX-License-Identifier: BSD-3-Clause */
/* dict, OrderedDict, Counter and set: entries in the order of insertion, found by hash. */
#include <assert.h>
#include <string.h>

#include "config/memory.h"
#include "format/values/node.h"

/* Up to this many entries there is no table of slots; entries are scanned. */
enum { SCANNED = 8 };
/* This many keys are prepared before the first of them is entered. */
enum { AHEAD = 16 };

static berth_value *dict_new(berth_tree *tree, berth_kind kind)
{
    struct dict_node *node = tree ? bth_node_raw(tree, kind, sizeof(*node)) : NULL;
    if (!node)
        return NULL;
    node->table = NULL;
    return &node->head;
}

berth_value *berth_make_dict(berth_tree *tree)
{
    return dict_new(tree, BERTH_KIND_DICT);
}

berth_value *berth_make_ordered_dict(berth_tree *tree)
{
    return dict_new(tree, BERTH_KIND_ORDERED_DICT);
}

berth_value *berth_make_counter(berth_tree *tree)
{
    return bth_node_new(tree, BERTH_KIND_COUNTER, sizeof(struct dict_node));
}

berth_value *berth_make_set(berth_tree *tree)
{
    return bth_node_new(tree, BERTH_KIND_SET, sizeof(struct dict_node));
}

static size_t dict_table_nbytes(size_t capacity)
{
    return sizeof(struct table) + capacity * sizeof(struct table_entry);
}

/*
 * The first slot from `at` on with this hash, or a free one. The upper half of a slot is the hash,
 * so keys with other hashes are not touched.
 */
static uint64_t *dict_next_slot(const struct table *table, uint32_t hash, uint32_t *at)
{
    while (table->slots[*at] && table->slots[*at] >> 32 != hash)
        *at = (*at + 1) & table->slots_mask;
    return &table->slots[*at];
}

/* Enters entry i, whose key is not in the table yet. */
static void dict_take_slot(struct table *table, uint32_t hash, uint32_t i)
{
    uint32_t at = hash & table->slots_mask;
    while (table->slots[at])
        at = (at + 1) & table->slots_mask;
    table->slots[at] = (uint64_t)hash << 32 | (i + 1);
}

/* A table of slots that is at most two thirds full when all of `capacity` is used. */
static bool dict_make_slots(berth_tree *tree, struct table *table)
{
    uint64_t *old = table->slots;
    size_t n_old = old ? (size_t)table->slots_mask + 1 : 0, n = 16;
    while (n / 3 * 2 < table->capacity)
        n *= 2;
    if (n <= n_old)
        return true;
    if (n > UINT32_MAX) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED, "a dict of %u items", table->capacity);
        return false;
    }
    uint64_t *slots = bth_tree_allocate(tree, bth_array_nbytes(n, sizeof(*slots)));
    if (!slots)
        return false;
    memset(slots, 0, n * sizeof(*slots));
    table->slots = slots;
    table->slots_mask = (uint32_t)(n - 1);
    for (uint32_t i = 0; !old && i < table->count; i++)
        dict_take_slot(table, bth_key_hash(tree, table->entries[i].key), i);
    for (size_t i = 0; i < n_old; i++)
        if (old[i])
            dict_take_slot(table, (uint32_t)(old[i] >> 32), (uint32_t)old[i] - 1);
    bth_tree_discard(tree, old, n_old * sizeof(*old));
    return true;
}

bool bth_table_reserve(berth_tree *tree, struct dict_node *node, size_t n)
{
    struct table *table = node->table;
    size_t count = table ? table->count : 0;
    size_t capacity = table ? table->capacity : 0;
    if (table && n <= capacity - count)
        return true;
    if (n > UINT32_MAX / 4 - count) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED, "a dict of more than %u items", UINT32_MAX / 4);
        return false;
    }
    size_t larger = bth_tree_capacity(capacity, count + n);
    struct table *grown =
        bth_tree_grow(tree, table, dict_table_nbytes(capacity), dict_table_nbytes(larger));
    if (!grown)
        return false;
    if (!table)
        *grown = (struct table){.count = 0};
    grown->capacity = (uint32_t)larger;
    node->table = grown;
    if (larger <= SCANNED || dict_make_slots(tree, grown))
        return true;
    grown->capacity = grown->count; /* no entry without a free slot */
    return false;
}

/* The entry of a prepared key, or NULL; then *slot is the free slot for it, if there is a table. */
static struct table_entry *dict_find_entry(struct table *table, const berth_value *key,
                                           uint32_t hash, uint64_t **slot)
{
    if (!table->slots) {
        for (uint32_t i = 0; i < table->count; i++)
            if (bth_key_equal(table->entries[i].key, key))
                return &table->entries[i];
        return NULL;
    }
    for (uint32_t at = hash & table->slots_mask;; at = (at + 1) & table->slots_mask) {
        *slot = dict_next_slot(table, hash, &at);
        if (!**slot)
            return NULL;
        struct table_entry *entry = &table->entries[(uint32_t) * *slot - 1];
        if (bth_key_equal(entry->key, key))
            return entry;
    }
}

/* Sets an entry of a dict or set whose key and value are of the tree. */
static bool dict_set_entry(berth_tree *tree, struct dict_node *node, berth_value *key,
                           berth_value *value)
{
    bool is_set = node->head.kind == BERTH_KIND_SET;
    if (!bth_key_prepare(tree, key, is_set ? "in a set" : "a dict key") ||
        !bth_table_reserve(tree, node, 1))
        return false;
    uint64_t *slot = NULL;
    struct table *table = node->table;
    uint32_t hash = table->slots ? bth_key_hash(tree, key) : 0;
    struct table_entry *entry = dict_find_entry(table, key, hash, &slot);
    if (entry) {
        /* As in Python: the first key stays, at its place; a set keeps its first item. */
        entry->value = is_set ? entry->value : value;
        return true;
    }
    table->entries[table->count++] = (struct table_entry){.key = key, .value = value};
    if (slot)
        *slot = (uint64_t)hash << 32 | table->count;
    return true;
}

/* ---- filling ---- */

/* Prepares the next keys and prefetches their slots, which are spread over memory. */
static bool dict_prefetch_slots(berth_tree *tree, const struct table *table,
                                berth_value *const *items, size_t n)
{
    n = n < AHEAD ? n : AHEAD;
    for (size_t i = 0; i < n; i++) {
        if (!bth_key_prepare(tree, items[2 * i], "a dict key"))
            return false;
        if (table && table->slots)
            __builtin_prefetch(&table->slots[bth_key_hash(tree, items[2 * i]) & table->slots_mask],
                               1);
    }
    return true;
}

int bth_dict_extend(berth_value *dict, berth_value *const *items, size_t n)
{
    berth_tree *tree = bth_value_tree(dict);
    assert(bth_is_dict(dict));
    if (dict->flags & BTH_NODE_USED)
        return bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                             "a dict that something was built from grows afterwards");
    struct dict_node *node = (struct dict_node *)dict;
    dict->flags &= (uint8_t)~BTH_NODE_ATTRIBUTES;
    if (n > 1 && !bth_table_reserve(tree, node, n))
        return tree->error.code;
    for (size_t i = 0; i < n; i++) {
        if (i % AHEAD == 0 && !dict_prefetch_slots(tree, node->table, items + 2 * i, n - i))
            return tree->error.code;
        if (!dict_set_entry(tree, node, items[2 * i], items[2 * i + 1]))
            return tree->error.code;
    }
    return 0;
}

int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value)
{
    berth_value *items[2] = {key, value};
    berth_tree *tree = bth_value_tree(dict);
    if (!tree)
        return BERTH_E_ARGUMENT;
    if (!bth_is_dict(dict))
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is no dict",
                             bth_kind_phrase((berth_kind)dict->kind));
    if (!bth_tree_owns(tree, key, "a dict's key") ||
        !bth_tree_owns_item(tree, value, "a dict's value", key, berth_value_count(dict)))
        return tree->error.code;
    return bth_dict_extend(dict, items, 1);
}

/* The entry of a text key that need not be a node; NULL if there is none. */
static struct table_entry *dict_find_text(const berth_tree *tree, struct table *table,
                                          const char *text, size_t nbytes)
{
    if (!table)
        return NULL;
    uint32_t hash = bth_hash_bytes(tree, text, nbytes);
    uint32_t at = table->slots ? hash & table->slots_mask : 0;
    for (;; at = table->slots ? (at + 1) & table->slots_mask : at + 1) {
        uint32_t i = table->slots ? (uint32_t)*dict_next_slot(table, hash, &at) - 1 : at;
        if (i >= table->count)
            return NULL;
        const struct text_node *key = (const struct text_node *)table->entries[i].key;
        if (key->key.head.kind == BERTH_KIND_STR && key->key.hash == hash &&
            key->key.count == nbytes && memcmp(key->data, text, nbytes) == 0)
            return &table->entries[i];
    }
}

int berth_dict_set(berth_value *dict, const char *key, berth_value *value)
{
    berth_tree *tree = bth_value_tree(dict);
    if (!tree)
        return BERTH_E_ARGUMENT;
    if (!key)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "the key is NULL");
    struct table_entry *entry =
        bth_is_dict(dict)
            ? dict_find_text(tree, ((struct dict_node *)dict)->table, key, strlen(key))
            : NULL;
    berth_value *node = entry ? entry->key : berth_make_str(tree, key, strlen(key));
    return node ? berth_dict_set_value(dict, node, value) : tree->error.code;
}

/* ---- sets ---- */

static int set_extend(berth_tree *tree, struct dict_node *set, berth_value *const *items, size_t n)
{
    if (!bth_table_reserve(tree, set, n))
        return tree->error.code;
    for (size_t i = 0; i < n; i++)
        if (!dict_set_entry(tree, set, items[i], items[i]))
            return tree->error.code;
    return 0;
}

int berth_set_add(berth_value *set, berth_value *item)
{
    berth_tree *tree = bth_value_tree(set);
    if (!tree)
        return BERTH_E_ARGUMENT;
    if (set->kind != BERTH_KIND_SET)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is no set",
                             bth_kind_phrase((berth_kind)set->kind));
    if (!bth_tree_owns(tree, item, "an item of a set"))
        return tree->error.code;
    return set_extend(tree, (struct dict_node *)set, &item, 1);
}

/* ---- what REDUCE builds ---- */

/* Marks a list or dict that an object is built from. Each may be used once (P3). */
static bool dict_claim_source(berth_tree *tree, berth_value *source, const berth_value *object)
{
    if (source->flags & BTH_NODE_USED) {
        bth_tree_fail(tree, BERTH_E_PICKLE, "%s that something was built from is used again by %s",
                      bth_kind_phrase((berth_kind)source->kind),
                      berth_kind_name((berth_kind)object->kind));
        return false;
    }
    source->flags |= BTH_NODE_USED;
    return true;
}

berth_value *bth_set_from(berth_tree *tree, berth_value *list)
{
    berth_value *set = berth_make_set(tree);
    size_t n;
    assert(!list || list->kind == BERTH_KIND_LIST);
    if (!set || !list)
        return set;
    if (!dict_claim_source(tree, list, set))
        return NULL;
    berth_value *const *items = bth_node_items(list, &n);
    return set_extend(tree, (struct dict_node *)set, items, n) < 0 ? NULL : set;
}

berth_value *bth_counter_from(berth_tree *tree, berth_value *dict)
{
    berth_value *counter = berth_make_counter(tree);
    assert(!dict || dict->kind == BERTH_KIND_DICT);
    if (!counter || !dict)
        return counter;
    if (!dict_claim_source(tree, dict, counter))
        return NULL;
    const struct table *from = ((struct dict_node *)dict)->table;
    struct dict_node *node = (struct dict_node *)counter;
    if (from && !bth_table_reserve(tree, node, from->count))
        return NULL;
    for (uint32_t i = 0; from && i < from->count; i++) /* there is room, and keys are hashed */
        (void)dict_set_entry(tree, node, from->entries[i].key, from->entries[i].value);
    return counter;
}

static bool dict_set_pair(berth_tree *tree, struct dict_node *node, const berth_value *pair)
{
    size_t n = 0;
    berth_value *const *items = pair->kind == BERTH_KIND_LIST || pair->kind == BERTH_KIND_TUPLE
                                    ? bth_node_items(pair, &n)
                                    : NULL;
    if (n != 2) {
        bth_tree_fail(tree, BERTH_E_PICKLE, "an OrderedDict made from an item that is no pair");
        return false;
    }
    return dict_set_entry(tree, node, items[0], items[1]);
}

berth_value *bth_ordered_dict_from(berth_tree *tree, berth_value *list)
{
    berth_value *dict = berth_make_ordered_dict(tree);
    size_t n;
    assert(!list || list->kind == BERTH_KIND_LIST);
    if (!dict || !list)
        return dict;
    if (!dict_claim_source(tree, list, dict))
        return NULL;
    berth_value *const *items = bth_node_items(list, &n);
    for (size_t i = 0; i < n; i++)
        if (!dict_set_pair(tree, (struct dict_node *)dict, items[i]))
            return NULL;
    return dict;
}

/* ---- asking ---- */

size_t bth_dict_find_text(const berth_value *dict, const char *text, size_t nbytes)
{
    struct table *table = bth_is_dict(dict) ? ((const struct dict_node *)dict)->table : NULL;
    const struct table_entry *entry = dict_find_text(bth_value_tree(dict), table, text, nbytes);
    return entry ? (size_t)(entry - table->entries) : SIZE_MAX;
}

size_t bth_dict_find_int(const berth_value *dict, int64_t integer)
{
    struct table *table = bth_is_dict(dict) ? ((const struct dict_node *)dict)->table : NULL;
    const struct int_node key = {.head = {.kind = BERTH_KIND_INT}, .value = integer};
    uint64_t *slot;
    const struct table_entry *entry =
        table ? dict_find_entry(table, &key.head, bth_key_hash(bth_value_tree(dict), &key.head),
                                &slot)
              : NULL;
    /* True and 1.0 equal 1, but are not the int key 1. */
    return entry && entry->key->kind == BERTH_KIND_INT ? (size_t)(entry - table->entries)
                                                       : SIZE_MAX;
}

berth_value *berth_dict_get(const berth_value *dict, const char *key)
{
    size_t i = key ? bth_dict_find_text(dict, key, strlen(key)) : SIZE_MAX;
    return i == SIZE_MAX ? NULL : ((const struct dict_node *)dict)->table->entries[i].value;
}
