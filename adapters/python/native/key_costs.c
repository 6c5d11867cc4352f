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
 * it grows. Keys of one hash are compared, too, which costs as much as they have items.
 *
 * The hash of an object that a class of the file makes (behind the gate, Y1) is not known before
 * PyTorch makes it. So each such key is taken to meet all others of its container.
 */
#include "adapters/python/native/native.h"

#define MAX_KEY_DEPTH 500                 /* of tuples in tuples */
#define MAX_KEY_ITEMS ((uint64_t)1 << 24) /* of all tuples that are keys: 0.2 s of hashing */

/*
 * Keys of any sort of numbers need less than 16 steps each, those of a random hash less than 3. To
 * compare two keys counts as a step for each item; all keys together may have one for each of
 * theirs.
 */
#define MAX_STEPS_PER_KEY 64
#define FREE_STEPS ((uint64_t)1 << 22)
#define FEW_KEYS                                                                                   \
    64 /* of numbers: they cost no more than MAX_STEPS_PER_KEY each, whatever they are */

/*
 * To compare two objects takes as long as these steps: 0.3 us, if their class is written in Python.
 * So a dict has at most about 1,000 such keys, which may cost half a second.
 */
#define STEPS_OF_OBJECT 4

#define ITEM_NBYTES 16 /* of a text or a large number: they cost as much as an item does */

#define MIN_BITS 7
#define MAX_BITS 40
#define PERTURB_SHIFT 5 /* of CPython's dict and set */
#define LINEAR_PROBES 9 /* of its set: after each slot the next ones are tried */

/* ---- sizes of keys ---- */

typedef struct key_size {
    uint64_t n_items;
    uint64_t depth;
    bool has_object; /* it is, or has in it, what a class of the file makes */
} key_size;

#define OBJECT_BIT 15
#define DEPTH_BITS 16

static key_size counted(const bpy_loader *loader, const berth_value *value)
{
    uint64_t packed = (uint64_t)(uintptr_t)bpy_map_get(&loader->sizes, value);
    return (key_size){packed >> DEPTH_BITS, packed & ((1u << OBJECT_BIT) - 1),
                      packed >> OBJECT_BIT & 1};
}

/* What can be a key, or is in one; a value without items counts by its bytes. */
static key_size size_of(const bpy_loader *loader, const berth_value *value)
{
    size_t nbytes = 0;
    int32_t rank = 0;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_TUPLE:
    case BERTH_KIND_CALL:
        return counted(loader, value);
    case BERTH_KIND_SUBCLASS: /* of a class of its own, in a trial */
        return (key_size){1, 0, loader->is_trial};
    case BERTH_KIND_STR:
        (void)berth_as_text(value, &nbytes);
        break;
    case BERTH_KIND_INT: /* of bytes if it is large */
    case BERTH_KIND_BYTES:
        (void)berth_as_bytes(value, &nbytes);
        break;
    case BERTH_KIND_SIZE:
        (void)berth_as_size(value, &rank);
        break;
    default:
        break;
    }
    return (key_size){1 + nbytes / ITEM_NBYTES + (uint64_t)rank, 0, false};
}

static void add_size(const bpy_loader *loader, key_size *size, const berth_value *item)
{
    key_size inner = size_of(loader, item);
    size->n_items += inner.n_items;
    if (size->n_items > MAX_KEY_ITEMS)
        size->n_items = MAX_KEY_ITEMS + 1;
    size->depth = inner.depth > size->depth ? inner.depth : size->depth;
    size->has_object |= inner.has_object;
}

/* What the fields of an object are: its class may hash and compare them, as a frozen dataclass
 * does. */
static void add_state(const bpy_loader *loader, key_size *size, const berth_value *state)
{
    berth_value *key, *item;
    bool has_fields = berth_value_kind(state) == BERTH_KIND_DICT;
    bool is_list = berth_value_kind(state) == BERTH_KIND_LIST;
    if (!has_fields && !is_list)
        add_size(loader, size, state);
    for (size_t i = 0; has_fields && berth_dict_at(state, i, &key, &item); i++)
        add_size(loader, size, item);
    for (size_t i = 0; is_list && i < berth_value_count(state); i++)
        add_size(loader, size, berth_value_at(state, i));
}

