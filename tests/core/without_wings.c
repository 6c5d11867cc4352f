/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The core alone: this program is linked with no object of a wing. It saves, opens, reads, loads
 * and verifies; what needs a wing is refused by a sentence.
 */
#include <berth/config.h>
#include <berth/more.h>
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/opened.h"

static const float elements[] = {1, 2, 3, 4, 5, 6};

static void save_and_open(void)
{
    static const int64_t shape[] = {2, 3};
    const berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = elements};
    berth_tree *tree = berth_tree_new(&error);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    begin_model_scene();
    berth_dict_set(root, "weight", berth_make_tensor(tree, &tensor));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    open_as("");
}

static void tear_down(void)
{
    close_opened();
    end_scene();
}

TestSuite(core, .init = save_and_open, .fini = tear_down);

Test(core, saves_opens_loads_and_verifies)
{
    static const int64_t shape[] = {2, 3};
    const berth_source source = berth_from_path(path);
    berth_stats stats = {0};
    berth_verdict verdict;
    float copy[6];

    const void *found = berth_expect(checkpoint, "weight", BERTH_FLOAT32, 2, shape, &error);
    cr_assert_not_null(found, "%s", error.message);
    cr_expect_arr_eq(found, elements, sizeof elements);
    assert_ok(berth_tensor_read(checkpoint, berth_find_tensor(checkpoint, "weight", &error), 0, 6,
                                copy, &error));
    cr_expect_arr_eq(copy, elements, sizeof elements);
    open_as("load.method=read io.threads=2");
    assert_ok(berth_load(checkpoint, NULL, &(berth_params){.stats = &stats}, &error));
    cr_expect_eq(stats.requested_nbytes, sizeof elements);
    assert_ok(berth_verify(&source, NULL, NULL, NULL, &verdict, &error));
    cr_expect_eq(verdict.n_bad, 0);
}

static void check_is_unavailable(int status, const char *message)
{
    cr_expect_eq(status, BERTH_E_UNAVAILABLE);
    cr_expect_str_eq(error.message, message);
}

Test(core, what_needs_a_wing_is_unavailable)
{
    const berth_storage_rule rule = {.device = "cuda:0"};
    berth_checkpoint *other = NULL;
    char message[256];

    (void)snprintf(message, sizeof message,
                   "%s: \"weight\": data/0: cuda:0: this library was built without devices", path);
    check_is_unavailable(berth_set_storage_rules(checkpoint, &rule, 1, &error), message);
    (void)snprintf(message, sizeof message, "%s: load.prefetch: this library was built without it",
                   path);
    check_is_unavailable(berth_open(path, only("load.prefetch=read", NULL), &other, &error),
                         message);
    cr_expect_null(other);
    check_is_unavailable(berth_open(path, only("trace=t.json", NULL), &other, &error),
                         "trace: this library was built without traces");
    (void)snprintf(message, sizeof message, "%s: trace: this library was built without traces",
                   path);
    check_is_unavailable(
        berth_save(path, berth_root(checkpoint), only("trace=t.json", NULL), &error), message);
}
