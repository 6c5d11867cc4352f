/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Persistent ids (P5): ('storage', class, key, location, numel), and in the legacy format a sixth
 * item, None or (view_key, offset, numel) of a view of that storage. Inert, the legacy format also
 * names classes of modules.
 */
#include <string.h>

#include "base/memory.h"
#include "format/pickle/pickle_machine.h"

enum { TYPE, CLASS, KEY, LOCATION, NUMEL, VIEW, N_ITEMS, N_MODULE_ITEMS = 4 };

/* The storage that an id names, after the checks. */
typedef struct named_storage {
    berth_dtype dtype;
    const struct text_node *key;
    const struct text_node *location;
    uint64_t nbytes;
} named_storage;

static void *persistent_refuse(bth_unpickler *unpickler, const char *problem)
{
    return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "a persistent id whose %s", problem);
}

static bool persistent_check_first_item(bth_unpickler *unpickler, const berth_value *type)
{
    const struct text_node *text = bth_node_as_text_node(type);
    if (bth_text_is(text, "storage"))
        return true;
    if (bth_text_is(text, "module"))
        bth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                          "a whole pickled module, which is code and never run: only its "
                          "state_dict can be read");
    persistent_refuse(unpickler, "first item is not 'storage'"); /* the first error stays */
    return false;
}

/* numel is in items of the class; untyped storages count bytes (FORMAT.md 5). */
static bool persistent_numel_to_nbytes(bth_unpickler *unpickler, const berth_value *value,
                                       berth_dtype dtype, const char *what, uint64_t *nbytes)
{
    int64_t numel;
    size_t item_nbytes = berth_dtype_nbytes(dtype);
    /* T1: the product may not wrap: 0x4000000000000001 x 4 would be 4. */
    if (!berth_as_int(value, &numel))
        bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "a persistent id whose %s is not an int",
                          what);
    else if (numel < 0)
        bth_unpickle_fail(unpickler, BERTH_E_TENSOR, "a storage whose %s is %lld", what,
                          (long long)numel);
    else if (!bth_try_multiply((uint64_t)numel, item_nbytes, nbytes) || *nbytes > INT64_MAX)
        bth_unpickle_fail(unpickler, BERTH_E_TENSOR,
                          "a storage whose %s of %lld x %zu bytes is too large", what,
                          (long long)numel, item_nbytes);
    else
        return true;
    return false;
}

static berth_storage *named_storage_register(bth_unpickler *unpickler, const named_storage *named)
{
    berth_storage *storage = bth_tree_find_or_add_storage(
        unpickler->tree, named->key->data, named->key->key.count, named->dtype, named->nbytes,
        named->location->data, named->location->key.count);
    if (!storage)
        bth_unpickle_fail_by_tree_error(unpickler, "persistent id");
    return storage;
}

static berth_storage *persistent_register_storage(bth_unpickler *unpickler,
                                                  berth_value *const *items, named_storage *named)
{
    if (!persistent_check_first_item(unpickler, items[TYPE]))
        return NULL;
    if (!bth_node_is_storage_class(items[CLASS], &named->dtype))
        return persistent_refuse(unpickler, "second item is not a storage class");
    named->key = bth_node_as_text_node(items[KEY]);
    if (!named->key)
        return persistent_refuse(unpickler, "key is not a str");
    named->location = bth_node_as_text_node(items[LOCATION]);
    if (!named->location)
        return persistent_refuse(unpickler, "location is not a str");
    if (!persistent_numel_to_nbytes(unpickler, items[NUMEL], named->dtype, "numel", &named->nbytes))
        return NULL;
    berth_storage *storage = named_storage_register(unpickler, named);
    return storage && storage->root ? persistent_refuse(unpickler, "storage was a view before")
                                    : storage;
}

/* A storage that is a part of another one. */
static berth_storage *persistent_register_view(bth_unpickler *unpickler, berth_storage *root,
                                               const named_storage *whole, const berth_value *view)
{
    berth_value *const *items;
    named_storage part = *whole;
    uint64_t offset = 0;
    if (bth_node_tuple_items(view, &items) != 3 || !(part.key = bth_node_as_text_node(items[0])))
        return persistent_refuse(unpickler, "view is not (key, offset, numel)");
    if (!persistent_numel_to_nbytes(unpickler, items[1], part.dtype, "view's offset", &offset) ||
        !persistent_numel_to_nbytes(unpickler, items[2], part.dtype, "view's numel", &part.nbytes))
        return NULL;
    if (offset > root->nbytes || part.nbytes > root->nbytes - offset)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_TENSOR,
                                   "a view of %llu bytes at byte %llu of a storage of %llu bytes",
                                   (unsigned long long)part.nbytes, (unsigned long long)offset,
                                   (unsigned long long)root->nbytes);
    size_t n_before = bth_tree_n_storages(unpickler->tree);
    berth_storage *storage = named_storage_register(unpickler, &part);
    if (!storage)
        return NULL;
    if (bth_tree_n_storages(unpickler->tree) > n_before) {
        storage->root = root;
        storage->root_offset = offset;
    }
    if (storage->root != root || storage->root_offset != offset)
        return persistent_refuse(unpickler, "view was another part, or a whole storage, before");
    return storage;
}

/*
 * The class of ('module', class, its source file, its source), by which the legacy format names
 * classes of modules; NULL for any other id. The source is not kept, as today's PyTorch does.
 */
static berth_value *persistent_find_inert_class(const bth_unpickler *unpickler,
                                                berth_value *const *items, size_t n)
{
    if (!unpickler->rules->inert || !unpickler->rules->legacy || n != N_MODULE_ITEMS ||
        !bth_text_is(bth_node_as_text_node(items[TYPE]), "module"))
        return NULL;
    return bth_node_is(items[CLASS], BERTH_KIND_GLOBAL) ||
                   bth_node_is(items[CLASS], BERTH_KIND_CALL)
               ? items[CLASS]
               : NULL;
}

berth_value *bth_unpickle_follow_persistent_id(bth_unpickler *unpickler, berth_value *id)
{
    berth_value *const *items = NULL;
    size_t n = bth_node_tuple_items(id, &items);
    berth_value *class = persistent_find_inert_class(unpickler, items, n);
    if (class)
        return class;
    size_t wanted = unpickler->rules->legacy ? N_ITEMS : N_ITEMS - 1;
    if (n == SIZE_MAX)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "a persistent id that is %s, not a tuple",
                                   bth_kind_phrase(bth_node_kind(id)));
    if (n != wanted) {
        if (n > 0 && !persistent_check_first_item(unpickler, items[TYPE]))
            return NULL;
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "a persistent id of %zu items, not %zu", n, wanted);
    }
    named_storage named = {0};
    berth_storage *storage = persistent_register_storage(unpickler, items, &named);
    if (storage && wanted == N_ITEMS && bth_node_kind(items[VIEW]) != BERTH_KIND_NONE)
        storage = persistent_register_view(unpickler, storage, &named, items[VIEW]);
    return storage ? bth_storage_value_new(unpickler->tree, storage, named.dtype) : NULL;
}
