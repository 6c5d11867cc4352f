/* SPDX-License-Identifier: BSD-3-Clause */
/* J1: one file by many processes is the file that one process would have saved. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"

static berth_error error;
static char *expected_folder, *expected_path;

static void set_up(void)
{
    begin_model_scene();
    expected_folder = test_folder_new();
    expected_path = test_path(expected_folder, "model.pt");
    test_write_file(path, "old", 3);
}

static void tear_down(void)
{
    end_scene();
    test_folder_remove(expected_folder);
    free(expected_path);
}

TestSuite(joint, .init = set_up, .fini = tear_down);

static void save_expected(void)
{
    joint_state state = joint_state_new(false);

    assert_ok(berth_save(expected_path, state.value, NULL, &error));
    berth_tree_free(state.tree);
}

static berth_joint *begin(const joint_state *outline, size_t n_writers, berth_joint_info *info)
{
    berth_joint *joint;

    assert_ok(berth_joint_begin(path, outline->value, n_writers, NULL, &joint, &error));
    berth_joint_get_info(joint, info);
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

static void check_same_file(const char *what)
{
    size_t nbytes, expected_nbytes;
    uint8_t *file = test_read_file(path, &nbytes);
    uint8_t *expected = test_read_file(expected_path, &expected_nbytes);
    size_t at = 0;

    cr_assert_eq(nbytes, expected_nbytes, "%s", what);
    while (at < nbytes && file[at] == expected[at])
        at++;
    cr_assert_eq(at, nbytes, "%s: byte %zu of %zu differs", what, at, nbytes);
    cr_assert_eq(test_folder_count(folder), 1);
    free(file);
    free(expected);
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
    check_same_file(what);
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
