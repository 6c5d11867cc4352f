/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * T6: the indices of sparse tensors, good ones and each kind of wrong ones, as two dtypes and in
 * two byte orders: berth_tensor_check_indices, berth_verify and load.check=data say the same.
 */
#include "tests/support/load/archive.h"

TestSuite(sparse, .init = begin_sample, .fini = end_sample);

struct row {
    /* "layout shape | a part of indices | the values' shape". "coo+": marked as coalesced. A part
       is "shape : elements / strides"; without strides it is contiguous. */
    const char *text;
    const char *message; /* behind the byte; NULL: good */
};

static const struct row rows[] = {
    /* COO */
    {"coo+ 2 3 | 2 3 : 0 0 1 0 2 1 | 3", NULL},
    {"coo 2 3 | 2 3 : 1 0 0 0 2 2 | 3", NULL},
    {"coo+ 2 3 | 2 0 : | 0", NULL},
    {"coo+ 0 | 1 0 : | 0", NULL},
    {"coo+ 2 3 | 1 2 : 0 1 | 2 3", NULL},
    {"coo+ | 0 2 : | 2", NULL},
    {"coo+ 2 3 | 2 2 : 0 2 1 0 / 1 2 | 2", NULL},
    {"coo+ 2 3 | 2 2 : 0 9 1 9 0 9 2 / 4 2 | 2", NULL},
    {"coo 2 3 | 2 5 : 1 2 / 1 0 | 5", NULL},
    {"coo+ 2 3 | 2 3 : 0 0 1 0 3 1 | 3", "indices[1, 1] is 3, but dimension 1 has the size 3"},
    {"coo 2 3 | 2 3 : 0 2 1 0 2 1 | 3", "indices[0, 1] is 2, but dimension 0 has the size 2"},
    {"coo 2 3 | 2 1 : -1 0 | 1", "indices[0, 0] is -1, but dimension 0 has the size 2"},
    {"coo 0 | 1 1 : 0 | 1", "indices[0, 0] is 0, but dimension 0 has the size 0"},
    {"coo 2 3 | 1 2 : 0 2 | 2 3", "indices[0, 1] is 2, but dimension 0 has the size 2"},
    {"coo+ 2 3 | 2 2 : 0 9 1 9 0 9 3 / 4 2 | 2",
     "indices[1, 1] is 3, but dimension 1 has the size 3"},
    {"coo+ 2 3 | 2 2 : 1 0 0 2 | 2",
     "indices[:, 1] is (0, 2), but must come after (1, 0): the tensor is marked as coalesced"},
    {"coo+ 2 3 | 2 2 : 1 1 2 2 | 2",
     "indices[:, 1] is (1, 2), but must come after (1, 2): the tensor is marked as coalesced"},
    {"coo+ 2 3 | 2 5 : 1 2 / 1 0 | 5",
     "indices[:, 1] is (1, 2), but must come after (1, 2): the tensor is marked as coalesced"},
    {"coo 2 3 | 2 5 : 1 3 / 1 0 | 5", "indices[1, 0] is 3, but dimension 1 has the size 3"},
    /* CSR */
    {"csr 2 3 | 3 : 0 2 3 | 3 : 0 2 1 | 3", NULL},
    {"csr 2 3 | 3 : 0 0 0 | 0 : | 0", NULL},
    {"csr 0 3 | 1 : 0 | 0 : | 0", NULL},
    {"csr 2 3 2 | 3 : 0 1 1 | 1 : 2 | 1 2", NULL},
    {"csr 0 3 | 1 : 7 | 1 : 2 | 1", NULL},
    {"csr 0 3 | 1 : 7 | 2 : 0 3 | 2", "col_indices[1] is 3, but a row has the size 3"},
    {"csr 2 3 | 3 : 1 2 3 | 3 : 0 2 1 | 3", "crow_indices[0] is 1, but must be 0"},
    {"csr 2 3 | 3 : 0 2 2 | 3 : 0 2 1 | 3", "crow_indices[2] is 2, but there are 3 col_indices"},
    {"csr 2 3 | 3 : 0 2 4 | 3 : 0 2 1 | 3", "crow_indices[2] is 4, but must be from 2 to 3"},
    {"csr 2 3 | 3 : 0 -1 3 | 3 : 0 2 1 | 3", "crow_indices[1] is -1, but must be from 0 to 3"},
    {"csr 3 2 | 4 : 0 2 1 3 | 3 : 0 1 1 | 3", "crow_indices[2] is 1, but must be from 2 to 3"},
    {"csr 3 2 | 4 : 0 3 3 4 | 4 : 0 1 1 0 | 4", "crow_indices[1] is 3, but must be from 0 to 2"},
    {"csr 1 2 | 2 : 0 3 | 3 : 0 1 1 | 3", "crow_indices[1] is 3, but must be from 0 to 2"},
    {"csr 2 3 | 3 : 0 2 3 | 3 : 0 3 1 | 3", "col_indices[1] is 3, but a row has the size 3"},
    {"csr 2 3 | 3 : 0 2 3 | 3 : 0 2 -1 | 3", "col_indices[2] is -1, but a row has the size 3"},
    {"csr 2 3 | 3 : 0 2 3 | 3 : 2 0 1 | 3",
     "col_indices[1] is 0, but must be greater than 2, the one before it in its row"},
    {"csr 2 3 | 3 : 0 2 3 | 3 : 1 1 1 | 3",
     "col_indices[1] is 1, but must be greater than 1, the one before it in its row"},
    {"csr 1 3 | 2 : 0 9 2 / 2 | 2 : 0 2 | 2",
     "crow_indices have the stride 2 in the last dimension, but must have 1"},
    {"csr 1 3 | 2 : 0 2 | 2 : 0 9 2 / 2 | 2",
     "col_indices have the stride 2 in the last dimension, but must have 1"},
    /* batches */
    {"csr 2 1 3 | 2 2 : 0 1 0 1 | 2 1 : 0 2 | 2 1", NULL},
    {"csr 0 1 3 | 0 2 : | 0 1 : | 0 1", NULL},
    {"csr 2 1 3 | 2 2 : 0 1 / 0 1 | 2 1 : 0 2 | 2 1", NULL},
    {"csr 0 1099511627776 1099511627775 3 | 0 1099511627776 1099511627776 : | 0 1099511627776 0 : "
     "| 0 1099511627776 0",
     NULL},
    {"csr 2 1 3 | 2 2 : 0 1 0 1 | 2 1 : 0 3 | 2 1",
     "col_indices[1, 0] is 3, but a row has the size 3"},
    {"csr 2 1 3 | 2 2 : 0 1 0 0 | 2 1 : 0 2 | 2 1",
     "crow_indices[1, 1] is 0, but there are 1 col_indices"},
    {"csr 2 1 3 | 2 2 : 0 1 1 1 | 2 1 : 0 2 | 2 1", "crow_indices[1, 0] is 1, but must be 0"},
    {"csr 2 1 3 | 2 2 : 0 1 / 0 1 | 2 1 : 0 3 | 2 1",
     "col_indices[1, 0] is 3, but a row has the size 3"},
    {"csr 2 2 1 3 | 2 2 2 : 0 1 0 1 0 1 0 1 | 2 2 1 : 0 1 5 2 | 2 2 1",
     "col_indices[1, 0, 0] is 5, but a row has the size 3"},
    /* CSC */
    {"csc 3 2 | 3 : 0 2 3 | 3 : 0 2 1 | 3", NULL},
    {"csc 3 2 | 3 : 0 2 3 | 3 : 0 3 1 | 3", "row_indices[1] is 3, but a column has the size 3"},
    {"csc 3 2 | 3 : 0 2 3 | 3 : 2 2 1 | 3",
     "row_indices[1] is 2, but must be greater than 2, the one before it in its column"},
    {"csc 3 2 | 3 : 0 4 3 | 3 : 0 2 1 | 3", "ccol_indices[1] is 4, but must be from 0 to 3"},
    /* blocks of 2 x 3: the sizes count blocks */
    {"bsr 4 6 | 3 : 0 2 2 | 2 : 0 1 | 2 2 3", NULL},
    {"bsr 4 6 | 3 : 0 2 2 | 2 : 0 2 | 2 2 3", "col_indices[1] is 2, but a row has the size 2"},
    {"bsr 4 6 | 3 : 0 3 3 | 3 : 0 1 1 | 3 2 3", "crow_indices[1] is 3, but must be from 0 to 2"},
    {"bsc 4 9 | 4 : 0 2 2 2 | 2 : 0 1 | 2 2 3", NULL},
    {"bsc 4 9 | 4 : 0 2 2 2 | 2 : 0 2 | 2 2 3", "row_indices[1] is 2, but a column has the size 2"},
    {"bsc 2 4 9 | 2 4 : 0 0 0 0 0 0 1 0 | 2 0 : | 2 0 2 3",
     "ccol_indices[1, 2] is 1, but must be 0"},
};
#define N_ROWS (sizeof rows / sizeof *rows)

