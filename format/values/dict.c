/* SPDX-License-Identifier: BSD-3-Clause */
/* dict, OrderedDict, Counter and set: entries in the order of insertion, found by hash. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/seeded_hash.h"
#include "format/values/node.h"

enum {
    MAX_SHORT_NBYTES = 64, /* of texts that have no canonical node */
    MAX_SCANNED = 8,       /* up to this many entries are scanned, without slots */
    N_PREPARED = 16,       /* number of keys that are prepared before the first one is entered */
    MAX_ENTRIES = UINT32_MAX / 4,
    KEY_IS_PREPARED = BTH_NODE_KEY_CANONICAL | BTH_NODE_KEY_ALIAS
};

/*
 * ---- keys (P4) ----
 * Each node is hashed once; then a comparison takes constant time. Of equal str, bytes or tuples
 * one node is canonical, and the others link to it. So two tuples are equal if the canonical nodes
 * of their items are the same. Numbers are compared by value, as in Python.
 */

/* A key that is no text and no tuple, so that equal keys have equal members. Numbers of different
 * sorts are never equal. */
struct plain_key {
    enum { INTEGER, REAL, COMPLEX, BIG, DEVICE, OBJECT } sort;
    uint64_t words[2]; /* the integer; real and imaginary part; the address of an object */
    const void *bytes; /* BIG, DEVICE */
    size_t nbytes;
};

static uint64_t double_to_bits(double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof(bits));
    return bits;
}

static struct plain_key plain_key_from_double(double real)
{
    const double limit = 9223372036854775808.0; /* 2^63: cppcheck understands no hexadecimal */
    if (real >= -limit && real < limit && real == (double)(int64_t)real)
        return (struct plain_key){.sort = INTEGER, .words = {(uint64_t)(int64_t)real}};
    return (struct plain_key){.sort = REAL, .words = {double_to_bits(real)}};
}

