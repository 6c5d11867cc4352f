/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The walk that lists tensors: linear time, no recursion (P3). Only edges that lead to a tensor
 * have an entry. The hash of a short name is computed from its parent's hash, without the text.
 */
#include "format/names/names.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/seeded_hash.h"

#include <string.h>

enum { NO_ENTRY = UINT32_MAX, LONG_KEY_NBYTES = 256 };

/* The note of a frame of the walk is its entry + 1; 0 until a tensor is found below it. */
struct naming {
    bth_names *names;
    berth_error *error;
    bth_walk walk;
    size_t n_expected; /* estimate: most tensors have a storage of their own */
};

/* ---- hash: polynomial, so that text appended to text is arithmetic ---- */

#define PRIME ((UINT64_C(1) << 61) - 1)

/* Of less than 2^122. */
static uint64_t prime_remainder(bth_wide number)
{
    uint64_t sum = (number.low & PRIME) + (number.low >> 61 | number.high << 3);
    return sum >= PRIME ? sum - PRIME : sum;
}

static uint64_t prime_times(uint64_t a, uint64_t b)
{
    return prime_remainder(bth_wide_product(a, b));
}

static uint64_t prime_plus(uint64_t a, uint64_t b)
{
    return a + b >= PRIME ? a + b - PRIME : a + b;
}

uint64_t bth_name_hash_append(const bth_names *names, uint64_t hash, const char *text,
                              size_t nbytes)
{
    const uint8_t *at = (const uint8_t *)text;
    /* Eight digits at a time: the chain of products is eight times shorter. */
    for (size_t n; nbytes > 0; nbytes -= n, at += n) {
        bth_wide sum = {0, 0};
        n = nbytes < 8 ? nbytes : 8;
        for (size_t i = 0; i < n; i++)
            sum =
                bth_wide_sum(sum, bth_wide_product(names->powers[n - 1 - i], at[i] + UINT64_C(1)));
        hash = prime_plus(prime_times(hash, names->powers[n]), prime_remainder(sum));
    }
    return hash;
}

static struct names_key *long_key_find_slot(struct names_key *keys, size_t mask, const void *text)
{
    size_t at = (size_t)((uintptr_t)text * UINT64_C(0x9e3779b97f4a7c15) >> 20) & mask;
    while (keys[at].text && keys[at].text != text)
        at = (at + 1) & mask;
    return &keys[at];
}

/* The hash of a long key, computed once. */
static const struct names_key *long_key_find_or_add(bth_names *names, const char *text,
                                                    size_t nbytes)
{
    if (!names->keys || names->n_keys * 2 > names->keys_mask) {
        size_t n = names->keys ? (names->keys_mask + 1) * 2 : 16;
        struct names_key *keys = bth_allocate_zeroed(n * sizeof(*keys));
        if (!keys)
            return NULL;
        for (size_t i = 0; names->keys && i <= names->keys_mask; i++)
            if (names->keys[i].text)
                *long_key_find_slot(keys, n - 1, names->keys[i].text) = names->keys[i];
        bth_release(names->keys);
        names->keys = keys;
        names->keys_mask = n - 1;
    }
    struct names_key *key = long_key_find_slot(names->keys, names->keys_mask, text);
    if (!key->text) {
        uint64_t hash = bth_name_hash_append(names, 0, text, nbytes);
        uint64_t power = 1, square = names->powers[1]; /* the base to the power of nbytes */
        for (size_t n = nbytes; n; n >>= 1, square = prime_times(square, square))
            if (n & 1)
                power = prime_times(power, square);
        *key = (struct names_key){.text = text, .hash = hash, .power = power};
        names->n_keys++;
    }
    return key;
}

/* The hash of a child's name, from its parent's hash and the step. False: out of memory. */
static bool name_hash_append_step(bth_names *names, const struct names_entry *parent,
                                  uint32_t index, uint64_t *hash)
{
    *hash = parent->hash & ~BTH_NAME_SHARED;
    if (parent != names->entries)
        *hash = bth_name_hash_append(names, *hash, ".", 1);
    const berth_value *key =
        index < BTH_STEP_LIST_ITEMS ? bth_value_key(parent->value, index) : NULL;
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    if (text && nbytes > LONG_KEY_NBYTES) {
        const struct names_key *kept = long_key_find_or_add(names, text, nbytes);
        if (kept)
            *hash = prime_plus(prime_times(*hash, kept->power), kept->hash);
        return kept != NULL;
    }
    if (text) {
        *hash = bth_name_hash_append(names, *hash, text, nbytes);
        return true;
    }
    bth_name_text out = {.limit = SIZE_MAX};
    bth_name_text_append_step(&out, parent->value, index, false);
    *hash = bth_name_hash_append(names, *hash, out.text, out.nbytes);
    bth_release(out.text);
    return !out.failed;
}

