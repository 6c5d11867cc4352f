/* SPDX-License-Identifier: BSD-3-Clause */
/* Loading as a program sees it: from paths, descriptors, memory and callbacks; names and values. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/opened.h"

static const float weight[6] = {0, 1, 2, 3, 4, 5};

/* {"model": {"layer.weight": Parameter, "bias": tensor}, "steps": [1, tensor]} */
static void set_up(void)
{
    static const int64_t two_by_three[] = {2, 3}, three[] = {3};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *model = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_value *steps = berth_make_list(tree);
    berth_storage *storage =
        berth_storage_new(tree, BERTH_FLOAT32, weight, sizeof weight, "cuda:1");
    berth_tensor whole = {
        .dtype = BERTH_FLOAT32, .rank = 2, .shape = two_by_three, .storage = storage};
    berth_tensor row = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = three, .storage_offset = 3, .storage = storage};

    begin_model_scene();
    berth_dict_set(model, "layer.weight",
                   berth_make_parameter(tree, berth_make_tensor(tree, &whole), true));
    berth_dict_set(model, "bias", berth_make_tensor(tree, &row));
    berth_list_append(steps, berth_make_int(tree, 1));
    berth_list_append(steps, berth_make_tensor(tree, &row));
    berth_dict_set(root, "model", model);
    berth_dict_set(root, "steps", steps);
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
}

static void tear_down(void)
{
    close_opened();
    end_scene();
}

TestSuite(load, .init = set_up, .fini = tear_down);

/* By every function: nothing.c. */
Test(load, a_reserved_member_that_is_not_0_is_told)
{
    const berth_params params = {.reserved = {[2] = 1}};
    berth_source source = berth_from_path(path);

    cr_assert_eq(berth_open(path, &params, &checkpoint, &error), BERTH_E_ARGUMENT);
    cr_assert_null(checkpoint);
    cr_assert(strstr(error.message, "berth_params: reserved[2] is not 0"), "%s", error.message);
    source.reserved[1] = 1;
    FAILS_SAYING(berth_open_source(&source, NULL, &checkpoint, &error), BERTH_E_ARGUMENT,
                 "berth_source: reserved[1] is not 0");
    open_as("");
    const berth_storage_rule rule = {.reserved = {0, 1}};
    cr_expect_eq(berth_set_storage_rules(checkpoint, &rule, 1, &error), BERTH_E_ARGUMENT);
}

Test(load, what_was_saved_is_found_by_name_and_by_path)
{
    open_as("");
    const berth_tensor *by_name = berth_find_tensor(checkpoint, "model.layer.weight", NULL);
    const berth_tensor *by_path = berth_find_tensor(checkpoint, "['model']['layer.weight']", NULL);
    int64_t one = 0;

    cr_assert_not_null(by_name);
    cr_expect_eq(by_name, by_path);
    cr_expect_eq(by_name->dtype, BERTH_FLOAT32);
    cr_expect_eq(by_name->rank, 2);
    cr_expect_eq(by_name->shape[1], 3);
    cr_expect_arr_eq(berth_tensor_data(checkpoint, by_name, NULL), weight, sizeof weight);
    cr_expect(berth_as_int(berth_find(checkpoint, "steps.0", NULL), &one));
    cr_expect_eq(one, 1);
    cr_expect_eq(berth_value_kind(berth_root(checkpoint)), BERTH_KIND_DICT);
    close_opened();
    berth_close(NULL);
}

