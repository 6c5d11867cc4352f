/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Names of tensors in a tree. A walk enters each container once (P3). Of each edge it keeps the
 * parent and the key, no text. Names are found by hash.
 */
#ifndef BTH_FORMAT_NAMES_NAMES_H
#define BTH_FORMAT_NAMES_NAMES_H

#include "format/values/value.h"

typedef struct bth_names bth_names;

/* Walks the tree under root. */
int bth_names_new(const berth_value *root, bth_names **names, berth_error *error);
void bth_names_free(bth_names *names);

/* Tensors in the order of the walk; also the parts of sparse and nested tensors. */
size_t bth_names_tensor_count(const bth_names *names);
const berth_value *bth_names_tensor_value(const bth_names *names, size_t i);

/* A text that grows. Beyond `limit` bytes nothing is added and `cut` is set; if memory is short,
 * `failed`. */
typedef struct bth_name_text {
    char *text; /* of bth_allocate */
    size_t nbytes;
    size_t capacity;
    size_t limit;
    bool cut;
    bool failed;
} bth_name_text;

/* Texts of tensor i: the short name ("a.0.b"; the path if that is ambiguous, empty, begins like a
 * path, or holds NULs or surrogates), and the path ("['a'][0]['b']"). The texts begin as zeros and
 * can be used again. */
int bth_names_write_tensor_name_and_path(const bth_names *names, size_t i, bth_name_text *name,
                                         bth_name_text *path, berth_error *error);
/* The same in new texts, which the caller releases. */
int bth_names_allocate_tensor_name_and_path(const bth_names *names, size_t i, char **name,
                                            char **path, berth_error *error);

/* The key of tensor i if it is an item of a dict at the root, in UTF-8 without NULs, and, unless it
 * may have any form, does not begin like a path; NULL: none of these. */
const char *bth_names_tensor_root_key(const bth_names *names, size_t i, bool any_form);

/* Any value by short name or path: see berth_find. A listed tensor comes before other values of the
 * same short name. The empty name is the root. Paths, and short names of other values, also follow
 * edges that the walk did not enter again. */
const berth_value *bth_names_find_value(const bth_names *names, const char *name,
                                        berth_error *error);

/* ---- what names.c (the walk), names_write.c (texts) and names_find.c (look-up) share ---- */

/* Bit of names_entry.hash: another tensor has the same short name. */
#define BTH_NAME_SHARED (UINT64_C(1) << 63)

/* An edge that leads to a tensor, or to a container with one: 24 bytes, no text. */
struct names_entry {
    const berth_value *value;
    uint64_t hash;   /* of the short name */
    uint32_t parent; /* entry; UINT32_MAX for the root */
    uint32_t index;  /* item of the parent's value, or BTH_STEP_… */
};

/* The hash of a long key is kept, because a file may use one key in many dicts. */
struct names_key {
    const void *text;
    uint64_t hash;
    uint64_t power;
};

struct bth_names {
    const berth_value *root;
    struct names_entry *entries;
    uint32_t n_entries;
    uint32_t entries_capacity;
    uint32_t *tensors; /* entries, in the order of the walk */
    uint32_t n_tensors;
    uint32_t tensors_capacity;
    uint32_t *slots; /* by hash: position in `tensors` + 1; 0: free */
    uint64_t slots_mask;
    struct names_key *keys;
    size_t n_keys;
    size_t keys_mask;
    uint64_t powers[9]; /* of the hash's base */
};

/* P3: n bytes of pickle can make a tuple whose repr has 2^n characters. So the repr of a tuple ends
 * after this many, with "...)". */
enum { BTH_TUPLE_REPR_NBYTES = 256 };

/* P3: a pickle can use one long key on many levels for a few bytes each, and a name contains it
 * each time. A million levels of short keys stay below this. */
#define BTH_MAX_NAME_NBYTES ((size_t)16 << 20)

void bth_name_text_append_bytes(bth_name_text *out, const char *text, size_t nbytes);
/* Python's repr of a key. The repr of a tuple is cut after about 256 bytes (P3). */
void bth_name_text_append_repr(bth_name_text *out, const berth_value *key);

/* One step below `parent`: in a path "['a']", "[0]", ".indices"; in a short name, without dots,
 * "a", "0", "indices". */
void bth_name_text_append_step(bth_name_text *out, const berth_value *parent, uint32_t index,
                               bool is_path);
/* Replaces the text by the short name, or the path, of an entry. */
void bth_name_text_write_entry_name(bth_name_text *out, const bth_names *names, uint32_t entry,
                                    bool path);

/* The name of a step that is no item: "indices", "__dict__", …; NULL for items. */
const char *bth_step_attribute_name(const berth_value *parent, uint32_t step);

/* The hash of a short name, as of an entry: that of its beginning (0: none), and more text. */
uint64_t bth_name_hash_append(const bth_names *names, uint64_t hash, const char *text,
                              size_t nbytes);
/* The position in `tensors` of the first tensor of that hash, or UINT32_MAX. */
uint32_t bth_names_find_tensor_by_hash(const bth_names *names, uint64_t hash);

#endif
