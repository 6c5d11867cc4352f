/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Names of tensors: a walk that enters each container once, in linear time and without
 * recursion (P3). Entries are made only on the way to a tensor; the hash of a short name grows
 * with the steps, so that no text is made before it is asked for.
 */
#include "format/hash.h"
#include "format/names/names_inner.h"

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"

#include <string.h>

enum { NO_ENTRY = UINT32_MAX, LONG_KEY_NBYTES = 256 };

/* A container being walked. */
struct frame {
    const berth_value *value;
    uint32_t entry; /* NO_ENTRY until a tensor is found below */
    uint32_t next;  /* child */
};

struct walk {
    bth_names *names;
    berth_error *error;
    struct frame *frames;
    size_t n_frames;
    size_t capacity;
    uint8_t *seen;     /* bits by id */
    size_t n_expected; /* entries: mostly a tensor has a storage of its own */
};

/* ---- hash: polynomial, so that text appended to text is arithmetic ---- */

#define PRIME ((UINT64_C(1) << 61) - 1)

/* Of less than 2^122. */
static uint64_t remainder_of(bth_wide number)
{
    uint64_t sum = (number.low & PRIME) + (number.low >> 61 | number.high << 3);
    return sum >= PRIME ? sum - PRIME : sum;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return remainder_of(bth_wide_product(a, b));
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a + b >= PRIME ? a + b - PRIME : a + b;
}

static uint64_t power(uint64_t base, size_t n)
{
    uint64_t result = 1;
    for (; n; n >>= 1, base = times(base, base))
        if (n & 1)
            result = times(result, base);
    return result;
}

static uint64_t hash_bytes(const bth_names *names, uint64_t hash, const char *text, size_t nbytes)
{
    const uint8_t *at = (const uint8_t *)text;
    /* Eight digits at a time wait for one product, not for eight. */
    for (size_t n; nbytes > 0; nbytes -= n, at += n) {
        bth_wide sum = {0, 0};
        n = nbytes < 8 ? nbytes : 8;
        for (size_t i = 0; i < n; i++)
            sum =
                bth_wide_sum(sum, bth_wide_product(names->powers[n - 1 - i], at[i] + UINT64_C(1)));
        hash = plus(times(hash, names->powers[n]), remainder_of(sum));
    }
    return hash;
}

uint64_t bth_name_hash(const bth_names *names, const char *name, size_t nbytes)
{
    return hash_bytes(names, 0, name, nbytes);
}

static struct names_key *key_slot(struct names_key *keys, size_t mask, const void *text)
{
    size_t at = (size_t)((uintptr_t)text * UINT64_C(0x9e3779b97f4a7c15) >> 20) & mask;
    while (keys[at].text && keys[at].text != text)
        at = (at + 1) & mask;
    return &keys[at];
}

/* The kept hash of a long key, computed at first meeting. */
static const struct names_key *long_key(bth_names *names, const char *text, size_t nbytes)
{
    if (!names->keys || names->n_keys * 2 > names->keys_mask) {
        size_t n = names->keys ? (names->keys_mask + 1) * 2 : 16;
        struct names_key *keys = bth_allocate_zeroed(n * sizeof(*keys));
        if (!keys)
            return NULL;
        for (size_t i = 0; names->keys && i <= names->keys_mask; i++)
            if (names->keys[i].text)
                *key_slot(keys, n - 1, names->keys[i].text) = names->keys[i];
        bth_release(names->keys);
        names->keys = keys;
        names->keys_mask = n - 1;
    }
    struct names_key *key = key_slot(names->keys, names->keys_mask, text);
    if (!key->text) {
        *key = (struct names_key){.text = text,
                                  .hash = hash_bytes(names, 0, text, nbytes),
                                  .power = power(names->powers[1], nbytes)};
        names->n_keys++;
    }
    return key;
}

/* The hash of the name that a step makes of its parent's. False: out of memory. */
static bool step_hash(bth_names *names, const struct names_entry *parent, uint32_t index,
                      uint64_t *hash)
{
    *hash = parent->hash & ~BTH_NAME_SHARED;
    if (parent != names->entries)
        *hash = hash_bytes(names, *hash, ".", 1);
    const berth_value *key =
        index < BTH_STEP_LIST_ITEMS ? berth_value_key(parent->value, index) : NULL;
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    if (text && nbytes > LONG_KEY_NBYTES) {
        const struct names_key *kept = long_key(names, text, nbytes);
        if (kept)
            *hash = plus(times(*hash, kept->power), kept->hash);
        return kept != NULL;
    }
    if (text) {
        *hash = hash_bytes(names, *hash, text, nbytes);
        return true;
    }
    struct names_out out = {.limit = SIZE_MAX};
    bth_out_short_step(&out, parent->value, index);
    *hash = hash_bytes(names, *hash, out.text, out.nbytes);
    bth_release(out.text);
    return !out.failed;
}

