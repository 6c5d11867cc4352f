/* SPDX-License-Identifier: BSD-3-Clause */
/* Two checkpoints whose names are compared, not their dicts, for `berth diff`. */
#ifndef BERTH_TOOLS_DIFF_NAMES_H
#define BERTH_TOOLS_DIFF_NAMES_H

#include "tools/commands/pair_walk.h"

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
