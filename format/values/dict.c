/* SPDX-License-Identifier: BSD-3-Clause */
/* dict, OrderedDict, Counter and set: entries in the order of insertion, found by hash. */
#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "format/values/node.h"

enum {
    MAX_SCANNED = 8, /* up to this many entries are scanned, without slots */
    N_PREPARED = 16, /* number of keys that are prepared before the first one is entered */
    MAX_ENTRIES = UINT32_MAX / 4
};

berth_value *bth_dict_new(berth_tree *tree, berth_kind kind)
{
    struct dict_node *node = tree ? bth_node_new_uninitialized(tree, kind, sizeof(*node)) : NULL;
    if (!node)
        return NULL;
    node->table = NULL;
    return &node->head;
}

berth_value *berth_make_dict(berth_tree *tree, berth_kind kind)
{
    if (kind != BERTH_KIND_DICT && kind != BERTH_KIND_ORDERED_DICT && kind != BERTH_KIND_COUNTER)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "%s (%d) is no kind of dict",
                               berth_kind_name(kind), (int)kind);
    return bth_dict_new(tree, kind);
}

berth_value *berth_make_set(berth_tree *tree)
{
    return bth_dict_new(tree, BERTH_KIND_SET);
}

/* ---- slots ---- */

void bth_hash_slots_add(struct slots *slots, uint32_t hash, uint32_t position)
{
    uint32_t at = hash & slots->mask;
    while (slots->slots[at])
        at = (at + 1) & slots->mask;
    slots->slots[at] = (uint64_t)hash << 32 | (position + 1);
}

/* Slots are at most two thirds full. */
bool bth_hash_slots_reserve(berth_tree *tree, struct slots *slots, size_t capacity)
{
    uint64_t *old = slots->slots;
    size_t n_old = old ? (size_t)slots->mask + 1 : 0, n = old ? n_old : 16;
    while (n / 3 * 2 < capacity)
        n *= 2;
    if (n == n_old)
        return true;
    if (n > UINT32_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "a table of %zu items", capacity);
    uint64_t *grown = bth_tree_allocate(tree, bth_array_nbytes(n, sizeof(*grown)));
    if (!grown)
        return false;
    memset(grown, 0, n * sizeof(*grown));
    *slots = (struct slots){.slots = grown, .mask = (uint32_t)(n - 1)};
    for (size_t i = 0; i < n_old; i++)
        if (old[i])
            bth_hash_slots_add(slots, (uint32_t)(old[i] >> 32), (uint32_t)old[i] - 1);
    bth_tree_release_allocation(tree, old, n_old * sizeof(*old));
    return true;
}

/* ---- entries ---- */

static bool dict_make_or_grow_slots(berth_tree *tree, struct table *table)
{
    bool had_slots = table->slots.slots != NULL;
    if (!bth_hash_slots_reserve(tree, &table->slots, table->size.capacity))
        return false;
    for (uint32_t i = 0; !had_slots && i < table->size.count; i++)
        bth_hash_slots_add(&table->slots, bth_key_hash(tree, table->entries[i].key), i);
    return true;
}

bool bth_dict_reserve_entries(berth_tree *tree, struct dict_node *node, size_t n)
{
    struct table *table =
        bth_tree_reserve_array(tree, node->table ? &node->table->size : NULL, n, sizeof(*table),
                               sizeof(*table->entries), MAX_ENTRIES);
    if (!table || table == node->table)
        return table;
    node->table = table;
    if (table->size.capacity <= MAX_SCANNED || dict_make_or_grow_slots(tree, table))
        return true;
    table->size.capacity = table->size.count; /* no entry without a free slot */
    return false;
}

/* The next entry, from *at on, that can have a key of this hash; NULL: none. */
static struct table_entry *dict_next_candidate_entry(struct table *table, uint32_t hash,
                                                     uint32_t *at)
{
    uint32_t i = table->slots.slots ? bth_hash_slots_find_next(&table->slots, hash, at) : (*at)++;
    return i < table->size.count ? &table->entries[i] : NULL;
}

static uint32_t dict_first_probe_position(const struct table *table, uint32_t hash)
{
    return table->slots.slots ? hash : 0;
}

/* The entry of a prepared key, or NULL; then *at is the free slot for it, if there are slots. */
static struct table_entry *dict_find_entry(struct table *table, const berth_value *key,
                                           uint32_t hash, uint32_t *at)
{
    struct table_entry *entry;
    *at = dict_first_probe_position(table, hash);
    while ((entry = dict_next_candidate_entry(table, hash, at)) && !bth_key_equal(entry->key, key))
        ;
    return entry;
}

/*
 * Whether an inert pickle must not set this entry again: other readers would do work of which the
 * tree says nothing: for a key of a known hash, or for what is in the value that is replaced.
 */
