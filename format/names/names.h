/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Names of tensors in a tree: a walk that enters each container once (P3), keeps
 * (parent, key) per edge instead of text, and finds by hash in linear time.
 */
#ifndef BTH_FORMAT_NAMES_NAMES_H
#define BTH_FORMAT_NAMES_NAMES_H

#include "berth.h"

typedef struct bth_names bth_names;

/* Walks the tree under root. */
int bth_names_new(const berth_value *root, bth_names **names, berth_error *error);
void bth_names_free(bth_names *names);

/* Tensors in walk order; the parts of sparse and nested ones apart. */
size_t bth_names_count(const bth_names *names);
const berth_value *bth_names_value(const bth_names *names, size_t i);
/* Text of entry i: the short name ("a.0.b"; the path if that is ambiguous, empty, begins like a
 * path, or holds NULs or surrogates), and the path ("['a'][0]['b']"). Allocated with
 * bth_allocate, the caller releases.
 */
int bth_names_text(const bth_names *names, size_t i, char **name, char **path, berth_error *error);
/* The same into texts that are kept from call to call, of zeros at first. */
typedef struct bth_name_text {
    char *text;
    size_t capacity;
} bth_name_text;
int bth_names_show(const bth_names *names, size_t i, bth_name_text *name, bth_name_text *path,
                   berth_error *error);

/*
 * Any value (not only tensors) by short name or path: see berth_find. A tensor of the list goes
 * before other values of the same short name; the empty name is the root. Paths, and short names
 * of values that are not listed, follow edges that the walk did not enter again.
 */
const berth_value *bth_names_find(const bth_names *names, const char *name, berth_error *error);

#endif
