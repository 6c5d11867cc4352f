/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: checking the indices of sparse tensors takes memory of a fixed size, and time in proportion
 * to the file, however many indices it says that it has.
 */
#include "tests/support/load/archive.h"

TestSuite(sparse_long, .init = begin_sample, .fini = end_sample, .timeout = 60);

static int check_t(void)
{
    return berth_tensor_check_indices(checkpoint, berth_find(checkpoint, "t", NULL), NULL, &error);
}

/* A CSR matrix of rows of one index each: longer than the buffer. */
static int64_t *long_rows, *long_columns;
enum { N_LONG = 300000 };

static void save_long(const char *options)
{
    int64_t shape[] = {N_LONG, 4};
    float *numbers = calloc(N_LONG, sizeof *numbers);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    berth_value *parts[] = {test_vector(tree, BERTH_INT64, long_rows, N_LONG + 1),
                            test_vector(tree, BERTH_INT64, long_columns, N_LONG),
                            test_vector(tree, BERTH_FLOAT32, numbers, N_LONG)};

    berth_dict_set(root, "t", berth_make_sparse(tree, BERTH_SPARSE_CSR, shape, 2, parts, false));
    save_file(root, options);
    berth_tree_free(tree);
    free(numbers);
}

static void make_long(void)
{
    long_rows = malloc((N_LONG + 1) * sizeof *long_rows);
    long_columns = malloc(N_LONG * sizeof *long_columns);
    for (int64_t i = 0; i <= N_LONG; i++)
        long_rows[i] = i;
    for (int64_t i = 0; i < N_LONG; i++)
        long_columns[i] = i % 4;
}

static void free_long(void)
{
    free(long_rows);
    free(long_columns);
}

/* Each number that is wrong is found, wherever the buffer ends. */
Test(sparse_long, long_ones_are_read_piece_by_piece)
{
    static const int64_t at[] = {0, 65534, 65535, 65536, 65537, 131071, 131072, N_LONG - 1};
    char expected[100];

    make_long();
    save_long("");
    open_file("");
    assert_ok(check_t());
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        long_columns[at[i]] = 4;
        save_long("");
        (void)snprintf(expected, sizeof expected,
                       "col_indices[%lld] is 4, but a row has the size 4", (long long)at[i]);
        open_file("");
        cr_expect_eq(check_t(), BERTH_E_TENSOR);
        cr_expect(strstr(error.message, expected) != NULL, "%s", error.message);
        long_columns[at[i]] = 0;
    }
    free_long();
}

/* P3: nothing is allocated by numbers of the file. */
Test(sparse_long, memory_does_not_grow_with_the_indices)
{
    make_long();
    save_long("");
    open_file("load.mmap=off");
    const berth_value *value = berth_find(checkpoint, "t", NULL);
    test_memory_watch();
    assert_ok(berth_tensor_check_indices(checkpoint, value, NULL, &error));
    cr_expect_leq(test_memory_seen().peak_nbytes, (1 << 20) + 4096);
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    free_long();
}

static int count_calls(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    int *left = context;

    cr_expect_leq(done_nbytes, total_nbytes);
    return --*left == 0;
}

Test(sparse_long, progress_can_cancel)
{
    make_long();
    save_long("");
    open_file("");
    const berth_value *value = berth_find(checkpoint, "t", NULL);
    for (int n = 1; n <= 10; n++) {
        int left = n;
        berth_params params = {.progress = count_calls, .progress_context = &left};
        cr_expect_eq(berth_tensor_check_indices(checkpoint, value, &params, &error),
                     BERTH_E_CANCELLED);
    }
    free_long();
}

/* A tensor of a shape whose last `n_rest` dimensions have the stride 0. */
static berth_value *expanded(berth_tree *tree, berth_dtype dtype, const void *bytes, uint64_t n,
                             int32_t rank, const int64_t *shape, const int64_t *stride)
{
    berth_tensor tensor = {.dtype = dtype, .rank = rank, .shape = shape, .stride = stride};

    tensor.storage = berth_storage_new(tree, dtype, bytes, n * berth_dtype_nbytes(dtype), NULL);
    return berth_make_tensor(tree, &tensor);
}

/* The time is in proportion to the bytes of the file. */
Test(sparse_long, views_that_repeat_one_element_are_read_once)
{
    static const int64_t two[] = {1, 2}, row[] = {0, 1, 1};
    static const float one = 1;
    const int64_t many = (int64_t)1 << 40, batches = (int64_t)1 << 30;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    berth_value *coo[] = {
        expanded(tree, BERTH_INT64, two, 2, 2, (const int64_t[]){2, many}, (const int64_t[]){1, 0}),
        expanded(tree, BERTH_FLOAT32, &one, 1, 1, &many, (const int64_t[]){0})};
    berth_value *csr[] = {expanded(tree, BERTH_INT64, row, 3, 2, (const int64_t[]){batches, 3},
                                   (const int64_t[]){0, 1}),
                          expanded(tree, BERTH_INT64, two, 2, 2, (const int64_t[]){batches, 1},
                                   (const int64_t[]){0, 1}),
                          expanded(tree, BERTH_FLOAT32, &one, 1, 2, (const int64_t[]){batches, 1},
                                   (const int64_t[]){0, 1})};

    berth_dict_set(
        root, "coo",
        berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){3, 3}, 2, coo, false));
    berth_dict_set(
        root, "csr",
        berth_make_sparse(tree, BERTH_SPARSE_CSR, (const int64_t[]){batches, 2, 3}, 3, csr, false));
    save_file(root, "");
    berth_tree_free(tree);
    open_file("load.check=data");
}

/* T6: 32768 batches, whose rows are one storage's and whose columns are not. */
Test(sparse_long, views_that_repeat_too_much_are_refused)
{
    enum { N = 32768 };
    static int64_t zeros[N];
    static const float one = 1;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    berth_value *csr[] = {
        expanded(tree, BERTH_INT64, zeros, N, 2, (const int64_t[]){N, N}, (const int64_t[]){0, 1}),
        expanded(tree, BERTH_INT64, zeros, N, 2, (const int64_t[]){N, 1}, (const int64_t[]){1, 1}),
        expanded(tree, BERTH_FLOAT32, &one, 1, 2, (const int64_t[]){N, 1},
                 (const int64_t[]){0, 1})};

    berth_dict_set(
        root, "t",
        berth_make_sparse(tree, BERTH_SPARSE_CSR, (const int64_t[]){N, N - 1, 3}, 3, csr, false));
    save_file(root, "");
    berth_tree_free(tree);
    expect_failure(
        "load.check=data", BERTH_E_UNSUPPORTED,
        "memory: \"t.crow_indices\": data/0: the indices of sparse tensors are views that "
        "repeat the bytes of their storages too often to be checked");
}

/* The two kinds of indices have one dtype, as PyTorch wants it. */
Test(sparse_long, of_two_dtypes)
{
    static const int64_t row[] = {0, 1}, shape[] = {1, 2};
    static const int32_t column = 0;
    static const float one = 1;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    berth_value *parts[] = {test_vector(tree, BERTH_INT64, row, 2),
                            test_vector(tree, BERTH_INT32, &column, 1),
                            test_vector(tree, BERTH_FLOAT32, &one, 1)};

    berth_dict_set(root, "t", berth_make_sparse(tree, BERTH_SPARSE_CSR, shape, 2, parts, false));
    save_file(root, "");
    berth_tree_free(tree);
    expect_failure(
        "load.check=data", BERTH_E_TENSOR,
        "memory: \"t.crow_indices\": data/0: crow_indices are int64, but col_indices are "
        "int32");
}
