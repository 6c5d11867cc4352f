/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages of a tree: the bytes that tensors view. */
#include "config/memory.h"
#include "format/values/node.h"
#include "format/values/value.h"

#include <inttypes.h>
#include <string.h>

/*
 * A persistent id of 15 bytes can name a key and a location by memo. Both are hashed or
 * copied, so both are bounded (P3); PyTorch's are numbers, addresses, and "cuda:0".
 */
enum { LONGEST_KEY = 1024, LONGEST_LOCATION = 255 };

size_t bth_tree_n_storages(const berth_tree *tree)
{
    return tree->storages.count;
}

berth_storage *bth_tree_storage(const berth_tree *tree, size_t i)
{
    return i < tree->storages.count ? tree->storages.items[i] : NULL;
}

static const char *storage_copy_text(berth_tree *tree, const char *text, size_t nbytes)
{
    char *copy = bth_tree_allocate(tree, nbytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, nbytes);
    copy[nbytes] = '\0';
    return copy;
}

/* A copy of the location's text, shared with the storage before it if they are the same. */
static const char *storage_keep_location(berth_tree *tree, const char *location, size_t nbytes)
{
    if (nbytes == 3 && memcmp(location, "cpu", 3) == 0)
        return "cpu";
    if (nbytes > LONGEST_LOCATION || memchr(location, '\0', nbytes)) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                      "a storage's location of %zu bytes (at most %d, without NUL)", nbytes,
                      LONGEST_LOCATION);
        return NULL;
    }
    if (nbytes == 4 && memcmp(location, "meta", 4) == 0) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                      "a storage whose location is meta: PyTorch would read none of its bytes");
        return NULL;
    }
    if (tree->storages.count) {
        const char *last = tree->storages.items[tree->storages.count - 1]->location;
        if (strlen(last) == nbytes && memcmp(last, location, nbytes) == 0)
            return last;
    }
    return storage_copy_text(tree, location, nbytes);
}

static int storage_fail_memory(berth_tree *tree, size_t nbytes)
{
    return bth_tree_fail(tree, BERTH_E_MEMORY, "out of memory: %zu bytes for storages", nbytes);
}

static bool storage_reserve(berth_tree *tree)
{
    struct storage_table *table = &tree->storages;
    if (table->count < table->capacity)
        return true;
    size_t capacity = table->capacity ? bth_tree_capacity(table->capacity, table->count + 1) : 16;
    void *items = bth_reallocate(table->items, capacity * sizeof(*table->items));
    if (!items) {
        storage_fail_memory(tree, capacity * sizeof(*table->items));
        return false;
    }
    table->items = items;
    table->capacity = capacity;
    return true;
}

/* A zeroed one. */
static berth_storage *storage_next(berth_tree *tree)
{
    struct storage_table *table = &tree->storages;
    if (table->n_room == 0)
        table->next = bth_tree_allocate_some(tree, sizeof(*table->next), &table->n_room);
    if (!table->next) {
        table->n_room = 0;
        return NULL;
    }
    table->n_room--;
    return memset(table->next++, 0, sizeof(berth_storage));
}

static const char *storage_keep_key(berth_tree *tree, berth_storage *storage, const char *key,
                                    size_t nbytes)
{
    if (nbytes >= sizeof(storage->short_key))
        return storage_copy_text(tree, key, nbytes);
    for (size_t i = 0; i < nbytes; i++)
        storage->short_key[i] = key[i];
    return storage->short_key;
}

static berth_storage *storage_add(berth_tree *tree, const char *key, size_t key_nbytes,
                                  const char *location, size_t location_nbytes)
{
    const char *own_location = storage_keep_location(tree, location, location_nbytes);
    berth_storage *storage = own_location && storage_reserve(tree) ? storage_next(tree) : NULL;
    const char *own_key = storage ? storage_keep_key(tree, storage, key, key_nbytes) : NULL;
    if (!own_key)
        return NULL;
    storage->tree = tree;
    storage->key = own_key;
    storage->location = own_location;
    storage->index = tree->storages.count;
    storage->offset = BERTH_NO_OFFSET;
    tree->storages.items[tree->storages.count++] = storage;
    return storage;
}

