/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * load.check=data: where storages lie in memory or are mapped, open sums them; where they are read,
 * each is summed as it comes, and no byte of it is read twice (Z10).
 */
#include "tests/support/load/archive.h"

enum { N_TENSORS = 6, N_BYTES = 300000 };

static uint64_t places[N_TENSORS];
static uint8_t elements[N_BYTES];

static void set_up(void)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[] = "t0";

    for (size_t i = 0; i < N_BYTES; i++)
        elements[i] = (uint8_t)(i * 13 + (i >> 9));
    for (; name[1] < '0' + N_TENSORS; name[1]++)
        berth_dict_set(root, name, test_vector(tree, BERTH_UINT8, elements, N_BYTES));
    save_file(root, "");
    open_file("");
    for (size_t i = 0; i < N_TENSORS; i++) {
        berth_named_tensor named;
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, NULL), 0);
        places[i] = named.offset;
    }
    close_opened();
    begin_scene("sums.pt");
}

TestSuite(sums, .init = set_up, .fini = end_sample_file);

/* ---- what was read ---- */

static uint64_t read_nbytes;

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    read_nbytes += nbytes;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static int try_sums(const char *options, bool from_path)
{
    const berth_source source = {.nbytes = file_nbytes, .name = "shelf", .read = read_bytes};
    char all[200];

    (void)snprintf(all, sizeof all, "load.check=data io.threads=1 load.head_nbytes=2000 %s",
                   options);
    close_opened();
    read_nbytes = 0;
    if (!from_path)
        return berth_open_source(&source, only(all, NULL), &checkpoint, &error);
    test_write_file(path, file, file_nbytes);
    return berth_open(path, only(all, NULL), &checkpoint, &error);
}

static void open_sums(const char *options, bool from_path)
{
    assert_ok(try_sums(options, from_path));
}

/* ---- the tests ---- */

Test(sums, storages_that_are_read_are_left_for_then_and_read_once)
{
    open_sums("", false);
    uint64_t opening_nbytes = read_nbytes;
    cr_expect_lt(opening_nbytes, 400000, "%llu", (unsigned long long)opening_nbytes);
    cr_expect_eq(stats_at(0).crc32, BERTH_CRC_UNCHECKED);
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    for (size_t i = 0; i < N_TENSORS; i++)
        cr_expect_eq(stats_at(i).crc32, BERTH_CRC_GOOD);
    cr_expect_lt(read_nbytes - opening_nbytes, N_TENSORS * N_BYTES + 2000);
}

Test(sums, only_what_is_asked_for_is_read_and_summed)
{
    open_sums("", false);
    uint64_t opening_nbytes = read_nbytes;
    const uint8_t *data = berth_tensor_data(checkpoint, tensor_at(2), &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_eq(memcmp(data, elements, N_BYTES), 0);
    cr_expect_eq(read_nbytes - opening_nbytes, N_BYTES);
    cr_expect_eq(stats_at(2).crc32, BERTH_CRC_GOOD);
    cr_expect_eq(stats_at(3).crc32, BERTH_CRC_UNCHECKED);
}

/* No range of a storage is handed out before all of it has its CRC; which is found out once. */
Test(sums, a_range_is_read_when_its_storage_is_known_to_be_good)
{
    uint8_t few[10];

    file[places[1] + 5000] ^= 1;
    open_sums("", false);
    uint64_t before_nbytes = read_nbytes;
    for (int again = 0; again < 2; again++) {
        cr_expect_eq(berth_tensor_read(checkpoint, tensor_at(1), 0, 10, few, &error),
                     BERTH_E_CHECKSUM);
        cr_expect_str_eq(error.record, "data/1");
        cr_expect_eq(strncmp(error.message, "shelf: \"t1\": data/1 at byte ", 28), 0, "%s",
                     error.message);
        cr_expect_eq(stats_at(1).crc32, BERTH_CRC_BAD);
    }
    cr_expect_eq(read_nbytes - before_nbytes, 2 * N_BYTES);
    for (int again = 0; again < 3; again++) {
        cr_expect_eq(berth_tensor_read(checkpoint, tensor_at(2), 7, 10, few, &error), 0);
        cr_expect_eq(memcmp(few, elements + 7, 10), 0);
    }
    cr_expect_eq(read_nbytes - before_nbytes, 3 * N_BYTES + 30);
    cr_expect_null(berth_tensor_data(checkpoint, tensor_at(1), &error));
    cr_expect_eq(error.code, BERTH_E_CHECKSUM);
}

Test(sums, mapped_storages_are_summed_by_open)
{
    open_sums("load.method=map", true);
    for (size_t i = 0; i < N_TENSORS; i++)
        cr_expect_eq(stats_at(i).crc32, BERTH_CRC_GOOD);
    file[places[4]] ^= 1;
    cr_expect_eq(try_sums("load.method=map", true), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "data/4");
}

/* Whoever changes the method later changes nothing of what is checked. */
Test(sums, a_method_that_is_chosen_later_checks_too)
{
    const berth_storage_rule rule = {.method = BERTH_LOAD_MAP};

    file[places[4]] ^= 1;
    open_sums("load.method=read", true);
    assert_ok(berth_set_storage_rules(checkpoint, &rule, 1, &error));
    cr_expect_not_null(berth_tensor_data(checkpoint, tensor_at(3), &error));
    cr_expect_eq(stats_at(3).crc32, BERTH_CRC_GOOD);
    cr_expect_null(berth_tensor_data(checkpoint, tensor_at(4), &error));
    cr_expect_eq(error.code, BERTH_E_CHECKSUM);
}

/* The records that are no storages are summed by open, however storages come. */
Test(sums, other_records_are_summed_by_open)
{
    static const char id[] = "serialization_id";
    uint64_t at = places[N_TENSORS - 1] + N_BYTES;

    while (memcmp(file + at, id, sizeof id - 1) != 0)
        at++;
    for (at += sizeof id; file[at] < '0' || file[at] > '9'; at++)
        ;
    file[at] ^= 1;
    cr_expect_eq(try_sums("", false), BERTH_E_CHECKSUM, "%s", error.message);
    cr_expect_str_eq(error.record, ".data/serialization_id");
}

/* What has its verdict keeps it: no sum is made twice. */
Test(sums, a_fetch_with_checks_sums_what_open_did_not)
{
    open_sums("load.check=none", false);
    cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(0), &error));
    assert_ok(berth_load(checkpoint, NULL, only("load.check=data load.method=read", NULL), &error));
    cr_expect_eq(stats_at(0).crc32, BERTH_CRC_UNCHECKED);
    for (size_t i = 1; i < N_TENSORS; i++)
        cr_expect_eq(stats_at(i).crc32, BERTH_CRC_GOOD);
}

