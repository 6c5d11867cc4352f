/* SPDX-License-Identifier: BSD-3-Clause */
/* The shared helpers measure what they say, or every test that leans on them proves nothing. */
#include "tests/support/support.h"
#include <berth.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(support, memory_is_counted_and_comes_back_to_zero)
{
    static const char text[1000] = {'x'};
    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    berth_make_str(tree, text, sizeof text);
    struct test_memory held = test_memory_seen();
    berth_tree_free(tree);
    struct test_memory after = test_memory_seen();
    test_memory_unwatch();

    cr_expect_geq(held.live_nbytes, sizeof text);
    cr_expect_geq(held.largest_nbytes, sizeof text);
    cr_expect_leq(held.largest_nbytes, held.peak_nbytes);
    cr_expect_gt(held.n_allocations, 0);
    cr_expect_eq(after.live_nbytes, 0);
    cr_expect_geq(after.peak_nbytes, held.live_nbytes);
}

Test(support, the_refused_allocation_is_the_one_that_was_named)
{
    berth_error error;
    test_memory_watch();
    test_memory_refuse(1, false);
    cr_expect_null(berth_tree_new(&error));
    cr_expect_eq(error.code, BERTH_E_MEMORY);
    berth_tree *tree = berth_tree_new(&error);
    cr_expect_not_null(tree, "only one was to be refused");
    berth_tree_free(tree);

    test_memory_refuse(1, true);
    cr_expect_null(berth_tree_new(&error));
    cr_expect_null(berth_tree_new(&error));
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

Test(support, files_come_back_as_written_and_folders_go)
{
    char *folder = test_folder_new();
    char *path = test_path(folder, "some.bin");
    size_t nbytes;
    cr_expect_eq(test_folder_count(folder), 0);
    test_write_file(path, "a\0b", 3);
    cr_expect_eq(test_folder_count(folder), 1);
    uint8_t *bytes = test_read_file(path, &nbytes);
    cr_expect_eq(nbytes, 3);
    cr_expect_arr_eq(bytes, "a\0b", 4, "a NUL stands behind");
    char *name = strdup(folder);
    test_folder_remove(folder);
    FILE *gone = fopen(path, "rb");
    cr_expect_null(gone, "%s is still there", name);
    free(name);
    free(path);
    free(bytes);
}