/* ---- entries ---- */

/* Returns the array with room for one more item; NULL with the error set. */
static void *naming_grow_array(struct naming *naming, void *items, uint32_t n, uint32_t *capacity,
                               size_t nbytes)
{
    if (n < *capacity)
        return items;
    berth_error *error = naming->error;
    uint64_t larger = (uint64_t)n + n / 2 + (n ? 8 : naming->n_expected);
    if (larger >= BTH_STEP_LIST_ITEMS)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED, "too many tensors to name"), NULL;
    void *grown = bth_reallocate(items, (size_t)larger * nbytes);
    if (!grown)
        return bth_fail_memory(error, larger * nbytes), NULL;
    *capacity = (uint32_t)larger;
    return grown;
}

static uint32_t naming_add_entry(struct naming *naming, uint32_t parent, uint32_t index,
                                 const berth_value *value)
{
    bth_names *names = naming->names;
    void *grown = naming_grow_array(naming, names->entries, names->n_entries,
                                    &names->entries_capacity, sizeof(*names->entries));
    if (!grown)
        return NO_ENTRY;
    names->entries = grown;
    struct names_entry *entry = &names->entries[names->n_entries];
    *entry = (struct names_entry){.value = value, .parent = parent, .index = index};
    if (parent != NO_ENTRY &&
        !name_hash_append_step(names, &names->entries[parent], index, &entry->hash)) {
        bth_fail_memory(naming->error, LONG_KEY_NBYTES);
        return NO_ENTRY;
    }
    return names->n_entries++;
}

/* The entry of the value on top. Makes the missing entries on the way to it. */
static uint32_t naming_top_entry_find_or_add(struct naming *naming)
{
    bth_walk_frame *frames = naming->walk.frames;
    size_t n = naming->walk.n_frames, i = n;
    while (i > 0 && !frames[i - 1].note)
        i--;
    uint32_t entry = i ? frames[i - 1].note - 1 : NO_ENTRY;
    for (; i < n; i++) {
        entry = naming_add_entry(naming, entry, i ? frames[i - 1].step : 0, frames[i].value);
        if (entry == NO_ENTRY)
            return NO_ENTRY;
        frames[i].note = entry + 1;
    }
    return entry;
}

static int naming_append_tensor(struct naming *naming, uint32_t entry)
{
    bth_names *names = naming->names;
    void *grown = entry == NO_ENTRY
                      ? NULL
                      : naming_grow_array(naming, names->tensors, names->n_tensors,
                                          &names->tensors_capacity, sizeof(*names->tensors));
    if (!grown)
        return naming->error->code;
    names->tensors = grown;
    names->tensors[names->n_tensors++] = entry;
    return 0;
}

/* ---- the walk ---- */

/* Whether a tensor, or the tensor inside it, has attributes. */
static bool tensor_has_attributes(const berth_value *value)
{
    for (; bth_kind_is_tensor(berth_value_kind(value));
         value = berth_value_part(value, BERTH_PART_INNER))
        if (berth_value_part(value, BERTH_PART_STATE))
            return true;
    return false;
}

static int naming_push_value_if_new(struct naming *naming, const berth_value *value, uint32_t note)
{
    bth_walk *walk = &naming->walk;
    if (!bth_walk_mark_if_new(walk, value) || bth_walk_push(walk, value, naming->error) < 0)
        return naming->error->code;
    walk->frames[walk->n_frames - 1].note = note;
    return 0;
}

/* A tensor and its parts are listed at each edge that leads to it. Its attributes are entered once.
 * A tensor inside another one (BTH_STEP_INNER) is not listed by itself. */
