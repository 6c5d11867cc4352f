/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/job_scene.h"

float *weights;
int64_t steps[3] = {1, -2, INT64_MAX};
berth_value *state;

void add(const char *name, berth_tensor tensor, int64_t n)
{
    tensor.rank = 1;
    tensor.shape = &n;
    berth_dict_set(state, name, berth_make_tensor(tree, &tensor));
}

void begin_jobs(void)
{
    void *bytes;
    berth_error error;

    begin_scene("archive.pt");
    weights = malloc(WEIGHTS_NBYTES);
    for (int i = 0; i < N_WEIGHTS; i++)
        weights[i] = (float)i * 0.37f;
    tree = berth_tree_new(NULL);
    state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, weights, WEIGHTS_NBYTES, NULL);
    add("weight", (berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage}, N_WEIGHTS);
    add("tied", (berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage, .storage_offset = 500},
        100);
    add("steps", (berth_tensor){.dtype = BERTH_INT64, .data = steps}, 3);
    berth_dict_set(state, "epoch", berth_make_int(tree, 7));
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &expected_nbytes), OF_VALUE(state), NULL, &error));
    expected = malloc(expected_nbytes);
    memcpy(expected, bytes, expected_nbytes);
    berth_free(bytes);
}

void end_jobs(void)
{
    berth_tree_free(tree);
    free(weights);
    end_scene();
}

void check_wait(berth_job *job, int code)
{
    berth_error error;

    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), code, "%s", error.message);
    cr_assert_eq((int)error.code, code);
}

void check_file(const char *at, const void *content, size_t nbytes)
{
    cr_assert(test_file_holds(at, content, nbytes), "%s", at);
}
