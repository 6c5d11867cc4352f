/* SPDX-License-Identifier: BSD-3-Clause */
/* T6: indices of sparse tensors in legacy files, and in storages that are deflated (Z12). */
#include "tests/support/load/deflated_scene.h"

TestSuite(sparse_files, .init = begin_sample, .fini = end_sample);

#define ADVICE                                                                                     \
    "; PyTorch's check_sparse_tensor_invariants refuses this torch.sparse_coo tensor, too; "       \
    "load.check=directory opens it unchecked"

static int check_all(void)
{
    return berth_tensor_check_indices(checkpoint, berth_root(checkpoint), NULL, &error);
}

/* In files that PyTorch wrote before 1.6: indices [2, 2] of a tensor of the shape [2, 3]. */
Test(sparse_files, legacy)
{
    static const char says[] = "memory: \"coo.indices\": storage %s at byte %llu: indices[1, 0] is "
                               "9, but dimension 1 has the size 3" ADVICE;
    berth_named_tensor named = {0};
    char expected[400];

    read_file("old/rare-1.13-stream.pth");
    open_file("load.check=data");
    assert_ok(check_all());
    for (size_t i = 0; !named.name || strcmp(named.name, "coo.indices") != 0; i++)
        assert_ok(berth_tensor_at(checkpoint, i, &named, &error));
    uint64_t at = named.offset + 2 * sizeof(int64_t);
    (void)snprintf(expected, sizeof expected, says,
                   berth_storage_get_info(named.tensor->storage)->key, (unsigned long long)at);
    file[at] = 9;
    open_file("");
    cr_expect_eq(check_all(), BERTH_E_TENSOR);
    expect_error(BERTH_E_TENSOR, expected);
    expect_failure("load.check=data", BERTH_E_TENSOR, expected);
    expect_failure("load.check=data load.mmap=off", BERTH_E_TENSOR, expected);
    cr_expect_eq(
        berth_verify(FROM_MEMORY(file, file_nbytes), only("", NULL), NULL, NULL, NULL, &error),
        BERTH_E_TENSOR);
    expect_error(BERTH_E_TENSOR, expected);
}

/* ---- deflated ---- */

enum { N_LARGE = 1 << 17 };

/* {"t": a COO tensor} with deflated storages of zeros; its last index is `last`. */
static void make_deflated(int64_t last)
{
    static int64_t indices[N_LARGE];
    static float values[N_LARGE];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *parts[] = {
        test_tensor(tree, BERTH_INT64, indices, 2, (const int64_t[]){1, N_LARGE}),
        test_vector(tree, BERTH_FLOAT32, values, N_LARGE)};

    indices[N_LARGE - 1] = last;
    berth_dict_set(
        root, "t",
        berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){3}, 1, parts, false));
    begin_records(tree, root, NATIVE_BYTEORDER);
    add_record("data/0", indices, sizeof indices);
    add_record("data/1", values, sizeof values);
    add_text("version", "3\n");
    zip_again("data/");
}

/* A deflated storage has no bytes in the file that could be named. */
Test(sparse_files, deflated)
{
    static const char says[] = "memory: \"t.indices\": data/0: indices[0, 131071] is 3, but "
                               "dimension 0 has the size 3" ADVICE;

    make_deflated(2);
    open_file("load.check=data");
    assert_ok(check_all());
    make_deflated(3);
    expect_failure("load.check=data", BERTH_E_TENSOR, says);
    expect_failure("load.check=data load.mmap=off", BERTH_E_TENSOR, says);
    cr_expect_eq(berth_verify(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL), NULL,
                              NULL, NULL, &error),
                 BERTH_E_TENSOR);
    expect_error(BERTH_E_TENSOR, says);
}

/* Z12 */
Test(sparse_files, deflated_ones_are_inflated_only_where_they_are_checked)
{
    make_deflated(3);
    test_memory_watch();
    open_file("load.check=headers");
    cr_expect_lt(test_memory_seen().largest_nbytes, sizeof(int64_t[N_LARGE]));
    open_file("load.check=data load.inflate=off");
    cr_expect_lt(test_memory_seen().largest_nbytes, sizeof(int64_t[N_LARGE]));
    cr_expect_eq(check_all(), BERTH_E_UNSUPPORTED);
    cr_expect(strstr(error.message, "\"t.indices\": data/0") != NULL, "%s", error.message);
    cr_expect(strstr(error.message, "load.inflate=on inflates it") != NULL, "%s", error.message);
    close_opened();
    test_memory_unwatch();
}