static struct plain_key plain_key_from_value(const berth_value *key)
{
    const struct float_node *node = (const struct float_node *)key;
    const struct big_node *big = (const struct big_node *)key;
    const struct device_node *device = (const struct device_node *)key;
    switch (key->kind) {
    case BERTH_KIND_BOOL:
        return (struct plain_key){.sort = INTEGER, .words = {key->flags & BTH_NODE_TRUE}};
    case BERTH_KIND_INT: {
        if (!(key->flags & BTH_NODE_BIG))
            return (struct plain_key){.sort = INTEGER,
                                      .words = {(uint64_t)((const struct int_node *)key)->value}};
        /* Beyond 64 bits it is equal to a float if it has its value: 2**70 == 2.0**70. */
        size_t i = (size_t)big->nbytes - 1;
        double real = (int8_t)big->bytes[i];
        while (i-- > 0) {
            double higher = real * 256;
            real = higher + big->bytes[i];
            if (real - higher != big->bytes[i]) /* it was rounded, or is infinite */
                return (struct plain_key){
                    .sort = BIG, .bytes = big->bytes, .nbytes = (size_t)big->nbytes};
        }
        return (struct plain_key){.sort = REAL, .words = {double_to_bits(real)}};
    }
    case BERTH_KIND_FLOAT:
        if (isnan(node->real)) /* equal to itself alone */
            break;
        return plain_key_from_double(node->real);
    case BERTH_KIND_COMPLEX:
        if (isnan(node->real) || isnan(node->imaginary))
            break;
        if (node->imaginary == 0)
            return plain_key_from_double(node->real);
        return (struct plain_key){
            .sort = COMPLEX, /* -0.0 == 0.0 */
            .words = {double_to_bits(node->real + 0.0), double_to_bits(node->imaginary + 0.0)}};
    case BERTH_KIND_DEVICE:
        return (struct plain_key){
            .sort = DEVICE, .bytes = device->text, .nbytes = strlen(device->text)};
    default: /* None and dtypes by their only node; inert by identity */
        break;
    }
    return (struct plain_key){.sort = OBJECT, .words = {(uintptr_t)key}};
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

static uint32_t plain_key_hash(const berth_tree *tree, const struct plain_key *key)
{
    uint64_t hash = bth_hash_mix(tree->seed + key->sort, key->words[0]);
    if (key->bytes)
        return bth_hash(tree->seed, key->bytes, key->nbytes);
    return bth_hash_fold_to_u32(key->words[1] ? bth_hash_mix(hash, key->words[1]) : hash);
}

static uint32_t key_hash(const berth_tree *tree, const berth_value *key)
{
    const struct keyed *keyed = key_unwrap_text_or_tuple(key);
    if (keyed)
        return keyed->hash;
    const struct plain_key plain = plain_key_from_value(key);
    return plain_key_hash(tree, &plain);
}

static bool key_equal(const berth_value *a, const berth_value *b);

static bool key_same_content(const struct keyed *a, const struct keyed *b)
{
    if (a->hash != b->hash || a->count != b->count || a->head.kind != b->head.kind)
        return false;
    if (a->head.kind != BERTH_KIND_TUPLE)
        return memcmp(((const struct text_node *)a)->data, ((const struct text_node *)b)->data,
                      a->count) == 0;
    const struct tuple_node *x = (const struct tuple_node *)a, *y = (const struct tuple_node *)b;
    for (uint32_t i = 0; i < a->count; i++)
        if (!key_equal(x->items[i], y->items[i]))
            return false;
    return true;
}

/* Whether two prepared keys are equal, as Python's == is (or one object). Takes constant time. */
static bool key_equal(const berth_value *a, const berth_value *b)
{
    if (a == b)
        return true;
    const struct keyed *x = key_unwrap_text_or_tuple(a), *y = key_unwrap_text_or_tuple(b);
    if (x || y)
        return x && y &&
               (key_is_short(x) ? key_same_content(x, y)
                                : key_get_canonical_node(x) == key_get_canonical_node(y));
    const struct plain_key m = plain_key_from_value(a), n = plain_key_from_value(b);
    return m.sort == n.sort && m.words[0] == n.words[0] && m.words[1] == n.words[1] &&
           m.nbytes == n.nbytes && (!m.bytes || memcmp(m.bytes, n.bytes, m.nbytes) == 0);
}

/* ---- canonical nodes ---- */

/* Links a hashed node to the canonical one of its kind, or makes it that. */
static bool key_link_or_make_canonical(berth_tree *tree, struct keyed *node)
{
    struct key_table *keys = &tree->keys;
    if (!keys->chains || keys->count > keys->mask * 2) { /* full */
        size_t n = keys->chains ? (keys->mask + 1) * 2 : 64;
        struct keyed **chains = bth_tree_allocate(tree, n * sizeof(struct keyed *));
        if (!chains)
            return false;
        memset(chains, 0, n * sizeof(struct keyed *));
        for (size_t i = 0; keys->chains && i <= keys->mask; i++)
            for (struct keyed *moved = keys->chains[i], *next; moved; moved = next) {
                next = moved->link;
                moved->link = chains[moved->hash & (n - 1)];
                chains[moved->hash & (n - 1)] = moved;
            }
        bth_tree_release_allocation(tree, keys->chains,
                                    keys->chains ? (keys->mask + 1) * sizeof(*chains) : 0);
        keys->chains = chains;
        keys->mask = n - 1;
    }
    struct keyed **chain = &keys->chains[node->hash & keys->mask];
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
    keys->count++;
    return true;
}

static bool key_prepare_text(berth_tree *tree, struct keyed *node)
{
    const struct text_node *text = (const struct text_node *)node;
    node->hash = bth_hash(tree->seed, text->data, node->count);
    if (!key_is_short(node))
        return key_link_or_make_canonical(tree, node);
    node->head.flags |= BTH_NODE_KEY_CANONICAL;
    return true;
}

/* False: "a tensor cannot be `what`", "a dict key". */
static bool key_check_hashable(berth_tree *tree, const berth_value *value, const char *what)
{
    const uint32_t plain_kinds = BTH_KIND(NONE) | BTH_KIND(BOOL) | BTH_KIND(INT) | BTH_KIND(FLOAT) |
                                 BTH_KIND(COMPLEX) | BTH_KIND(DTYPE) | BTH_KIND(DEVICE) |
                                 BTH_KIND(CALL); /* inert: by identity */
    bool is_hashable = plain_kinds >> value->kind & 1 || key_unwrap_text_or_tuple(value) ||
                       (value->kind == BERTH_KIND_GLOBAL && value->flags & BTH_NODE_TRUE) ||
                       (tree->has_inert && bth_kind_is_tensor(bth_node_kind(value)));
    return is_hashable || BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "%s cannot be %s",
                                          bth_kind_phrase((berth_kind)value->kind), what);
}

