/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Persistent ids (P5): ('storage', class, key, location, numel), and in streams from before
 * PyTorch 1.6 a sixth item, None or (view_key, offset, numel) of a view of that storage.
 */
#include <string.h>

#include "config/memory.h"
#include "format/pickle/pickle_machine.h"

enum { TYPE, CLASS, KEY, LOCATION, NUMEL, VIEW, N_ITEMS };

/* What an id claims, after the checks. */
typedef struct claim {
    berth_dtype dtype;
    const char *key;
    size_t key_nbytes;
    const char *location;
    size_t location_nbytes;
    uint64_t nbytes;
} claim;

static int persistent_fail(bth_unpickler *unpickler, const char *problem)
{
    return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "a persistent id whose %s", problem);
}

static const char *persistent_text(const berth_value *value, size_t *nbytes)
{
    const struct text_node *node = (const struct text_node *)value;
    if (value->kind != BERTH_KIND_STR)
        return NULL;
    *nbytes = node->key.count;
    return node->data;
}

static int persistent_check_type(bth_unpickler *unpickler, const berth_value *type)
{
    size_t nbytes;
    const char *text = persistent_text(type, &nbytes);
    if (text && nbytes == 7 && memcmp(text, "storage", 7) == 0)
        return 0;
    if (text && nbytes == 6 && memcmp(text, "module", 6) == 0)
        return bth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                                 "a whole pickled module, which is code and never run: only its "
                                 "state_dict can be read");
    return persistent_fail(unpickler, "first item is not 'storage'");
}

/* numel is in items of the class; untyped storages count bytes (FORMAT.md 5). */
static int persistent_count_bytes(bth_unpickler *unpickler, const berth_value *value,
                                  berth_dtype dtype, const char *what, uint64_t *nbytes)
{
    int64_t numel;
    if (!berth_as_int(value, &numel))
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "a persistent id whose %s is no int",
                                 what);
    if (numel < 0)
        return bth_unpickle_fail(unpickler, BERTH_E_TENSOR, "a storage whose %s is %lld", what,
                                 (long long)numel);
    /* T1: the product may not wrap: 0x4000000000000001 x 4 would be 4. */
    if (!bth_multiply((uint64_t)numel, berth_dtype_nbytes(dtype), nbytes) || *nbytes > INT64_MAX)
        return bth_unpickle_fail(unpickler, BERTH_E_TENSOR,
                                 "a storage whose %s of %lld x %zu bytes is too large", what,
                                 (long long)numel, berth_dtype_nbytes(dtype));
    return 0;
}

static int persistent_read_claim(bth_unpickler *unpickler, berth_value *const *items,
                                 claim *claimed)
{
    if (persistent_check_type(unpickler, items[TYPE]) < 0)
        return unpickler->error->code;
    if (!bth_unpickle_storage_class(items[CLASS], &claimed->dtype))
        return persistent_fail(unpickler, "second item is no storage class");
    claimed->key = persistent_text(items[KEY], &claimed->key_nbytes);
    if (!claimed->key)
        return persistent_fail(unpickler, "key is no str");
    claimed->location = persistent_text(items[LOCATION], &claimed->location_nbytes);
    if (!claimed->location)
        return persistent_fail(unpickler, "location is no str");
    return persistent_count_bytes(unpickler, items[NUMEL], claimed->dtype, "numel",
                                  &claimed->nbytes);
}

static berth_storage *persistent_storage(bth_unpickler *unpickler, const claim *claimed)
{
    berth_storage *storage = bth_tree_register_storage(
        unpickler->tree, claimed->key, claimed->key_nbytes, claimed->dtype, claimed->nbytes,
        claimed->location, claimed->location_nbytes);
    if (!storage)
        bth_unpickle_fail_tree(unpickler, "persistent id");
    return storage;
}

/* A storage that is a part of another one. */
static berth_storage *persistent_view(bth_unpickler *unpickler, berth_storage *root,
                                      const claim *whole, const berth_value *view)
{
    berth_value *const *items;
    claim part = *whole;
    uint64_t offset = 0;
    if (bth_unpickle_items(view, &items) != 3 ||
        !(part.key = persistent_text(items[0], &part.key_nbytes))) {
        persistent_fail(unpickler, "view is not (key, offset, numel)");
        return NULL;
    }
    if (persistent_count_bytes(unpickler, items[1], part.dtype, "view's offset", &offset) < 0 ||
        persistent_count_bytes(unpickler, items[2], part.dtype, "view's numel", &part.nbytes) < 0)
        return NULL;
    if (offset > root->nbytes || part.nbytes > root->nbytes - offset) {
        bth_unpickle_fail(unpickler, BERTH_E_TENSOR,
                          "a view of %llu bytes at byte %llu of a storage of %llu bytes",
                          (unsigned long long)part.nbytes, (unsigned long long)offset,
                          (unsigned long long)root->nbytes);
        return NULL;
    }
    size_t n_before = bth_tree_n_storages(unpickler->tree);
    berth_storage *storage = persistent_storage(unpickler, &part);
    if (!storage)
        return NULL;
    if (bth_tree_n_storages(unpickler->tree) > n_before) {
        storage->root = root;
        storage->root_offset = offset;
    }
    if (storage->root != root || storage->root_offset != offset) {
        persistent_fail(unpickler, "view was another part, or a whole storage, before");
        return NULL;
    }
    return storage;
}

berth_value *bth_unpickle_persistent(bth_unpickler *unpickler, berth_value *id)
{
    berth_value *const *items = NULL;
    size_t wanted = unpickler->rules->legacy ? N_ITEMS : N_ITEMS - 1;
    if (bth_node_kind(id) != BERTH_KIND_TUPLE) {
        bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "a persistent id that is %s, not a tuple",
                          bth_kind_phrase(bth_node_kind(id)));
        return NULL;
    }
    size_t n = bth_unpickle_items(id, &items);
    if (n != wanted) {
        if (n > 0 && persistent_check_type(unpickler, items[TYPE]) < 0)
            return NULL;
        bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "a persistent id of %zu items, not %zu", n,
                          wanted);
        return NULL;
    }
    claim claimed = {0};
    if (persistent_read_claim(unpickler, items, &claimed) < 0)
        return NULL;
    berth_storage *storage = persistent_storage(unpickler, &claimed);
    if (!storage)
        return NULL;
    if (storage->root) {
        persistent_fail(unpickler, "storage was a view before");
        return NULL;
    }
    if (wanted == N_ITEMS && bth_node_kind(items[VIEW]) != BERTH_KIND_NONE)
        storage = persistent_view(unpickler, storage, &claimed, items[VIEW]);
    /* Without a storage there is none of its value, either. */
    return bth_storage_value_as(unpickler->tree, storage, claimed.dtype);
}
