/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the keys of a file cost Python (Y6).
 *
 * Python hashes a tuple by recursion, and an item once for each of its uses: a file of a hundred
 * bytes can keep it busy for ever, or end its stack. So each tuple's size is counted as Python
 * meets it, and its depth.
 *
 * And it finds a key's place by its hash, which is the same in each process for all but str and
 * bytes: n keys that were chosen so that they meet at one place cost n * n steps. So the steps are
 * counted as Python will make them, in tables of bits: one for each size that Python's table has as
 * it grows.
 */
#include "adapters/python/native/native.h"

#define MAX_KEY_DEPTH 500                 /* of tuples in tuples */
#define MAX_KEY_ITEMS ((uint64_t)1 << 24) /* of all tuples that are keys: 0.2 s of hashing */

/* Keys of any sort of numbers need less than 16 steps each, those of a random hash less than 3. */
#define MAX_STEPS_PER_KEY 64
#define FREE_STEPS ((uint64_t)1 << 22)
#define FEW_KEYS                                                                                   \
    64 /* containers of so few cost no more than MAX_STEPS_PER_KEY each, whatever they are */

#define MIN_BITS 7
#define MAX_BITS 40
#define PERTURB_SHIFT 5 /* of CPython's dict and set */
#define LINEAR_PROBES 9 /* of its set: after each slot the next ones are tried */

/* ---- sizes of tuples ---- */

typedef struct tuple_size {
    uint64_t n_items;
    uint64_t depth;
} tuple_size;

#define DEPTH_BITS 16

static tuple_size size_of_tuple(const bpy_loader *loader, const berth_value *tuple)
{
    uint64_t packed = (uint64_t)(uintptr_t)bpy_map_get(&loader->sizes, tuple);
    return (tuple_size){packed >> DEPTH_BITS, packed & ((1u << DEPTH_BITS) - 1)};
}

int bpy_count_tuple(bpy_loader *loader, const berth_value *tuple)
{
    tuple_size size = {.n_items = 1 + berth_value_count(tuple), .depth = 0};
    for (size_t i = 0; i < berth_value_count(tuple); i++) {
        const berth_value *item = berth_value_at(tuple, i);
        if (berth_value_kind(item) != BERTH_KIND_TUPLE)
            continue;
        tuple_size inner = size_of_tuple(loader, item);
        size.n_items += inner.n_items;
        if (size.n_items > MAX_KEY_ITEMS)
            size.n_items = MAX_KEY_ITEMS + 1;
        size.depth = inner.depth > size.depth ? inner.depth : size.depth;
    }
    size.depth += size.depth <= MAX_KEY_DEPTH;
    return bpy_map_set(&loader->sizes, tuple,
                       (void *)(uintptr_t)(size.n_items << DEPTH_BITS | size.depth));
}

/* ---- steps ---- */

struct bpy_key_table {
    bool is_set;
    uint64_t n;                    /* keys so far */
    int n_bits;                    /* of the largest size */
    uint64_t *taken[MAX_BITS + 1]; /* slots of the size 2^i */
};

bpy_key_table *bpy_key_table_new(uint64_t n, bool is_set)
{
    bpy_key_table *table = PyMem_Calloc(1, sizeof *table);
    if (!table)
        return PyErr_NoMemory(), NULL;
    table->is_set = is_set;
    table->n_bits = MIN_BITS;
    while (table->n_bits < MAX_BITS && (UINT64_C(1) << table->n_bits) / 3 * 2 <= n)
        table->n_bits++;
    for (int bits = MIN_BITS; bits <= table->n_bits; bits++) {
        table->taken[bits] = PyMem_Calloc((UINT64_C(1) << bits) / 64, sizeof(uint64_t));
        if (table->taken[bits])
            continue;
        bpy_key_table_free(table);
        return PyErr_NoMemory(), NULL;
    }
    return table;
}

void bpy_key_table_free(bpy_key_table *table)
{
    if (!table)
        return;
    for (int bits = MIN_BITS; bits <= table->n_bits; bits++)
        PyMem_Free(table->taken[bits]);
    PyMem_Free(table);
}

