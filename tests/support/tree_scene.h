/* SPDX-License-Identifier: BSD-3-Clause */
/* A tree for each test of a suite: .init = begin_tree, .fini = end_tree. */
#ifndef TESTS_SUPPORT_TREE_SCENE_H
#define TESTS_SUPPORT_TREE_SCENE_H

#include <berth.h>

extern berth_tree *tree;

void begin_tree(void);
void end_tree(void);

/* What was to be made is NULL, and the tree has failed with this. A new tree takes its place. */
void expect_tree_failure(const void *made, int code, const char *message);

#endif