/* Nor is a storage summed that the directory, which is read only then, does not list. */
Test(sums, a_fetch_with_checks_asks_the_directory)
{
    static const char *const methods[] = {"load.check=data load.method=read",
                                          "load.check=data load.method=map"};

    begin_sample();
    build(&(struct lie){.record = "data/1", .unlisted = true});
    test_write_file(path, file, file_nbytes);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        open_as("debug=off load.check=none");
        FAILS_SAYING(berth_load(checkpoint, NULL, only(methods[i], NULL), &error), BERTH_E_ARCHIVE,
                     "data.pkl names it, but the archive does not hold it");
    }
}

/* What makes names: of a tensor, of a selection, of rules; of an error, which does without. */
static int use_names(int use)
{
    static const berth_selection some = {.pattern = "*"};
    static const berth_storage_rule rule = {.pattern = "*", .method = BERTH_LOAD_READ};
    const berth_tensor *tensor = berth_as_tensor(bth_value_item(berth_root(checkpoint), 0));
    berth_named_tensor named;
    uint8_t byte;

    return use == 0   ? berth_tensor_at(checkpoint, 1, &named, &error)
           : use == 1 ? berth_load(checkpoint, &some, NULL, &error)
           : use == 2 ? berth_set_storage_rules(checkpoint, &rule, 1, &error)
                      : berth_tensor_read(checkpoint, tensor, -1, 1, &byte, &error);
}

/* W6 */
Test(sums, no_memory_for_names_is_told)
{
    for (int use = 0; use < 4; use++)
        for (uint64_t nth = 1, is_over = 0; !is_over; nth++) {
            const berth_params *call = only("load.method=read io.threads=1", NULL);
            test_memory_watch();
            assert_ok(berth_open_source(FROM_MEMORY(file, file_nbytes), call, &checkpoint, &error));
            test_memory_refuse(nth, false);
            int result = use_names(use);
            is_over = !test_memory_refused();
            test_memory_refuse(0, false);
            cr_expect_eq(result,
                         use == 3  ? BERTH_E_ARGUMENT
                         : is_over ? 0
                                   : BERTH_E_MEMORY,
                         "%d, %u: %s", use, (unsigned)nth, error.message);
            close_opened();
            cr_expect_eq(test_memory_seen().live_nbytes, 0);
            test_memory_unwatch();
        }
}

/* W6 */
Test(sums, no_memory_to_sum_a_storage_is_told)
{
    uint8_t byte = 0;
    uint64_t nth = 0;
    int result;
    const berth_source source = {.nbytes = file_nbytes, .read = read_bytes};
    const berth_params *call = only("load.check=data io.threads=1 load.head_nbytes=2000", NULL);

    test_memory_watch();
    assert_ok(berth_open_source(&source, call, &checkpoint, &error));
    const berth_tensor *tensor = tensor_at(1); /* names are made */
    do {
        test_memory_refuse(++nth, false); /* the first is for the name of its record */
        result = berth_tensor_read(checkpoint, tensor, 1, 1, &byte, &error);
        cr_expect(result == 0 || result == BERTH_E_MEMORY, "allocation %u: %s", (unsigned)nth,
                  error.message);
    } while (result < 0 && nth < 100);
    test_memory_refuse(0, false);
    cr_expect_gt(nth, 1);
    cr_expect_eq(byte, elements[1]);
    close_opened();
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}