berth_storage *bth_storage_new_elsewhere(berth_tree *tree, berth_dtype dtype, uint64_t nbytes,
                                         const char *location)
{
    if (!tree)
        return NULL;
    if ((unsigned)dtype >= BERTH_DTYPE_COUNT) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "no such dtype: %d", (int)dtype);
        return NULL;
    }
    if (nbytes % berth_dtype_nbytes(dtype) != 0 || nbytes > INT64_MAX) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "a storage of %" PRIu64 " bytes holds no whole %s",
                      nbytes, berth_dtype_name(dtype));
        return NULL;
    }
    location = location ? location : "cpu";
    berth_storage *storage = storage_add(tree, "", 0, location, strlen(location));
    if (!storage)
        return NULL;
    storage->dtype = dtype;
    storage->nbytes = nbytes;
    return storage;
}

berth_storage *berth_storage_new(berth_tree *tree, berth_dtype dtype, const void *data,
                                 uint64_t nbytes, const char *location)
{
    if (tree && !data && nbytes) {
        bth_tree_fail(tree, BERTH_E_ARGUMENT, "a storage of %" PRIu64 " bytes without data",
                      nbytes);
        return NULL;
    }
    berth_storage *storage = bth_storage_new_elsewhere(tree, dtype, nbytes, location);
    if (storage)
        storage->data = data;
    return storage;
}

/* ---- by key ---- */

/*
 * PyTorch's keys are the positions of the storages: "0", "1", … While all keys are, there is no
 * table. A position has at most 10 digits. UINT64_MAX: the key is no position.
 */
static uint64_t storage_key_position(const berth_tree *tree, const char *key, size_t nbytes)
{
    uint64_t position = 0;
    if (tree->storages.slots || nbytes == 0 || nbytes > 10 || (key[0] == '0' && nbytes > 1))
        return UINT64_MAX;
    for (size_t i = 0; i < nbytes; i++) {
        unsigned digit = (unsigned)(unsigned char)key[i] - '0';
        if (digit > 9)
            return UINT64_MAX;
        position = position * 10 + digit;
    }
    return position;
}

/*
 * The slot of a key, or the free slot for it. The upper half of a slot is the hash, so keys with
 * other hashes are not touched.
 */
static uint64_t *storage_find_slot(const berth_tree *tree, const char *key, size_t key_nbytes,
                                   uint32_t hash)
{
    const struct storage_table *table = &tree->storages;
    size_t at = hash & table->slots_mask;
    for (; table->slots[at]; at = (at + 1) & table->slots_mask) {
        if (table->slots[at] >> 32 != hash)
            continue;
        const char *other = table->items[(uint32_t)table->slots[at] - 1]->key;
        if (strlen(other) == key_nbytes && memcmp(other, key, key_nbytes) == 0)
            break;
    }
    return &table->slots[at];
}

/* Makes room for one more slot. The first table takes in all keys that were positions. */
static bool storage_reserve_slot(berth_tree *tree)
{
    struct storage_table *table = &tree->storages;
    if (table->slots && table->count + 1 <= table->slots_mask / 4 * 3)
        return true;
    size_t n = table->slots ? (table->slots_mask + 1) * 2 : 32;
    while (table->count + 1 > (n - 1) / 4 * 3)
        n *= 2;
    uint64_t *slots = bth_allocate_zeroed(n * sizeof(*slots));
    if (!slots) {
        storage_fail_memory(tree, n * sizeof(*slots));
        return false;
    }
    bth_release(table->slots);
    table->slots = slots;
    table->slots_mask = n - 1;
    for (size_t i = 0; i < table->count; i++) {
        const char *key = table->items[i]->key;
        uint32_t hash = bth_hash_bytes(tree, key, strlen(key));
        if (*key)
            *storage_find_slot(tree, key, strlen(key), hash) = (uint64_t)hash << 32 | (i + 1);
    }
    return true;
}

