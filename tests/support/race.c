/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/race.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

void expect(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_name, what);
    exit(1);
}

void run_threads(size_t n, void *(*const roles[])(void *), void *context)
{
    pthread_t *threads = calloc(n, sizeof *threads);

    for (size_t i = 0; i < n; i++)
        expect(pthread_create(&threads[i], NULL, roles[i], context) == 0, "no thread");
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    free(threads);
}

berth_tree *float_tensors(size_t n, const float *elements, size_t n_elements, size_t stride,
                          berth_value **root)
{
    const int64_t shape[] = {(int64_t)n_elements};
    berth_tree *tree = berth_tree_new(NULL);
    char name[32];

    *root = berth_make_dict(tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < n; i++) {
        const berth_tensor tensor = {
            .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements + i * stride};
        (void)snprintf(name, sizeof name, "t%zu", i);
        berth_dict_set(*root, name, berth_make_tensor(tree, &tensor));
    }
    return tree;
}

void save_float_tensors(const char *path, size_t n, const float *elements, size_t n_elements,
                        size_t stride)
{
    berth_value *root;
    berth_tree *tree = float_tensors(n, elements, n_elements, stride, &root);
    berth_error error;

    expect(berth_save(path, root, NULL, &error) == 0, error.message);
    berth_tree_free(tree);
}

berth_checkpoint *open_with_options(const char *path, const char *options)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    expect(berth_config_patch(options, &error) == 0, error.message);
    expect(berth_open(path, NULL, &checkpoint, &error) == 0, error.message);
    expect(berth_config_unpatch(&error) == 0, error.message);
    return checkpoint;
}
