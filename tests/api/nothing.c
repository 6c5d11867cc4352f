/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * NULL in the place of one pointer, in every function that takes one, all others being good (F5):
 * it is refused, or gives nothing, and nothing crashes. One row a pointer, because two NULLs at
 * once do not tell which of them was looked at.
 */
#include <berth/config.h>
#include <berth/device.h>
#include <berth/joint.h>
#include <berth/more.h>
#include <berth/prefetch.h>
#include <berth/rows.h>
#include <criterion/criterion.h>

#include "tests/support/opened.h"

static berth_tree *tree;
static berth_value *dict, *list, *text, *tensor_value;
static const float numbers[6] = {1, 2, 3, 4, 5, 6};

static void set_up(void)
{
    begin_scene("nothing.pt");
    tree = berth_tree_new(NULL);
    dict = berth_make_dict(tree, BERTH_KIND_DICT);
    list = berth_make_list(tree);
    text = berth_make_str(tree, "a", 1);
    tensor_value = test_vector(tree, BERTH_FLOAT32, numbers, 6);
    berth_dict_set(dict, "w", tensor_value);
    berth_dict_set(dict, "rows",
                   test_tensor(tree, BERTH_FLOAT32, numbers, 2, (const int64_t[]){3, 2}));
    assert_ok(berth_save(path, dict, NULL, &error));
}

static void tear_down(void)
{
    close_opened();
    berth_tree_free(tree);
    end_scene();
}

TestSuite(nothing, .init = set_up, .fini = tear_down);

