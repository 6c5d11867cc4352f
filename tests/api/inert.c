/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * P1: what PyTorch 2.13 writes of unknown classes (tests/data/make_torch.py, inert()) is listed and
 * saved again, and never run.
 */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

static berth_error error;

#define FIXTURE "tests/data/torch/inert.pt"

static berth_checkpoint *opened(void)
{
    berth_checkpoint *checkpoint;
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};

    cr_assert_eq(berth_config_apply(config, "load.unknown_globals=inert", NULL), 0);
    assert_ok(berth_open(FIXTURE, &call, &checkpoint, &error));
    berth_config_free(config);
    return checkpoint;
}

/* The pickle of an archive; the caller frees it. */
static uint8_t *pickle_of(berth_archive *archive, size_t *nbytes)
{
    berth_record record;

    assert_ok(berth_archive_find(archive, "data.pkl", &record, &error));
    uint8_t *bytes = malloc(record.nbytes);
    cr_assert_not_null(bytes);
    assert_ok(berth_archive_read(archive, &record, bytes, record.nbytes, 0, &error));
    *nbytes = record.nbytes;
    return bytes;
}

Test(inert, are_refused_unless_asked_for)
{
    berth_checkpoint *checkpoint;

    FAILS_SAYING(berth_open(FIXTURE, NULL, &checkpoint, &error), BERTH_E_FORBIDDEN,
                 "global collections defaultdict is not allowed");
}

static void expect_saved_to_the_same_pickle(const berth_value *value)
{
    berth_archive *first, *second;
    void *saved;
    size_t saved_nbytes, nbytes, again_nbytes;

    assert_ok(
        berth_save_to(TO_MEMORY(&saved, &saved_nbytes), OF_VALUE(value), NAMED("inert"), &error));
    cr_assert_eq(berth_archive_open(FROM_PATH(FIXTURE), NULL, &first, NULL, NULL), 0);
    cr_assert_eq(berth_archive_open(FROM_MEMORY(saved, saved_nbytes), NULL, &second, NULL, NULL),
                 0);
    uint8_t *pickle = pickle_of(first, &nbytes), *again = pickle_of(second, &again_nbytes);
    cr_expect_eq(nbytes, again_nbytes);
    for (size_t i = 0; i < nbytes && i < again_nbytes; i++)
        cr_assert_eq(pickle[i], again[i], "byte %zu", i);
    free(pickle);
    free(again);
    berth_archive_close(first);
    berth_archive_close(second);
    berth_free(saved);
}

/* And so is a copy of all values in another tree. */
Test(inert, are_saved_again_to_the_same_pickle)
{
    berth_checkpoint *checkpoint = opened();
    berth_tree *tree = berth_tree_new(NULL);

    expect_saved_to_the_same_pickle(berth_root(checkpoint));
    expect_saved_to_the_same_pickle(berth_value_copy(tree, berth_root(checkpoint), 0));
    berth_tree_free(tree);
    berth_close(checkpoint);
}

Test(inert, are_listed_with_what_they_hold)
{
    static const char *const names[] = {
        "grouped.dict_items.a.0",
        "grouped.dict_items.b.1",
        "tagged.list_items.1",
        "fields.dict_items.a",
        "fields.__dict__.attribute.0",
        "ordered.dict_items.a",
        "queue.list_items.1",
        "arguments.__dict__.tensor",
        "jagged.2.0.values",
        "subclasses.plain",
        "subclasses.tagged",
        "subclasses.part",
        "subclasses.nested",
        "subclasses.parameter",
        "subclasses.tagged.__dict__.other.0",
        "subclasses.quantized",
        "subclasses.quantized.scales",
        "classes_within.inner.__dict__.weight",
    };
    berth_checkpoint *checkpoint = opened();
    size_t n = berth_tensor_count(checkpoint);
    berth_named_tensor named;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const berth_tensor *tensor = berth_find_tensor(checkpoint, names[i], NULL);
        const float *data = berth_tensor_data(checkpoint, tensor, NULL);
        cr_expect_not_null(data, "%s", names[i]);
    }
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, NULL), 0);
        cr_expect_eq(berth_find(checkpoint, named.path, &error), named.value, "%s", named.path);
        cr_expect_eq(berth_find(checkpoint, named.name, &error), named.value, "%s", named.name);
    }
    const berth_value *type =
        berth_value_part(berth_find(checkpoint, "subclasses.plain", &error), BERTH_PART_TYPE);
    cr_expect_str_eq(berth_as_text(type, NULL), "__main__ OwnTensor");
    const berth_value *items =
        berth_value_part(berth_find(checkpoint, "lists.5", &error), BERTH_PART_LIST_ITEMS);
    cr_expect_eq(berth_value_count(items), 1001);
    cr_expect_eq(berth_value_count(berth_find(checkpoint, "objects", &error)), 2);
    cr_expect_eq(berth_value_count(berth_find(checkpoint, "keyed", &error)), 3);
    berth_close(checkpoint);
}
