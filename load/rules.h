/* SPDX-License-Identifier: BSD-3-Clause */
/* Rules over storages: for each, the first that fits. What a rule then says is its owner's. */
#ifndef BTH_LOAD_RULES_H
#define BTH_LOAD_RULES_H

#include "load/checkpoint.h"

/* All of it must fit; zeros fit any. */
typedef struct bth_condition {
    const char *pattern;  /* glob over names of the tensors that view the storage */
    const char *location; /* glob over where it was */
    uint64_t least_nbytes, most_nbytes;
} bth_condition;

/* The condition of rule i. */
typedef bth_condition (*bth_condition_at)(const void *rules, size_t i);

/*
 * *first, the caller's to release: by the index of a storage, the number of the first rule that
 * fits it, n_rules if none does.
 */
int bth_rules_fit(berth_checkpoint *checkpoint, const void *rules, size_t n_rules,
                  bth_condition_at at, size_t **first, berth_error *error);

#endif