/* Hashes a value and its parts once (P4). False: the tree has failed. */
static bool key_prepare(berth_tree *tree, berth_value *value, const char *what)
{
    if (!key_check_hashable(tree, value, what))
        return false;
    struct keyed *node = key_unwrap_text_or_tuple(value);
    if (!node || node->head.flags & KEY_IS_PREPARED)
        return true;
    if (node->head.kind != BERTH_KIND_TUPLE)
        return key_prepare_text(tree, node);
    /* Bottom-up, without recursion and without a stack (P3): until a tuple is hashed, its `hash` is
     * the position in it and its `link` the tuple around it. */
    node->link = NULL;
    node->hash = 0;
    while (node) {
        berth_value *const *items = ((const struct tuple_node *)node)->items;
        struct keyed *inner = NULL; /* the next item that is a tuple not yet canonical */
        while (!inner && node->hash < node->count) {
            berth_value *item = items[node->hash++];
            if (!key_check_hashable(tree, item, what))
                return false;
            struct keyed *keyed = key_unwrap_text_or_tuple(item);
            if (!keyed || keyed->head.flags & KEY_IS_PREPARED)
                continue;
            if (keyed->head.kind == BERTH_KIND_TUPLE)
                inner = keyed;
            else if (!key_prepare_text(tree, keyed))
                return false;
        }
        if (inner) {
            inner->link = node;
            inner->hash = 0;
            node = inner;
            continue;
        }
        /* Of canonical nodes of items that have one: hashes of 32-bit hashes would collide after
         * about 65,536 levels. */
        struct keyed *parent = node->link;
        uint64_t hash = bth_hash_mix(tree->seed + 4, node->count);
        for (uint32_t i = 0; i < node->count; i++) {
            const struct keyed *item = key_unwrap_text_or_tuple(items[i]);
            hash = bth_hash_mix(hash, item && !key_is_short(item)
                                          ? (uint64_t)(uintptr_t)key_get_canonical_node(item)
                                          : key_hash(tree, items[i]));
        }
        node->hash = bth_hash_fold_to_u32(hash);
        if (!key_link_or_make_canonical(tree, node))
            return false;
        node = parent;
    }
    return true;
}

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
    if (kind < BERTH_KIND_DICT || kind > BERTH_KIND_SET)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "%s (%d) is no kind of dict",
                               berth_kind_name(kind), (int)kind);
    return bth_dict_new(tree, kind);
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

bool bth_dict_reserve_entries(berth_tree *tree, struct dict_node *node, size_t n)
{
    struct table *table =
        bth_tree_reserve_array(tree, node->table ? &node->table->size : NULL, n, sizeof(*table),
                               sizeof(*table->entries), MAX_ENTRIES);
    if (!table || table == node->table)
        return table;
    node->table = table;
    if (table->size.capacity <= MAX_SCANNED)
        return true;
    bool had_slots = table->slots.slots != NULL;
    if (!bth_hash_slots_reserve(tree, &table->slots, table->size.capacity)) {
        table->size.capacity = table->size.count; /* no entry without a free slot */
        return false;
    }
    for (uint32_t i = 0; !had_slots && i < table->size.count; i++)
        bth_hash_slots_add(&table->slots, key_hash(tree, table->entries[i].key), i);
    return true;
}

/* The next entry, from *at on, that can have a key of this hash; NULL: none. At first, *at is the
   hash, or 0 if there are no slots. */
static struct table_entry *dict_next_candidate_entry(struct table *table, uint32_t hash,
                                                     uint32_t *at)
{
    uint32_t i = table->slots.slots ? bth_hash_slots_find_next(&table->slots, hash, at) : (*at)++;
    return i < table->size.count ? &table->entries[i] : NULL;
}

/* Sets an entry of a dict or set whose key and value are of the tree. */
static bool dict_insert_or_update(berth_tree *tree, struct dict_node *node, berth_value *key,
                                  berth_value *value)
{
    bool is_set = node->head.kind == BERTH_KIND_SET;
    if (!key_prepare(tree, key, is_set ? "in a set" : "a dict key") ||
        !bth_dict_reserve_entries(tree, node, 1))
        return false;
    struct table *table = node->table;
    uint32_t hash = table->slots.slots ? key_hash(tree, key) : 0, at = hash;
    struct table_entry *entry;
    while ((entry = dict_next_candidate_entry(table, hash, &at)) && !key_equal(entry->key, key))
        ;
    if (entry && tree->keeps_all) {
        /* An inert pickle must not set an entry again where other readers would do work of which
         * the tree says nothing: for a key of a known hash, or for what is in the value that is
         * replaced. */
        berth_kind kind = bth_node_kind(entry->key);
        bool is_secret = kind == BERTH_KIND_STR || kind == BERTH_KIND_BYTES ||
                         kind == BERTH_KIND_CALL || bth_kind_is_tensor(kind);
        if (!is_secret ||
            (entry->value != entry->key && bth_node_kind(entry->value) >= BERTH_KIND_LIST))
            return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE,
                                   "%s has a key twice: the first would be lost",
                                   bth_kind_phrase((berth_kind)node->head.kind));
    }
    if (entry) {
        /* As in Python: the first key stays where it is; a set keeps its first item. */
        entry->value = is_set ? entry->value : value;
        return true;
    }
    table->entries[table->size.count++] = (struct table_entry){.key = key, .value = value};
    if (table->slots.slots) /* `at` is the free slot for it */
        table->slots.slots[at] = (uint64_t)hash << 32 | table->size.count;
    return true;
}

