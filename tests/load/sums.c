/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * load.check=data: where storages lie in memory or are mapped, open sums them; where they are read,
 * each is summed as it comes, and no byte of it is read twice (Z10).
 */
#include "tests/support/load/archive.h"
#include "tests/support/scene.h"
#include "tests/support/sources.h"

enum { N_TENSORS = 6, N_BYTES = 300000 };

static uint8_t *file;
static size_t file_nbytes;
static uint64_t places[N_TENSORS];
static uint8_t elements[N_BYTES];

static void set_up(void)
{
    static const int64_t shape[] = {N_BYTES};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    berth_checkpoint *checkpoint;
    void *bytes;
    char name[] = "t0";

    for (size_t i = 0; i < N_BYTES; i++)
        elements[i] = (uint8_t)(i * 13 + (i >> 9));
    for (; name[1] < '0' + N_TENSORS; name[1]++)
        berth_dict_set(root, name, test_tensor(tree, BERTH_UINT8, elements, 1, shape));
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, &file_nbytes), OF_VALUE(root), NULL, NULL), 0);
    berth_tree_free(tree);
    file = memcpy(malloc(file_nbytes), bytes, file_nbytes);
    berth_free(bytes);
    cr_assert_eq(test_open_memory(file, file_nbytes, NULL, &checkpoint, NULL), 0);
    for (size_t i = 0; i < N_TENSORS; i++) {
        berth_named_tensor named;
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, NULL), 0);
        places[i] = named.offset;
    }
    berth_close(checkpoint);
    begin_scene("sums.pt");
}

static void tear_down(void)
{
    free(file), end_scene();
}

TestSuite(sums, .init = set_up, .fini = tear_down, .timeout = 100);

/* ---- what was read ---- */

static uint64_t read_nbytes;

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    read_nbytes += nbytes;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static int open_as(const char *options, bool from_path, berth_checkpoint **checkpoint,
                   berth_error *error)
{
    const berth_source source = {.nbytes = file_nbytes, .name = "shelf", .read = read_bytes};
    berth_config *config = berth_config_new(NULL);
    const berth_params call = {.config = config};

    cr_assert_eq(berth_config_apply(config, "debug=off load.check=data io.threads=1", NULL), 0);
    cr_assert_eq(berth_config_apply(config, "load.head_nbytes=2000", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, error), 0, "%s", error->message);
    read_nbytes = 0;
    if (from_path)
        test_write_file(path, file, file_nbytes);
    int result = from_path ? berth_open(path, &call, checkpoint, error)
                           : berth_open_source(&source, &call, checkpoint, error);
    berth_config_free(config);
    return result;
}

static const berth_tensor *tensor_at(berth_checkpoint *checkpoint, size_t i)
{
    berth_named_tensor named;

    cr_assert_eq(berth_tensor_at(checkpoint, i, &named, NULL), 0);
    return named.tensor;
}

static berth_crc_verdict verdict_at(berth_checkpoint *checkpoint, size_t i)
{
    berth_storage_stats stats;

    cr_assert_eq(
        berth_storage_get_stats(checkpoint, tensor_at(checkpoint, i)->storage, &stats, NULL), 0);
    return stats.crc32;
}

/* ---- the tests ---- */

Test(sums, storages_that_are_read_are_left_for_then_and_read_once)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(open_as("", false, &checkpoint, &error), 0, "%s", error.message);
    uint64_t opening_nbytes = read_nbytes;
    cr_expect_lt(opening_nbytes, 400000, "%llu", (unsigned long long)opening_nbytes);
    cr_expect_eq(verdict_at(checkpoint, 0), BERTH_CRC_UNCHECKED);
    cr_assert_eq(berth_load(checkpoint, NULL, NULL, &error), 0, "%s", error.message);
    for (size_t i = 0; i < N_TENSORS; i++)
        cr_expect_eq(verdict_at(checkpoint, i), BERTH_CRC_GOOD);
    cr_expect_lt(read_nbytes - opening_nbytes, N_TENSORS * N_BYTES + 2000);
    berth_close(checkpoint);
}

