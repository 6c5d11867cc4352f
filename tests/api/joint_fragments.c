/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves in which nearly all blocks are shared, with an exchange (J1): fragments go to the
 * writer that puts their block together, and not to the coordinator.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"
#include "tests/support/writer_group.h"

/* Rows shorter than a block, and rows with a block or two of their own: writer i of n has every
 * nth row. Together they have more fragments than go to a coordinator. */
enum { N_SHORT = 7001, SHORT_COLUMNS = 1251, N_LONG = 500, LONG_COLUMNS = 4501, BLOCK = 4096 };
enum { N_ROWS = N_SHORT + N_LONG, KIB = 1024 };

static berth_error error;
static berth_joint *joint;
static berth_joint_info info;
static writer_group group;
static int16_t *elements; /* of both tensors */
static const char *options;
static size_t twice, left_out; /* rows; N_ROWS: none */

static group_result results[MAX_GROUP];

static void set_up(void)
{
    begin_joint_scene();
    size_t n = N_SHORT * SHORT_COLUMNS + N_LONG * LONG_COLUMNS;
    elements = malloc(n * sizeof *elements);
    for (size_t i = 0; i < n; i++)
        elements[i] = (int16_t)(i * 2654435761U >> 9);
    twice = left_out = N_ROWS;
}

static void tear_down(void)
{
    free(elements);
    end_joint_scene();
}

TestSuite(joint_fragments, .init = set_up, .fini = tear_down);

static berth_value *state_new(berth_tree *tree, bool is_outline)
{
    static const int64_t short_rows[] = {N_SHORT, SHORT_COLUMNS};
    static const int64_t long_rows[] = {N_LONG, LONG_COLUMNS};
    const int16_t *long_elements = elements + N_SHORT * SHORT_COLUMNS;
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(
        value, "short",
        test_tensor(tree, BERTH_INT16, is_outline ? BERTH_ELSEWHERE : elements, 2, short_rows));
    berth_dict_set(
        value, "long",
        test_tensor(tree, BERTH_INT16, is_outline ? BERTH_ELSEWHERE : long_elements, 2, long_rows));
    return value;
}

/* ---- writers ---- */

static berth_slice row_slice(size_t row, int64_t starts[2])
{
    static const int64_t lengths[2][2] = {{1, SHORT_COLUMNS}, {1, LONG_COLUMNS}};
    const bool is_long = row >= N_SHORT;
    const int16_t *at = elements + row * SHORT_COLUMNS;

    if (is_long)
        at = elements + N_SHORT * SHORT_COLUMNS + (row - N_SHORT) * LONG_COLUMNS;
    starts[0] = (int64_t)(is_long ? row - N_SHORT : row);
    starts[1] = 0;
    return berth_slice_of(is_long ? "long" : "short", starts, lengths[is_long], at);
}

static void write_rows(group_seat *seat)
{
    berth_slice *slices = malloc(N_ROWS * sizeof *slices);
    int64_t(*starts)[2] = malloc(N_ROWS * sizeof *starts);
    group_result *got = seat->context;
    berth_config *config = berth_config_new(&got->error);
    size_t n = 0;

    assert_ok(berth_config_apply(config, options, &got->error));
    for (size_t row = 0; row < N_ROWS; row++) {
        bool mine = row % seat->group->n == seat->number && row != left_out;
        if (mine || (row == twice && seat->number == (row + 1) % seat->group->n)) {
            slices[n] = row_slice(row, starts[n]);
            n++;
        }
    }
    group_write(seat, &info, slices, n, (berth_params){.config = config}, got);
    berth_config_free(config);
    free(slices);
    free(starts);
}

static berth_tree *outline_tree;

static void begin(size_t n, const char *chosen)
{
    options = chosen;
    patch(options);
    outline_tree = berth_tree_new(NULL);
    assert_ok(
        berth_joint_begin(path, state_new(outline_tree, true), n, NULL, &joint, &info, &error));
}

static void run(size_t n)
{
    memset(results, 0, sizeof results);
    group_run(&group, n, write_rows, results, sizeof *results);
    cr_assert(!group.sizes_differ);
}

static void end(void)
{
    berth_tree_free(outline_tree);
    assert_ok(berth_config_unpatch(&error));
}

