/* SPDX-License-Identifier: BSD-3-Clause */
/* J1: one file by many processes is the file that one process would have saved. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"

static berth_error error;

TestSuite(joint, .init = begin_joint_scene, .fini = end_joint_scene);

static void save_expected(void)
{
    joint_state state = joint_state_new(false);

    assert_ok(berth_save(expected_path, state.value, NULL, &error));
    berth_tree_free(state.tree);
}

static berth_joint *begin(const joint_state *outline, size_t n_writers, berth_joint_info *info)
{
    berth_joint *joint;

    assert_ok(berth_joint_begin(path, outline->value, n_writers, NULL, &joint, info, &error));
    cr_assert_eq(info->n_writers, n_writers);
    return joint;
}

static void add_receipts(berth_joint *joint, const joint_receipts *receipts)
{
    for (size_t i = receipts->n; i-- > 0;) {
        size_t nbytes;
        uint8_t *receipt = joint_receipt_of(receipts, i, &nbytes);
        assert_ok(berth_joint_add_receipt(joint, receipt, nbytes, &error));
        free(receipt);
    }
}

static void save_jointly(size_t n_writers, const char *options)
{
    joint_state outline = joint_state_new(true);
    berth_joint_info info;
    char what[200];

    snprintf(what, sizeof what, "%zu writers, %s", n_writers, options);
    test_write_file(path, "old", 3);
    berth_joint *joint = begin(&outline, n_writers, &info);
    joint_receipts receipts = joint_write_in_processes(info.ticket, info.ticket_nbytes, n_writers);
    cr_assert(test_file_holds(path, "old", 3));
    add_receipts(joint, &receipts);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(outline.tree);
    joint_receipts_end(&receipts);
    check_joint_file(what);
}

enum { N_WRITERS = 5 };

static const char *const ways[] = {
    "save.method=buffered",
    "save.method=direct",
    "save.method=direct save.storage_alignment=4096",
    "save.method=buffered save.storage_alignment=1 save.compute_crc32=off",
    "save.method=direct save.compute_crc32=off",
    "save.method=direct debug=on",
    "save.method=direct save.byteorder=big",
};

Test(joint, the_file_is_that_of_one_process, .timeout = 120)
{
    static const size_t n_writers[N_WRITERS] = {1, 2, 3, 4, 7};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char options[200];
        snprintf(options, sizeof options, "save.durability=none io.threads=2 %s", ways[i]);
        patch(options);
        save_expected();
        /* All numbers of writers in the first two ways, then two of them in turn. */
        for (size_t j = 0; j < N_WRITERS; j++)
            if (i < 2 || (i + j) % 3 == 0)
                save_jointly(n_writers[j], ways[i]);
        assert_ok(berth_config_unpatch(&error));
    }
}

/* Two tensors of one short name, and one that has both. */
static berth_value *value_of_alike_names(berth_tree *tree, bool is_outline)
{
    static const int64_t shape[] = {3};
    static const float data[3][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
    const void *bytes[3];
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);

    for (size_t i = 0; i < 3; i++)
        bytes[i] = is_outline ? BERTH_ELSEWHERE : data[i];
    berth_dict_set(value, "a.b", test_tensor(tree, BERTH_FLOAT32, bytes[0], 1, shape));
    berth_dict_set(value, "a", inner);
    berth_dict_set(inner, "b", test_tensor(tree, BERTH_FLOAT32, bytes[1], 1, shape));
    berth_dict_set(value, "c", test_tensor(tree, BERTH_FLOAT32, bytes[2], 1, shape));
    return value;
}

Test(joint, a_slice_names_its_tensor_by_name_or_path)
{
    static const float first[] = {1, 2, 3}, second[] = {4, 5, 6}, third[] = {7, 8, 9};
    const berth_slice slices[] = {
        berth_slice_whole("['a.b']", first), berth_slice_whole("['a']['b']", second),
        berth_slice_bytes("['c']", 0, 4, third), berth_slice_bytes("c", 4, 8, third + 1)};
    berth_tree *tree = berth_tree_new(&error);
    joint_state outline = {tree, value_of_alike_names(tree, true)};
    berth_joint_info info;

    assert_ok(berth_save(expected_path, value_of_alike_names(tree, false), NULL, &error));
    berth_joint *joint = begin(&outline, 1, &info);
    (void)joint_write_and_tell(joint, &info, 0, slices, 4, NULL);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    check_joint_file("names and paths");
}

