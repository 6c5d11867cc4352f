/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/load/archive.h"

#include "format/values/value.h"

struct archive sample;
uint8_t *file;
size_t file_nbytes;

/* ---- records ---- */

void add_record(const char *name, const void *bytes, uint64_t nbytes)
{
    sample.records[sample.n++] = (struct record){name, bytes, nbytes};
}

void add_text(const char *name, const char *text)
{
    add_record(name, text, strlen(text));
}

void insert_text(const char *name, const char *text)
{
    struct record *before = find_record("data/0");

    memmove(before + 1, before, (size_t)(sample.records + sample.n - before) * sizeof *before);
    *before = (struct record){name, text, strlen(text)};
    sample.n++;
}

struct record *find_record(const char *name)
{
    for (size_t i = 0; i < sample.n; i++)
        if (strcmp(sample.records[i].name, name) == 0)
            return &sample.records[i];
    cr_assert_fail("there is no record %s", name);
    return NULL;
}

void set_record(const char *name, const void *bytes, uint64_t nbytes)
{
    *find_record(name) = (struct record){name, bytes, nbytes};
}

void set_text(const char *name, const char *text)
{
    set_record(name, text, strlen(text));
}

void remove_record(const char *name)
{
    struct record *record = find_record(name);

    sample.n--;
    memmove(record, record + 1, (size_t)(sample.records + sample.n - record) * sizeof *record);
}

void swap_records(const char *a, const char *b)
{
    struct record *first = find_record(a), *second = find_record(b);
    struct record kept = *first;

    *first = *second;
    *second = kept;
}

berth_tree *sample_tree(berth_value **root)
{
    static const int64_t weight_shape[] = {2, 3}, bias_shape[] = {3}, words_shape[] = {2};
    berth_tree *tree = berth_tree_new(NULL);

    *root = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_dict_set(*root, "weight",
                   test_tensor(tree, BERTH_FLOAT32, sample_weight, 2, weight_shape));
    berth_dict_set(*root, "bias", test_tensor(tree, BERTH_INT64, sample_bias, 1, bias_shape));
    berth_dict_set(*root, "words", test_tensor(tree, BERTH_UINT16, sample_words, 1, words_shape));
    berth_dict_set(*root, "epoch", berth_make_int(tree, 3));
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
    return tree;
}

static void free_records(void)
{
    bth_pickled_free(&sample.pickled);
    berth_tree_free(sample.tree);
    sample = (struct archive){0};
}

static void add_pickle(berth_tree *tree, const berth_value *root)
{
    error = (berth_error){0};
    free_records();
    sample.tree = tree;
    assert_ok(bth_pickle_write(root, false, &sample.pickled, &error));
    add_record("data.pkl", sample.pickled.bytes, sample.pickled.nbytes);
    add_text(".format_version", "1");
}

void begin_records(berth_tree *tree, const berth_value *root, const char *byteorder)
{
    add_pickle(tree, root);
    add_text("byteorder", byteorder);
}

void begin_sample(void)
{
    static const char *const keys[] = {"data/0", "data/1", "data/2"};
    berth_value *root;
    berth_tree *tree = sample_tree(&root);

    add_pickle(tree, root);
    add_text(".storage_alignment", "64");
    add_text("byteorder", NATIVE_BYTEORDER);
    for (size_t i = 0; i < sample.pickled.n_storages; i++)
        add_record(keys[i], sample.pickled.storages[i]->data, sample.pickled.storages[i]->nbytes);
    add_text("version", "3\n");
    add_text(".data/serialization_id", "1234567890123456789012345678901234567890");
    build(NULL);
}

void end_sample(void)
{
    close_opened();
    free_records();
    free(file);
    file = NULL;
}

void begin_sample_file(void)
{
    begin_scene("sample.pt");
    begin_sample();
    test_write_file(path, file, file_nbytes);
}

void end_sample_file(void)
{
    end_sample();
    end_scene();
}