#define REFUSES(call) cr_expect_eq(call, BERTH_E_ARGUMENT, "%s", #call)
#define GIVES_NOTHING(call) cr_expect_null(call, "%s", #call)
/* And the error says so, where there is one. */
#define SAYS_NOTHING(call)                                                                         \
    do {                                                                                           \
        error.code = BERTH_OK;                                                                     \
        cr_expect_null(call, "%s", #call);                                                         \
        cr_expect_eq(error.code, BERTH_E_ARGUMENT, "%s", #call);                                   \
    } while (0)

Test(nothing, in_a_checkpoint)
{
    berth_named_tensor named;
    berth_info info;
    berth_storage_stats stats;
    uintptr_t address;
    float few[6];
    const int64_t starts[] = {0}, lengths[] = {1};

    open_as("");
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "w", &error);
    cr_assert_not_null(tensor);
    const berth_value *value = berth_find(checkpoint, "w", &error);
    const berth_storage_rule rule = {0};
    const berth_destination to = {.tensor = tensor, .address = few, .nbytes = sizeof few};

    SAYS_NOTHING(berth_find_tensor(NULL, "w", &error));
    SAYS_NOTHING(berth_find_tensor(checkpoint, NULL, &error));
    SAYS_NOTHING(berth_find(NULL, "w", &error));
    SAYS_NOTHING(berth_find(checkpoint, NULL, &error));
    SAYS_NOTHING(berth_expect(NULL, "w", BERTH_FLOAT32, 1, lengths, &error));
    SAYS_NOTHING(berth_expect(checkpoint, NULL, BERTH_FLOAT32, 1, lengths, &error));
    SAYS_NOTHING(berth_expect(checkpoint, "w", BERTH_FLOAT32, 1, NULL, &error));
    SAYS_NOTHING(berth_tensor_data(NULL, tensor, &error));
    SAYS_NOTHING(berth_tensor_data(checkpoint, NULL, &error));
    SAYS_NOTHING(berth_storage_data(NULL, tensor->storage, &error));
    SAYS_NOTHING(berth_storage_data(checkpoint, NULL, &error));
    REFUSES(berth_tensor_at(NULL, 0, &named, &error));
    REFUSES(berth_tensor_at(checkpoint, 0, NULL, &error));
    REFUSES(berth_tensor_read(NULL, tensor, 0, 1, few, &error));
    REFUSES(berth_tensor_read(checkpoint, NULL, 0, 1, few, &error));
    REFUSES(berth_tensor_read(checkpoint, tensor, 0, 1, NULL, &error));
    berth_tensor bare = *tensor;
    bare.storage = NULL;
    REFUSES(berth_tensor_read(checkpoint, &bare, 0, 1, few, &error));
    REFUSES(berth_tensor_read_slice(NULL, tensor, starts, lengths, few, &error));
    REFUSES(berth_tensor_read_slice(checkpoint, NULL, starts, lengths, few, &error));
    REFUSES(berth_tensor_read_slice(checkpoint, tensor, NULL, lengths, few, &error));
    REFUSES(berth_tensor_read_slice(checkpoint, tensor, starts, NULL, few, &error));
    REFUSES(berth_tensor_read_slice(checkpoint, tensor, starts, lengths, NULL, &error));
    REFUSES(berth_tensor_device_address(NULL, tensor, &address, &error));
    REFUSES(berth_tensor_device_address(checkpoint, NULL, &address, &error));
    REFUSES(berth_tensor_device_address(checkpoint, tensor, NULL, &error));
    REFUSES(berth_tensor_check_indices(NULL, value, NULL, &error));
    REFUSES(berth_tensor_check_indices(checkpoint, NULL, NULL, &error));
    REFUSES(berth_load(NULL, NULL, NULL, &error));
    REFUSES(berth_load_into(NULL, &to, 1, NULL, &error));
    REFUSES(berth_load_into(checkpoint, NULL, 1, NULL, &error));
    REFUSES(berth_set_storage_rules(NULL, &rule, 1, &error));
    REFUSES(berth_set_storage_rules(checkpoint, NULL, 1, &error));
    REFUSES(berth_storage_get_stats(NULL, tensor->storage, &stats, &error));
    REFUSES(berth_storage_get_stats(checkpoint, NULL, &stats, &error));
    REFUSES(berth_storage_get_stats(checkpoint, tensor->storage, NULL, &error));
    REFUSES(berth_get_info(NULL, &info, &error));
    REFUSES(berth_get_info(checkpoint, NULL, &error));
    GIVES_NOTHING(berth_root(NULL));
    GIVES_NOTHING(berth_storage_next(NULL, NULL));
    cr_expect_eq(berth_tensor_count(NULL), 0);
    berth_close_descriptors(NULL);
    berth_close(NULL);
}

static void count_record(void *context, const berth_record_verdict *record)
{
    (void)context, (void)record;
}

Test(nothing, in_an_open_and_an_archive)
{
    berth_archive *archive;
    berth_archive_info info;
    berth_record record;
    uint8_t bytes[8];

    REFUSES(berth_open(NULL, NULL, &checkpoint, &error));
    REFUSES(berth_open(path, NULL, NULL, &error));
    REFUSES(berth_open_source(NULL, NULL, &checkpoint, &error));
    REFUSES(berth_open_source(FROM_PATH(path), NULL, NULL, &error));
    REFUSES(berth_open_source(FROM_PATH(NULL), NULL, &checkpoint, &error));
    REFUSES(berth_open_source(FROM_MEMORY(NULL, 1), NULL, &checkpoint, &error));
    REFUSES(berth_verify(NULL, NULL, count_record, NULL, NULL, &error));
    REFUSES(berth_archive_open(NULL, NULL, &archive, &info, &error));
    cr_expect_null(info.name);
    REFUSES(berth_archive_open(FROM_PATH(path), NULL, NULL, NULL, &error));
    assert_ok(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error));
    REFUSES(berth_archive_at(NULL, 0, &record));
    REFUSES(berth_archive_at(archive, 0, NULL));
    REFUSES(berth_archive_find(NULL, "version", &record, &error));
    REFUSES(berth_archive_find(archive, NULL, &record, &error));
    REFUSES(berth_archive_find(archive, "version", NULL, &error));
    assert_ok(berth_archive_find(archive, "version", &record, &error));
    REFUSES(berth_archive_read(NULL, &record, bytes, 1, 0, &error));
    REFUSES(berth_archive_read(archive, NULL, bytes, 1, 0, &error));
    REFUSES(berth_archive_read(archive, &record, NULL, 1, 0, &error));
    record.name = NULL;
    REFUSES(berth_archive_read(archive, &record, bytes, 1, 0, &error));
    berth_archive_close(archive);
    berth_archive_close(NULL);
}

