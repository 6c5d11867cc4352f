/* SPDX-License-Identifier: BSD-3-Clause */
/* What the sources of `berth convert` share. */
#ifndef BERTH_TOOLS_CONVERT_H
#define BERTH_TOOLS_CONVERT_H

#include <berth.h>

#include "tools/common/options.h"

/* ---- modules.c ---- */

/*
 * Each pickled module of a value becomes its state_dict, in dicts and as the root. *tree: that the
 * new value is of; to be freed in any case. Unless quietly: prints which modules have no part in
 * that. Returns 0, or an exit code after printing why.
 */
int modules_to_state_dicts(const char *path, bool quietly, berth_tree **tree,
                           const berth_value **value);
/* Whether it is a pickled module, or a dict with one. */
bool value_has_modules(const berth_value *value);

/* ---- shards_write.c: back to an index and its files ---- */

typedef struct shards_to_write {
    const char *index;           /* its path */
    const berth_value *value;    /* a dict of tensors */
    const berth_value *metadata; /* of safetensors; NULL: the usual */
    const common *options;
    uint64_t max_nbytes; /* of the tensors of a file; 0: 5 GB */
    bool to_safetensors, tensors_only, copy_ties, compact;
} shards_to_write;

/* By the name of the index. Returns 0, or EXIT_TROUBLE after printing why. */
int shards_choose_format(const char *index, bool *to_safetensors);
/* Writes each file atomically, the index last. Returns an exit code. */
int shards_write(const shards_to_write *shards);

#endif
