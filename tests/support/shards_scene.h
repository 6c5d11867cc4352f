/* SPDX-License-Identifier: BSD-3-Clause */
/* A state whose tensors are sharded along any dimension, and what each of n writers has of it. */
#ifndef TESTS_SUPPORT_SHARDS_SCENE_H
#define TESTS_SUPPORT_SHARDS_SCENE_H

#include <berth/joint.h>

#include "tests/support/support.h"

/* With its bytes, or as an outline. The bytes live as long as the process. Free the tree. */
berth_value *shards_state_new(berth_tree *tree, bool is_outline);

enum { MAX_SHARDS = 48 };

typedef struct writer_shards {
    berth_slice slices[MAX_SHARDS];
    size_t n;
    int64_t starts[MAX_SHARDS][4], lengths[MAX_SHARDS][4];
    void *copies[MAX_SHARDS];
} writer_shards;

/* What one writer has, as tensors of its own. */
void shards_take(writer_shards *shards, size_t n_writers, size_t writer);
void shards_free(writer_shards *shards);

#endif