/* What is stored is not what they are. */
Test(load, negated_and_conjugated_elements_are_not_expected_as_they_are_stored)
{
    static const int64_t three[] = {3};
    static const struct {
        berth_dtype dtype;
        uint32_t flags;
        const char *says;
    } cases[] = {{BERTH_FLOAT32, BERTH_NEG, "\"x\" is a view that negates: "},
                 {BERTH_COMPLEX64, BERTH_CONJ, "\"x\" is a view that conjugates: "}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_tree *tree = berth_tree_new(&error);
        berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
        const berth_tensor tensor = {.dtype = cases[i].dtype,
                                     .rank = 1,
                                     .shape = three,
                                     .data = weight,
                                     .flags = cases[i].flags};
        float elements[6];
        berth_dict_set(root, "x", berth_make_tensor(tree, &tensor));
        assert_ok(berth_save(path, root, NULL, &error));
        berth_tree_free(tree);
        open_as("");
        cr_expect_null(berth_expect(checkpoint, "x", cases[i].dtype, 1, three, &error));
        cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
        cr_expect_not_null(strstr(error.message, cases[i].says), "%s", error.message);
        assert_ok(berth_tensor_read(checkpoint, berth_find_tensor(checkpoint, "x", &error), 0, 3,
                                    elements, &error));
        cr_expect_eq(elements[1], -1);
    }
}

Test(load, memory_stays_without_descriptors)
{
    size_t before = test_folder_count("/proc/self/fd");

    berth_close_descriptors(NULL);
    for (int loads = 0; loads < 2; loads++) {
        for (int maps = 0; maps < 2; maps++) {
            open_as(maps ? "load.mmap=on" : "load.mmap=off load.method=direct");
            const berth_tensor *tensor =
                berth_find_tensor(checkpoint, "['model']['layer.weight']", NULL);
            const float *data = loads ? berth_tensor_data(checkpoint, tensor, NULL) : NULL;
            berth_close_descriptors(checkpoint);
            berth_close_descriptors(checkpoint);
            cr_expect_eq(test_folder_count("/proc/self/fd"), before);
            if (data) {
                cr_expect_eq(berth_tensor_data(checkpoint, tensor, &error), data);
                cr_expect_arr_eq(data, weight, sizeof weight);
            } else {
                cr_expect_null(berth_tensor_data(checkpoint, tensor, &error));
                cr_expect_eq(error.code, BERTH_E_ARGUMENT);
                cr_expect_not_null(strstr(error.message, "berth_close_descriptors"), "%s",
                                   error.message);
            }
            close_opened();
        }
    }
}

Test(load, views_share_a_storage_and_its_memory)
{
    open_as("");
    const berth_tensor *whole = berth_find_tensor(checkpoint, "model.layer.weight", NULL);
    const berth_tensor *row = berth_find_tensor(checkpoint, "model.bias", NULL);

    cr_expect_eq(whole->storage, row->storage);
    cr_expect_eq(row, berth_find_tensor(checkpoint, "steps.1", NULL) ? row : NULL);
    cr_expect_str_eq(berth_storage_get_info(row->storage)->location, "cuda:1");
    cr_expect_str_eq(berth_storage_get_info(row->storage)->key, "0");
    const float *data = berth_storage_data(checkpoint, row->storage, NULL);
    cr_expect_eq(berth_tensor_data(checkpoint, row, NULL), data + 3);
}

Test(load, storages_are_listed_one_by_one)
{
    berth_checkpoint *other;

    open_as("");
    cr_assert_eq(berth_open(path, NULL, &other, &error), 0);
    const berth_storage *only = berth_storage_next(checkpoint, NULL);

    cr_assert_not_null(only);
    cr_expect_eq(only, berth_find_tensor(checkpoint, "model.bias", NULL)->storage);
    cr_expect_null(berth_storage_next(checkpoint, only));
    cr_expect_null(berth_storage_next(other, only));
    cr_expect_null(berth_storage_next(NULL, NULL));
    close_opened();
    berth_close(other);
}

Test(load, a_name_that_is_not_there_says_what_is_near)
{
    open_as("");

    cr_expect_null(berth_find(checkpoint, "model.layer.weigth", &error));
    cr_expect_eq(error.code, BERTH_E_NOT_FOUND);
    cr_expect_not_null(strstr(error.message, "model.layer.weight"), "%s", error.message);
    cr_expect_eq(strncmp(error.message, path, strlen(path)), 0, "%s", error.message);
    cr_expect_null(berth_find_tensor(checkpoint, "steps.0", &error));
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
    cr_expect(strstr(error.message, "\"steps.0\" is not a tensor: it is int"), "%s", error.message);
    cr_expect_null(berth_find_tensor(NULL, "steps.0", NULL));
    cr_expect_null(berth_find_tensor(checkpoint, NULL, NULL));
}