int bpy_count_key(bpy_loader *loader, const berth_value *value)
{
    bool is_object = berth_value_kind(value) == BERTH_KIND_CALL;
    key_size size = {.n_items = 1, .has_object = is_object};
    for (size_t i = 0; i < berth_value_count(value); i++)
        add_size(loader, &size, berth_value_at(value, i));
    const berth_value *state = is_object ? berth_value_part(value, BERTH_PART_STATE) : NULL;
    if (state)
        add_state(loader, &size, state);
    size.depth += size.depth <= MAX_KEY_DEPTH;
    return bpy_map_set(&loader->sizes, value,
                       (void *)(uintptr_t)(size.n_items << DEPTH_BITS |
                                           (uint64_t)size.has_object << OBJECT_BIT | size.depth));
}

/* ---- steps ---- */

struct bpy_key_table {
    bool is_set;
    uint64_t n;                    /* keys so far */
    uint64_t n_objects;            /* of them, those whose hash is not known */
    int n_bits;                    /* of the largest size */
    uint64_t *taken[MAX_BITS + 1]; /* slots of the size 2^i */
    uint32_t *hashes;              /* in the slots of the largest size; of keys of many items */
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
    table->hashes = PyMem_Calloc(UINT64_C(1) << table->n_bits, sizeof *table->hashes);
    if (table->hashes)
        return table;
    bpy_key_table_free(table);
    return PyErr_NoMemory(), NULL;
}

