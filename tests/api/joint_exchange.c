/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves whose slices lie in short runs, with an exchange (J1): the file is that of one
 * process, whatever is sharded along which dimension. If one writer fails, all of them return an
 * error, and none waits (J8).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scene.h"
#include "tests/support/shards_scene.h"
#include "tests/support/writer_group.h"

static berth_error error;
static char *expected_folder, *expected_path;
static berth_joint *joint;
static berth_joint_info info;
static writer_group group;

/* What a writer got. */
typedef struct result {
    int status;
    berth_error error;
    void *receipt;
    size_t nbytes;
    berth_stats stats;
    unsigned n_calls;
} result;

static result results[MAX_GROUP];

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

TestSuite(joint_exchange, .init = set_up, .fini = tear_down, .timeout = 120);

/* ---- writers ---- */

/* A patch is its thread's. */
static berth_config *config;

static void write_slices(group_seat *seat, const berth_slice *slices, size_t n)
{
    result *got = seat->context;
    const berth_params params = {.config = config,
                                 .stats = &got->stats,
                                 .exchange = group_exchange,
                                 .exchange_context = seat};

    got->status = berth_joint_write(info.ticket, info.ticket_nbytes, seat->number, slices, n,
                                    &params, &got->receipt, &got->nbytes, &got->error);
    got->n_calls = seat->n_calls;
    if (got->status < 0 && seat->n_calls == 0)
        group_break(seat->group);
}

static void run(size_t n, void (*write)(group_seat *seat))
{
    memset(results, 0, sizeof results);
    group_run(&group, n, write, results, sizeof *results);
    cr_assert(!group.sizes_differ);
}

static void free_receipts(void)
{
    for (size_t i = 0; i < MAX_GROUP; i++)
        berth_free(results[i].receipt);
}

static void finish(size_t n)
{
    for (size_t i = n; i-- > 0;) {
        cr_assert_eq(results[i].status, 0, "writer %zu: %s", i, results[i].error.message);
        assert_ok(berth_joint_add_receipt(joint, results[i].receipt, results[i].nbytes, &error));
    }
    free_receipts();
}

static void set_options(const char *options)
{
    patch(options);
    config = berth_config_new(&error);
    assert_ok(berth_config_apply(config, options, &error));
}

static void unset_options(void)
{
    berth_config_free(config);
    assert_ok(berth_config_unpatch(&error));
}

/* ---- the same file ---- */

static void write_shards(group_seat *seat)
{
    writer_shards shards;

    shards_take(&shards, seat->group->n, seat->number);
    write_slices(seat, shards.slices, shards.n);
    shards_free(&shards);
}

static void check_same_file(const char *what)
{
    size_t nbytes, expected_nbytes, at = 0;
    uint8_t *file = test_read_file(path, &nbytes);
    uint8_t *expected = test_read_file(expected_path, &expected_nbytes);

    cr_assert_eq(nbytes, expected_nbytes, "%s", what);
    if (memcmp(file, expected, nbytes) != 0)
        while (file[at] == expected[at])
            at++;
    cr_assert_eq(at, 0, "%s: byte %zu of %zu differs", what, at, nbytes);
    cr_assert_eq(test_folder_count(folder), 1);
    free(file);
    free(expected);
}

static void save_shards(size_t n, const char *way)
{
    berth_tree *tree = berth_tree_new(NULL);
    char what[200];

    snprintf(what, sizeof what, "%zu writers, %s", n, way);
    test_write_file(path, "old", 3);
    assert_ok(berth_joint_begin(path, shards_state_new(tree, true), n, NULL, &joint, &error));
    berth_joint_get_info(joint, &info);
    run(n, write_shards);
    cr_assert(test_file_holds(path, "old", 3));
    finish(n);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    check_same_file(what);
}

static const char *const ways[] = {
    "save.method=direct",
    "save.method=buffered save.storage_alignment=64",
    "save.method=direct save.storage_alignment=4096",
    "save.method=buffered save.storage_alignment=1 save.compute_crc32=off",
    "save.method=direct debug=on",
    "save.method=direct save.byteorder=big",
};

Test(joint_exchange, the_file_is_that_of_one_process)
{
    static const size_t n_writers[] = {1, 2, 3, 4, 7};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        berth_tree *tree = berth_tree_new(NULL);
        char options[200];
        snprintf(options, sizeof options, "save.durability=none io.threads=2 %s", ways[i]);
        set_options(options);
        assert_ok(berth_save(expected_path, shards_state_new(tree, false), NULL, &error));
        berth_tree_free(tree);
        /* All numbers of writers in the first way, then two of them in turn. */
        for (size_t j = 0; j < 5; j++)
            if (i < 1 || (i + j) % 3 == 0)
                save_shards(n_writers[j], ways[i]);
        unset_options();
    }
}