Test(load, tensors_are_listed_with_the_byte_they_begin_at)
{
    open_as("");
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    berth_named_tensor named;

    cr_assert_eq(berth_tensor_count(checkpoint), 3);
    assert_ok(berth_tensor_at(checkpoint, 0, &named, &error));
    cr_expect_str_eq(named.name, "model.layer.weight");
    cr_expect_str_eq(named.path, "['model']['layer.weight']");
    cr_expect(named.parameter);
    cr_expect(named.requires_grad);
    cr_expect_arr_eq(bytes + named.offset, weight, sizeof weight);
    cr_assert_eq(berth_tensor_at(checkpoint, 1, &named, &error), 0);
    cr_expect_str_eq(named.name, "model.bias");
    cr_expect_not(named.parameter);
    cr_expect_not(named.requires_grad);
    cr_expect_arr_eq(bytes + named.offset, weight + 3, 12);
    cr_assert_eq(berth_tensor_at(checkpoint, 2, &named, &error), 0);
    cr_expect_str_eq(named.name, "steps.1");
    cr_expect_str_eq(named.path, "['steps'][1]");
    cr_expect_eq(berth_tensor_at(checkpoint, 3, &named, &error), BERTH_E_NOT_FOUND);
    cr_expect_eq(berth_tensor_count(NULL), 0);
    free(bytes);
}

/* T2: an empty view's offset may lie outside of its storage; its byte is the storage's. */
Test(load, an_empty_view_begins_where_its_storage_does)
{
    static const int64_t none[] = {0};
    berth_tree *tree = berth_tree_new(NULL);
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, weight, sizeof weight, NULL);
    berth_tensor empty = {.dtype = BERTH_FLOAT32,
                          .rank = 1,
                          .shape = none,
                          .storage_offset = INT64_MAX / 8,
                          .storage = storage};
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_named_tensor named;

    berth_dict_set(root, "empty", berth_make_tensor(tree, &empty));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    open_as("");
    assert_ok(berth_tensor_at(checkpoint, 0, &named, &error));
    cr_expect_eq(named.offset % 64, 0);
    cr_expect_not_null(berth_tensor_data(checkpoint, named.tensor, &error), "%s", error.message);
}

static int read_from(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return 0;
}

static void expect_weight(void)
{
    cr_expect_arr_eq(berth_tensor_data(checkpoint,
                                       berth_find_tensor(checkpoint, "model.layer.weight", NULL),
                                       NULL),
                     weight, sizeof weight);
    close_opened();
}

Test(load, a_checkpoint_opens_from_anywhere)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    berth_source source = {.nbytes = nbytes, .read = read_from, .context = bytes};
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    cr_assert_eq(berth_open_source(FROM_FD(fd), NULL, &checkpoint, NULL), 0);
    close(fd);
    expect_weight();
    cr_assert_eq(berth_open_source(FROM_MEMORY(bytes, nbytes), NULL, &checkpoint, NULL), 0);
    expect_weight();
    cr_assert_eq(berth_open_source(&source, NULL, &checkpoint, NULL), 0);
    expect_weight();
    free(bytes);
}

static void expect_records(berth_archive *archive)
{
    berth_record record;
    float read[sizeof weight / sizeof(float)];

    cr_expect_eq(berth_archive_at(archive, 7, &record), BERTH_E_NOT_FOUND);
    assert_ok(berth_archive_find(archive, "data/0", &record, &error));
    cr_assert_eq(record.nbytes, sizeof weight);
    assert_ok(berth_archive_read(archive, &record, read, sizeof read, 0, &error));
    cr_expect_arr_eq(read, weight, sizeof weight);
    berth_archive_close(archive);
}