/* Behind the message, with the layout. */
#define ADVICE                                                                                     \
    "; PyTorch's check_sparse_tensor_invariants refuses this torch.sparse_%.3s tensor, too; "      \
    "load.check=directory opens it unchecked"

/* ---- files of them ---- */

/* Takes the numbers at *text; their number. */
static int32_t take_numbers(const char **text, int64_t *numbers)
{
    int32_t n = 0;

    for (char *end; n < 16; *text = end) {
        numbers[n] = strtoll(*text, &end, 10);
        if (end == *text)
            break;
        n++;
    }
    *text += strspn(*text, " ");
    return n;
}

/* Whether this mark is next; then takes it. */
static bool take_mark(const char **text, char mark)
{
    if (**text != mark)
        return false;
    ++*text;
    return true;
}

/* Elements of a part; they live as long as its tree. */
struct elements {
    int64_t wide[16];
    int32_t narrow[16];
};

static berth_value *take_indices(berth_tree *tree, const char **text, berth_dtype dtype,
                                 struct elements *elements)
{
    int64_t shape[16], stride[16], product = 1;
    berth_tensor tensor = {.dtype = dtype, .shape = shape, .stride = stride};

    tensor.rank = take_numbers(text, shape);
    cr_assert(take_mark(text, ':'));
    int32_t n = take_numbers(text, elements->wide);
    for (int32_t i = 0; i < n; i++)
        elements->narrow[i] = (int32_t)elements->wide[i];
    for (int32_t d = tensor.rank; d-- > 0;) {
        stride[d] = product; /* beyond 64 bits only where there are no elements */
        product = (int64_t)((uint64_t)product * (uint64_t)shape[d]);
    }
    if (take_mark(text, '/'))
        take_numbers(text, stride);
    cr_assert(take_mark(text, '|'));
    tensor.storage = berth_storage_new(
        tree, dtype, dtype == BERTH_INT64 ? (const void *)elements->wide : elements->narrow,
        (uint64_t)n * berth_dtype_nbytes(dtype), NULL);
    return berth_make_tensor(tree, &tensor);
}