/* ---- entries ---- */

/* An array with room for one more item of nbytes; NULL: the error is set. */
static void *reserve(struct walk *walk, void *items, uint32_t n, uint32_t *capacity, size_t nbytes)
{
    if (n < *capacity)
        return items;
    berth_error *error = walk->error;
    uint64_t larger = (uint64_t)n + n / 2 + (n ? 8 : walk->n_expected);
    if (larger >= BTH_STEP_LIST_ITEMS) {
        bth_fail(error, BERTH_E_UNSUPPORTED, NULL, BERTH_NO_OFFSET, "too many tensors to name");
        return NULL;
    }
    void *grown = bth_reallocate(items, (size_t)larger * nbytes);
    if (!grown) {
        bth_fail_memory(error, larger * nbytes);
        return NULL;
    }
    *capacity = (uint32_t)larger;
    return grown;
}

static uint32_t add_entry(struct walk *walk, uint32_t parent, uint32_t index,
                          const berth_value *value)
{
    bth_names *names = walk->names;
    void *grown = reserve(walk, names->entries, names->n_entries, &names->entries_capacity,
                          sizeof(*names->entries));
    if (!grown)
        return NO_ENTRY;
    names->entries = grown;
    struct names_entry *entry = &names->entries[names->n_entries];
    *entry = (struct names_entry){.value = value, .parent = parent, .index = index};
    if (parent != NO_ENTRY && !step_hash(names, &names->entries[parent], index, &entry->hash)) {
        bth_fail_memory(walk->error, LONG_KEY_NBYTES);
        return NO_ENTRY;
    }
    return names->n_entries++;
}

/* The entry of the innermost frame; those on the way are made where they are missing. */
static uint32_t frame_entry(struct walk *walk)
{
    size_t i = walk->n_frames;
    while (i > 0 && walk->frames[i - 1].entry == NO_ENTRY)
        i--;
    uint32_t entry = i ? walk->frames[i - 1].entry : NO_ENTRY;
    for (; i < walk->n_frames; i++) {
        uint32_t index = i ? walk->frames[i - 1].next : 0;
        /* Where memory ends, the error tells. */
        walk->frames[i].entry = entry = add_entry(walk, entry, index, walk->frames[i].value);
    }
    return entry;
}

static int list_tensor(struct walk *walk, uint32_t entry)
{
    bth_names *names = walk->names;
    void *grown = entry == NO_ENTRY ? NULL
                                    : reserve(walk, names->tensors, names->n_tensors,
                                              &names->tensors_capacity, sizeof(*names->tensors));
    if (!grown)
        return walk->error->code;
    names->tensors = grown;
    names->tensors[names->n_tensors++] = entry;
    return 0;
}

/* ---- the walk ---- */

static bool is_tensor(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    return kind >= BERTH_KIND_TENSOR && kind <= BERTH_KIND_SUBCLASS;
}

static bool is_container(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    return (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_COUNTER) || kind == BERTH_KIND_CALL;
}

/* Whether a tensor, or what it is around, has attributes to be entered. */
static bool has_state(const berth_value *value)
{
    for (; is_tensor(value); value = berth_value_inner(value))
        if (berth_value_state(value))
            return true;
    return false;
}

/* True when a value is met for the first time. */
static bool first_time(struct walk *walk, const berth_value *value)
{
    size_t id = bth_value_id(value);
    if (id == SIZE_MAX)
        return true;
    bool first = !(walk->seen[id / 8] >> id % 8 & 1);
    walk->seen[id / 8] |= (uint8_t)(1u << id % 8);
    return first;
}

static int push(struct walk *walk, const berth_value *value, uint32_t entry)
{
    if (walk->n_frames == walk->capacity) {
        size_t capacity = walk->capacity + walk->capacity / 2 + 16;
        void *frames = bth_reallocate(walk->frames, capacity * sizeof(*walk->frames));
        if (!frames)
            return bth_fail_memory(walk->error, capacity * sizeof(*walk->frames));
        walk->frames = frames;
        walk->capacity = capacity;
    }
    walk->frames[walk->n_frames++] = (struct frame){.value = value, .entry = entry};
    return 0;
}

