/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an open reads, and how often: one read finds every storage; each level of checking adds its
 * own, however many tensors there are.
 */
#include <time.h>

#include "tests/support/load/archive.h"
#include "tests/support/support.h"

/* ---- a source that counts ---- */

struct counted {
    const uint8_t *bytes;
    size_t nbytes;
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
    if (offset > counted->nbytes || nbytes > counted->nbytes - offset)
        return 22;
    if (counted->n_reads < 64) {
        counted->offsets[counted->n_reads] = offset;
        counted->sizes[counted->n_reads] = nbytes;
    }
    counted->n_reads++;
    memcpy(buffer, counted->bytes + offset, nbytes);
    return 0;
}

static struct counted open_counted(const uint8_t *bytes, size_t nbytes, const char *options)
{
    struct counted counted = {.bytes = bytes, .nbytes = nbytes};
    berth_source source = {
        .nbytes = nbytes, .name = "counted", .read = counted_read, .context = &counted};
    berth_config *config = berth_config_new(NULL);
    berth_stats stats;
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, &error), 0, "%s", error.message);
    cr_assert_eq(berth_open_source(&source, &call, &checkpoint, &error), 0, "%s", error.message);
    cr_expect_eq(stats.n_requests, counted.n_reads);
    berth_close(checkpoint);
    berth_config_free(config);
    return counted;
}

/* n tensors whose names come by a format: as a file. */
static uint8_t *build_named(const char *format, size_t n, size_t tensor_nbytes, size_t *nbytes)
    __attribute__((format(printf, 1, 0)));

static uint8_t *build_named(const char *format, size_t n, size_t tensor_nbytes, size_t *nbytes)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    uint8_t *data = calloc(1, tensor_nbytes);
    const int64_t shape[] = {(int64_t)tensor_nbytes};
    void *bytes;
    char name[64];

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, format, i);
        berth_dict_set(root, name, test_tensor(tree, BERTH_UINT8, data, 1, shape));
    }
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, nbytes), OF_VALUE(root), NULL, NULL), 0);
    uint8_t *copy = malloc(*nbytes);
    memcpy(copy, bytes, *nbytes);
    berth_free(bytes);
    berth_tree_free(tree);
    free(data);
    return copy;
}

/* A checkpoint of n tensors of many bytes: directory and head lie far apart. */
static uint8_t *build_many(size_t n, size_t tensor_nbytes, size_t *nbytes)
{
    return build_named("t%zu", n, tensor_nbytes, nbytes);
}

Test(reads, one_read_finds_every_storage)
{
    size_t nbytes;
    uint8_t *file = build_many(50, 100000, &nbytes);
    struct counted counted = open_counted(file, nbytes, "load.check=none");

    cr_expect_eq(counted.n_reads, 1);
    cr_expect_eq(counted.offsets[0], 0);
    cr_expect_eq(counted.sizes[0], 1 << 20);
    free(file);
}

Test(reads, the_directory_costs_one_read_more)
{
    size_t nbytes;
    uint8_t *file = build_many(50, 100000, &nbytes);
    struct counted counted = open_counted(file, nbytes, "load.check=directory");

    cr_expect_eq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1] + counted.sizes[1], nbytes);
    free(file);
}

Test(reads, a_long_directory_is_still_read_at_once)
{
    size_t nbytes;
    uint8_t *file = build_many(3000, 1000, &nbytes);

    cr_expect_eq(open_counted(file, nbytes, "load.check=none").n_reads, 1);
    cr_expect_eq(open_counted(file, nbytes, "load.check=directory").n_reads, 2);
    free(file);
}

Test(reads, without_calculated_offsets_the_directory_is_read_and_every_local_header)
{
    size_t nbytes;
    uint8_t *file = build_many(50, 300000, &nbytes);
    struct counted counted =
        open_counted(file, nbytes, "load.check=none load.calculate_storage_offsets=off");

    /* Head, tail, and the headers that neither holds. */
    cr_expect_geq(counted.n_reads, 2 + 45);
    cr_expect_leq(counted.n_reads, 2 + 50);
    free(file);
}

Test(reads, the_head_grows_fourfold_while_the_pickle_is_longer)
{
    size_t nbytes;
    uint8_t *file = build_many(200, 1000, &nbytes);
    struct counted counted = open_counted(file, nbytes, "load.check=none load.head_nbytes=1000");

    cr_expect_eq(counted.n_reads, 4);
    cr_expect_eq(counted.sizes[0], 1000);
    cr_expect_eq(counted.offsets[1], 1000);
    cr_expect_eq(counted.sizes[1], 3000);
    cr_expect_eq(counted.offsets[2], 4000);
    cr_expect_eq(counted.sizes[2], 12000);
    cr_expect_eq(counted.sizes[3], 48000);
    free(file);
}

Test(reads, headers_of_small_neighbours_come_together)
{
    size_t nbytes;
    uint8_t *file = build_many(1000, 1000, &nbytes);
    struct counted counted =
        open_counted(file, nbytes, "load.check=headers load.head_nbytes=200000");

    cr_expect_leq(counted.n_reads, 8);
    free(file);
}

/* ---- how many requests, however many tensors ---- */

/* What an open by path asks for. */
static uint64_t requests_of_path(const char *path, const char *options)
{
    berth_config *config = berth_config_new(NULL);
    berth_stats stats;
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, NULL), 0);
    cr_assert_eq(berth_open(path, &call, &checkpoint, &error), 0, "%s", error.message);
    cr_expect_not_null(berth_find_tensor(checkpoint, "model.layers.0.weight", NULL));
    berth_close(checkpoint);
    berth_config_free(config);
    return stats.n_requests;
}

