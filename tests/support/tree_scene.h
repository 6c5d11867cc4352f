/* SPDX-License-Identifier: BSD-3-Clause */
/* A tree for each test of a suite: .init = begin_tree, .fini = end_tree. */
#ifndef TESTS_SUPPORT_TREE_SCENE_H
#define TESTS_SUPPORT_TREE_SCENE_H

#include <berth.h>

extern berth_tree *tree;

void begin_tree(void);
void end_tree(void);

#endif
