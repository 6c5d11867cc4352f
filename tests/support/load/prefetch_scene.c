/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/load/prefetch_scene.h"

berth_prefetch *prefetch;
berth_prefetch_stats stats;

void begin_prefetches(void)
{
    uint32_t *elements = malloc(TENSOR_NBYTES);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[16];

    begin_model_scene();
    for (size_t i = 0; i < TENSOR_NBYTES / 4; i++)
        elements[i] = (uint32_t)i;
    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        berth_dict_set(root, name, test_vector(tree, BERTH_FLOAT32, elements, TENSOR_NBYTES / 4));
    }
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    free(elements);
}

void free_prefetch(void)
{
    berth_prefetch_free(prefetch);
    prefetch = NULL;
}

void end_prefetches(void)
{
    bth_system_restore();
    free_prefetch();
    close_opened();
    end_scene();
}

void evict_file(void)
{
    uint64_t nbytes = 1;
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    (void)fdatasync(fd);
    cr_assert_eq(fstat(fd, &status), 0);
    for (int i = 0; i < 50 && nbytes > 0; i++) { /* pages that were just used stay a moment */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (!bth_page_cache_nbytes(fd, NULL, 0, (uint64_t)status.st_size, &nbytes))
            break;
        (void)usleep(nbytes > 0 ? 10000 : 0);
    }
    (void)close(fd);
    if (nbytes > 0)
        cr_skip_test("this file stays in memory");
}

uint64_t cached_nbytes(uint64_t offset, uint64_t nbytes)
{
    uint64_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    cr_assert(bth_page_cache_nbytes(fd, NULL, offset, nbytes, &n));
    (void)close(fd);
    return n;
}

void expect_cached(uint64_t offset, uint64_t nbytes)
{
    uint64_t cached = cached_nbytes(offset, nbytes);

    cr_expect_geq(cached, nbytes / 10 * 9, "%llu of %llu bytes", (unsigned long long)cached,
                  (unsigned long long)nbytes);
}

void wait_until_cached(uint64_t offset, uint64_t nbytes)
{
    for (int k = 0; k < 2000 && cached_nbytes(offset, nbytes) < nbytes / 10 * 9; k++)
        (void)usleep(10000);
    expect_cached(offset, nbytes);
}

int try_to_open(const char *options)
{
    char all[200];

    (void)snprintf(all, sizeof all, "load.head_nbytes=16384 load.check=none %s", options);
    return berth_open(path, only(all, NULL), &checkpoint, &error);
}

void open_path(const char *options)
{
    free_prefetch();
    close_opened();
    assert_ok(try_to_open(options));
}

int try_to_begin(const berth_selection *what, uint32_t flags, const char *options,
                 berth_prefetch **begun)
{
    return berth_prefetch_begin(checkpoint, what, flags, only(options, NULL), begun, &error);
}

void begin_prefetch(const char *options)
{
    free_prefetch();
    assert_ok(try_to_begin(NULL, 0, options, &prefetch));
}

void advance_through_all(void)
{
    for (size_t i = 0; i < N_TENSORS; i++)
        assert_ok(berth_prefetch_advance(prefetch, tensor_at(i), 0, -1, &error));
    berth_prefetch_get_stats(prefetch, &stats, NULL);
}

void wait_until_idle(void)
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

void wait_for_all(void)
{
    assert_ok(berth_prefetch_advance(prefetch, NULL, 0, -1, &error));
    berth_prefetch_get_stats(prefetch, &stats, NULL);
}