Test(load, records_open_from_anywhere)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    berth_source source = {.nbytes = nbytes, .read = read_from, .context = bytes};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    berth_archive *archive;

    cr_assert_eq(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, NULL), 0);
    expect_records(archive);
    cr_assert_eq(berth_archive_open(FROM_FD(fd), NULL, &archive, NULL, NULL), 0);
    close(fd);
    expect_records(archive);
    cr_assert_eq(berth_archive_open(FROM_MEMORY(bytes, nbytes), NULL, &archive, NULL, NULL), 0);
    expect_records(archive);
    cr_assert_eq(berth_archive_open(&source, NULL, &archive, NULL, NULL), 0);
    source = (berth_source){0}; /* it was copied */
    expect_records(archive);
    free(bytes);
}

Test(load, records_of_what_is_bad_are_told_where_they_come_from)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    berth_source source = {.nbytes = 3, .name = "shelf", .read = read_from, .context = bytes};
    berth_archive *archive = (berth_archive *)path;

    cr_expect_eq(berth_archive_open(FROM_MEMORY(bytes, 3), NULL, &archive, NULL, &error),
                 BERTH_E_NOT_CHECKPOINT);
    cr_expect_null(archive);
    cr_expect_str_eq(
        error.message,
        "memory: neither a zip archive nor PyTorch's legacy format: it begins with 50 4b 03");
    FAILS(berth_archive_open(&source, NULL, &archive, NULL, &error), BERTH_E_NOT_CHECKPOINT,
          "shelf: neither a zip archive nor PyTorch's legacy format: it begins with 50 4b 03");
    FAILS(berth_archive_open(FROM_FD(-1), NULL, &archive, NULL, &error), BERTH_E_SYSTEM,
          "descriptor: cannot be duplicated: Bad file descriptor");
    FAILS(berth_open_source(FROM_FD(-1), NULL, &checkpoint, &error), BERTH_E_SYSTEM,
          "descriptor: cannot be duplicated: Bad file descriptor");
    free(bytes);
}

Test(load, statistics_say_what_was_done)
{
    berth_stats stats;
    berth_params call = {.stats = &stats};

    cr_assert_eq(berth_open(path, &call, &checkpoint, NULL), 0);
    cr_expect_eq(stats.n_storages, 1);
    cr_expect_eq(stats.n_records, 7);
    cr_expect(stats.calculated_offsets);
    cr_expect_geq(stats.n_requests, 1);
    cr_expect_gt(stats.moved_nbytes, 0);
    cr_expect_geq(stats.total_seconds, stats.plan_seconds);
    close_opened();
    cr_assert_eq(berth_verify(FROM_PATH(path), &call, NULL, NULL, NULL, NULL), 0);
    cr_expect_gt(stats.n_requests, 1);
}

Test(load, a_bad_file_fills_statistics_and_leaves_no_checkpoint)
{
    berth_stats stats = {.n_requests = 99};
    berth_params call = {.stats = &stats};

    checkpoint = (berth_checkpoint *)path;
    cr_assert_eq(truncate(path, 300), 0);
    cr_expect_lt(berth_open(path, &call, &checkpoint, NULL), 0);
    cr_expect_null(checkpoint);
    cr_expect_eq(stats.n_requests, 1);
}