static berth_layout_kind take_layout(const char **text)
{
    static const char names[][4] = {"coo", "csr", "csc", "bsr", "bsc"};
    int i = 0;

    while (strncmp(*text, names[i], 3) != 0)
        i++;
    *text += 3;
    return (berth_layout_kind)(BERTH_SPARSE_COO + i);
}

/* {"t": the tensor} */
static void save_row(const struct row *row, berth_dtype dtype, const char *options)
{
    static const float numbers[64];
    static struct elements elements[2];
    const char *text = row->text;
    berth_layout_kind layout = take_layout(&text);
    bool is_coalesced = take_mark(&text, '+');
    int64_t shape[16], values_shape[16];
    int32_t rank = take_numbers(&text, shape);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT), *parts[3];
    size_t n = 0;

    cr_assert(take_mark(&text, '|'));
    parts[n++] = take_indices(tree, &text, dtype, &elements[0]);
    if (layout != BERTH_SPARSE_COO)
        parts[n++] = take_indices(tree, &text, dtype, &elements[1]);
    int32_t values_rank = take_numbers(&text, values_shape);
    parts[n] = test_tensor(tree, BERTH_FLOAT32, numbers, values_rank, values_shape);
    berth_dict_set(root, "t", berth_make_sparse(tree, layout, shape, rank, parts, is_coalesced));
    save_file(root, options);
}

