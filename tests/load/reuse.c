/* SPDX-License-Identifier: BSD-3-Clause */
/* load.reuse: what load.method=auto does with a cold file that is loaded once, or again. */
#include "tests/support/load/prefetch_scene.h"

#define NBYTES ((int64_t)80 << 20)
#define DIRECT "direct: the file is on a disk, and not in memory"

static void begin_large_file(void)
{
    float *elements = malloc(NBYTES);
    berth_tree *tree = berth_tree_new(NULL);

    begin_model_scene();
    for (int64_t i = 0; i < NBYTES / 4; i++)
        elements[i] = (float)(i % 1000);
    assert_ok(
        berth_save(path, test_vector(tree, BERTH_FLOAT32, elements, NBYTES / 4), NULL, &error));
    berth_tree_free(tree);
    free(elements);
}

static void end_large_file(void)
{
    close_opened();
    end_scene();
}

TestSuite(reuse, .init = begin_large_file, .fini = end_large_file);

/* Opens the file and loads all of it. Returns the method and the reason. */
static const char *load_all(const char *options)
{
    static char text[200];

    open_as(options);
    const berth_stats loaded = fetched(NULL);
    const float *data = berth_tensor_data(checkpoint, tensor_at(0), &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_eq(data[NBYTES / 4 - 1], (float)((NBYTES / 4 - 1) % 1000));
    (void)snprintf(text, sizeof text, "%s: %s", loaded.method, loaded.reason);
    return text;
}

static void load_first_directly(const char *options)
{
    evict_file();
    const char *found = load_all(options);
    if (strcmp(found, DIRECT) != 0)
        cr_skip_test("direct reads are not chosen here");
}

Test(reuse, auto_reads_the_second_load_into_the_page_cache_and_maps_the_third)
{
    load_first_directly("");
    cr_expect_str_eq(load_all(""), "read: the file was loaded before");
    expect_cached(0, NBYTES);
    cr_expect_str_eq(load_all(""), "map: the file is in memory");
}

Test(reuse, many_reads_of_one_open_are_one_load)
{
    float *buffer = malloc(NBYTES);

    open_as("load.mmap=off");
    evict_file();
    for (int i = 0; i < 2; i++)
        assert_ok(berth_tensor_read(checkpoint, tensor_at(0), 0, NBYTES / 4, buffer, &error));
    free(buffer);
    uint64_t cached = cached_nbytes(0, NBYTES);
    if (strcmp(load_all("load.mmap=off"), "read: the file was loaded before") != 0)
        cr_skip_test("direct reads are not chosen here");
    cr_expect_lt(cached, NBYTES / 2);
}

Test(reuse, a_file_that_was_written_again_is_another)
{
    load_first_directly("");
    close_opened();
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    evict_file();
    cr_expect_str_eq(load_all(""), DIRECT);
}

Test(reuse, once_leaves_the_page_cache_as_it_was_but_for_the_head)
{
    load_first_directly("load.reuse=once load.head_nbytes=64KiB");
    cr_expect_str_eq(load_all("load.reuse=once load.head_nbytes=64KiB"), DIRECT);
    cr_expect_leq(cached_nbytes(0, NBYTES), 16 << 20,
                  "the readahead of the head, and the pages "
                  "that were probed");
}

Test(reuse, often_fills_the_page_cache_at_once)
{
    load_first_directly("load.reuse=once");
    evict_file();
    cr_expect_str_eq(load_all("load.reuse=often"), "read: load.reuse=often");
    expect_cached(0, NBYTES);
    cr_expect_str_eq(load_all("load.reuse=often"), "map: the file is in memory");
}
