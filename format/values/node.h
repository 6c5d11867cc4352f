/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Values in memory. Private to format/values/ and to the pickle reader, which reads millions of
 * nodes without a call. All is small because of P3, 64 bytes of memory for each byte of pickle:
 * "]",
 * "}" and TUPLE1 are one byte each. A node begins with 8 bytes. It has no pointer to its tree: `at`
 * is its distance from the start of its memory block, which has one.
 */
#ifndef BTH_FORMAT_VALUES_NODE_H
#define BTH_FORMAT_VALUES_NODE_H

#include "base/seeded_hash.h"
#include "berth/more.h"
#include "format/values/value.h"

enum {
    BTH_BLOCK_UNIT = 8,
    BTH_NO_ID = UINT32_MAX,
    /* Larger pieces get a block of their own, so that at most 1/16 of a chunk is wasted. */
    BTH_MAX_IN_CHUNK = 1024
};

/* Bits of berth_value.flags. Their meaning depends on the kind. */
enum {
    /* BOOL: the value; PARAMETER: requires_grad; CALL: NEWOBJ; GLOBAL: inert */
    BTH_NODE_TRUE = 1,
    BTH_NODE_BIG = 2,            /* INT: more than an int64 */
    BTH_NODE_USED = 4,           /* LIST, dicts: was the argument of a REDUCE, or a state */
    BTH_NODE_INTS = 8,           /* TUPLE: all items are known to fit int64 */
    BTH_NODE_COALESCED = 16,     /* SPARSE */
    BTH_NODE_KEY_CANONICAL = 32, /* keyed: equal keys refer to this node */
    BTH_NODE_KEY_ALIAS = 64,     /* keyed: `link` is the canonical node */
    BTH_NODE_ATTRIBUTES = 128    /* DICT: its names are good ones for a tensor's attributes */
};

struct berth_value {
    uint8_t kind;
    uint8_t flags;
    uint16_t at; /* distance from the block's start in units of 8 bytes */
    uint32_t id;
};

/* INT, DTYPE, QSCHEME, LAYOUT. */
struct int_node {
    berth_value head;
    int64_t value;
};

struct big_node {
    berth_value head;
    uint64_t nbytes;
    uint8_t bytes[];
};

struct float_node {
    berth_value head;
    double real;
    double imaginary; /* only COMPLEX has the room */
};

/* The size of a FLOAT. */
#define BTH_FLOAT_NBYTES offsetof(struct float_node, imaginary)

/* STR, BYTES and TUPLE, which are hashed once and then compared by their canonical node (P4).
 * `link`: of a canonical node the next in its chain, of an alias the canonical one. */
struct keyed {
    berth_value head;
    uint32_t count; /* bytes of text, or items */
    uint32_t hash;
    struct keyed *link;
};

struct text_node {
    struct keyed key;
    /* STR: its BYTES when decoded as latin-1. BYTES: the node that holds the bytes, if not this. */
    struct text_node *other;
    char data[];
};

struct tuple_node {
    struct keyed key;
    int64_t *shape; /* made by bth_value_as_shape */
    berth_value *items[];
};

/* BYTEARRAY around BYTES, SIZE around a TUPLE, PARAMETER and SUBCLASS (with state). */
struct wrap_node {
    berth_value head;
    berth_value *inner;
    berth_value *state; /* only PARAMETER and SUBCLASS have the room */
    berth_value *type;  /* only SUBCLASS has the room; NULL: torch.Tensor */
};

#define BTH_WRAP_NBYTES offsetof(struct wrap_node, state)
/* From `inner` to `type`, in pointers. */
#define BTH_WRAP_TYPE_STRIDE                                                                       \
    ((offsetof(struct wrap_node, type) - offsetof(struct wrap_node, inner)) / sizeof(berth_value *))

/* The beginning of each array of bth_tree_reserve_array. */
struct size {
    uint32_t count;
    uint32_t capacity;
};

struct list_items {
    struct size size;
    int64_t *shape; /* made by bth_value_as_shape, dropped when the list grows */
    berth_value *items[];
};

struct list_node {
    berth_value head;
    struct list_items *items; /* NULL: empty */
};

struct table_entry {
    berth_value *key;
    berth_value *value;
};

/* Positions by hash. */
struct slots {
    uint64_t *slots; /* hash, and position + 1; 0: free. NULL: there are none yet */
    uint32_t mask;   /* slots - 1 */
};