/* Tensors of an open checkpoint, and empty ones: no writer has bytes of them. */
Test(joint, what_is_read_or_empty_is_the_coordinators)
{
    static const float numbers[] = {1, 2, 3};
    static const int64_t shape[] = {3}, none[] = {0};
    const berth_slice slices[] = {berth_slice_whole("b", numbers)};
    berth_tree *tree = berth_tree_new(&error);
    joint_state outline = {tree, berth_make_dict(tree, BERTH_KIND_DICT)};
    berth_value *whole = berth_make_dict(tree, BERTH_KIND_DICT);
    const berth_slice of_others[] = {berth_slice_whole("a", numbers),
                                     berth_slice_whole("none", numbers)};
    berth_joint_info info;
    berth_checkpoint *checkpoint;
    void *receipt;
    size_t nbytes;

    berth_dict_set(whole, "a", test_tensor(tree, BERTH_FLOAT32, numbers, 1, shape));
    berth_dict_set(whole, "b", test_tensor(tree, BERTH_FLOAT32, numbers, 1, shape));
    berth_dict_set(whole, "none", test_tensor(tree, BERTH_FLOAT32, numbers, 1, none));
    assert_ok(berth_save(expected_path, whole, NULL, &error));
    assert_ok(berth_open(expected_path, NULL, &checkpoint, &error));
    berth_dict_set(outline.value, "a",
                   berth_value_copy(tree, berth_dict_get(berth_root(checkpoint), "a"), 0));
    berth_dict_set(outline.value, "b", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 1, shape));
    berth_dict_set(outline.value, "none",
                   test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 1, none));
    berth_joint *joint = begin(&outline, 1, &info);
    for (size_t i = 0; i < 2; i++) {
        cr_expect_eq(berth_joint_write(info.ticket, info.ticket_nbytes, 0, &of_others[i], 1, NULL,
                                       &receipt, &nbytes, &error),
                     BERTH_E_NOT_FOUND);
        cr_expect_not_null(
            strstr(error.message, "the outline has no such tensor whose bytes are elsewhere"));
    }
    (void)joint_write_and_tell(joint, &info, 0, slices, 1, NULL);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    berth_close(checkpoint);
    check_joint_file("read and empty");
}

enum { N_ROWS = 6, ROW = 1500, N_THREE = 3 };

/* Rows 5 - writer and 2 - writer: in the file they come from the last writer first, twice. */
static void write_rows_backwards(berth_joint *joint, const berth_joint_info *info,
                                 const float rows[N_ROWS][ROW])
{
    for (size_t writer = 0; writer < N_THREE; writer++) {
        const size_t at[] = {5 - writer, 2 - writer};
        const berth_slice slices[] = {
            berth_slice_bytes("w", at[0] * sizeof rows[0], sizeof rows[0], rows[at[0]]),
            berth_slice_bytes("w", at[1] * sizeof rows[0], sizeof rows[0], rows[at[1]])};
        (void)joint_write_and_tell(joint, info, writer, slices, 2, NULL);
    }
}

Test(joint, writers_have_slices_in_any_order)
{
    static const int64_t shape[] = {N_ROWS, ROW};
    static float rows[N_ROWS][ROW];
    berth_tree *tree = berth_tree_new(&error);
    joint_state outline = {tree, berth_make_dict(tree, BERTH_KIND_DICT)};
    berth_value *whole = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_joint_info info;

    for (size_t i = 0; i < N_ROWS * ROW; i++)
        rows[i / ROW][i % ROW] = (float)i;
    berth_dict_set(outline.value, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    berth_dict_set(whole, "w", test_tensor(tree, BERTH_FLOAT32, rows, 2, shape));
    assert_ok(berth_save(expected_path, whole, NULL, &error));
    berth_joint *joint = begin(&outline, N_THREE, &info);
    write_rows_backwards(joint, &info, rows);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    check_joint_file("rows backwards");
}