void bpy_key_table_free(bpy_key_table *table)
{
    if (!table)
        return;
    for (int bits = MIN_BITS; bits <= table->n_bits; bits++)
        PyMem_Free(table->taken[bits]);
    PyMem_Free(table->hashes);
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

/*
 * The steps to a free slot in the table of one size, from `most` on not all. A key of many items is
 * compared with each that has its hash: in one of the tables, as Python does it once.
 */
static uint64_t count_steps(bpy_key_table *table, int bits, uint64_t hash, uint64_t n_items,
                            uint64_t most)
{
    uint64_t mask = (UINT64_C(1) << bits) - 1, slot = hash & mask, perturb = hash, n = 0;
    uint32_t *hashes = n_items > 1 && bits == table->n_bits ? table->hashes : NULL;
    for (; n < most; slot = (slot * 5 + perturb + 1) & mask) {
        uint64_t last = table->is_set && slot + LINEAR_PROBES <= mask ? slot + LINEAR_PROBES : slot;
        for (uint64_t at = slot; at <= last; at++, n++) {
            if (take_slot(table->taken[bits], at)) {
                if (hashes)
                    hashes[at] = (uint32_t)hash;
                return n;
            }
            if (hashes && hashes[at] == (uint32_t)hash)
                n += n_items;
        }
        perturb >>= PERTURB_SHIFT;
    }
    return n;
}

/* All steps that a key makes, in the table of each size that it is in. */
static uint64_t steps_of_key(bpy_key_table *table, uint64_t hash, uint64_t n_items, uint64_t most)
{
    uint64_t n = 0;
    for (int bits = table->n_bits; bits >= MIN_BITS && n < most; bits--)
        if (table->n < (UINT64_C(1) << bits) / 3 * 2)
            n += count_steps(table, bits, hash, n_items, most - n);
    table->n++;
    return n;
}

/* ---- keys ---- */

static int refuse(const bpy_loader *loader, const char *why)
{
    berth_error error = {.code = BERTH_E_PICKLE, .offset = BERTH_NO_OFFSET}, unknown;
    berth_info info;
    if (berth_get_info(loader->checkpoint->handle, &info, &unknown) == 0 &&
        strcmp(info.container, "zip") == 0) /* a legacy file has no records */
        (void)snprintf(error.record, sizeof error.record, "data.pkl");
    (void)snprintf(error.message, sizeof error.message, "%s", why);
    bpy_raise_of(loader->checkpoint, &error);
    return -1;
}

/* Counts the items of a key that is a tuple or an object. */
static int count_items(bpy_loader *loader, key_size size)
{
    char why[200];
    loader->n_key_items += size.n_items;
    if (size.depth <= MAX_KEY_DEPTH && loader->n_key_items <= MAX_KEY_ITEMS)
        return 0;
    (void)snprintf(why, sizeof why,
                   "a key is a tuple or an object that Python cannot hash: more than %d deep, or "
                   "all keys have "
                   "more than %llu items",
                   MAX_KEY_DEPTH, (unsigned long long)MAX_KEY_ITEMS);
    return refuse(loader, why);
}

static uint64_t allowed_steps(const bpy_loader *loader)
{
    return FREE_STEPS + MAX_STEPS_PER_KEY * loader->n_keys + loader->n_key_items;
}

/* Counts the steps to a key's place. */
static int count_place(bpy_loader *loader, bpy_key_table *table, PyObject *object, uint64_t n_items)
{
    uint64_t allowed = allowed_steps(loader);
    Py_hash_t hash = PyObject_Hash(object);
    if (hash == -1)
        return -1;
    loader->n_steps += steps_of_key(table, (uint64_t)hash, n_items, allowed - loader->n_steps + 1);
    if (loader->n_steps <= allowed)
        return 0;
    return refuse(loader, "its keys were chosen so that their hashes collide: Python would need "
                          "hours for them");
}

/* Counts what a key and the objects before it can cost: each pair, if one of it is an object. */
static int count_objects(bpy_loader *loader, bpy_key_table *table, key_size size)
{
    loader->n_steps += table->n_objects * (STEPS_OF_OBJECT + size.n_items);
    if (size.has_object) {
        loader->n_steps += table->n - table->n_objects;
        table->n_objects++;
        table->n++;
    }
    if (loader->n_steps <= allowed_steps(loader))
        return 0;
    return refuse(
        loader,
        "too many keys of a dict or set are objects of classes: Python may have to compare each "
        "of them with all others, and about 1,000 in one dict are read; weights_only=False does "
        "not count them");
}

int bpy_check_key(bpy_loader *loader, bpy_key_table **table, const berth_value *container,
                  const berth_value *key, PyObject *object)
{
    berth_kind kind = berth_value_kind(key);
    if (kind == BERTH_KIND_STR || kind == BERTH_KIND_BYTES) /* by a hash that is secret */
        return 0;
    key_size size = size_of(loader, key);
    if ((kind == BERTH_KIND_TUPLE || size.has_object) && count_items(loader, size) < 0)
        return -1;
    loader->n_keys++;
    bool are_few = berth_value_count(container) <= FEW_KEYS && size.n_items == 1;
    if (!*table && are_few && !size.has_object)
        return 0;
    if (!*table)
        *table = bpy_key_table_new(berth_value_count(container),
                                   berth_value_kind(container) == BERTH_KIND_SET);
    if (!*table || count_objects(loader, *table, size) < 0)
        return -1;
    return size.has_object ? 0 : count_place(loader, *table, object, size.n_items);
}

int bpy_check_frozenset(bpy_loader *loader, const berth_value *call)
{
    const berth_value *class = berth_value_part(call, BERTH_PART_INNER);
    const berth_value *items = berth_value_count(call) == 1 ? berth_value_at(call, 0) : NULL;
    const char *name =
        class && berth_value_kind(class) == BERTH_KIND_GLOBAL ? berth_as_text(class, NULL) : "";
    PyObject *objects = items && (berth_value_kind(items) == BERTH_KIND_LIST ||
                                  berth_value_kind(items) == BERTH_KIND_TUPLE)
                            ? bpy_map_get(&loader->objects, items)
                            : NULL;
    if (!objects ||
        (strcmp(name, "__builtin__ frozenset") != 0 && strcmp(name, "builtins frozenset") != 0))
        return 0;
    bpy_key_table *table = bpy_key_table_new(berth_value_count(items), true);
    int status = table ? 0 : -1;
    for (size_t i = 0; status == 0 && i < berth_value_count(items); i++) {
        PyObject *object = PySequence_GetItem(objects, (Py_ssize_t)i);
        status =
            object ? bpy_check_key(loader, &table, items, berth_value_at(items, i), object) : -1;
        Py_XDECREF(object);
    }
    bpy_key_table_free(table);
    if (status < 0 && PyErr_ExceptionMatches(PyExc_TypeError)) { /* PyTorch will say so */
        PyErr_Clear();
        status = 0;
    }
    return status;
}
