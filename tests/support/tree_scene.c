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

void expect_tree_failure(const void *made, int code, const char *message)
{
    berth_error error;

    cr_expect_null(made, "%s", message);
    cr_expect_eq(berth_tree_error(tree, &error), code, "%s: %s", message, error.message);
    cr_expect_str_eq(error.message, message);
    end_tree();
    begin_tree();
}
