/* SPDX-License-Identifier: BSD-3-Clause */
/* What the sources of `berth diff` share. */
#ifndef BERTH_TOOLS_DIFF_H
#define BERTH_TOOLS_DIFF_H

#include <berth/more.h>

/* ---- pair_walk.c: a walk over two values side by side ---- */

typedef struct pair_walk pair_walk;

/* Called on the way; a result other than 0 stops the walk. */
typedef struct pair_visitor {
    /* Two tensors, two values without items, or two values of different families. */
    int (*both)(void *context, const pair_walk *walk, const berth_value *a, const berth_value *b);
    /* An item that only one of two containers has. */
    int (*only)(void *context, const pair_walk *walk, bool in_left);
    void *context;
} pair_visitor;

/*
 * Walks both in step, without recursion: items by key or index, attributes, and the parts of
 * tensors. Equality is transitive, so compared values form classes, and two values of one class are
 * not compared again (Hopcroft and Karp). Time is linear even if the two sides share their
 * containers differently (P3). Returns the visitor's result, or EXIT_TROUBLE after printing why.
 */
int walk_pairs(const berth_value *a, const berth_value *b, const pair_visitor *visitor);

/* Two values of one name; NULL: a side has none. */
typedef struct named_pair {
    const char *name;
    const berth_value *a, *b;
} named_pair;

/* The same of several pairs, one after the other. */
int walk_named_pairs(const named_pair *pairs, size_t n, const pair_visitor *visitor);

/* The path of the values that are reported, as ['a'][0], behind the name of their pair; allocated,
 * NULL without memory. */
char *pair_path(const pair_walk *walk);

/* Whether the values that are reported are the attributes of a dict. */
bool pair_is_attributes(const pair_walk *walk);

/* The tensor inside a Parameter or a tensor with attributes; or the value itself. */
const berth_value *unwrap_parameter_or_subclass(const berth_value *value);

/* ---- diff_names.c: two checkpoints whose names are compared, not their dicts ---- */

typedef struct named_value {
    char *name;
    const berth_value *value;
    size_t at; /* its place in the file's order */
} named_value;

/* Tensors in the order of their names. */
typedef struct name_list {
    named_value *items;
    size_t n;
} name_list;

typedef struct name_pairs {
    name_list lists[2]; /* of the left and the right checkpoint */
    named_pair *pairs;  /* by the names; those that one side alone has, too */
    size_t n;
    char *prefix; /* that the names of one have before those of the other; NULL: no pairs */
    int longer;   /* the one that has it */
} name_pairs;

/* Whether the value is a dict of tensors alone, as a safetensors file is. */
bool value_is_flat(const berth_value *value);
/*
 * Pairs by names, if names tell more than dicts do: checkpoint `flat` of the two is flat, and the
 * other has its names in dicts in dicts, or one has the names of the other behind a prefix. Returns
 * 0, or an exit code after printing why. name_pairs_free is due in any case.
 */
int name_pairs_make(name_pairs *made, berth_checkpoint *const checkpoints[2], int flat);
void name_pairs_free(name_pairs *made);

#endif
