/* SPDX-License-Identifier: BSD-3-Clause */
/* A planned file without its storages (berth_plan_read), and a checkpoint that is opened from it.
 */
#include <berth.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scene.h"

#define N_WEIGHTS 30000
#define ID ".data/serialization_id"

static berth_error error;
static float weights[N_WEIGHTS];
static berth_tree *tree;
static berth_plan *plan;
static berth_plan_info info;

/* Two tensors, whose bytes are `data` and elsewhere; and a number. */
static berth_value *make_state(const void *data)
{
    static const int64_t large[] = {N_WEIGHTS}, small[] = {3};
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    const berth_tensor first = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = large, .data = data};
    const berth_tensor second = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = small, .data = data};

    (void)berth_dict_set(state, "first", berth_make_tensor(tree, &first));
    (void)berth_dict_set(state, "second", berth_make_tensor(tree, &second));
    (void)berth_dict_set(state, "epoch", berth_make_int(tree, 7));
    return state;
}

static void set_up(void)
{
    begin_scene("archive.pt");
    patch("save.compute_crc32=off");
    for (int i = 0; i < N_WEIGHTS; i++)
        weights[i] = (float)i;
    tree = berth_tree_new(NULL);
    plan = berth_plan_new(NULL, OF_VALUE(make_state(BERTH_ELSEWHERE)), NULL, &info, &error);
    cr_assert(plan, "%s", error.message);
}

static void tear_down(void)
{
    berth_plan_free(plan);
    berth_tree_free(tree);
    end_scene();
}

TestSuite(plan_read, .init = set_up, .fini = tear_down);

/* Where the plan has a record. */
static berth_record find(const char *name)
{
    berth_record record = {.name = ""};

    for (size_t i = 0; berth_plan_at(plan, i, &record) == 0 && strcmp(record.name, name) != 0;)
        i++;
    cr_assert_str_eq(record.name, name);
    return record;
}

static void clear(uint8_t *file, const char *name, int byte)
{
    berth_record record = find(name);

    memset(file + record.offset, byte, record.nbytes);
}

/* All of the file, in ranges of a size; the caller frees it. */
static uint8_t *read_in_steps(size_t step)
{
    size_t nbytes = info.nbytes;
    uint8_t *bytes = malloc(nbytes);

    memset(bytes, 0xff, nbytes);
    for (size_t at = 0; at < nbytes; at += step)
        assert_ok(
            berth_plan_read(plan, bytes + at, step < nbytes - at ? step : nbytes - at, at, &error));
    return bytes;
}

Test(plan_read, all_but_storages_and_the_id_is_what_is_saved)
{
    size_t nbytes;

    assert_ok(berth_save(path, make_state(weights), NULL, &error));
    uint8_t *file = test_read_file(path, &nbytes);
    cr_assert_eq(info.nbytes, nbytes);
    clear(file, "data/0", 0);
    clear(file, "data/1", 0);
    clear(file, ID, '0');
    for (size_t step = 1; step <= nbytes; step = step * 7 + 4) {
        uint8_t *bytes = read_in_steps(step);
        cr_expect_eq(memcmp(bytes, file, nbytes), 0, "in steps of %zu", step);
        free(bytes);
    }
    free(file);
}

/* The storages' bytes come from memory here. */
static int read_planned(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    uint8_t *out = buffer;

    (void)context;
    if (berth_plan_read(plan, buffer, nbytes, offset, NULL) < 0)
        return EIO;
    for (int i = 0; i < 2; i++) {
        berth_record record = find(i ? "data/1" : "data/0");
        for (size_t k = 0; k < nbytes; k++)
            if (offset + k >= record.offset && offset + k < record.offset + record.nbytes)
                out[k] = ((const uint8_t *)weights)[offset + k - record.offset];
    }
    return 0;
}

Test(plan_read, it_is_a_source_of_a_checkpoint)
{
    berth_checkpoint *checkpoint;
    const berth_source source = berth_from_function(read_planned, NULL, info.nbytes, "planned");
    float element = 0;

    patch("load.check=headers");
    assert_ok(berth_open_source(&source, NULL, &checkpoint, &error));
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "first", &error);
    cr_assert(tensor, "%s", error.message);
    assert_ok(berth_tensor_read(checkpoint, tensor, N_WEIGHTS - 1, 1, &element, &error));
    cr_expect_eq(element, (float)(N_WEIGHTS - 1));
    berth_close(checkpoint);
}

Test(plan_read, what_is_refused)
{
    const berth_new_record record = {.name = "data.pkl", .nbytes = 2, .data = "N."};
    const berth_content records = berth_of_records(&record, 1, 0);
    uint64_t nbytes = info.nbytes;
    uint8_t byte;

    assert_ok(berth_plan_read(plan, NULL, 0, nbytes, &error));
    cr_expect_eq(berth_plan_read(plan, &byte, 1, nbytes, &error), BERTH_E_ARGUMENT);
    FAILS_SAYING(berth_plan_read(plan, &byte, 1, UINT64_MAX, &error), BERTH_E_ARGUMENT,
                 "are not inside a file of");
    berth_plan *other = berth_plan_new(NULL, &records, NULL, NULL, &error);
    FAILS(berth_plan_read(other, &byte, 1, 0, &error), BERTH_E_ARGUMENT,
          "the plan is of records, which the caller has");
    berth_plan_free(other);
}

/* W6 */
Test(plan_read, without_memory_for_a_header_is_told)
{
    uint8_t byte;

    test_memory_watch();
    berth_plan *own =
        berth_plan_new(NULL, OF_VALUE(make_state(BERTH_ELSEWHERE)), NULL, NULL, &error);
    test_memory_refuse(1, true);
    cr_expect_eq(berth_plan_read(own, &byte, 1, 0, &error), BERTH_E_MEMORY);
    test_memory_refuse(0, false);
    berth_plan_free(own);
    test_memory_unwatch();
}