Test(sums, only_what_is_asked_for_is_read_and_summed)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(open_as("", false, &checkpoint, &error), 0, "%s", error.message);
    uint64_t opening_nbytes = read_nbytes;
    const uint8_t *data = berth_tensor_data(checkpoint, tensor_at(checkpoint, 2), &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_eq(memcmp(data, elements, N_BYTES), 0);
    cr_expect_eq(read_nbytes - opening_nbytes, N_BYTES);
    cr_expect_eq(verdict_at(checkpoint, 2), BERTH_CRC_GOOD);
    cr_expect_eq(verdict_at(checkpoint, 3), BERTH_CRC_UNCHECKED);
    berth_close(checkpoint);
}

/* No range of a storage is handed out before all of it has its CRC; which is found out once. */
Test(sums, a_range_is_read_when_its_storage_is_known_to_be_good)
{
    berth_checkpoint *checkpoint;
    berth_error error;
    uint8_t few[10];

    file[places[1] + 5000] ^= 1;
    cr_assert_eq(open_as("", false, &checkpoint, &error), 0, "%s", error.message);
    uint64_t before_nbytes = read_nbytes;
    for (int again = 0; again < 2; again++) {
        cr_expect_eq(berth_tensor_read(checkpoint, tensor_at(checkpoint, 1), 0, 10, few, &error),
                     BERTH_E_CHECKSUM);
        cr_expect_str_eq(error.record, "data/1");
        cr_expect_eq(strncmp(error.message, "shelf: \"t1\": data/1 at byte ", 28), 0, "%s",
                     error.message);
        cr_expect_eq(verdict_at(checkpoint, 1), BERTH_CRC_BAD);
    }
    cr_expect_eq(read_nbytes - before_nbytes, 2 * N_BYTES);
    for (int again = 0; again < 3; again++) {
        cr_expect_eq(berth_tensor_read(checkpoint, tensor_at(checkpoint, 2), 7, 10, few, &error),
                     0);
        cr_expect_eq(memcmp(few, elements + 7, 10), 0);
    }
    cr_expect_eq(read_nbytes - before_nbytes, 3 * N_BYTES + 30);
    cr_expect_null(berth_tensor_data(checkpoint, tensor_at(checkpoint, 1), &error));
    cr_expect_eq(error.code, BERTH_E_CHECKSUM);
    berth_close(checkpoint);
}

Test(sums, mapped_storages_are_summed_by_open)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(open_as("load.method=map", true, &checkpoint, &error), 0, "%s", error.message);
    for (size_t i = 0; i < N_TENSORS; i++)
        cr_expect_eq(verdict_at(checkpoint, i), BERTH_CRC_GOOD);
    berth_close(checkpoint);
    file[places[4]] ^= 1;
    cr_expect_eq(open_as("load.method=map", true, &checkpoint, &error), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "data/4");
}

/* Whoever changes the method later changes nothing of what is checked. */
Test(sums, a_method_that_is_chosen_later_checks_too)
{
    const berth_storage_rule rule = {.method = BERTH_LOAD_MAP};
    berth_checkpoint *checkpoint;
    berth_error error;

    file[places[4]] ^= 1;
    cr_assert_eq(open_as("load.method=read", true, &checkpoint, &error), 0, "%s", error.message);
    cr_assert_eq(berth_choose(checkpoint, &rule, 1, &error), 0, "%s", error.message);
    cr_expect_not_null(berth_tensor_data(checkpoint, tensor_at(checkpoint, 3), &error));
    cr_expect_eq(verdict_at(checkpoint, 3), BERTH_CRC_GOOD);
    cr_expect_null(berth_tensor_data(checkpoint, tensor_at(checkpoint, 4), &error));
    cr_expect_eq(error.code, BERTH_E_CHECKSUM);
    berth_close(checkpoint);
}

