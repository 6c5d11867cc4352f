/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an open reads, and how often: one read finds every storage; each level of checking adds its
 * own, however many tensors there are.
 */
#include "tests/load/builder.h"

/* ---- a source that counts ---- */

struct counted {
    const uint8_t *bytes;
    size_t nbytes;
    size_t n_reads;
    uint64_t offsets[64];
    size_t sizes[64];
};

static int counted_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct counted *counted = context;

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
    berth_call call = {.config = config, .stats = &stats};
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

/* A checkpoint of n tensors of many bytes: directory and head lie far apart. */
static uint8_t *build_many(size_t n, size_t tensor_nbytes, size_t *nbytes)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_dict(tree);
    uint8_t *data = calloc(1, tensor_nbytes);
    const int64_t shape[] = {(int64_t)tensor_nbytes};
    void *bytes;
    char name[32];

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "t%zu", i);
        berth_dict_set(
            root, name,
            berth_tensor_value(
                tree,
                &(berth_tensor){.dtype = BERTH_UINT8, .rank = 1, .shape = shape, .data = data}));
    }
    cr_assert_eq(berth_save_memory(&bytes, nbytes, NULL, root, NULL, NULL), 0);
    uint8_t *copy = malloc(*nbytes);
    memcpy(copy, bytes, *nbytes);
    berth_free(bytes);
    berth_tree_free(tree);
    free(data);
    return copy;
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