static bool dict_would_lose(const struct table_entry *entry)
{
    berth_kind key = bth_node_kind(entry->key), value = bth_node_kind(entry->value);
    bool is_secret = key == BERTH_KIND_STR || key == BERTH_KIND_BYTES || key == BERTH_KIND_CALL ||
                     bth_kind_is_tensor(key);
    return !is_secret || (entry->value != entry->key && value >= BERTH_KIND_LIST);
}

/* Sets an entry of a dict or set whose key and value are of the tree. */
static bool dict_insert_or_update(berth_tree *tree, struct dict_node *node, berth_value *key,
                                  berth_value *value)
{
    bool is_set = node->head.kind == BERTH_KIND_SET;
    if (!bth_key_prepare(tree, key, is_set ? "in a set" : "a dict key") ||
        !bth_dict_reserve_entries(tree, node, 1))
        return false;
    struct table *table = node->table;
    uint32_t at, hash = table->slots.slots ? bth_key_hash(tree, key) : 0;
    struct table_entry *entry = dict_find_entry(table, key, hash, &at);
    if (entry && tree->keeps_all && dict_would_lose(entry))
        return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE, "%s has a key twice: the first would be lost",
                               bth_kind_phrase((berth_kind)node->head.kind));
    if (entry) {
        /* As in Python: the first key stays where it is; a set keeps its first item. */
        entry->value = is_set ? entry->value : value;
        return true;
    }
    table->entries[table->size.count++] = (struct table_entry){.key = key, .value = value};
    if (table->slots.slots)
        table->slots.slots[at] = (uint64_t)hash << 32 | table->size.count;
    return true;
}

/* ---- filling ---- */

/* Prepares the next keys and prefetches their slots, which are spread over memory. */
static bool dict_prepare_keys_and_prefetch(berth_tree *tree, const struct table *table,
                                           berth_value *const *items, size_t n)
{
    n = n < N_PREPARED ? n : N_PREPARED;
    for (size_t i = 0; i < n; i++) {
        if (!bth_key_prepare(tree, items[2 * i], "a dict key"))
            return false;
        const struct slots *slots = table ? &table->slots : NULL;
        if (slots && slots->slots)
            __builtin_prefetch(&slots->slots[bth_key_hash(tree, items[2 * i]) & slots->mask], 1);
    }
    return true;
}

int bth_dict_extend(berth_value *dict, berth_value *const *items, size_t n)
{
    berth_tree *tree = bth_value_tree(dict);
    assert(bth_kind_is_dict(bth_node_kind(dict)));
    if (dict->flags & BTH_NODE_USED)
        return bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                             "a dict grows after another object was built from it");
    struct dict_node *node = (struct dict_node *)dict;
    dict->flags &= (uint8_t)~BTH_NODE_ATTRIBUTES;
    if (n > 1 && !bth_dict_reserve_entries(tree, node, n))
        return tree->error.code;
    for (size_t i = 0; i < n; i++) {
        if (i % N_PREPARED == 0 &&
            !dict_prepare_keys_and_prefetch(tree, node->table, items + 2 * i, n - i))
            return tree->error.code;
        if (!dict_insert_or_update(tree, node, items[2 * i], items[2 * i + 1]))
            return tree->error.code;
    }
    return 0;
}

int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value)
{
    berth_value *items[2] = {key, value};
    berth_tree *tree = bth_value_tree(dict);
    if (!bth_kind_is_dict(bth_node_kind(dict)))
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is not a dict",
                             bth_kind_phrase(bth_node_kind(dict)));
    if (!bth_tree_check_owns_value(tree, key, "a dict's key") ||
        !bth_tree_check_owns_item(tree, value, "a dict's value", key, berth_value_count(dict)))
        return tree->error.code;
    return bth_dict_extend(dict, items, 1);
}

static bool dict_key_is_text(const berth_value *key, uint32_t hash, const char *text, size_t nbytes)
{
    const struct text_node *node = (const struct text_node *)key;
    return key->kind == BERTH_KIND_STR && node->key.hash == hash && node->key.count == nbytes &&
           memcmp(node->data, text, nbytes) == 0;
}

size_t bth_dict_find_text_position(const berth_value *dict, const char *text, size_t nbytes)
{
    struct table *table =
        bth_kind_is_dict(bth_node_kind(dict)) ? ((const struct dict_node *)dict)->table : NULL;
    if (!table)
        return SIZE_MAX;
    uint32_t hash = bth_tree_hash_bytes(bth_value_tree(dict), text, nbytes);
    uint32_t at = dict_first_probe_position(table, hash);
    const struct table_entry *entry;
    while ((entry = dict_next_candidate_entry(table, hash, &at)))
        if (dict_key_is_text(entry->key, hash, text, nbytes))
            return (size_t)(entry - table->entries);
    return SIZE_MAX;
}

