/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint of many tensors in a file, and prefetches of it. */
#ifndef TESTS_LOAD_PREFETCH_SCENE_H
#define TESTS_LOAD_PREFETCH_SCENE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "berth.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "tests/support/support.h"

#define N_TENSORS 24
#define TENSOR_NBYTES ((int64_t)1 << 18)

static char *folder, *path;
static berth_checkpoint *checkpoint;
static berth_prefetch *prefetch;
static berth_prefetch_stats stats;
static berth_error error;

static inline void make_file(void)
{
    static const int64_t shape[] = {TENSOR_NBYTES / 4};
    uint32_t *elements = malloc(TENSOR_NBYTES);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    char name[16];

    folder = test_folder_new();
    path = test_path(folder, "model.pt");
    for (size_t i = 0; i < TENSOR_NBYTES / 4; i++)
        elements[i] = (uint32_t)i;
    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
        berth_dict_set(root, name, berth_make_tensor(tree, &tensor));
    }
    cr_assert_eq(berth_save(path, root, NULL, &error), 0, "%s", error.message);
    berth_tree_free(tree);
    free(elements);
}

static inline void tear_down(void)
{
    bth_system_restore();
    berth_prefetch_free(prefetch);
    berth_close(checkpoint);
    free(path);
    test_folder_remove(folder);
}

/* The file leaves memory, or the test is skipped: not every file system lets it. */
static inline void evict(void)
{
    uint64_t nbytes = 1, all = (uint64_t)N_TENSORS * TENSOR_NBYTES;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    (void)fdatasync(fd);
    for (int i = 0; i < 50 && nbytes > 0; i++) { /* pages that were just used stay a moment */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (!bth_page_cache_nbytes(fd, NULL, 0, all, &nbytes))
            break;
        (void)usleep(nbytes > 0 ? 10000 : 0);
    }
    (void)close(fd);
    if (nbytes > 0)
        cr_skip_test("this file stays in memory");
}

/* How many bytes of the file are in memory. */
static inline uint64_t cached(uint64_t offset, uint64_t nbytes)
{
    uint64_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    cr_assert(bth_page_cache_nbytes(fd, NULL, offset, nbytes, &n));
    (void)close(fd);
    return n;
}

static inline berth_config *configured(const char *options)
{
    berth_config *config = berth_config_new(NULL);

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, &error), 0, "%s", error.message);
    return config;
}

/* load.head_nbytes: no more of the file comes into memory than must. */
static inline int try_to_open(const char *options)
{
    berth_config *config = configured("load.head_nbytes=16384 load.check=none");
    berth_params call = {.config = config};

    cr_assert_eq(berth_config_apply(config, options, &error), 0, "%s", error.message);
    int result = berth_open(path, &call, &checkpoint, &error);
    berth_config_free(config);
    return result;
}

static inline void open_file(const char *options)
{
    cr_assert_eq(try_to_open(options), 0, "%s", error.message);
}

static inline int try_to_begin(const berth_selection *what, uint32_t flags, const char *options,
                               berth_prefetch **begun)
{
    berth_config *config = configured(options);
    berth_params call = {.config = config};
    int result = berth_prefetch_begin(checkpoint, what, flags, &call, begun, &error);

    berth_config_free(config);
    return result;
}

static inline void begin(const char *options)
{
    cr_assert_eq(try_to_begin(NULL, 0, options, &prefetch), 0, "%s", error.message);
}

static inline const berth_tensor *tensor_at(int i)
{
    char name[16];

    (void)snprintf(name, sizeof name, "t%d", i);
    return berth_find_tensor(checkpoint, name);
}

/* The consumer goes through all tensors. */
static inline void sweep(void)
{
    for (int i = 0; i < N_TENSORS; i++)
        cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(i), &error), 0, "%s",
                     error.message);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
}

/* What is brought without a consumer, and no more. */
static inline void wait_until_idle(void)
{
    uint64_t n_requests = UINT64_MAX;

    for (int quiet = 0; quiet < 5; quiet++) {
        (void)usleep(10000);
        berth_prefetch_get_stats(prefetch, &stats, NULL);
        if (stats.n_requests != n_requests)
            quiet = 0;
        n_requests = stats.n_requests;
    }
}

static inline void wait_for_all(void)
{
    cr_assert_eq(berth_prefetch_wait(prefetch, &error), 0, "%s", error.message);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
}

#endif
