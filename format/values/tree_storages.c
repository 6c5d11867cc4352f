/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages of a tree: the bytes that tensors view. */
#include "format/values/node.h"

#include <inttypes.h>
#include <string.h>

/* Keys and locations are hashed or copied, and a persistent id of 15 bytes can name them by memo.
 * So both have a limit (P3). PyTorch's are numbers, addresses, and "cuda:0". */
enum { MAX_KEY_NBYTES = 1024, MAX_LOCATION_NBYTES = 255 };

berth_storage *bth_tree_storage(const berth_tree *tree, size_t i)
{
    return i < bth_tree_n_storages(tree) ? tree->storages.items->items[i] : NULL;
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

static berth_storage *storage_new_and_append(berth_tree *tree, const char *key, size_t key_nbytes,
                                             const char *location, size_t location_nbytes)
{
    const char *own_location = "cpu";
    if (location_nbytes != 3 || memcmp(location, "cpu", 3) != 0) {
        if (location_nbytes > MAX_LOCATION_NBYTES || memchr(location, '\0', location_nbytes))
            return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED,
                                   "a storage's location of %zu bytes (at most %d, without NUL)",
                                   location_nbytes, MAX_LOCATION_NBYTES);
        if (location_nbytes == 4 && memcmp(location, "meta", 4) == 0)
            return BTH_TREE_REFUSE(
                tree, BERTH_E_UNSUPPORTED,
                "a storage whose location is meta: PyTorch would read none of its bytes");
        /* The text is shared with the storage before it if they are the same. */
        const berth_storage *last = bth_tree_storage(tree, bth_tree_n_storages(tree) - 1);
        bool is_same = last && strlen(last->location) == location_nbytes &&
                       memcmp(last->location, location, location_nbytes) == 0;
        own_location =
            is_same ? last->location : storage_copy_text(tree, location, location_nbytes);
    }
    if (!own_location)
        return NULL;
    struct storage_table *table = &tree->storages;
    struct storage_items *items =
        bth_tree_reserve_array(tree, table->items ? &table->items->size : NULL, 1, sizeof(*items),
                               sizeof(*items->items), UINT32_MAX - 1);
    if (!items)
        return NULL;
    table->items = items;
    if (table->n_room == 0) {
        size_t n = items->size.count / 16 + 1; /* so that little is wasted */
        table->next = bth_tree_allocate(tree, n * sizeof(*table->next));
        if (!table->next)
            return NULL;
        table->n_room = n;
    }
    table->n_room--;
    berth_storage *storage = memset(table->next++, 0, sizeof(*storage));
    storage->key = key_nbytes < sizeof(storage->short_key)
                       ? memcpy(storage->short_key, key, key_nbytes) /* zeros follow it */
                       : storage_copy_text(tree, key, key_nbytes);
    if (!storage->key)
        return NULL;
    storage->tree = tree;
    storage->location = own_location;
    storage->index = items->size.count++;
    storage->offset = BERTH_NO_OFFSET;
    items->items[storage->index] = storage;
    return storage;
}

berth_storage *bth_storage_new_without_data(berth_tree *tree, berth_dtype dtype, uint64_t nbytes,
                                            const char *location)
{
    if (!tree || (unsigned)dtype >= BERTH_DTYPE_COUNT)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "invalid dtype %d", (int)dtype);
    if (nbytes % berth_dtype_nbytes(dtype) != 0 || nbytes > INT64_MAX)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a storage of %" PRIu64 " bytes does not hold a whole number of %s",
                               nbytes, berth_dtype_name(dtype));
    location = location ? location : "cpu";
    berth_storage *storage = storage_new_and_append(tree, "", 0, location, strlen(location));
    if (!storage)
        return NULL;
    storage->dtype = dtype;
    storage->nbytes = nbytes;
    return storage;
}

berth_storage *berth_storage_new(berth_tree *tree, berth_dtype dtype, const void *data,
                                 uint64_t nbytes, const char *location)
{
    if (tree && !data && nbytes)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT,
                               "a storage of %" PRIu64 " bytes without data", nbytes);
    berth_storage *storage = bth_storage_new_without_data(tree, dtype, nbytes, location);
    if (storage)
        storage->data = data == BERTH_ELSEWHERE ? NULL : data;
    return storage;
}