int berth_dict_set(berth_value *dict, const char *key, berth_value *value)
{
    berth_tree *tree = bth_value_tree(dict);
    if (!tree || !key)
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "the key is NULL");
    berth_value *node = bth_value_key(dict, bth_dict_find_text_position(dict, key, strlen(key)));
    if (!node)
        node = berth_make_str(tree, key, strlen(key));
    return node ? berth_dict_set_value(dict, node, value) : tree->error.code;
}

/* ---- sets ---- */

static int set_extend(berth_tree *tree, struct dict_node *set, berth_value *const *items, size_t n)
{
    if (n > 0 && !bth_dict_reserve_entries(tree, set, n))
        return tree->error.code;
    for (size_t i = 0; i < n; i++)
        if (!dict_insert_or_update(tree, set, items[i], items[i]))
            return tree->error.code;
    return 0;
}

int berth_set_add(berth_value *set, berth_value *item)
{
    berth_tree *tree = bth_value_tree(set);
    if (!bth_node_is(set, BERTH_KIND_SET))
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is not a set",
                             bth_kind_phrase(bth_node_kind(set)));
    if (!bth_tree_check_owns_value(tree, item, "an item of a set"))
        return tree->error.code;
    return set_extend(tree, (struct dict_node *)set, &item, 1);
}

/* ---- what REDUCE builds ---- */

/* An empty dict or set, to be filled from `source` (NULL: none), which is used only once (P3). */
static berth_value *dict_new_empty_mark_source_used(berth_tree *tree, berth_kind kind,
                                                    berth_value *source)
{
    if (source && source->flags & BTH_NODE_USED)
        return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE,
                               "%s is used by %s after another object was built from it",
                               bth_kind_phrase((berth_kind)source->kind), berth_kind_name(kind));
    if (source)
        source->flags |= BTH_NODE_USED;
    return bth_dict_new(tree, kind);
}

berth_value *bth_set_from_list(berth_tree *tree, berth_value *list)
{
    assert(!list || list->kind == BERTH_KIND_LIST);
    berth_value *set = dict_new_empty_mark_source_used(tree, BERTH_KIND_SET, list);
    size_t n, stride;
    berth_value *const *items = bth_node_items(list, &n, &stride);
    return set && set_extend(tree, (struct dict_node *)set, items, n) == 0 ? set : NULL;
}

berth_value *bth_counter_from_dict(berth_tree *tree, berth_value *dict)
{
    assert(!dict || dict->kind == BERTH_KIND_DICT);
    berth_value *counter = dict_new_empty_mark_source_used(tree, BERTH_KIND_COUNTER, dict);
    const struct table *from = dict ? ((struct dict_node *)dict)->table : NULL;
    if (!counter || !from)
        return counter;
    struct dict_node *node = (struct dict_node *)counter;
    if (!bth_dict_reserve_entries(tree, node, from->size.count))
        return NULL;
    for (uint32_t i = 0; i < from->size.count; i++) /* there is room, and keys are hashed */
        (void)dict_insert_or_update(tree, node, from->entries[i].key, from->entries[i].value);
    return counter;
}

static bool dict_insert_pair_value(berth_tree *tree, struct dict_node *node,
                                   const berth_value *pair)
{
    size_t n, stride;
    berth_value *const *items = bth_node_items(pair, &n, &stride);
    if (n != 2 || (pair->kind != BERTH_KIND_LIST && pair->kind != BERTH_KIND_TUPLE))
        return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE,
                               "an OrderedDict made from an item that is not a pair");
    return dict_insert_or_update(tree, node, items[0], items[1]);
}

berth_value *bth_ordered_dict_from_pairs(berth_tree *tree, berth_value *list)
{
    assert(!list || list->kind == BERTH_KIND_LIST);
    berth_value *dict = dict_new_empty_mark_source_used(tree, BERTH_KIND_ORDERED_DICT, list);
    size_t n, stride;
    berth_value *const *items = bth_node_items(list, &n, &stride);
    for (size_t i = 0; dict && i < n; i++)
        if (!dict_insert_pair_value(tree, (struct dict_node *)dict, items[i]))
            return NULL;
    return dict;
}

/* ---- reading ---- */

size_t bth_dict_find_int_position(const berth_value *dict, int64_t integer)
{
    struct table *table =
        bth_kind_is_dict(bth_node_kind(dict)) ? ((const struct dict_node *)dict)->table : NULL;
    const struct int_node key = {.head = {.kind = BERTH_KIND_INT}, .value = integer};
    uint32_t at, hash = table ? bth_key_hash(bth_value_tree(dict), &key.head) : 0;
    const struct table_entry *entry = table ? dict_find_entry(table, &key.head, hash, &at) : NULL;
    /* True and 1.0 equal 1, but are not the int key 1. */
    return entry && entry->key->kind == BERTH_KIND_INT ? (size_t)(entry - table->entries)
                                                       : SIZE_MAX;
}

berth_value *berth_dict_get(const berth_value *dict, const char *key)
{
    return key ? bth_value_item(dict, bth_dict_find_text_position(dict, key, strlen(key))) : NULL;
}