/* Whatever a caller had in them is gone, however early it failed. */
#define READS_NOTHING(failing)                                                                     \
    do {                                                                                           \
        memset(&stats, 0x55, sizeof stats);                                                        \
        cr_expect_lt(failing, 0, #failing);                                                        \
        cr_expect_eq(stats.n_requests + stats.moved_nbytes + stats.n_records, 0, #failing);        \
        cr_expect_str_eq(stats.method, "none");                                                    \
        cr_expect_str_eq(stats.reason, "nothing was read");                                        \
    } while (0)

Test(load, statistics_are_filled_however_early_it_fails)
{
    berth_archive *archive;
    berth_stats stats;
    berth_params call = {.stats = &stats};

    READS_NOTHING(berth_open("no/such/file", &call, &checkpoint, NULL));
    READS_NOTHING(berth_open(NULL, &call, &checkpoint, NULL));
    READS_NOTHING(berth_open_source(FROM_FD(-1), &call, &checkpoint, NULL));
    READS_NOTHING(berth_open_source(FROM_MEMORY(NULL, 1), &call, &checkpoint, NULL));
    READS_NOTHING(berth_open_source(NULL, &call, &checkpoint, NULL));
    READS_NOTHING(berth_load(NULL, NULL, &call, NULL));
    READS_NOTHING(berth_verify(FROM_PATH("no/such/file"), &call, NULL, NULL, NULL, NULL));
    READS_NOTHING(berth_archive_open(FROM_PATH("no/such/file"), &call, &archive, NULL, NULL));
    READS_NOTHING(berth_archive_open(FROM_PATH(NULL), &call, &archive, NULL, NULL));
    READS_NOTHING(berth_archive_open(FROM_FD(-1), &call, &archive, NULL, NULL));
    READS_NOTHING(berth_archive_open(FROM_MEMORY(NULL, 1), &call, &archive, NULL, NULL));
    READS_NOTHING(berth_archive_open(NULL, &call, &archive, NULL, NULL));
}

Test(load, statistics_of_records_say_what_opening_them_took)
{
    berth_archive *archive;
    berth_stats stats;
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.stats = &stats, .config = config};

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_archive_open(FROM_PATH(path), &call, &archive, NULL, NULL), 0);
    cr_expect_eq(stats.n_records, 7);
    cr_expect_eq(stats.n_requests, 1);
    cr_expect_gt(stats.moved_nbytes, 0);
    cr_expect_str_eq(stats.method, "none");
    cr_expect_str_eq(stats.reason, "records are read on request");
    cr_expect_gt(stats.total_seconds, 0);
    berth_archive_close(archive);
    cr_assert_eq(berth_config_apply(config, "load.check=data load.method=read", NULL), 0);
    cr_assert_eq(berth_archive_open(FROM_PATH(path), &call, &archive, NULL, NULL), 0);
    cr_expect_gt(stats.n_requests, 1);
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "load.method=read");
    berth_archive_close(archive);
    berth_config_free(config);
}

static int refuse(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    uint64_t *told = context;

    cr_expect_leq(done_nbytes, total_nbytes);
    *told = total_nbytes;
    return 1;
}

/* load.check=data reads all of a file that is mapped: whoever waits can see how far it is, and end
 * it. */
Test(load, an_open_that_sums_everything_tells_how_far_it_is_and_can_be_cancelled)
{
    uint64_t told = 0;
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config, .progress = refuse, .progress_context = &told};

    cr_assert_eq(berth_config_apply(config, "load.check=data load.method=map", NULL), 0);
    cr_expect_eq(berth_open(path, &call, &checkpoint, NULL), BERTH_E_CANCELLED);
    cr_expect_geq(told, sizeof weight);
    cr_expect_null(checkpoint);
    cr_assert_eq(berth_config_apply(config, "load.check=directory", NULL), 0);
    cr_assert_eq(berth_open(path, &call, &checkpoint, NULL), 0);
    close_opened();
    berth_config_free(config);
}

/* F3: saving over a file that is mapped leaves the old tensors whole. */
Test(load, saving_over_what_is_mapped_leaves_it_whole)
{
    open_as("");
    const float *data = berth_tensor_data(
        checkpoint, berth_find_tensor(checkpoint, "model.layer.weight", NULL), NULL);
    berth_tree *tree = berth_tree_new(NULL);

    cr_assert_eq(berth_save(path, berth_make_int(tree, 1), NULL, NULL), 0);
    berth_tree_free(tree);
    cr_expect_arr_eq(data, weight, sizeof weight);
    expect_weight();
}

Test(load, what_was_loaded_can_be_saved_again_to_the_same_bytes)
{
    open_as("");
    size_t nbytes, again_nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);

    assert_ok(berth_save(path, berth_root(checkpoint), NULL, &error));
    uint8_t *again = test_read_file(path, &again_nbytes);
    cr_assert_eq(nbytes, again_nbytes);
    cr_expect_arr_eq(bytes, again, nbytes);
    free(again);
    free(bytes);
}