static size_t requests_of_archive(const uint8_t *bytes, size_t nbytes)
{
    struct counted counted = {.bytes = bytes, .nbytes = nbytes};
    berth_source source = {.nbytes = nbytes, .read = counted_read, .context = &counted};
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};
    berth_archive *archive;
    berth_error error;
    berth_record record;
    char data[4], *end;

    cr_assert_eq(berth_config_apply(config, "debug=off load.check=directory", NULL), 0);
    cr_assert_eq(berth_archive_open(&source, &call, &archive, &error), 0, "%s", error.message);
    size_t n_reads = counted.n_reads;
    cr_assert_eq(berth_archive_find(archive, ".format_version", &record, &error), 0);
    cr_assert_leq(record.nbytes, 3);
    memset(data, 0, sizeof data);
    cr_expect_eq(berth_archive_read(archive, &record, data, record.nbytes, 0, &error), 0);
    cr_expect_eq(strtol(data, &end, 10), 1, "records are where they are said to be");
    berth_archive_close(archive);
    berth_config_free(config);
    return n_reads;
}

static void expect_requests(size_t n, size_t tensor_nbytes, size_t none, size_t directory,
                            size_t archive)
{
    size_t nbytes;
    uint8_t *file = build_named("model.layers.%zu.weight", n, tensor_nbytes, &nbytes);
    char *folder = test_folder_new(), *path = test_path(folder, "many.pt");

    test_write_file(path, file, nbytes);
    cr_expect_eq(requests_of_path(path, "load.check=none"), none, "%zu tensors", n);
    cr_expect_eq(requests_of_path(path, "load.check=directory"), directory, "%zu tensors", n);
    cr_expect_eq(open_counted(file, nbytes, "load.check=none").n_reads, none, "%zu tensors", n);
    struct counted counted = open_counted(file, nbytes, "load.check=directory");
    cr_expect_eq(counted.n_reads, directory, "%zu tensors", n);
    /* Not a byte of a large file is read twice, and of its tail little but the directory. */
    if (directory > none)
        cr_expect_lt(counted.sizes[directory - 1], n * 128 + 65536 + 8192, "%zu tensors", n);
    cr_expect_eq(requests_of_archive(file, nbytes), archive, "%zu tensors", n);
    free(path);
    test_folder_remove(folder);
    free(file);
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
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};
    const int64_t shape[] = {1024};
    static const uint8_t data[1024];
    size_t nbytes;
    void *file;

    for (size_t i = 0; i < N; i++)
        berth_list_append(root, test_tensor(tree, BERTH_UINT8, data, 1, shape));
    cr_assert_eq(berth_config_apply(config, "save.storage_alignment=32768", NULL), 0);
    cr_assert_eq(berth_save_to(TO_MEMORY(&file, &nbytes), OF_VALUE(root), &call, NULL), 0);
    cr_expect_eq(open_counted(file, nbytes, "load.check=none").n_reads, 1);
    struct counted counted = open_counted(file, nbytes, "load.check=directory");
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_gt(counted.sizes[1], (size_t)N * (46 + 13) + 2 * 32768 - 4096,
                 "what lies there is more than what the directory is guessed to take");
    berth_free(file);
    berth_config_free(config);
    berth_tree_free(tree);
}

/* Unless they are long. */
Test(reads, a_long_record_behind_the_storages_does_not_come_with_the_directory)
{
    enum { LONG_NBYTES = 3 << 20 };
    struct archive archive = sample();
    uint8_t *data = calloc(1, LONG_NBYTES);
    size_t nbytes;

    add_record(&archive, "notes", data, LONG_NBYTES);
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    struct counted counted = open_counted(file, nbytes, "load.check=directory");
    cr_expect_geq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1] + counted.sizes[1], nbytes);
    cr_expect_lt(counted.sizes[1], 1 << 20);
    free(file);
    free(data);
    free_archive(&archive);
}

/* The tail begins inside the head: only what is missing is read. */
Test(reads, what_the_head_holds_is_not_read_again)
{
    size_t nbytes;
    uint8_t *file = build_many(12, 90000, &nbytes);

    cr_assert_gt(nbytes, 1 << 20);
    cr_assert_lt(nbytes, (1 << 20) + 60000);
    struct counted counted = open_counted(file, nbytes, "load.check=directory");
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_eq(counted.offsets[1], 1 << 20);
    cr_expect_eq(counted.sizes[1], nbytes - (1 << 20));
    free(file);
}

/* From far away each request takes its time, and nothing else does. */
Test(reads, a_slow_source_is_asked_no_more_often)
{
    size_t nbytes;
    uint8_t *file = build_many(50, 100000, &nbytes);
    struct counted counted = {.bytes = file, .nbytes = nbytes, .delay_ms = 20};
    berth_source source = {.nbytes = nbytes, .read = counted_read, .context = &counted};
    berth_config *config = berth_config_new(NULL);
    berth_stats stats;
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_open_source(&source, &call, &checkpoint, &error), 0, "%s", error.message);
    cr_expect_eq(counted.n_reads, 2);
    cr_expect_geq(stats.total_seconds, 0.04);
    berth_close(checkpoint);
    berth_config_free(config);
    free(file);
}
