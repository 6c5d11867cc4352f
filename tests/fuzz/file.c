/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whole files: any bytes, opened in every way, asked for everything; what is accepted is one
 * reading, however it is found.
 */
#include "tests/support/fuzz/archive.h"

enum kind {
    BY_DIRECTORY,
    DIRECTORY_BY_READS,
    UNCHECKED,
    DATA,
    PLAIN,
    PLAIN_BY_READS,
    READINGS,
    N_KINDS
};

void check_input(const uint8_t *bytes, size_t nbytes)
{
    static const char plain[] = "load.check=headers load.calculate_storage_offsets=off";
    unsigned kind = kind_of(bytes, nbytes, N_KINDS);

    if (IS_CHECKED(kind, BY_DIRECTORY))
        (void)check_opening(bytes, nbytes, "load.check=directory");
    if (IS_CHECKED(kind, DIRECTORY_BY_READS))
        check_by_reads(bytes, nbytes, "load.check=directory");
    if (IS_CHECKED(kind, UNCHECKED))
        (void)check_opening(bytes, nbytes, "load.check=none load.unknown_globals=inert");
    if (IS_CHECKED(kind, DATA))
        (void)check_opening(bytes, nbytes,
                            "load.check=data load.mmap=off load.unknown_globals=inert");
    if (IS_CHECKED(kind, PLAIN))
        (void)check_opening(bytes, nbytes, plain);
    if (IS_CHECKED(kind, PLAIN_BY_READS))
        check_by_reads(bytes, nbytes, plain);
    if (IS_CHECKED(kind, READINGS))
        check_readings(bytes, nbytes, "load.unknown_globals=refuse");
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_archive(bytes, start_over(bytes, nbytes, most), most, number);
}

/* A sparse tensor of a layout, with good indices: of 2 x 3 elements, or blocks of one. */
static berth_value *make_sparse(berth_tree *tree, berth_layout_kind layout)
{
    static const int64_t coo[] = {0, 1, 2, 0}, begins[] = {0, 1, 2}, plain[] = {1, 0};
    static const int64_t by_row[] = {2, 3}, by_column[] = {3, 2};
    static const int64_t coo_shape[] = {2, 2}, rows_shape[] = {3}, values_shape[] = {2, 1, 1};
    static const float values[] = {1, 2};
    bool is_by_row = layout != BERTH_SPARSE_CSC && layout != BERTH_SPARSE_BSC;
    bool is_blocked = layout == BERTH_SPARSE_BSR || layout == BERTH_SPARSE_BSC;
    berth_tensor indices = {.dtype = BERTH_INT64, .rank = 2, .shape = coo_shape, .data = coo};
    berth_tensor last = {
        .dtype = BERTH_FLOAT32, .rank = is_blocked ? 3 : 1, .shape = values_shape, .data = values};
    berth_tensor columns = {.dtype = BERTH_INT64, .rank = 1, .shape = values_shape, .data = plain};
    berth_value *parts[3];
    size_t n = 0;

    if (layout != BERTH_SPARSE_COO)
        indices =
            (berth_tensor){.dtype = BERTH_INT64, .rank = 1, .shape = rows_shape, .data = begins};
    parts[n++] = berth_make_tensor(tree, &indices);
    if (layout != BERTH_SPARSE_COO)
        parts[n++] = berth_make_tensor(tree, &columns);
    parts[n++] = berth_make_tensor(tree, &last);
    return berth_make_sparse(tree, layout, is_by_row ? by_row : by_column, 2, parts, false);
}

/* One of each layout. */
static void seed_sparse(void)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    berth_content content = berth_of_value(root);
    void *bytes = NULL;
    size_t nbytes = 0;
    berth_error error;

    for (int layout = BERTH_SPARSE_COO; layout <= BERTH_SPARSE_BSC; layout++)
        berth_list_append(root, make_sparse(tree, (berth_layout_kind)layout));
    const berth_target target = berth_to_memory(&bytes, &nbytes);
    int result = berth_save_to(&target, &content, NULL, &error);
    MUST(result == 0, "%s", error.message);
    /* A seed's checks count memory by an allocator of their own. */
    void *kept = memcpy(malloc(nbytes), bytes, nbytes);
    berth_free(bytes);
    berth_tree_free(tree);
    seed("sparse.pt", kept, nbytes);
    free(kept);
}

void make_seeds(void)
{
    seed_sparse();
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", ".pt");
    seed_folder("tests/fuzz/found/file", "");
}

#ifndef BERTH_FUZZER

Test(files, keep_all_properties)
{
    cr_assert_geq(replay_seeds(60), 24);
}
#endif