/* Returns the bytes of the receipts. */
static size_t add_receipts(size_t n)
{
    size_t nbytes = 0;

    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(results[i].status, 0, "writer %zu: %s", i, results[i].error.message);
        assert_ok(berth_joint_add_receipt(joint, results[i].receipt, results[i].nbytes, &error));
        nbytes += results[i].nbytes;
        berth_free(results[i].receipt);
    }
    return nbytes;
}

/* ---- the same file ---- */

static void save_as_one_process(const char *chosen)
{
    berth_tree *tree = berth_tree_new(NULL);

    patch(chosen);
    assert_ok(berth_save(expected_path, state_new(tree, false), NULL, &error));
    assert_ok(berth_config_unpatch(&error));
    berth_tree_free(tree);
}

Test(joint_fragments, the_file_is_that_of_one_process_and_receipts_are_small)
{
    static const struct {
        const char *options;
        size_t n[3];
    } ways[] = {
        {"save.durability=none io.threads=2 save.method=direct", {2, 3, 7}},
        {"save.durability=none io.threads=2 save.method=buffered save.storage_alignment=4096", {3}},
        {"save.durability=none io.threads=2 save.byteorder=" OTHER_BYTEORDER, {5}},
        {"save.durability=none io.threads=2 save.storage_alignment=2 save.compute_crc32=off", {4}},
        {"save.durability=none io.threads=2 save.method=direct debug=on", {2}},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        save_as_one_process(ways[i].options);
        for (size_t j = 0; j < 3 && ways[i].n[j] > 0; j++) {
            const size_t n = ways[i].n[j];
            uint64_t requested_nbytes = 0;
            begin(n, ways[i].options);
            run(n);
            for (size_t k = 0; k < n; k++)
                requested_nbytes += results[k].stats.requested_nbytes;
            cr_assert_eq(requested_nbytes, 2 * (N_SHORT * SHORT_COLUMNS + N_LONG * LONG_COLUMNS));
            /* Two parts for a long row, few for the others; the ends of two storages. */
            cr_assert_lt(add_receipts(n), (2 * N_LONG + 100) * 32 + 4 * BLOCK + KIB, "%zu writers",
                         n);
            assert_ok(berth_joint_finish(joint, &error));
            end();
            check_joint_file(ways[i].options);
        }
    }
}

/* ---- errors ---- */

static const char *const usual = "save.durability=none io.threads=2 save.storage_alignment=64";

static void check_old_file(void)
{
    end();
    cr_assert(test_file_holds(path, "old", 3));
    cr_assert_eq(test_folder_count(folder), 1);
}

/* J3: row 100 begins 250,200 bytes behind the storage's begin. */
Test(joint_fragments, a_row_that_two_gave_is_found_by_the_owner_of_its_window)
{
    begin(3, usual);
    twice = 100;
    run(3);
    berth_joint_abort(joint);
    cr_assert_eq(results[0].status, BERTH_E_ARGUMENT);
    cr_assert_str_eq(strstr(results[0].error.message, "short: "),
                     "short: writer 2 has byte 250200 of its storage, and so has another slice");
    for (size_t i = 1; i < 3; i++) {
        cr_assert_eq(results[i].status, BERTH_E_PEER);
        cr_assert(strstr(results[i].error.message, "writer 0 has failed with BERTH_E_ARGUMENT"));
    }
    check_old_file();
}

Test(joint_fragments, a_row_that_nobody_gave_is_found_at_the_end)
{
    begin(3, usual);
    left_out = 100;
    run(3);
    (void)add_receipts(3);
    FAILS_SAYING(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT,
                 "no writer has written its bytes 250200 to 252702 (tensor 'short')");
    check_old_file();
}

/* Its calls are: words, then words and messages of each step, words. */
Test(joint_fragments, an_exchange_that_breaks_fails_all)
{
    begin(3, usual);
    for (group.breaks_at = 2; group.breaks_at <= 4; group.breaks_at++) {
        run(3);
        for (size_t i = 0; i < 3; i++) {
            cr_assert_eq(results[i].status, BERTH_E_CALLBACK, "%s", results[i].error.message);
            cr_assert_null(results[i].receipt);
        }
    }
    berth_joint_abort(joint);
    check_old_file();
}
