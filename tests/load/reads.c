/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an open reads, and how often: one read finds every storage; each level of checking adds its
 * own, however many tensors there are.
 */
#include <time.h>

#include "tests/support/load/archive.h"

TestSuite(reads, .init = begin_sample, .fini = end_sample);

/* ---- a source that counts ---- */

struct counted {
    long delay_ms; /* of each read */
    size_t n_reads;
    uint64_t offsets[64];
    size_t sizes[64];
};

static int counted_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct counted *counted = context;
    struct timespec delay = {.tv_nsec = counted->delay_ms * 1000000};

    (void)nanosleep(&delay, NULL);
    if (offset > file_nbytes || nbytes > file_nbytes - offset)
        return 22;
    if (counted->n_reads < 64) {
        counted->offsets[counted->n_reads] = offset;
        counted->sizes[counted->n_reads] = nbytes;
    }
    counted->n_reads++;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

/* What it takes to open the file. */
static struct counted open_counted(const char *options)
{
    struct counted counted = {0};
    berth_source source = {
        .nbytes = file_nbytes, .name = "counted", .read = counted_read, .context = &counted};
    berth_stats stats;

    assert_ok(berth_open_source(&source, only(options, &stats), &checkpoint, &error));
    cr_expect_eq(stats.n_requests, counted.n_reads);
    close_opened();
    return counted;
}

/* A file of n tensors whose names come by a format. */
__attribute__((format(printf, 1, 0))) static void build_named(const char *format, size_t n,
                                                              size_t tensor_nbytes)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    uint8_t *data = calloc(1, tensor_nbytes);
    char name[64];

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, format, i);
        berth_dict_set(root, name, test_vector(tree, BERTH_UINT8, data, (int64_t)tensor_nbytes));
    }
    save_file(root, "");
    free(data);
}

/* n tensors of many bytes: directory and head lie far apart. */
static void build_many(size_t n, size_t tensor_nbytes)
{
    build_named("t%zu", n, tensor_nbytes);
}

Test(reads, one_read_finds_every_storage)
{
    build_many(50, 100000);
    struct counted counted = open_counted("load.check=none");

    cr_expect_eq(counted.n_reads, 1);
    cr_expect_eq(counted.offsets[0], 0);
    cr_expect_eq(counted.sizes[0], 1 << 20);
}

Test(reads, the_directory_costs_one_read_more)
{
    build_many(50, 100000);
    struct counted counted = open_counted("load.check=directory");

    cr_expect_eq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1] + counted.sizes[1], file_nbytes);
}

Test(reads, a_long_directory_is_still_read_at_once)
{
    build_many(3000, 1000);

    cr_expect_eq(open_counted("load.check=none").n_reads, 1);
    cr_expect_eq(open_counted("load.check=directory").n_reads, 2);
}

Test(reads, without_calculated_offsets_the_directory_is_read_and_every_local_header)
{
    build_many(50, 300000);
    struct counted counted = open_counted("load.check=none load.calculate_storage_offsets=off");

    /* Head, tail, and the headers that neither holds. */
    cr_expect_geq(counted.n_reads, 2 + 45);
    cr_expect_leq(counted.n_reads, 2 + 50);
}

Test(reads, the_head_grows_fourfold_while_the_pickle_is_longer)
{
    build_many(200, 1000);
    struct counted counted = open_counted("load.check=none load.head_nbytes=1000");

    cr_expect_eq(counted.n_reads, 4);
    cr_expect_eq(counted.sizes[0], 1000);
    cr_expect_eq(counted.offsets[1], 1000);
    cr_expect_eq(counted.sizes[1], 3000);
    cr_expect_eq(counted.offsets[2], 4000);
    cr_expect_eq(counted.sizes[2], 12000);
    cr_expect_eq(counted.sizes[3], 48000);
}

Test(reads, headers_of_small_neighbours_come_together)
{
    build_many(1000, 1000);
    struct counted counted = open_counted("load.check=headers load.head_nbytes=200000");

    cr_expect_leq(counted.n_reads, 8);
}

/* ---- how many requests, however many tensors ---- */

/* What an open by path asks for. */
static uint64_t requests_of_path(const char *options)
{
    berth_stats stats;

    assert_ok(berth_open(path, only(options, &stats), &checkpoint, &error));
    cr_expect_not_null(berth_find_tensor(checkpoint, "model.layers.0.weight", NULL));
    close_opened();
    return stats.n_requests;
}