Test(nothing, in_values)
{
    berth_value *key, *item, *four[] = {tensor_value, tensor_value, tensor_value, tensor_value};
    const berth_walker walker = {.flags = 0};
    const int64_t one[] = {1};
    int64_t integer;
    double real, imaginary;
    bool is_set;
    int number;
    int32_t rank;
    size_t nbytes;

    GIVES_NOTHING(berth_make_dict(NULL, BERTH_KIND_DICT));
    GIVES_NOTHING(berth_make_tensor(NULL, berth_as_tensor(tensor_value)));
    GIVES_NOTHING(berth_make_none(NULL));
    GIVES_NOTHING(berth_make_bool(NULL, true));
    GIVES_NOTHING(berth_make_int(NULL, 1));
    GIVES_NOTHING(berth_make_float(NULL, 1));
    GIVES_NOTHING(berth_make_complex(NULL, 1, 1));
    GIVES_NOTHING(berth_make_str(NULL, "a", 1));
    GIVES_NOTHING(berth_make_bytes(NULL, BERTH_KIND_BYTES, "a", 1));
    GIVES_NOTHING(berth_make_list(NULL));
    GIVES_NOTHING(berth_make_tuple(NULL, &text, 1));
    GIVES_NOTHING(berth_make_set(NULL));
    GIVES_NOTHING(berth_make_size(NULL, one, 1));
    GIVES_NOTHING(berth_make_device(NULL, "cpu", 0));
    GIVES_NOTHING(berth_make_constant(NULL, BERTH_KIND_DTYPE, BERTH_INT8));
    GIVES_NOTHING(berth_make_storage(NULL, berth_as_tensor(tensor_value)->storage));
    GIVES_NOTHING(berth_make_parameter(NULL, tensor_value, true));
    GIVES_NOTHING(berth_make_subclass(NULL, tensor_value, dict));
    GIVES_NOTHING(berth_make_sparse(NULL, BERTH_SPARSE_COO, one, 1, four, false));
    GIVES_NOTHING(berth_make_nested(NULL, four));
    GIVES_NOTHING(berth_make_nested(tree, NULL));
    GIVES_NOTHING(berth_storage_get_info(NULL));
    GIVES_NOTHING(berth_storage_new(NULL, BERTH_UINT8, numbers, 1, NULL));
    GIVES_NOTHING(berth_device_storage_new(NULL, BERTH_UINT8, 0, 0, "cuda:0", NULL));
    GIVES_NOTHING(berth_value_copy(NULL, dict, 0));
    REFUSES(berth_dict_set(NULL, "a", text));
    REFUSES(berth_dict_set_value(NULL, text, text));
    REFUSES(berth_list_append(NULL, text));
    REFUSES(berth_set_add(NULL, text));
    REFUSES(berth_value_set_state(NULL, dict));
    REFUSES(berth_value_walk(NULL, &walker, &error));
    REFUSES(berth_value_walk(dict, NULL, &error));
    cr_expect_not(berth_dict_at(NULL, 0, &key, &item));
    GIVES_NOTHING(berth_dict_get(NULL, "w"));
    GIVES_NOTHING(berth_dict_get(dict, NULL));
    cr_expect(berth_dict_at(dict, 0, NULL, &item));
    cr_expect(berth_dict_at(dict, 0, &key, NULL));
    cr_expect_not(berth_as_bool(NULL, &is_set));
    cr_expect_not(berth_as_int(NULL, &integer));
    cr_expect_not(berth_as_float(NULL, &real));
    cr_expect_not(berth_as_complex(NULL, &real, &imaginary));
    cr_expect_not(berth_as_constant(NULL, BERTH_KIND_DTYPE, &number));
    GIVES_NOTHING(berth_as_text(NULL, &nbytes));
    GIVES_NOTHING(berth_as_bytes(NULL, &nbytes));
    GIVES_NOTHING(berth_as_tensor(NULL));
    GIVES_NOTHING(berth_as_size(NULL, &rank));
    GIVES_NOTHING(berth_as_storage(NULL));
    GIVES_NOTHING(berth_value_part(NULL, BERTH_PART_STATE));
    GIVES_NOTHING(berth_value_at(NULL, 0));
    cr_expect_eq(berth_value_count(NULL), 0);
    cr_expect_eq(berth_value_kind(NULL), BERTH_KIND_NONE);
    cr_expect_eq(berth_tensor_numel(NULL), 0);
    REFUSES(berth_tree_error(NULL, NULL));
    cr_expect_eq(berth_value_flags(NULL), 0);
    berth_tree_free(NULL);
}