static int naming_push_container_or_add_tensor(struct naming *naming, const berth_value *value,
                                               uint32_t step)
{
    berth_kind kind = berth_value_kind(value);
    if ((kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_COUNTER) || kind == BERTH_KIND_CALL ||
        (step == BTH_STEP_INNER && bth_kind_is_tensor(kind) && tensor_has_attributes(value)))
        return naming_push_value_if_new(naming, value, 0);
    if (!bth_kind_is_tensor(kind) || step == BTH_STEP_INNER)
        return 0;
    uint32_t parent = naming->walk.n_frames ? naming_top_entry_find_or_add(naming) : NO_ENTRY;
    if (naming->error->code != BERTH_OK)
        return naming->error->code;
    uint32_t entry = naming_add_entry(naming, parent, step, value);
    if (entry == NO_ENTRY || (berth_as_tensor(value) && naming_append_tensor(naming, entry) < 0))
        return naming->error->code;
    const berth_value *part;
    for (uint32_t i = 0; (part = bth_tensor_part(value, i)); i++)
        if (naming_append_tensor(naming, naming_add_entry(naming, entry, i, part)) < 0)
            return naming->error->code;
    return tensor_has_attributes(value) ? naming_push_value_if_new(naming, value, entry + 1) : 0;
}

/* ---- slots by hash ---- */

uint32_t bth_names_find_tensor_by_hash(const bth_names *names, uint64_t hash)
{
    for (uint64_t at = hash & names->slots_mask;; at = (at + 1) & names->slots_mask) {
        uint32_t slot = names->slots[at];
        if (!slot)
            return UINT32_MAX;
        if ((names->entries[names->tensors[slot - 1]].hash & ~BTH_NAME_SHARED) == hash)
            return slot - 1;
    }
}

/* The first tensor of each name gets a slot. All tensors that share a name are marked. */
static int names_make_slots_and_mark_shared(bth_names *names, berth_error *error)
{
    uint64_t n = 16;
    while (n / 3 * 2 < names->n_tensors)
        n *= 2;
    names->slots = bth_allocate_zeroed((size_t)n * sizeof(*names->slots));
    if (!names->slots)
        return bth_fail_memory(error, n * sizeof(*names->slots));
    names->slots_mask = n - 1;
    for (uint32_t i = 0; i < names->n_tensors; i++) {
        struct names_entry *entry = &names->entries[names->tensors[i]];
        uint32_t other = bth_names_find_tensor_by_hash(names, entry->hash);
        if (other != UINT32_MAX) {
            names->entries[names->tensors[other]].hash |= BTH_NAME_SHARED;
            entry->hash |= BTH_NAME_SHARED;
            continue;
        }
        uint64_t at = entry->hash & names->slots_mask;
        while (names->slots[at])
            at = (at + 1) & names->slots_mask;
        names->slots[at] = i + 1;
    }
    return 0;
}

/* ---- the interface ---- */

int bth_names_new(const berth_value *root, bth_names **made, berth_error *error)
{
    berth_tree *tree = bth_value_tree(root);
    struct naming naming = {.error = error, .walk = {.edges = BTH_WALK_MEMBERS}};
    bth_walk *walk = &naming.walk;
    *made = NULL;
    if (!tree)
        return bth_fail_argument(error, "no value to name");
    bth_names *names = naming.names = bth_allocate_zeroed(sizeof(*names));
    if (!names)
        return bth_fail_memory(error, sizeof(*names));
    names->root = root;
    naming.n_expected = bth_tree_n_storages(tree) + 8;
    uint64_t base = (uint64_t)(uintptr_t)names * UINT64_C(0x9e3779b97f4a7c15) % PRIME | 257;
    names->powers[0] = 1;
    for (int i = 1; i <= 8; i++)
        names->powers[i] = prime_times(names->powers[i - 1], base);
    int code = bth_walk_allocate_seen(walk, tree, error);
    if (code == 0)
        code = naming_push_container_or_add_tensor(&naming, root, 0);
    while (code == 0 && walk->n_frames) {
        const berth_value *child = bth_walk_next_child(walk);
        if (child)
            code = naming_push_container_or_add_tensor(&naming, child,
                                                       walk->frames[walk->n_frames - 1].step);
        else
            bth_walk_pop(walk);
    }
    if (code == 0 && names_make_slots_and_mark_shared(names, error) == 0)
        *made = names;
    else
        bth_names_free(names);
    bth_walk_free(walk);
    return error->code;
}

void bth_names_free(bth_names *names)
{
    if (!names)
        return;
    bth_release(names->entries);
    bth_release(names->tensors);
    bth_release(names->slots);
    bth_release(names->keys);
    bth_release(names);
}

size_t bth_names_tensor_count(const bth_names *names)
{
    return names->n_tensors;
}

const berth_value *bth_names_tensor_value(const bth_names *names, size_t i)
{
    return i < names->n_tensors ? names->entries[names->tensors[i]].value : NULL;
}