static int check_t(void)
{
    return berth_tensor_check_indices(checkpoint, berth_find(checkpoint, "t", NULL), NULL, &error);
}

/* The last result is the row's. */
static void expect_row(size_t i, int result, const char *how)
{
    char expected[256];
    size_t length = strlen(error.message);

    if (!rows[i].message) {
        cr_expect_eq(result, 0, "row %zu, %s: %s", i, how, error.message);
        return;
    }
    (void)snprintf(expected, sizeof expected, "%s" ADVICE, rows[i].message, rows[i].text);
    cr_expect_eq(result, BERTH_E_TENSOR, "row %zu, %s: %d", i, how, result);
    cr_expect(length >= strlen(expected) &&
                  strcmp(error.message + length - strlen(expected), expected) == 0,
              "row %zu, %s: %s", i, how, error.message);
}

static void expect_row_in_every_way(size_t i)
{
    static const char *const options[] = {"load.check=data", "load.check=data load.mmap=off",
                                          "debug=on load.check=data"};

    open_file("");
    expect_row(i, check_t(), "berth_tensor_check_indices");
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    expect_row(i, check_t(), "in memory");
    close_opened();
    expect_row(
        i, berth_verify(FROM_MEMORY(file, file_nbytes), only("", NULL), NULL, NULL, NULL, &error),
        "berth_verify");
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        expect_row(i, try_file(options[k]), options[k]);
        close_opened();
    }
}

Test(sparse, each_rule_as_int64_and_int32_in_both_byte_orders)
{
    static const char *const orders[] = {"save.byteorder=" NATIVE_BYTEORDER,
                                         "save.byteorder=" OTHER_BYTEORDER};

    for (size_t i = 0; i < N_ROWS; i++)
        for (int order = 0; order < 2; order++) {
            save_row(&rows[i], BERTH_INT64, orders[order]);
            expect_row_in_every_way(i);
            save_row(&rows[i], BERTH_INT32, orders[order]);
            expect_row_in_every_way(i);
        }
}

Test(sparse, the_error_names_tensor_record_byte_and_index)
{
    save_row(&rows[9], BERTH_INT64, "");
    expect_failure("load.check=data", BERTH_E_TENSOR,
                   "memory: \"t.indices\": data/0 at byte 928: indices[1, 1] is 3, but dimension 1 "
                   "has the size 3; PyTorch's check_sparse_tensor_invariants refuses this "
                   "torch.sparse_coo tensor, too; load.check=directory opens it unchecked");
}

Test(sparse, arguments)
{
    save_row(&rows[9], BERTH_INT64, "");
    open_file("");
    const berth_value *value = berth_find(checkpoint, "t", NULL);
    cr_expect_eq(berth_tensor_check_indices(checkpoint, value, NULL, NULL), BERTH_E_TENSOR);
    cr_expect_eq(berth_tensor_check_indices(checkpoint, berth_root(checkpoint), NULL, &error),
                 BERTH_E_TENSOR, "in a dict");
    cr_expect_eq(berth_tensor_check_indices(checkpoint, berth_value_at(value, 0), NULL, &error), 0,
                 "dense ones have no indices");
    berth_params reserved = {.reserved = {1}};
    cr_expect_eq(berth_tensor_check_indices(checkpoint, value, &reserved, &error),
                 BERTH_E_ARGUMENT);
    berth_checkpoint *other = NULL;
    assert_ok(berth_open_source(FROM_MEMORY(file, file_nbytes), only("", NULL), &other, &error));
    cr_expect_eq(berth_tensor_check_indices(other, value, NULL, &error), BERTH_E_ARGUMENT);
    berth_close(other);
}

/* W6 */
Test(sparse, every_failing_allocation_is_a_clean_error)
{
    save_row(&rows[0], BERTH_INT64, "");
    expect_clean_failing_allocations("load.check=data", 10);
}