Test(nothing, in_a_save)
{
    berth_job *job;
    berth_plan_info info;
    berth_record record;
    berth_joint *joint;
    berth_joint_info joint_info;
    void *bytes, *receipt;
    size_t nbytes;
    uint64_t done, total;

    REFUSES(berth_save(NULL, dict, NULL, &error));
    REFUSES(berth_save(path, NULL, NULL, &error));
    REFUSES(berth_save_to(NULL, OF_VALUE(dict), NULL, &error));
    REFUSES(berth_save_to(TO_PATH(NULL), OF_VALUE(dict), NULL, &error));
    REFUSES(berth_save_to(TO_PATH(path), NULL, NULL, &error));
    REFUSES(berth_save_to(TO_PATH(path), OF_VALUE(NULL), NULL, &error));
    REFUSES(berth_save_to(TO_PATH(path), OF_RECORDS(NULL, 1, 0), NULL, &error));
    const berth_new_record nameless = {.data = "N.", .nbytes = 2};
    REFUSES(berth_save_to(TO_PATH(path), OF_RECORDS(&nameless, 1, 0), NULL, &error));
    REFUSES(berth_save_to(TO_MEMORY(NULL, &nbytes), OF_VALUE(dict), NULL, &error));
    REFUSES(berth_save_to(TO_MEMORY(&bytes, NULL), OF_VALUE(dict), NULL, &error));
    REFUSES(berth_save_begin(NULL, OF_VALUE(dict), 0, NULL, &job, &error));
    REFUSES(berth_save_begin(TO_PATH(path), NULL, 0, NULL, &job, &error));
    REFUSES(berth_save_begin(TO_PATH(path), OF_VALUE(dict), 0, NULL, NULL, &error));
    REFUSES(berth_job_wait(NULL, BERTH_JOB_DONE, 0, &error));
    berth_job_progress(NULL, &done, &total);
    cr_expect_not(berth_job_cancel(NULL));
    berth_job_free(NULL);
    SAYS_NOTHING(berth_plan_new(TO_PATH(path), NULL, NULL, &info, &error));
    berth_plan *plan = berth_plan_new(TO_PATH(path), OF_VALUE(dict), NULL, &info, &error);
    cr_assert_not_null(plan, "%s", error.message);
    uint8_t byte;
    REFUSES(berth_plan_at(NULL, 0, &record));
    REFUSES(berth_plan_at(plan, 0, NULL));
    REFUSES(berth_plan_read(NULL, &byte, 1, 0, &error));
    REFUSES(berth_plan_read(plan, NULL, 1, 0, &error));
    berth_plan_free(plan);
    berth_plan_free(NULL);
    REFUSES(berth_clean_temporaries(NULL, 0, 0, NULL, NULL, &error));
    REFUSES(berth_clean_temporaries(folder, 0, 0, NULL, NULL, &error));
    REFUSES(berth_joint_begin(NULL, dict, 1, NULL, &joint, &joint_info, &error));
    REFUSES(berth_joint_begin(path, NULL, 1, NULL, &joint, &joint_info, &error));
    REFUSES(berth_joint_begin(path, dict, 1, NULL, NULL, &joint_info, &error));
    assert_ok(berth_joint_begin(path, dict, 1, NULL, &joint, &joint_info, &error));
    REFUSES(berth_joint_write(NULL, 1, 0, NULL, 0, NULL, &receipt, &nbytes, &error));
    REFUSES(berth_joint_write(joint_info.ticket, joint_info.ticket_nbytes, 0, NULL, 0, NULL, NULL,
                              &nbytes, &error));
    REFUSES(berth_joint_write(joint_info.ticket, joint_info.ticket_nbytes, 0, NULL, 0, NULL,
                              &receipt, NULL, &error));
    REFUSES(berth_joint_write(joint_info.ticket, joint_info.ticket_nbytes, 0, NULL, 1, NULL,
                              &receipt, &nbytes, &error));
    REFUSES(berth_joint_add_receipt(NULL, "x", 1, &error));
    REFUSES(berth_joint_add_receipt(joint, NULL, 1, &error));
    REFUSES(berth_joint_finish(NULL, &error));
    berth_joint_abort(joint);
    berth_joint_abort(NULL);
}

