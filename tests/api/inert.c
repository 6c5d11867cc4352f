/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * P1: what PyTorch 2.13 writes of unknown classes (tests/data/make_torch.py, inert()) is listed and
 * saved again, and never run.
 */
#include <berth.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sources.h"
#include "tests/support/support.h"

#define FIXTURE "tests/data/torch/inert.pt"

static berth_checkpoint *opened(void)
{
    berth_checkpoint *checkpoint;
    berth_error error;
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};

    cr_assert_eq(berth_config_apply(config, "load.unknown_globals=inert", NULL), 0);
    cr_assert_eq(berth_open(FIXTURE, &call, &checkpoint, &error), 0, "%s", error.message);
    berth_config_free(config);
    return checkpoint;
}

/* The pickle of an archive; the caller frees it. */
static uint8_t *pickle_of(berth_archive *archive, size_t *nbytes)
{
    berth_record record;
    berth_error error;

    cr_assert_eq(berth_archive_find(archive, "data.pkl", &record, &error), 0, "%s", error.message);
    uint8_t *bytes = malloc(record.nbytes);
    cr_assert_not_null(bytes);
    cr_assert_eq(berth_archive_read(archive, &record, bytes, record.nbytes, 0, &error), 0, "%s",
                 error.message);
    *nbytes = record.nbytes;
    return bytes;
}

Test(inert, are_refused_unless_asked_for)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_expect_eq(berth_open(FIXTURE, NULL, &checkpoint, &error), BERTH_E_FORBIDDEN);
    cr_expect_not_null(strstr(error.message, "global collections defaultdict is not allowed"));
}

Test(inert, are_saved_again_to_the_same_pickle)
{
    berth_checkpoint *checkpoint = opened();
    berth_archive *first, *second;
    berth_error error;
    void *saved;
    size_t saved_nbytes, nbytes, again_nbytes;

    cr_assert_eq(berth_save_to(TO_MEMORY(&saved, &saved_nbytes), OF_VALUE(berth_root(checkpoint)),
                               NAMED("inert"), &error),
                 0, "%s", error.message);
    cr_assert_eq(berth_archive_open(FROM_PATH(FIXTURE), NULL, &first, NULL), 0);
    cr_assert_eq(test_archive_open_memory(saved, saved_nbytes, NULL, &second, NULL), 0);
    uint8_t *pickle = pickle_of(first, &nbytes), *again = pickle_of(second, &again_nbytes);
    cr_expect_eq(nbytes, again_nbytes);
    for (size_t i = 0; i < nbytes && i < again_nbytes; i++)
        cr_assert_eq(pickle[i], again[i], "byte %zu", i);
    free(pickle);
    free(again);
    berth_archive_close(first);
    berth_archive_close(second);
    berth_free(saved);
    berth_close(checkpoint);
}

Test(inert, are_listed_with_what_they_hold)
{
    static const char *const names[] = {
        "grouped.dict_items.a.0", "grouped.dict_items.b.1",      "tagged.list_items.1",
        "fields.dict_items.a",    "fields.__dict__.attribute.0", "ordered.dict_items.a",
        "queue.list_items.1",     "arguments.__dict__.tensor",   "jagged.2.0.values",
    };
    berth_checkpoint *checkpoint = opened();
    size_t n = berth_tensor_count(checkpoint);
    berth_named_tensor named;
    berth_error error;

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
    const berth_value *items =
        berth_value_part(berth_find(checkpoint, "lists.5", &error), BERTH_PART_LIST_ITEMS);
    cr_expect_eq(berth_value_count(items), 1001);
    cr_expect_eq(berth_value_count(berth_find(checkpoint, "objects", &error)), 2);
    cr_expect_eq(berth_value_count(berth_find(checkpoint, "keyed", &error)), 3);
    berth_close(checkpoint);
}
