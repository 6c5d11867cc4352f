/* SPDX-License-Identifier: BSD-3-Clause */
/* What tests of jobs share: a small state_dict, the file that it must become, and how to look. */
#ifndef TESTS_API_JOB_SCENE_H
#define TESTS_API_JOB_SCENE_H

#include <berth.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define N_WEIGHTS 20000
#define WEIGHTS_NBYTES (N_WEIGHTS * sizeof(float))
#define SMALL_TILES "io.threads=4 io.chunk_nbytes=1000"

static char *folder, *path;
static float *weights;
static int64_t steps[] = {1, -2, INT64_MAX};
static berth_tree *tree;
static berth_value *state;
static uint8_t *expected; /* what berth_to_memory gets of it */
static size_t expected_nbytes;

static inline void add(const char *name, berth_tensor tensor, int64_t n)
{
    tensor.rank = 1;
    tensor.shape = &n;
    berth_dict_set(state, name, berth_make_tensor(tree, &tensor));
}

static inline void set_up(void)
{
    void *bytes;
    berth_error error;

    folder = test_folder_new();
    path = test_path(folder, "archive.pt");
    weights = malloc(WEIGHTS_NBYTES);
    for (int i = 0; i < N_WEIGHTS; i++)
        weights[i] = (float)i * 0.37f;
    tree = berth_tree_new(NULL);
    state = berth_make_ordered_dict(tree);
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, weights, WEIGHTS_NBYTES, NULL);
    add("weight", (berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage}, N_WEIGHTS);
    add("tied", (berth_tensor){.dtype = BERTH_FLOAT32, .storage = storage}, 100);
    add("steps", (berth_tensor){.dtype = BERTH_INT64, .data = steps}, 3);
    berth_dict_set(state, "epoch", berth_make_int(tree, 7));
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, &expected_nbytes), OF_VALUE(state), NULL, &error),
                 0, "%s", error.message);
    expected = bytes;
}

static inline void tear_down(void)
{
    berth_tree_free(tree);
    free(weights);
    free(path);
    berth_free(expected);
    test_folder_remove(folder);
}

static inline void patch(const char *assignments)
{
    berth_error error;

    cr_assert_eq(berth_config_patch(assignments, &error), 0, "%s", error.message);
}

static inline void check_wait(berth_job *job, int code)
{
    berth_error error;

    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, &error), code, "%s", error.message);
    cr_assert_eq((int)error.code, code);
}

static inline void check_file(const char *at, const void *content, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(at, &n);

    cr_assert_eq(n, nbytes);
    cr_assert_eq(memcmp(file, content, n), 0);
    free(file);
}

#endif