Test(nothing, in_rows_and_prefetches)
{
    berth_rows *rows;
    berth_ticket ticket;
    berth_rows_stats stats;
    berth_rows_gather_estimate estimate;
    berth_prefetch *prefetch;
    berth_prefetch_stats prefetch_stats;
    const berth_rows_limits limits = {.cache_nbytes = 1 << 20};
    const int64_t ids[] = {0, 2};
    const void *pointers[2];
    float few[4];
    size_t table;

    assert_ok(berth_save(path, dict, NULL, &error));
    open_as("");
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "rows", &error);
    cr_assert_not_null(tensor);
    REFUSES(berth_rows_new(NULL, NULL, &rows, &error));
    REFUSES(berth_rows_new(&limits, NULL, NULL, &error));
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    REFUSES(berth_rows_add(NULL, checkpoint, tensor, &table, &error));
    REFUSES(berth_rows_add(rows, NULL, tensor, &table, &error));
    REFUSES(berth_rows_add(rows, checkpoint, NULL, &table, &error));
    REFUSES(berth_rows_add(rows, checkpoint, tensor, NULL, &error));
    assert_ok(berth_rows_add(rows, checkpoint, tensor, &table, &error));
    const berth_rows_part part = {.table = table, .ids = ids, .n = 2, .output = few};
    REFUSES(berth_rows_prefetch(NULL, table, ids, 2, &ticket, &error));
    REFUSES(berth_rows_prefetch(rows, table, NULL, 2, &ticket, &error));
    REFUSES(berth_rows_prefetch(rows, table, ids, 2, NULL, &error));
    assert_ok(berth_rows_prefetch(rows, table, ids, 2, &ticket, &error));
    REFUSES(berth_rows_wait(NULL, ticket, pointers, &error));
    assert_ok(berth_rows_wait(rows, ticket, NULL, &error)); /* who waits need not want them */
    REFUSES(berth_rows_release(NULL, ticket, &error));
    assert_ok(berth_rows_release(rows, ticket, &error));
    REFUSES(berth_rows_gather(NULL, &part, 1, NULL, &error));
    REFUSES(berth_rows_gather(rows, NULL, 1, NULL, &error));
    REFUSES(berth_rows_estimate(NULL, &part, 1, NULL, &estimate, &error));
    REFUSES(berth_rows_estimate(rows, NULL, 1, NULL, &estimate, &error));
    REFUSES(berth_rows_estimate(rows, &part, 1, NULL, NULL, &error));
    REFUSES(berth_rows_get_stats(NULL, &stats, &error));
    REFUSES(berth_rows_get_stats(rows, NULL, &error));
    berth_rows_free(rows);
    berth_rows_free(NULL);
    REFUSES(berth_prefetch_begin(NULL, NULL, 0, NULL, &prefetch, &error));
    REFUSES(berth_prefetch_begin(checkpoint, NULL, 0, NULL, NULL, &error));
    assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
    REFUSES(berth_prefetch_advance(NULL, tensor, 0, 1, &error));
    REFUSES(berth_prefetch_advance(prefetch, NULL, 0, 1, &error));
    REFUSES(berth_prefetch_advance(NULL, NULL, 0, -1, &error));
    REFUSES(berth_prefetch_get_stats(NULL, &prefetch_stats, &error));
    REFUSES(berth_prefetch_get_stats(prefetch, NULL, &error));
    berth_prefetch_free(prefetch);
    berth_prefetch_free(NULL);
}

Test(nothing, in_options)
{
    berth_option option;
    char line[100];

    cr_expect_eq(berth_config_set(NULL, "1", NULL, &error), BERTH_E_OPTION);
    REFUSES(berth_config_set("load.check", NULL, NULL, &error));
    REFUSES(berth_config_patch(NULL, &error));
    cr_expect_eq(berth_config_describe(NULL, NULL, &option, &error), BERTH_E_OPTION);
    REFUSES(berth_config_describe(NULL, "load.check", NULL, &error));
    REFUSES(berth_config_apply(NULL, "load.check=data", &error));
    REFUSES(berth_config_parse(NULL, NULL, &error));
    REFUSES(berth_config_register(NULL, NULL, 0, &error));
    cr_expect_gt(berth_config_print(NULL, BERTH_CONFIG_PORTABLE, NULL, 0, &error), 0);
    cr_expect_gt(berth_config_print(NULL, BERTH_CONFIG_PORTABLE, line, sizeof line, NULL), 0);
    berth_config_free(NULL);
}

