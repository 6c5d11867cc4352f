/* SPDX-License-Identifier: BSD-3-Clause */
/* What load.method=auto does with a cold file: loaded once, or again; on a disk that rotates. */
#include <berth/config.h>
#include <berth/rows.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/load/prefetch_scene.h"

#define NBYTES ((int64_t)80 << 20)
#define ROW_NBYTES 1024
#define DIRECT "direct: the file is on a disk, and not in memory"

static void begin_large_file(void)
{
    float *elements = malloc(NBYTES);
    berth_tree *tree = berth_tree_new(NULL);
    const int64_t shape[] = {NBYTES / ROW_NBYTES, ROW_NBYTES / 4};

    begin_model_scene();
    for (int64_t i = 0; i < NBYTES / 4; i++)
        elements[i] = (float)(i % 1000);
    assert_ok(berth_save(path, test_tensor(tree, BERTH_FLOAT32, elements, 2, shape), NULL, &error));
    berth_tree_free(tree);
    free(elements);
}

static void end_large_file(void)
{
    bth_system_restore();
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
                  "the readahead of the head, and the pages that were probed");
}

Test(reuse, often_fills_the_page_cache_at_once)
{
    load_first_directly("load.reuse=once");
    evict_file();
    cr_expect_str_eq(load_all("load.reuse=often"), "read: load.reuse=often");
    expect_cached(0, NBYTES);
    cr_expect_str_eq(load_all("load.reuse=often"), "map: the file is in memory");
}

/* ---- disks that rotate ---- */

static const char *rotational;

/* Instead of the facts of this disk, those of a real one that rotates, or does not. */
static int open_other_disk(const char *name, int flags, mode_t mode)
{
    static const char *const facts[][2] = {
        {"/queue/rotational", NULL}, {"/device/vendor", "ATA     "}, {"/device/model", "ST4000"}};

    for (size_t i = 0; i < 3; i++) {
        const char *end = strstr(name, facts[i][0]);
        if (strncmp(name, "/sys/", 5) != 0 || !end || end[strlen(facts[i][0])])
            continue;
        const char *text = facts[i][1] ? facts[i][1] : rotational;
        char *fake = test_path(folder, "fact");
        test_write_file(fake, text, strlen(text));
        int fd = open(fake, flags, mode);
        free(fake);
        return fd;
    }
    return open(name, flags, mode);
}

static pthread_mutex_t readers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t readers[64];
static size_t n_readers, n_running, max_running;
static size_t min_counted_nbytes = 1 << 20;

/* Slow enough that every worker gets some. */
static ssize_t counting_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    size_t i = 0;
    bool is_counted = nbytes >= min_counted_nbytes;

    if (is_counted) {
        pthread_mutex_lock(&readers_lock);
        if (++n_running > max_running)
            max_running = n_running;
        while (i < n_readers && !pthread_equal(readers[i], pthread_self()))
            i++;
        if (i == n_readers && n_readers < 64)
            readers[n_readers++] = pthread_self();
        pthread_mutex_unlock(&readers_lock);
        (void)usleep(2000);
    }
    ssize_t result = pread(fd, buffer, nbytes, offset);
    pthread_mutex_lock(&readers_lock);
    n_running -= is_counted;
    pthread_mutex_unlock(&readers_lock);
    return result;
}

Test(reuse, one_worker_reads_a_cold_file_from_a_disk_that_rotates)
{
    static const struct {
        const char *rotational, *options;
        bool is_one;
    } cases[] = {{"1", "", true},
                 {"1", "load.reuse=often", true},
                 {"1", "io.threads=3", false}, /* the caller decides */
                 {"0", "", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        evict_file();
        rotational = cases[i].rotational;
        n_readers = 0;
        bth_system.open = open_other_disk;
        bth_system.pread = counting_pread;
        const char *found = load_all(cases[i].options);
        bth_system_restore();
        if (strncmp(found, "map", 3) == 0)
            cr_skip_test("the file stays in memory here");
        cr_expect_eq(n_readers == 1, cases[i].is_one, "%zu: %s, %zu workers", i, found, n_readers);
    }
}

/* Rows in any order, so that no two are read together. */
static void read_rows(const char *options)
{
    enum { N = 64 };
    const berth_rows_limits limits = {.cache_nbytes = 1 << 20};
    int64_t ids[N];
    static uint8_t output[N * ROW_NBYTES];
    berth_rows *rows;
    size_t table;

    patch(options);
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    assert_ok(berth_rows_add(rows, checkpoint, tensor_at(0), &table, &error));
    for (int64_t i = 0; i < N; i++)
        ids[i] = (i * 7919) % (NBYTES / ROW_NBYTES);
    const berth_rows_part part = {.table = table, .ids = ids, .n = N, .output = output};
    assert_ok(berth_rows_gather(rows, &part, 1, NULL, &error));
    berth_rows_free(rows);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

Test(reuse, one_worker_reads_rows_from_a_disk_that_rotates)
{
    static const struct {
        const char *rotational, *options;
        bool is_one;
    } cases[] = {{"1", "", true}, {"1", "io.threads=3", false}, {"0", "", false}};

    open_as("load.mmap=off");
    min_counted_nbytes = ROW_NBYTES;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rotational = cases[i].rotational;
        max_running = 0;
        bth_system.open = open_other_disk;
        bth_system.pread = counting_pread;
        read_rows(cases[i].options);
        bth_system_restore();
        cr_expect_eq(max_running == 1, cases[i].is_one, "%zu: %zu at once", i, max_running);
    }
}
