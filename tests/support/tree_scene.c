/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/tree_scene.h"

#include <criterion/criterion.h>

berth_tree *tree;

void begin_tree(void)
{
    tree = berth_tree_new(NULL);
    cr_assert_not_null(tree);
}

void end_tree(void)
{
    berth_tree_free(tree);
}