/* The next child of a frame, from frame->next on, and its step. NULL: there is none. */
static const berth_value *next_child(struct frame *frame, uint32_t *index)
{
    const berth_value *value = frame->value;
    size_t n = is_container(value) ? berth_value_count(value) : 0;
    for (; frame->next < n; frame->next++) {
        const berth_value *child = berth_value_item(value, frame->next);
        if (is_container(child) || is_tensor(child)) {
            *index = frame->next;
            return child;
        }
    }
    /* Then an object's items, what is inside if that has some (a callable, the tensor of a
       Parameter), and the attributes. */
    while (frame->next < BTH_STEP_STATE) {
        *index = frame->next =
            frame->next < BTH_STEP_LIST_ITEMS ? BTH_STEP_LIST_ITEMS : frame->next + 1;
        const berth_value *child = bth_step(value, *index);
        if (child && (*index != BTH_STEP_INNER || is_container(child) || has_state(child)))
            return child;
    }
    return NULL;
}

/* A tensor is listed at each edge that leads to it, with its parts; its attributes are entered
 * once. */
static int visit_tensor(struct walk *walk, const berth_value *value, uint32_t entry)
{
    if (entry == NO_ENTRY)
        return walk->error->code;
    if (berth_as_tensor(value) && list_tensor(walk, entry) < 0)
        return walk->error->code;
    const berth_value *part;
    for (uint32_t i = 0; (part = bth_part(value, i)); i++)
        if (list_tensor(walk, add_entry(walk, entry, i, part)) < 0)
            return walk->error->code;
    if (has_state(value) && first_time(walk, value))
        return push(walk, value, entry);
    return 0;
}

static int visit(struct walk *walk, const berth_value *value, uint32_t index)
{
    if (is_tensor(value) && index == BTH_STEP_INNER)
        return first_time(walk, value) ? push(walk, value, NO_ENTRY) : 0;
    if (is_tensor(value)) {
        uint32_t parent = walk->n_frames ? frame_entry(walk) : NO_ENTRY;
        if (walk->error->code != BERTH_OK)
            return walk->error->code;
        return visit_tensor(walk, value, add_entry(walk, parent, index, value));
    }
    return is_container(value) && first_time(walk, value) ? push(walk, value, NO_ENTRY) : 0;
}

static int walk_all(struct walk *walk)
{
    int status = visit(walk, walk->names->root, 0);
    while (status == 0 && walk->n_frames) {
        struct frame *frame = &walk->frames[walk->n_frames - 1];
        uint32_t index;
        const berth_value *child = next_child(frame, &index);
        size_t n_frames = walk->n_frames;
        if (child)
            status = visit(walk, child, index);
        else
            walk->n_frames--;
        /* While a child is walked, `next` is its step; then on to the one after it. */
        frame =
            walk->n_frames <= n_frames && walk->n_frames ? &walk->frames[walk->n_frames - 1] : NULL;
        if (frame && frame->next < BTH_STEP_LIST_ITEMS)
            frame->next++;
    }
    return status;
}

/* ---- look-up by hash ---- */

uint32_t bth_names_slot(const bth_names *names, uint64_t hash)
{
    for (uint64_t at = hash & names->slots_mask;; at = (at + 1) & names->slots_mask) {
        uint32_t slot = names->slots[at];
        if (!slot)
            return UINT32_MAX;
        if ((names->entries[names->tensors[slot - 1]].hash & ~BTH_NAME_SHARED) == hash)
            return slot - 1;
    }
}

/* The first tensor of each name gets a slot; all of a name that is not alone are marked. */
static int make_slots(bth_names *names, berth_error *error)
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
        uint32_t other = bth_names_slot(names, entry->hash);
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
    *made = NULL;
    struct walk walk = {.error = error};
    berth_tree *tree = bth_value_tree(root);
    if (!tree)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "no value to name");
    size_t seen_nbytes = bth_tree_n_ids(tree) / 8 + 1;
    int status = 0;
    walk.names = bth_allocate_zeroed(sizeof(*walk.names));
    walk.seen = bth_allocate_zeroed(seen_nbytes);
    if (!walk.names || !walk.seen) {
        status = bth_fail_memory(error, seen_nbytes);
        goto cleanup;
    }
    walk.names->root = root;
    walk.n_expected = bth_tree_n_storages(tree) + 8;
    uint64_t base = (uint64_t)(uintptr_t)walk.names * UINT64_C(0x9e3779b97f4a7c15) % PRIME | 257;
    walk.names->powers[0] = 1;
    for (int i = 1; i <= 8; i++)
        walk.names->powers[i] = times(walk.names->powers[i - 1], base);
    status = walk_all(&walk);
    if (status == 0)
        status = make_slots(walk.names, error);
    if (status == 0)
        *made = walk.names;
cleanup:
    if (status < 0)
        bth_names_free(walk.names);
    bth_release(walk.frames);
    bth_release(walk.seen);
    return status;
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

size_t bth_names_count(const bth_names *names)
{
    return names->n_tensors;
}

const berth_value *bth_names_value(const bth_names *names, size_t i)
{
    return i < names->n_tensors ? names->entries[names->tensors[i]].value : NULL;
}