/* ---- by key ---- */

/* PyTorch's keys are the positions of the storages: "0", "1", … While all keys are, there is no
 * table. *position, of at most 10 digits; UINT64_MAX: the key is none. */
static berth_storage *storage_find(const berth_tree *tree, const char *key, size_t nbytes,
                                   uint64_t *position)
{
    const struct slots *slots = &tree->storages.slots;
    bool is_position =
        !slots->slots && nbytes > 0 && nbytes <= 10 && (key[0] != '0' || nbytes == 1);
    uint64_t number = 0;
    for (size_t i = 0; is_position && i < nbytes; i++) {
        unsigned digit = (unsigned)(unsigned char)key[i] - '0';
        is_position = digit <= 9;
        number = number * 10 + digit;
    }
    *position = is_position ? number : UINT64_MAX;
    if (!slots->slots) { /* a storage that the caller made has no key */
        bool is_there = *position < bth_tree_n_storages(tree);
        berth_storage *storage = is_there ? tree->storages.items->items[*position] : NULL;
        return storage && *storage->key ? storage : NULL;
    }
    if (nbytes == 0 || nbytes > MAX_KEY_NBYTES)
        return NULL;
    uint32_t hash = bth_hash(tree->seed, key, nbytes), at = hash, i;
    while ((i = bth_hash_slots_find_next(slots, hash, &at)) != UINT32_MAX) {
        berth_storage *storage = bth_tree_storage(tree, i);
        if (strlen(storage->key) == nbytes && memcmp(storage->key, key, nbytes) == 0)
            return storage;
    }
    return NULL;
}

berth_storage *bth_tree_find_or_add_storage(berth_tree *tree, const char *key, size_t key_nbytes,
                                            berth_dtype dtype, uint64_t nbytes,
                                            const char *location, size_t location_nbytes)
{
    uint64_t position;
    berth_storage *storage = storage_find(tree, key, key_nbytes, &position);
    if (storage) { /* class and size are the same as where it was first named (T3) */
        if (nbytes != storage->nbytes)
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                                   "storage %s has %" PRIu64 " bytes here and %" PRIu64
                                   " bytes before",
                                   storage->key, nbytes, storage->nbytes);
        if (nbytes > 0 && !bth_storage_dtypes_are_compatible(dtype, storage->dtype))
            return BTH_TREE_REFUSE(tree, BERTH_E_TENSOR,
                                   "storage %s is of %s here and of %s before", storage->key,
                                   berth_dtype_name(dtype), berth_dtype_name(storage->dtype));
        return storage;
    }
    if (position == UINT64_MAX &&
        (key_nbytes == 0 || key_nbytes > MAX_KEY_NBYTES || memchr(key, '\0', key_nbytes)))
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED,
                               "a storage key of %zu bytes (1 to %d, without NUL)", key_nbytes,
                               MAX_KEY_NBYTES);
    storage = storage_new_and_append(tree, key, key_nbytes, location, location_nbytes);
    if (!storage)
        return NULL;
    if (position != storage->index) { /* the first slots are of all keys that were positions */
        struct slots *slots = &tree->storages.slots;
        size_t i = slots->slots ? storage->index : 0;
        if (!bth_hash_slots_reserve(tree, slots, storage->index + 1))
            return NULL;
        for (; i <= storage->index; i++) {
            const char *each = bth_tree_storage(tree, i)->key;
            if (*each)
                bth_hash_slots_add(slots, bth_hash(tree->seed, each, strlen(each)), (uint32_t)i);
        }
    }
    storage->dtype = dtype;
    storage->nbytes = nbytes;
    return storage;
}

berth_storage *bth_tree_find_storage(const berth_tree *tree, const char *key, size_t key_nbytes)
{
    uint64_t position;
    return storage_find(tree, key, key_nbytes, &position);
}

/* ---- reading ---- */

const berth_storage *bth_storage_resolve_view(const berth_storage *storage, uint64_t *offset)
{
    for (; !storage->data && !storage->read && storage->root; storage = storage->root)
        *offset += storage->root_offset;
    return storage;
}

const berth_storage_info *berth_storage_get_info(const berth_storage *storage)
{
    return storage ? &storage->info : NULL;
}