/* The contents of a dict or set. Made with the first item or the state. */
struct table {
    struct size size;
    struct slots slots; /* of entries; few entries are scanned and have no slots */
    berth_value *state; /* attributes of an OrderedDict */
    struct table_entry entries[];
};

/* DICT, ORDERED_DICT, COUNTER, SET. */
struct dict_node {
    berth_value head;
    struct table *table; /* NULL: empty */
};

struct device_node {
    berth_value head;
    int64_t index;
    char type[32];
    char text[40];
};

struct global_node {
    berth_value head;
    uint32_t module_nbytes;
    uint32_t name_nbytes;
    uint32_t known; /* the pickle reader's number of it + 1; 0: not known */
    char text[];    /* "module name" NUL "module" NUL */
};

struct storage_node {
    berth_value head;
    berth_storage *storage;
    berth_dtype dtype; /* of the class that it was named by */
};

struct tensor_node {
    berth_value head;
    berth_value *state;
    berth_tensor tensor;
};

struct parts_node { /* SPARSE, NESTED */
    berth_value head;
    const int64_t *shape; /* SPARSE */
    int32_t rank;
    uint8_t layout;
    uint8_t n_parts;
    berth_value *parts[];
};

struct call_node {
    berth_value head;
    berth_value *made_of[2]; /* the callable, and the TUPLE of arguments */
    berth_value *state;
    berth_value *list_items; /* LIST, NULL until there is an item (P3) */
    berth_value *dict_items; /* DICT, the same */
};

/* Begins each piece of memory that a tree takes from the allocator. */
struct block {
    _Alignas(BTH_BLOCK_UNIT) struct block *previous; /* so that what follows is, in 32 bits too */
    struct block *next;
    berth_tree *tree;
};

/* Canonical keys, chained by `link`. */
struct key_table {
    struct keyed **chains;
    size_t mask; /* chains - 1 */
    size_t count;
};

struct storage_items {
    struct size size;
    berth_storage *items[];
};

struct storage_table {
    berth_storage *next; /* room for n_room more, side by side: they are walked again and again */
    size_t n_room;
    struct storage_items *items; /* NULL: none */
    struct slots slots;          /* by key; none while each key is its position */
};

struct berth_tree {
    struct block *blocks;
    struct block *chunk; /* the one that is being filled */
    size_t chunk_at;
    size_t chunk_nbytes;
    size_t chunks_nbytes; /* of all chunks */
    char *spare;          /* what is left of the memory of bth_tree_set_spare_memory */
    size_t spare_nbytes;
    uint64_t seed; /* of the hash of keys */
    uint32_t n_ids;
    berth_value *none;
    berth_value *bools[2];
    berth_value *empty_tuple;
    berth_value *dtypes[BERTH_DTYPE_COUNT];
    berth_value *qschemes[BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS + 1];
    berth_value *layouts[BERTH_JAGGED + 1];
    struct key_table keys;
    struct storage_table storages;
    berth_error error;
    bool is_located; /* the error names a key or an index */
    bool has_inert;  /* a tensor can be a key, by identity: optimizers keep their state so */
    bool keeps_all;  /* an inert pickle is read: no key can take the place of an equal one */
};

/* ---- in line ---- */

/* berth_value_kind, inlined. */
static inline berth_kind bth_node_kind(const berth_value *value)
{
    return value ? (berth_kind)value->kind : BERTH_KIND_NONE;
}

static inline bool bth_node_is(const berth_value *value, berth_kind kind)
{
    return value && value->kind == kind;
}

/* The entries of a dict; NULL: there are none, or it is no dict. */
static inline struct table *bth_dict_table(const berth_value *value)
{
    return bth_kind_is_dict(bth_node_kind(value)) ? ((const struct dict_node *)value)->table : NULL;
}

/* The node that holds the bytes of a STR or BYTES. */
static inline const struct text_node *bth_text_node_with_bytes(const berth_value *value)
{
    const struct text_node *node = (const struct text_node *)value;
    return node->key.head.kind == BERTH_KIND_BYTES && node->other ? node->other : node;
}

/* The next position of this hash, from slot *at on, which is the hash at first. UINT32_MAX: none;
 * then *at is a free slot. Keys with other hashes are not touched. */
static inline uint32_t bth_hash_slots_find_next(const struct slots *slots, uint32_t hash,
                                                uint32_t *at)
{
    for (uint64_t slot;; ++*at) {
        *at &= slots->mask;
        slot = slots->slots[*at];
        if (!slot)
            return UINT32_MAX;
        if (slot >> 32 == hash) {
            ++*at;
            return (uint32_t)slot - 1;
        }
    }
}