/* Takes a slot. Returns: false: it was taken before. */
static bool take_slot(uint64_t *taken, uint64_t slot)
{
    uint64_t bit = UINT64_C(1) << (slot % 64);
    bool is_free = !(taken[slot / 64] & bit);
    taken[slot / 64] |= bit;
    return is_free;
}

/* The steps to a free slot in the table of one size; no more than `most` are made. */
static uint64_t count_steps(uint64_t *taken, int bits, uint64_t hash, bool is_set, uint64_t most)
{
    uint64_t mask = (UINT64_C(1) << bits) - 1, slot = hash & mask, perturb = hash, n = 0;
    for (; n < most; slot = (slot * 5 + perturb + 1) & mask) {
        uint64_t last = is_set && slot + LINEAR_PROBES <= mask ? slot + LINEAR_PROBES : slot;
        for (uint64_t at = slot; at <= last; at++, n++)
            if (take_slot(taken, at))
                return n;
        perturb >>= PERTURB_SHIFT;
    }
    return n;
}

/* All steps that a key makes, in the table of each size that it is in. */
static uint64_t steps_of_key(bpy_key_table *table, uint64_t hash, uint64_t most)
{
    uint64_t n = 0;
    for (int bits = table->n_bits; bits >= MIN_BITS && n < most; bits--)
        if (table->n < (UINT64_C(1) << bits) / 3 * 2)
            n += count_steps(table->taken[bits], bits, hash, table->is_set, most - n);
    table->n++;
    return n;
}

/* ---- keys ---- */

static int refuse(const char *why)
{
    berth_error error = {.code = BERTH_E_PICKLE, .offset = BERTH_NO_OFFSET};
    (void)snprintf(error.record, sizeof error.record, "data.pkl");
    (void)snprintf(error.message, sizeof error.message, "%s", why);
    bpy_raise(&error);
    return -1;
}

/* Counts the items of a key that is a tuple. *n receives how many. */
static int count_items(bpy_loader *loader, const berth_value *key, uint64_t *n)
{
    tuple_size size = size_of_tuple(loader, key);
    char why[200];
    *n = size.n_items;
    loader->n_key_items += size.n_items;
    if (size.depth <= MAX_KEY_DEPTH && loader->n_key_items <= MAX_KEY_ITEMS)
        return 0;
    (void)snprintf(why, sizeof why,
                   "a key is a tuple that Python cannot hash: more than %d deep, or all keys have "
                   "more than %llu items",
                   MAX_KEY_DEPTH, (unsigned long long)MAX_KEY_ITEMS);
    return refuse(why);
}

/* Counts the steps to a key's place; n_items: what each of them can cost, as keys are compared. */
static int count_place(bpy_loader *loader, bpy_key_table *table, PyObject *object, uint64_t n_items)
{
    uint64_t most = FREE_STEPS + MAX_STEPS_PER_KEY * loader->n_keys - loader->n_steps;
    Py_hash_t hash = PyObject_Hash(object);
    if (hash == -1)
        return -1;
    loader->n_steps += n_items * steps_of_key(table, (uint64_t)hash, most / n_items + 1);
    if (loader->n_steps <= FREE_STEPS + MAX_STEPS_PER_KEY * loader->n_keys)
        return 0;
    return refuse("its keys were chosen so that their hashes collide: Python would need hours for "
                  "them");
}

int bpy_check_key(bpy_loader *loader, bpy_key_table **table, const berth_value *container,
                  const berth_value *key, PyObject *object)
{
    berth_kind kind = berth_value_kind(key);
    uint64_t n_items = 1;
    if (kind == BERTH_KIND_STR || kind == BERTH_KIND_BYTES) /* by a hash that is secret */
        return 0;
    if (kind == BERTH_KIND_TUPLE && count_items(loader, key, &n_items) < 0)
        return -1;
    loader->n_keys += n_items;
    if (berth_value_count(container) <= FEW_KEYS)
        return 0;
    if (!*table)
        *table = bpy_key_table_new(berth_value_count(container),
                                   berth_value_kind(container) == BERTH_KIND_SET);
    return *table ? count_place(loader, *table, object, n_items) : -1;
}
