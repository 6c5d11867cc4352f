/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Names of tensors in a tree. A walk enters each container once (P3). Of each edge it keeps the
 * parent and the key, no text. Names are found by hash.
 */
#ifndef BTH_FORMAT_NAMES_NAMES_H
#define BTH_FORMAT_NAMES_NAMES_H

#include "berth.h"

typedef struct bth_names bth_names;

/* Walks the tree under root. */
int bth_names_new(const berth_value *root, bth_names **names, berth_error *error);
void bth_names_free(bth_names *names);

/* Tensors in the order of the walk; also the parts of sparse and nested tensors. */
size_t bth_names_tensor_count(const bth_names *names);
const berth_value *bth_names_tensor_value(const bth_names *names, size_t i);
/*
 * A text that grows. Beyond `limit` bytes nothing is added and `cut` is set; if memory is short,
 * `failed`.
 */
typedef struct bth_name_text {
    char *text; /* of bth_allocate */
    size_t nbytes;
    size_t capacity;
    size_t limit;
    bool cut;
    bool failed;
} bth_name_text;

/*
 * Texts of tensor i: the short name ("a.0.b"; the path if that is ambiguous, empty, begins like a
 * path, or holds NULs or surrogates), and the path ("['a'][0]['b']"). The texts begin as zeros and
 * can be used again.
 */
int bth_names_write_tensor_name_and_path(const bth_names *names, size_t i, bth_name_text *name,
                                         bth_name_text *path, berth_error *error);
/* The same in new texts, which the caller releases. */
int bth_names_allocate_tensor_name_and_path(const bth_names *names, size_t i, char **name,
                                            char **path, berth_error *error);

/* The key of tensor i if it is an item of a dict at the root, in UTF-8 without NULs, and, unless it
 * may have any form, does not begin like a path; NULL: none of these. */
const char *bth_names_tensor_root_key(const bth_names *names, size_t i, bool any_form);

/*
 * Any value by short name or path: see berth_find. A listed tensor comes before other values of the
 * same short name. The empty name is the root. Paths, and short names of other values, also follow
 * edges that the walk did not enter again.
 */
const berth_value *bth_names_find_value(const bth_names *names, const char *name,
                                        berth_error *error);

#endif
