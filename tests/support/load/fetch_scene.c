/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/load/fetch_scene.h"

uint32_t *elements[N_TENSORS];

void save_tensors(const char *options)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[32];

    patch(options);
    for (size_t i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%zu", i);
        berth_dtype dtype = dtypes[i % 4];
        berth_dict_set(root, name,
                       test_vector(tree, dtype, elements[i],
                                   (int64_t)(lengths[i] * 4 / berth_dtype_nbytes(dtype))));
    }
    assert_ok(berth_save(path, root, NULL, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    berth_tree_free(tree);
    free(file);
    file = test_read_file(path, &file_nbytes);
}

void begin_fetch(void)
{
    begin_model_scene();
    for (size_t i = 0; i < N_TENSORS; i++) {
        elements[i] = malloc((lengths[i] + 1) * 4);
        for (size_t k = 0; k < lengths[i]; k++)
            elements[i][k] = (uint32_t)(k * 2654435761u + i);
    }
    save_tensors("save.storage_alignment=64");
}

void end_fetch(void)
{
    bth_system_restore();
    for (size_t i = 0; i < N_TENSORS; i++)
        free(elements[i]);
    end_sample_file();
}

bool is_memory(size_t i)
{
    return atomic_load(&checkpoint->storages.stored[tensor_at(i)->storage->index].memory) != NULL;
}

void expect_elements(void)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        const void *data = berth_tensor_data(checkpoint, tensor_at(i), &error);
        cr_assert_not_null(data, "%s", error.message);
        cr_assert_eq((uintptr_t)data % berth_dtype_nbytes(dtypes[i % 4]), 0); /* T5 */
        cr_assert_eq(memcmp(data, elements[i], lengths[i] * 4), 0, "t%zu", i);
    }
}

bool direct_reads_work(void)
{
    bth_direct direct;
    const char *reason;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool works = bth_file_system_query(fd).kind != BTH_IN_MEMORY &&
                 bth_direct_open(fd, O_RDONLY, &direct, &reason);

    if (works)
        bth_direct_close(&direct);
    (void)close(fd);
    return works;
}
