/* SPDX-License-Identifier: BSD-3-Clause */
/* A tree and its names for each test of a suite: .init = begin_tree, .fini = end_names. */
#ifndef TESTS_SUPPORT_FORMAT_NAMES_SCENE_H
#define TESTS_SUPPORT_FORMAT_NAMES_SCENE_H

#include "format/names/names.h"
#include "tests/support/tree_scene.h"

extern bth_names *names;

void end_names(void);

/* A tensor of one float32. */
berth_value *tensor(void);

/* Takes the names of this tree, which was made without a failure, in place of those before. */
void walk(const berth_value *root);

/* Of the tensor with this number; valid until the next call. */
struct told_name {
    char *name, *path;
} tell_name(size_t i);

const berth_value *find(const char *name, berth_error *error);
void expect_found(const char *name, const berth_value *value);
void expect_not_found(const char *name, int code, const char *sentence);

#endif