static int write_nothing(void *context, const void *bytes, size_t nbytes, uint64_t offset)
{
    (void)context, (void)bytes, (void)nbytes, (void)offset;
    return 0;
}

static int choose_with_reserved(void *context, const berth_storage *storage,
                                berth_storage_choice *choice)
{
    (void)context, (void)storage;
    choice->reserved[0] = 1;
    return 0;
}

#define REFUSES_RESERVED(call)                                                                     \
    do {                                                                                           \
        error.message[0] = '\0';                                                                   \
        REFUSES(call);                                                                             \
        cr_expect(strstr(error.message, "reserved[0] is not 0"), "%s: %s", #call, error.message);  \
    } while (0)

Test(nothing, is_in_reserved_words)
{
    const berth_params params = {.reserved = {1}};
    const berth_rows_limits limits = {.cache_nbytes = 1 << 20}, bad_limits = {.reserved = {1}};
    const berth_selection selection = {.reserved = {1}};
    const berth_storage_rule choosing = {.choose = choose_with_reserved};
    const berth_new_record record = {
        .name = "data.pkl", .data = "N.", .nbytes = 2, .reserved = {1}};
    const berth_walker walker = {.reserved = {1}};
    berth_sink sink = {.write = write_nothing, .reserved = {1}};
    const int64_t ids[] = {0, 2};
    berth_checkpoint *other;
    berth_archive *archive;
    berth_rows *rows;
    berth_rows_gather_estimate estimate;
    berth_prefetch *prefetch;
    berth_job *job;
    berth_joint *joint;
    berth_joint_info info;
    void *receipt;
    size_t nbytes, table;
    float few[4];

    REFUSES_RESERVED(berth_save(path, dict, &params, &error));
    REFUSES_RESERVED(berth_save_begin(TO_PATH(path), OF_VALUE(dict), 0, &params, &job, &error));
    assert_ok(berth_save(path, dict, NULL, &error));
    berth_content content = berth_of_value(dict);
    content.reserved[0] = 1;
    REFUSES_RESERVED(berth_save_to(TO_PATH(path), &content, NULL, &error));
    berth_target target = berth_to_path(path);
    target.reserved[0] = 1;
    REFUSES_RESERVED(berth_save_to(&target, OF_VALUE(dict), NULL, &error));
    REFUSES_RESERVED(berth_save_to(TO_SINK(&sink), OF_VALUE(dict), NULL, &error));
    REFUSES_RESERVED(berth_save_to(TO_PATH(path), OF_RECORDS(&record, 1, 0), NULL, &error));
    GIVES_NOTHING(berth_plan_new(TO_PATH(path), OF_VALUE(dict), &params, NULL, &error));
    REFUSES_RESERVED(berth_joint_begin(path, dict, 1, &params, &joint, &info, &error));
    assert_ok(berth_joint_begin(path, dict, 1, NULL, &joint, &info, &error));
    REFUSES_RESERVED(berth_joint_write(info.ticket, info.ticket_nbytes, 0, NULL, 0, &params,
                                       &receipt, &nbytes, &error));
    const berth_slice slice = {.name = "w", .reserved = {1}};
    REFUSES_RESERVED(berth_joint_write(info.ticket, info.ticket_nbytes, 0, &slice, 1, NULL,
                                       &receipt, &nbytes, &error));
    berth_joint_abort(joint);
    REFUSES_RESERVED(berth_open(path, &params, &other, &error));
    REFUSES_RESERVED(berth_verify(FROM_PATH(path), &params, NULL, NULL, NULL, &error));
    REFUSES_RESERVED(berth_archive_open(FROM_PATH(path), &params, &archive, NULL, &error));
    berth_source source = berth_from_path(path);
    source.reserved[0] = 1;
    REFUSES_RESERVED(berth_open_source(&source, NULL, &other, &error));
    REFUSES_RESERVED(berth_archive_open(&source, NULL, &archive, NULL, &error));
    REFUSES_RESERVED(berth_verify(&source, NULL, NULL, NULL, NULL, &error));
    REFUSES_RESERVED(berth_value_walk(dict, &walker, &error));
    open_as("");
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "rows", &error);
    const berth_destination to = {
        .tensor = tensor, .address = few, .nbytes = sizeof few, .reserved = {1}};
    REFUSES_RESERVED(berth_load(checkpoint, NULL, &params, &error));
    REFUSES_RESERVED(berth_load(checkpoint, &selection, NULL, &error));
    REFUSES_RESERVED(berth_load_into(checkpoint, &to, 1, NULL, &error));
    REFUSES_RESERVED(berth_prefetch_begin(checkpoint, NULL, 0, &params, &prefetch, &error));
    REFUSES_RESERVED(berth_prefetch_begin(checkpoint, &selection, 0, NULL, &prefetch, &error));
    REFUSES_RESERVED(berth_set_storage_rules(checkpoint, &choosing, 1, &error));
    REFUSES_RESERVED(berth_rows_new(&limits, &params, &rows, &error));
    REFUSES_RESERVED(berth_rows_new(&bad_limits, NULL, &rows, &error));
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    assert_ok(berth_rows_add(rows, checkpoint, tensor, &table, &error));
    berth_rows_part part = {.table = table, .ids = ids, .n = 2, .output = few};
    REFUSES_RESERVED(berth_rows_gather(rows, &part, 1, &params, &error));
    REFUSES_RESERVED(berth_rows_estimate(rows, &part, 1, &params, &estimate, &error));
    part.reserved[0] = 1;
    REFUSES_RESERVED(berth_rows_gather(rows, &part, 1, NULL, &error));
    berth_rows_free(rows);
}