/* ---- tree.c ---- */

/* A node, zeroed after its head, with an id unless its kind has none. NULL: the tree has failed. */
void *bth_node_new(berth_tree *tree, berth_kind kind, size_t nbytes);
/* Like bth_node_new, without an id. */
void *bth_node_new_without_id(berth_tree *tree, berth_kind kind, size_t nbytes);

static inline size_t bth_tree_round_up_nbytes(size_t nbytes)
{
    return (nbytes + BTH_BLOCK_UNIT - 1) & ~(size_t)(BTH_BLOCK_UNIT - 1);
}

/* Memory in the current chunk; NULL: there is no room, or nbytes (below SIZE_MAX / 2) is large. */
static inline void *bth_tree_allocate_in_chunk(berth_tree *tree, size_t nbytes)
{
    size_t rounded = bth_tree_round_up_nbytes(nbytes);
    if (rounded > BTH_MAX_IN_CHUNK || rounded > tree->chunk_nbytes - tree->chunk_at)
        return NULL;
    void *memory = (char *)tree->chunk + tree->chunk_at;
    tree->chunk_at += rounded;
    return memory;
}

/* Like bth_node_new; what follows the head is not zeroed. Inline: a file makes millions of nodes.
 */
static inline void *bth_node_new_uninitialized(berth_tree *tree, berth_kind kind, size_t nbytes)
{
    berth_value *node = tree->n_ids == BTH_NO_ID ? NULL : bth_tree_allocate_in_chunk(tree, nbytes);
    if (!node)
        return bth_node_new(tree, kind, nbytes);
    size_t at = (size_t)((char *)node - (char *)tree->chunk) / BTH_BLOCK_UNIT;
    *node = (berth_value){.kind = (uint8_t)kind, .at = (uint16_t)at, .id = tree->n_ids++};
    return node;
}

/* bth_tree_allocate, inlined. */
static inline void *bth_tree_allocate_inline(berth_tree *tree, size_t nbytes)
{
    void *memory = bth_tree_allocate_in_chunk(tree, nbytes);
    return memory ? memory : bth_tree_allocate(tree, nbytes);
}

/* Makes room for n more items, at most max in all, behind a head that begins with its size. A new
 * head is zeroed. NULL: the tree has failed, and the old memory stays valid. */
void *bth_tree_reserve_array(berth_tree *tree, struct size *old, size_t n, size_t head_nbytes,
                             size_t item_nbytes, size_t max);
/* Frees memory of bth_tree_allocate; small pieces stay until the tree is freed. */
void bth_tree_release_allocation(berth_tree *tree, void *memory, size_t nbytes);
/* Returns true if the value is not NULL and of this tree; else the tree fails. */
bool bth_tree_check_owns_value(berth_tree *tree, const berth_value *value, const char *what);
/* The same for an item of a container. The tree's error then begins with the key, or with the index
 * if `key` is NULL; an earlier error, too, because a value that could not be made is NULL. */
bool bth_tree_check_owns_item(berth_tree *tree, const berth_value *value, const char *what,
                              const berth_value *key, size_t index);
/* For n values. */
bool bth_tree_check_owns_items(berth_tree *tree, berth_value *const *values, size_t n,
                               const char *what);

/* A BYTEARRAY, SIZE, PARAMETER or SUBCLASS. NULL if inner is NULL: then the tree has failed. */
berth_value *bth_wrapper_node_new(berth_tree *tree, berth_kind kind, berth_value *inner);

/* ---- container_items.c ---- */

/* The n items of any value, `stride` pointers apart: of a dict its values, of a CALL its arguments.
 */
berth_value *const *bth_node_items(const berth_value *value, size_t *n, size_t *stride);

/* ---- sequence_values.c ---- */

/* Like berth_make_tuple, of items that are of the tree. */
berth_value *bth_tuple_of(berth_tree *tree, berth_value *const *items, size_t n_items);

/* ---- dict.c ---- */

/* An empty dict or set of any kind. */
berth_value *bth_dict_new(berth_tree *tree, berth_kind kind);
/* Makes room for so many positions. False: the tree has failed. */
bool bth_hash_slots_reserve(berth_tree *tree, struct slots *slots, size_t capacity);
void bth_hash_slots_add(struct slots *slots, uint32_t hash, uint32_t position);
/* Makes room for n more entries. */
bool bth_dict_reserve_entries(berth_tree *tree, struct dict_node *node, size_t n);

#endif