/* Whether class and size are those that the storage was first named with (T3). */
static bool storage_agrees(berth_tree *tree, const berth_storage *storage, berth_dtype dtype,
                           uint64_t nbytes)
{
    if (nbytes != storage->nbytes) {
        bth_tree_fail(tree, BERTH_E_TENSOR,
                      "storage %s has %" PRIu64 " bytes here and %" PRIu64 " bytes before",
                      storage->key, nbytes, storage->nbytes);
        return false;
    }
    if (nbytes == 0 || bth_dtype_same_class(dtype, storage->dtype))
        return true;
    bth_tree_fail(tree, BERTH_E_TENSOR, "storage %s is of %s here and of %s before", storage->key,
                  berth_dtype_name(dtype), berth_dtype_name(storage->dtype));
    return false;
}

static bool storage_is_key(const char *key, size_t nbytes)
{
    return nbytes > 0 && nbytes <= LONGEST_KEY && !memchr(key, '\0', nbytes);
}

static berth_storage *storage_find(const berth_tree *tree, uint64_t position, const char *key,
                                   size_t key_nbytes)
{
    const struct storage_table *table = &tree->storages;
    /* A storage that the caller made has no key. */
    if (!table->slots)
        return position < table->count && *table->items[position]->key ? table->items[position]
                                                                       : NULL;
    if (key_nbytes == 0 || key_nbytes > LONGEST_KEY)
        return NULL;
    uint32_t hash = bth_hash_bytes(tree, key, key_nbytes);
    uint32_t slot = (uint32_t)*storage_find_slot(tree, key, key_nbytes, hash);
    return slot ? table->items[slot - 1] : NULL;
}

berth_storage *bth_tree_meet_storage(berth_tree *tree, const char *key, size_t key_nbytes,
                                     berth_dtype dtype, uint64_t nbytes, const char *location,
                                     size_t location_nbytes)
{
    struct storage_table *table = &tree->storages;
    uint64_t position = storage_key_position(tree, key, key_nbytes);
    if (position == UINT64_MAX && !storage_is_key(key, key_nbytes)) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED,
                      "a storage key of %zu bytes (1 to %d, without NUL)", key_nbytes, LONGEST_KEY);
        return NULL;
    }
    berth_storage *storage = storage_find(tree, position, key, key_nbytes);
    if (storage)
        return storage_agrees(tree, storage, dtype, nbytes) ? storage : NULL;
    if (table->count >= UINT32_MAX - 1) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED, "more than %u storages", UINT32_MAX - 1);
        return NULL;
    }
    bool is_position = position == table->count;
    if (!is_position && !storage_reserve_slot(tree))
        return NULL;
    storage = storage_add(tree, key, key_nbytes, location, location_nbytes);
    if (!storage)
        return NULL;
    storage->dtype = dtype;
    storage->nbytes = nbytes;
    if (!is_position) {
        uint32_t hash = bth_hash_bytes(tree, key, key_nbytes);
        *storage_find_slot(tree, key, key_nbytes, hash) =
            (uint64_t)hash << 32 | (storage->index + 1);
    }
    return storage;
}

berth_storage *bth_tree_find_storage(const berth_tree *tree, const char *key, size_t key_nbytes)
{
    return storage_find(tree, storage_key_position(tree, key, key_nbytes), key, key_nbytes);
}

/* ---- asking ---- */

const berth_storage *bth_storage_bottom(const berth_storage *storage, uint64_t *offset)
{
    for (; !storage->data && !storage->read && storage->root; storage = storage->root)
        *offset += storage->root_offset;
    return storage;
}

const berth_storage_info *berth_storage_get_info(const berth_storage *storage)
{
    return storage ? &storage->info : NULL;
}