/* The records that are no storages are summed by open, however storages come. */
Test(sums, other_records_are_summed_by_open)
{
    static const char id[] = "serialization_id";
    berth_checkpoint *checkpoint;
    berth_error error;
    uint64_t at = places[N_TENSORS - 1] + N_BYTES;

    while (memcmp(file + at, id, sizeof id - 1) != 0)
        at++;
    for (at += sizeof id; file[at] < '0' || file[at] > '9'; at++)
        ;
    file[at] ^= 1;
    cr_expect_eq(open_as("", false, &checkpoint, &error), BERTH_E_CHECKSUM, "%s", error.message);
    cr_expect_str_eq(error.record, ".data/serialization_id");
}

/* What has its verdict keeps it: no sum is made twice. */
Test(sums, a_fetch_with_checks_sums_what_open_did_not)
{
    berth_config *config = berth_config_new(NULL);
    const berth_params call = {.config = config};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(berth_config_apply(config, "load.check=data load.method=read", NULL), 0);
    cr_assert_eq(open_as("load.check=none", false, &checkpoint, &error), 0, "%s", error.message);
    cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(checkpoint, 0), &error));
    cr_assert_eq(berth_load(checkpoint, NULL, &call, &error), 0, "%s", error.message);
    cr_expect_eq(verdict_at(checkpoint, 0), BERTH_CRC_UNCHECKED);
    for (size_t i = 1; i < N_TENSORS; i++)
        cr_expect_eq(verdict_at(checkpoint, i), BERTH_CRC_GOOD);
    berth_close(checkpoint);
    berth_config_free(config);
}

/* Nor is a storage summed that the directory, which is read only then, does not list. */
Test(sums, a_fetch_with_checks_asks_the_directory)
{
    static const char *const methods[] = {"load.check=data load.method=read",
                                          "load.check=data load.method=map"};
    struct archive archive = sample();
    struct lie lie = {.record = "data/1", .unlisted = true};
    size_t nbytes;
    uint8_t *bytes = build(&archive, 64, true, &lie, &nbytes);

    test_write_file(path, bytes, nbytes);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        berth_config *config = berth_config_new(NULL);
        const berth_params call = {.config = config};
        berth_checkpoint *checkpoint;
        berth_error error;
        cr_assert_eq(berth_config_apply(config, "debug=off load.check=none", NULL), 0);
        cr_assert_eq(berth_open(path, &call, &checkpoint, &error), 0, "%s", error.message);
        cr_assert_eq(berth_config_apply(config, methods[i], NULL), 0);
        cr_expect_eq(berth_load(checkpoint, NULL, &call, &error), BERTH_E_ARCHIVE);
        cr_expect_not_null(
            strstr(error.message, "data.pkl names it, but the archive does not hold it"), "%s",
            error.message);
        berth_close(checkpoint);
        berth_config_free(config);
    }
    free(bytes);
    free_archive(&archive);
}

/* W6 */
Test(sums, no_memory_to_sum_a_storage_is_told)
{
    berth_checkpoint *checkpoint;
    berth_error error;
    uint8_t byte = 0;
    uint64_t nth = 0;
    int result;

    test_memory_watch();
    cr_assert_eq(open_as("", false, &checkpoint, &error), 0, "%s", error.message);
    const berth_tensor *tensor = tensor_at(checkpoint, 1); /* names are made */
    do {
        test_memory_refuse(++nth, false); /* the first is for the name of its record */
        result = berth_tensor_read(checkpoint, tensor, 1, 1, &byte, &error);
        cr_expect(result == 0 || result == BERTH_E_MEMORY, "allocation %u: %s", (unsigned)nth,
                  error.message);
    } while (result < 0 && nth < 100);
    test_memory_refuse(0, false);
    cr_expect_gt(nth, 1);
    cr_expect_eq(byte, elements[1]);
    berth_close(checkpoint);
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}