void build_with(uint32_t alignment, bool with_crc, const struct lie *lie)
{
    composed built;

    compose_archive(&built, "sample/", sample.records, sample.n, alignment, with_crc, lie);
    free(file);
    file = built.bytes;
    file_nbytes = built.nbytes;
}

void build(const struct lie *lie)
{
    build_with(64, true, lie);
}

uint8_t *find_entry(const char *record)
{
    char name[64];

    (void)snprintf(name, sizeof name, "sample/%s", record);
    for (size_t at = 0; at + BTH_ZIP_CENTRAL_NBYTES + strlen(name) <= file_nbytes; at++)
        if (memcmp(file + at, "PK\1\2", 4) == 0 &&
            memcmp(file + at + BTH_ZIP_CENTRAL_NBYTES, name, strlen(name)) == 0)
            return file + at;
    cr_assert_fail("the directory has no %s", name);
    return NULL;
}

/* ---- opening ---- */

void save_file(berth_value *root, const char *options)
{
    void *saved;

    assert_ok(berth_save_to(TO_MEMORY(&saved, &file_nbytes), OF_VALUE(root), only(options, NULL),
                            &error));
    free(file);
    file = memcpy(malloc(file_nbytes), saved, file_nbytes);
    berth_free(saved);
    berth_tree_free(bth_value_tree(root));
}

void read_file(const char *name)
{
    char in_data[128];

    (void)snprintf(in_data, sizeof in_data, "tests/data/%s", name);
    free(file);
    file = test_read_file(in_data, &file_nbytes);
}

int open_bytes(const void *bytes, size_t nbytes, const char *options)
{
    close_opened();
    checkpoint = (berth_checkpoint *)&error; /* a failed open sets it to NULL */
    return berth_open_source(FROM_MEMORY(bytes, nbytes), only(options, NULL), &checkpoint, &error);
}

int try_file(const char *options)
{
    return open_bytes(file, file_nbytes, options);
}

void expect_clean_failing_allocations(const char *options, uint64_t min)
{
    struct test_refusals each = {0};

    for (const berth_params *call = only(options, NULL); test_refuse_next(&each); close_opened()) {
        int code = berth_open_source(FROM_MEMORY(file, file_nbytes), call, &checkpoint, &error);
        cr_expect_eq(code, test_memory_refused() ? BERTH_E_MEMORY : 0, "allocation %zu: %s",
                     (size_t)each.nth, error.message);
    }
    cr_expect_gt(each.nth, min);
}

void open_file(const char *options)
{
    cr_assert_eq(try_file(options), 0, "%s: %s", options, error.message);
}

void expect_sample_values(void)
{
    char *text = describe(checkpoint);

    cr_expect_str_eq(text, sample_text);
    free(text);
}

void expect_sample(const char *options)
{
    open_file(options);
    expect_sample_values();
    close_opened();
}

void expect_failure(const char *options, int code, const char *message)
{
    expect_failure_of(file, file_nbytes, options, code, message);
}

void expect_failure_of(const void *bytes, size_t nbytes, const char *options, int code,
                       const char *message)
{
    int result = open_bytes(bytes, nbytes, options);

    cr_expect_eq(result, code, "%s: %s", options, error.message);
    if (result == 0)
        return;
    cr_expect_null(checkpoint);
    cr_expect_eq(error.code, code);
    cr_expect_str_eq(error.message, message, "%s: %s", options, error.message);
}

void expect_floats(const char *name, const float *expected, int64_t n)
{
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
    float elements[64];

    cr_assert_not_null(tensor, "%s", name);
    cr_assert_eq(berth_tensor_numel(tensor), n);
    assert_ok(berth_tensor_read(checkpoint, tensor, 0, n, elements, &error));
    cr_expect_arr_eq(elements, expected, (size_t)n * sizeof(float), "%s", name);
}

const void *data_of(const char *name)
{
    return berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, name, NULL), &error);
}