static size_t requests_of_archive(void)
{
    struct counted counted = {0};
    berth_source source = {.nbytes = file_nbytes, .read = counted_read, .context = &counted};
    berth_archive *archive;
    berth_record record;
    char data[4] = "", *end;

    assert_ok(
        berth_archive_open(&source, only("load.check=directory", NULL), &archive, NULL, &error));
    size_t n_reads = counted.n_reads;
    cr_assert_eq(berth_archive_find(archive, ".format_version", &record, &error), 0);
    cr_assert_leq(record.nbytes, 3);
    cr_expect_eq(berth_archive_read(archive, &record, data, record.nbytes, 0, &error), 0);
    cr_expect_eq(strtol(data, &end, 10), 1, "records are where they are said to be");
    berth_archive_close(archive);
    return n_reads;
}

static void expect_requests(size_t n, size_t tensor_nbytes, size_t none, size_t directory,
                            size_t archive)
{
    begin_scene("many.pt");
    build_named("model.layers.%zu.weight", n, tensor_nbytes);
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(requests_of_path("load.check=none"), none, "%zu tensors", n);
    cr_expect_eq(requests_of_path("load.check=directory"), directory, "%zu tensors", n);
    cr_expect_eq(open_counted("load.check=none").n_reads, none, "%zu tensors", n);
    struct counted counted = open_counted("load.check=directory");
    cr_expect_eq(counted.n_reads, directory, "%zu tensors", n);
    /* Not a byte of a large file is read twice, and of its tail little but the directory. */
    if (directory > none)
        cr_expect_lt(counted.sizes[directory - 1], n * 128 + 65536 + 8192, "%zu tensors", n);
    cr_expect_eq(requests_of_archive(), archive, "%zu tensors", n);
    end_scene();
}

Test(reads, a_file_that_the_head_holds_takes_one)
{
    expect_requests(100, 64, 1, 1, 1);
}

Test(reads, a_hundred_tensors_take_one_and_one_for_the_directory)
{
    expect_requests(100, 100000, 1, 2, 2);
}

Test(reads, ten_thousand_tensors_take_two_and_one_for_the_directory)
{
    expect_requests(10000, 1000, 2, 3, 3);
}

Test(reads, a_hundred_thousand_tensors_take_three_and_one_for_the_directory)
{
    expect_requests(100000, 64, 3, 4, 4);
}

/* Headers of what the layout does not know lie behind the storages, and come with the directory. */
Test(reads, records_behind_the_storages_come_with_the_directory)
{
    enum { N = 1100 };
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    static const uint8_t data[1024];

    for (size_t i = 0; i < N; i++)
        berth_list_append(root, test_vector(tree, BERTH_UINT8, data, sizeof data));
    save_file(root, "save.storage_alignment=32768");
    cr_expect_eq(open_counted("load.check=none").n_reads, 1);
    struct counted counted = open_counted("load.check=directory");
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_gt(counted.sizes[1], (size_t)N * (46 + 13) + 2 * 32768 - 4096,
                 "what lies there is more than what the directory is guessed to take");
}

/* Unless they are long. */
Test(reads, a_long_record_behind_the_storages_does_not_come_with_the_directory)
{
    enum { LONG_NBYTES = 3 << 20 };
    uint8_t *data = calloc(1, LONG_NBYTES);

    add_record("notes", data, LONG_NBYTES);
    build(NULL);
    struct counted counted = open_counted("load.check=directory");
    cr_expect_geq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1] + counted.sizes[1], file_nbytes);
    cr_expect_lt(counted.sizes[1], 1 << 20);
    free(data);
}

/* The tail begins inside the head: only what is missing is read. */
Test(reads, what_the_head_holds_is_not_read_again)
{
    build_many(12, 90000);

    cr_assert_gt(file_nbytes, 1 << 20);
    cr_assert_lt(file_nbytes, (1 << 20) + 60000);
    struct counted counted = open_counted("load.check=directory");
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1], 1 << 20);
    cr_expect_eq(counted.sizes[1], file_nbytes - (1 << 20));
}

/* From far away each request takes its time, and nothing else does. */
Test(reads, a_slow_source_is_asked_no_more_often)
{
    build_many(50, 100000);
    struct counted counted = {.delay_ms = 20};
    berth_source source = {.nbytes = file_nbytes, .read = counted_read, .context = &counted};
    berth_stats stats;

    assert_ok(berth_open_source(&source, only("", &stats), &checkpoint, &error));
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_geq(stats.total_seconds, 0.04);
}
