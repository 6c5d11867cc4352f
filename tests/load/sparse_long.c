/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: checking the indices of sparse tensors takes memory of a fixed size, and time in proportion
 * to the file, however many indices it says that it has.
 */
#include "tests/support/load/archive.h"

TestSuite(sparse_long, .init = begin_sample, .fini = end_sample);

static int check_t(void)
{
    return berth_tensor_check_indices(checkpoint, berth_find(checkpoint, "t", NULL), NULL, &error);
}

/* {"t": a sparse tensor of parts in this tree} */
static void save_sparse(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                        int32_t rank, berth_value *const *parts)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "t", berth_make_sparse(tree, layout, shape, rank, parts, false));
    save_file(root, "");
}

/* A CSR matrix of rows of one index each: longer than the buffer. */
static int64_t *long_rows, *long_columns;
enum { N_LONG = 300000 };

static void save_long(void)
{
    int64_t shape[] = {N_LONG, 4};
    float *numbers = calloc(N_LONG, sizeof *numbers);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *parts[] = {test_vector(tree, BERTH_INT64, long_rows, N_LONG + 1),
                            test_vector(tree, BERTH_INT64, long_columns, N_LONG),
                            test_vector(tree, BERTH_FLOAT32, numbers, N_LONG)};

    save_sparse(tree, BERTH_SPARSE_CSR, shape, 2, parts);
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
    save_long();
    open_file("");
    assert_ok(check_t());
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        long_columns[at[i]] = 4;
        save_long();
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
    save_long();
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
    save_long();
    open_file("");
    const berth_value *value = berth_find(checkpoint, "t", NULL);
    for (int n = 1; n <= 10; n++) {
        int left = n;
        berth_params params = {.progress = count_calls, .progress_context = &left};
        cr_expect_eq(berth_tensor_check_indices(checkpoint, value, &params, &error),
                     BERTH_E_CANCELLED);
        cr_expect_eq(left, 0, "asked again");
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

/* ---- what is read is counted, so that the clock proves nothing ---- */

struct counts {
    uint64_t n_reads, nbytes;       /* of a source's function */
    uint64_t done_cost, total_cost; /* of progress */
    struct span {
        const uint8_t *bytes;
        size_t nbytes;
    } span;
};

static int count_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct counts *counts = context;

    cr_assert(offset <= counts->span.nbytes && nbytes <= counts->span.nbytes - offset);
    memcpy(buffer, counts->span.bytes + offset, nbytes);
    counts->n_reads++;
    counts->nbytes += nbytes;
    return 0;
}

static int count_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct counts *counts = context;

    counts->done_cost = done_nbytes / sizeof(int64_t);
    counts->total_cost = total_nbytes / sizeof(int64_t);
    return 0;
}

/* Checks all indices of the file; what was read since it was open. */
static struct counts count_of_check(int expected)
{
    static struct counts counts;
    berth_params params = {.progress = count_progress, .progress_context = &counts};

    counts = (struct counts){.span = {file, file_nbytes}};
    berth_source source = {
        .nbytes = file_nbytes, .name = "counted", .read = count_read, .context = &counts};
    assert_ok(berth_open_source(&source, only("load.head_nbytes=1", NULL), &checkpoint, &error));
    counts.n_reads = counts.nbytes = 0;
    cr_expect_eq(berth_tensor_check_indices(checkpoint, berth_root(checkpoint), &params, &error),
                 expected, "%s", error.message);
    if (expected == 0)
        cr_expect_eq(counts.done_cost, counts.total_cost);
    close_opened();
    return counts;
}

enum { READ_COST = 16 };

/* A million small matrices cost no million reads. */
Test(sparse_long, batches_that_lie_side_by_side_are_read_together)
{
    enum { N = 1000000 };
    int64_t *rows = calloc(N * 2, sizeof *rows), *columns = calloc(N, sizeof *columns);
    float *numbers = calloc(N, sizeof *numbers);
    static const int64_t columns_shape[] = {N, 1}, values_stride[] = {0, 1};
    berth_tree *tree = berth_tree_new(NULL);

    for (size_t i = 0; i < N; i++)
        rows[2 * i + 1] = 1;
    columns[N - 1] = 2;
    berth_value *csr[] = {
        expanded(tree, BERTH_INT64, rows, N * 2, 2, (const int64_t[]){N, 2},
                 (const int64_t[]){2, 1}),
        expanded(tree, BERTH_INT64, columns, N, 2, columns_shape, (const int64_t[]){1, 1}),
        expanded(tree, BERTH_FLOAT32, numbers, 1, 2, columns_shape, values_stride)};
    save_sparse(tree, BERTH_SPARSE_CSR, (const int64_t[]){N, 1, 3}, 3, csr);
    struct counts counts = count_of_check(0);
    cr_expect_eq(counts.nbytes, (size_t)N * 3 * 8);
    cr_expect_eq(counts.total_cost, N * 3 + 2 * READ_COST);
    cr_expect_leq(counts.n_reads, N * 3 * 8 / (512 << 10) + 2);
    free(rows);
    free(columns);
    free(numbers);
}

/* Batches that do not lie side by side are told by their positions, too. */
Test(sparse_long, batches_in_another_order)
{
    static const int64_t rows[] = {0, 1}, columns[] = {0, 1, 5, 2};
    static const float numbers[4];
    static const int64_t columns_shape[] = {2, 2, 1};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *csr[] = {
        expanded(tree, BERTH_INT64, rows, 2, 3, (const int64_t[]){2, 2, 2},
                 (const int64_t[]){0, 0, 1}),
        expanded(tree, BERTH_INT64, columns, 4, 3, columns_shape, (const int64_t[]){1, 2, 1}),
        expanded(tree, BERTH_FLOAT32, numbers, 4, 3, columns_shape, (const int64_t[]){2, 1, 1})};
    save_sparse(tree, BERTH_SPARSE_CSR, (const int64_t[]){2, 2, 1, 3}, 4, csr);
    (void)count_of_check(BERTH_E_TENSOR);
    cr_expect(strstr(error.message, ": col_indices[0, 1, 0] is 5, but a row has the size 3;"), "%s",
              error.message);
}

