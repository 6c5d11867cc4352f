/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of tensors, opened with options and fetched; what is then known of each storage. */
#ifndef TESTS_LOAD_FETCH_SCENE_H
#define TESTS_LOAD_FETCH_SCENE_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "format/values/tensor.h"
#include "format/values/value.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"
#include "load/transfer/requests.h"
#include "tests/load/builder.h"
#include "tests/support/support.h"

/* Tensors "t0", "t1" ... of so many words, small and long ones and an empty one, as four dtypes. */
static const size_t lengths[] = {1, 300, 0, 1000000, 7, 40000, 5, 500000, 3};
static const berth_dtype dtypes[] = {BERTH_UINT8, BERTH_INT16, BERTH_FLOAT32, BERTH_INT64};
#define N_TENSORS (sizeof lengths / sizeof *lengths)
#define BACK "io.chunk_nbytes=65536 io.threads=3"

static char *folder, *path;
static uint32_t *elements[N_TENSORS];
static size_t file_nbytes;
static berth_checkpoint *checkpoint;
static berth_error error;

static inline void save_as(const char *options)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    char name[16];

    cr_assert_eq(berth_config_patch(options, NULL), 0);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const int64_t shape[] = {(int64_t)(lengths[i] * 4 / berth_dtype_nbytes(dtypes[i % 4]))};
        (void)snprintf(name, sizeof name, "t%zu", i);
        berth_dict_set(root, name,
                       berth_make_tensor(tree, &(berth_tensor){.dtype = dtypes[i % 4],
                                                               .rank = 1,
                                                               .shape = shape,
                                                               .data = elements[i]}));
    }
    cr_assert_eq(berth_save(path, root, NULL, &error), 0, "%s", error.message);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    berth_tree_free(tree);
    free(test_read_file(path, &file_nbytes));
}

static inline void set_up(void)
{
    folder = test_folder_new();
    path = test_path(folder, "model.pt");
    for (size_t i = 0; i < N_TENSORS; i++) {
        elements[i] = malloc((lengths[i] + 1) * 4);
        for (size_t k = 0; k < lengths[i]; k++)
            elements[i][k] = (uint32_t)(k * 2654435761u + i);
    }
    save_as("save.storage_alignment=64");
}

static inline void tear_down(void)
{
    bth_system_restore();
    berth_close(checkpoint);
    checkpoint = NULL;
    for (size_t i = 0; i < N_TENSORS; i++)
        free(elements[i]);
    free(path);
    test_folder_remove(folder);
}

static inline void open_as(const char *options)
{
    berth_close(checkpoint);
    checkpoint = NULL;
    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    cr_assert_eq(berth_open(path, NULL, &checkpoint, &error), 0, "%s", error.message);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

static inline const berth_tensor *tensor_at(size_t i)
{
    char name[16];

    (void)snprintf(name, sizeof name, "t%zu", i);
    return berth_find_tensor(checkpoint, name);
}

static inline berth_stats fetched(const berth_selection *selection)
{
    berth_stats stats = {0};

    cr_assert_eq(berth_load(checkpoint, selection, &(berth_params){.stats = &stats}, &error), 0,
                 "%s", error.message);
    return stats;
}

static inline berth_storage_stats stats_at(size_t i)
{
    berth_storage_stats stats;

    cr_assert_eq(berth_storage_get_stats(checkpoint, tensor_at(i)->storage, &stats, &error), 0);
    return stats;
}

static inline bool is_memory(size_t i)
{
    return atomic_load(&checkpoint->storages.stored[tensor_at(i)->storage->index].memory) != NULL;
}

static inline void expect_elements(void)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        const void *data = berth_tensor_data(checkpoint, tensor_at(i), &error);
        cr_assert_not_null(data, "%s", error.message);
        cr_assert_eq((uintptr_t)data % berth_dtype_nbytes(dtypes[i % 4]), 0); /* T5 */
        cr_assert_eq(memcmp(data, elements[i], lengths[i] * 4), 0, "t%zu", i);
    }
}

static inline bool direct_works(void)
{
    bth_direct direct;
    const char *reason;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool works =
        bth_file_system_of(fd) != BTH_IN_MEMORY && bth_direct_open_reading(fd, &direct, &reason);

    if (works)
        bth_direct_close(&direct);
    (void)close(fd);
    return works;
}

#endif