/* ---- filling ---- */

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
        /* Prepares the next keys and prefetches their slots, which are spread over memory. */
        const struct slots *slots = node->table ? &node->table->slots : NULL;
        for (size_t j = i; i % N_PREPARED == 0 && j < n && j < i + N_PREPARED; j++) {
            if (!key_prepare(tree, items[2 * j], "a dict key"))
                return tree->error.code;
            if (slots && slots->slots)
                __builtin_prefetch(&slots->slots[key_hash(tree, items[2 * j]) & slots->mask], 1);
        }
        if (!dict_insert_or_update(tree, node, items[2 * i], items[2 * i + 1]))
            return tree->error.code;
    }
    return 0;
}

int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value)
{
    berth_value *items[2] = {key, value};
    berth_tree *tree = bth_value_tree(dict);
    berth_kind kind = bth_node_kind(dict);
    if (kind == BERTH_KIND_SET && !value) {
        bool is_added = bth_tree_check_owns_value(tree, key, "an item of a set") &&
                        dict_insert_or_update(tree, (struct dict_node *)dict, key, key);
        return is_added ? 0 : tree->error.code;
    }
    if (!bth_kind_is_dict(kind))
        return bth_tree_fail(tree, BERTH_E_ARGUMENT, "%s is not a dict%s", bth_kind_phrase(kind),
                             value ? "" : ", nor a set");
    if (!bth_tree_check_owns_value(tree, key, "a dict's key") ||
        !bth_tree_check_owns_item(tree, value, "a dict's value", key, berth_value_count(dict)))
        return tree->error.code;
    return bth_dict_extend(dict, items, 1);
}

size_t bth_dict_find_text_position(const berth_value *dict, const char *text, size_t nbytes)
{
    struct table *table = bth_dict_table(dict);
    if (!table)
        return SIZE_MAX;
    uint32_t hash = bth_hash(bth_value_tree(dict)->seed, text, nbytes);
    uint32_t at = table->slots.slots ? hash : 0;
    const struct table_entry *entry;
    while ((entry = dict_next_candidate_entry(table, hash, &at))) {
        const struct text_node *node = (const struct text_node *)entry->key;
        if (entry->key->kind == BERTH_KIND_STR && node->key.hash == hash &&
            node->key.count == nbytes && memcmp(node->data, text, nbytes) == 0)
            return (size_t)(entry - table->entries);
    }
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
    struct dict_node *node = (struct dict_node *)set;
    if (!set || (n > 0 && !bth_dict_reserve_entries(tree, node, n)))
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!dict_insert_or_update(tree, node, items[i], items[i]))
            return NULL;
    return set;
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

berth_value *bth_ordered_dict_from_pairs(berth_tree *tree, berth_value *list)
{
    assert(!list || list->kind == BERTH_KIND_LIST);
    berth_value *dict = dict_new_empty_mark_source_used(tree, BERTH_KIND_ORDERED_DICT, list);
    size_t n, stride, n_in_pair;
    berth_value *const *pairs = bth_node_items(list, &n, &stride);
    for (size_t i = 0; dict && i < n; i++) {
        berth_kind kind = bth_node_kind(pairs[i]);
        berth_value *const *pair = bth_node_items(pairs[i], &n_in_pair, &stride);
        if (n_in_pair != 2 || (kind != BERTH_KIND_LIST && kind != BERTH_KIND_TUPLE))
            return BTH_TREE_REFUSE(tree, BERTH_E_PICKLE,
                                   "an OrderedDict made from an item that is not a pair");
        if (!dict_insert_or_update(tree, (struct dict_node *)dict, pair[0], pair[1]))
            return NULL;
    }
    return dict;
}

/* ---- reading ---- */

size_t bth_dict_find_int_position(const berth_value *dict, int64_t integer)
{
    struct table *table = bth_dict_table(dict);
    if (!table)
        return SIZE_MAX;
    const struct plain_key key = {.sort = INTEGER, .words = {(uint64_t)integer}};
    uint32_t hash = plain_key_hash(bth_value_tree(dict), &key);
    uint32_t at = table->slots.slots ? hash : 0;
    const struct table_entry *entry;
    while ((entry = dict_next_candidate_entry(table, hash, &at))) {
        /* True and 1.0 equal 1, but are not the int key 1. */
        const struct int_node *node = (const struct int_node *)entry->key;
        if (entry->key->kind == BERTH_KIND_INT && !(entry->key->flags & BTH_NODE_BIG) &&
            node->value == integer)
            return (size_t)(entry - table->entries);
    }
    return SIZE_MAX;
}

berth_value *berth_dict_get(const berth_value *dict, const char *key)
{
    return key ? bth_value_item(dict, bth_dict_find_text_position(dict, key, strlen(key))) : NULL;
}