/* Near ones are read with the gaps between them, far ones alone. */
Test(sparse_long, indices_with_gaps)
{
    enum { N = 20000 };
    static int64_t indices[N];
    static const float zero;
    static const int64_t strides[] = {2, 64, 65, N - 1};

    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        int64_t stride = strides[i], n = (N - 1) / stride + 1;
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *coo[] = {expanded(tree, BERTH_INT64, indices, N, 2, (const int64_t[]){1, n},
                                       (const int64_t[]){0, stride}),
                              expanded(tree, BERTH_FLOAT32, &zero, 1, 1, &n, (const int64_t[]){0})};
        save_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){1}, 1, coo);
        struct counts counts = count_of_check(0);
        cr_expect_eq(counts.nbytes / 8,
                     stride > 64 ? (uint64_t)n : (uint64_t)((n - 1) * stride + 1), "%lld",
                     (long long)stride);
        cr_expect_eq(counts.total_cost, (uint64_t)(stride > 64 ? n * (1 + READ_COST)
                                                               : (n - 1) * stride + 1 + READ_COST));
    }
}

/* T6: as often as that, and no more. */
Test(sparse_long, many_views_of_one_storage)
{
    enum { N = 300000, MAX = (1 << 18) + 16 * (N * 2 + 1) };
    int64_t *indices = calloc(N, sizeof *indices);
    static const float zero;
    const int64_t n = N, most = MAX / (N + READ_COST);

    for (int64_t n_views = most; n_views <= most + 1; n_views++) {
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *root = berth_make_list(tree);
        berth_storage *storage = berth_storage_new(tree, BERTH_INT64, indices, N * 8, NULL);
        berth_storage *values = berth_storage_new(tree, BERTH_FLOAT32, &zero, 4, NULL);
        for (int64_t i = 0; i < n_views; i++) {
            const int64_t shape[] = {1, N}, stride[] = {1, 1}, expanded_stride = 0;
            berth_value *coo[] = {
                berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_INT64,
                                                        .rank = 2,
                                                        .shape = shape,
                                                        .stride = stride,
                                                        .storage = storage}),
                berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                        .rank = 1,
                                                        .shape = &n,
                                                        .stride = &expanded_stride,
                                                        .storage = values})};
            berth_list_append(root, berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){1},
                                                      1, coo, false));
        }
        save_file(root, "");
        struct counts counts = count_of_check(n_views == most ? 0 : BERTH_E_UNSUPPORTED);
        cr_expect_eq(counts.nbytes, n_views == most ? (uint64_t)most * N * 8 : 0);
    }
    free(indices);
}

Test(sparse_long, views_that_repeat_one_element_are_read_once)
{
    static const int64_t two[] = {1, 2}, row[] = {0, 1, 1};
    static const float one = 1;
    const int64_t many = (int64_t)1 << 40, batches = (int64_t)1 << 30;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
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
    struct counts counts = count_of_check(0);
    cr_expect_eq(counts.nbytes, (2 + 3 + 1) * 8);
    cr_expect_eq(counts.total_cost, 2 * (1 + READ_COST) + 3 + READ_COST + 1 + READ_COST);
    open_file("load.check=data");
}

/* T6: 32768 batches, whose rows are one storage's and whose columns are not. */
Test(sparse_long, views_that_repeat_too_much_are_refused)
{
    enum { N = 32768 };
    static int64_t zeros[N];
    static const float one = 1;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *csr[] = {
        expanded(tree, BERTH_INT64, zeros, N, 2, (const int64_t[]){N, N}, (const int64_t[]){0, 1}),
        expanded(tree, BERTH_INT64, zeros, N, 2, (const int64_t[]){N, 1}, (const int64_t[]){1, 1}),
        expanded(tree, BERTH_FLOAT32, &one, 1, 2, (const int64_t[]){N, 1},
                 (const int64_t[]){0, 1})};

    save_sparse(tree, BERTH_SPARSE_CSR, (const int64_t[]){N, N - 1, 3}, 3, csr);
    expect_failure("load.check=data", BERTH_E_UNSUPPORTED,
                   "memory: \"t.crow_indices\": data/0: the indices of sparse tensors are views "
                   "that repeat the bytes of their storages too often to be checked; "
                   "load.check=directory opens them unchecked");
}

/* The two kinds of indices have one dtype, as PyTorch wants it. */
Test(sparse_long, of_two_dtypes)
{
    static const int64_t row[] = {0, 1}, shape[] = {1, 2};
    static const int32_t column = 0;
    static const float one = 1;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *parts[] = {test_vector(tree, BERTH_INT64, row, 2),
                            test_vector(tree, BERTH_INT32, &column, 1),
                            test_vector(tree, BERTH_FLOAT32, &one, 1)};

    save_sparse(tree, BERTH_SPARSE_CSR, shape, 2, parts);
    expect_failure("load.check=data", BERTH_E_TENSOR,
                   "memory: \"t.crow_indices\": data/0: crow_indices are int64, but col_indices "
                   "are int32; PyTorch's check_sparse_tensor_invariants refuses this "
                   "torch.sparse_csr tensor, too; load.check=directory opens it unchecked");
}