/* Numbers at the edges of what a request can have. */
Test(nothing, is_beyond_what_a_request_can_have)
{
    static const int64_t bad[][2] = {{-1, 1},        {-1, -1},      {7, 0}, {7, -1},
                                     {0, 7},         {6, 1},        {1, 6}, {INT64_MIN, 1},
                                     {1, INT64_MAX}, {INT64_MAX, 1}};
    const berth_rows_limits limits = {.cache_nbytes = 1 << 20};
    const int64_t ids[] = {0, 2};
    berth_prefetch *prefetch;
    berth_rows *rows;
    berth_rows_gather_estimate estimate;
    berth_ticket ticket;
    float few[4];
    size_t table;

    assert_ok(berth_save(path, dict, NULL, &error));
    open_as("");
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "rows", &error);
    assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(berth_prefetch_advance(prefetch, tensor, bad[i][0], bad[i][1], &error),
                     BERTH_E_ARGUMENT, "%zu: %s", i, error.message);
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor, 6, 0, &error), 0);
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor, 6, -1, &error), 0);
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor, 0, 6, &error), 0);
    berth_prefetch_free(prefetch);
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    assert_ok(berth_rows_add(rows, checkpoint, tensor, &table, &error));
    REFUSES(berth_rows_prefetch(rows, table, ids, (size_t)UINT32_MAX + 1, &ticket, &error));
    cr_expect(strstr(error.message, "too many for one request"), "%s", error.message);
    REFUSES(berth_rows_prefetch(rows, table + 1, ids, 2, &ticket, &error));
    const berth_rows_part many = {
        .table = table, .ids = ids, .n = PTRDIFF_MAX / 8 + 1, .output = few};
    REFUSES(berth_rows_estimate(rows, &many, 1, NULL, &estimate, &error));
    cr_expect(strstr(error.message, "are too many"), "%s", error.message);
    for (size_t i = 1; i < 65535; i++)
        cr_assert_eq(berth_rows_add(rows, checkpoint, tensor, &table, &error), 0, "%zu: %s", i,
                     error.message);
    FAILS_SAYING(berth_rows_add(rows, checkpoint, tensor, &table, &error), BERTH_E_UNSUPPORTED,
                 "at most 65535 tables");
    berth_rows_free(rows);
    berth_joint *joint;
    REFUSES(berth_joint_begin(path, dict, 0, NULL, &joint, NULL, &error));
    REFUSES(berth_joint_begin(path, dict, BERTH_MAX_WRITERS + 1, NULL, &joint, NULL, &error));
}
