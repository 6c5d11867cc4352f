/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/load/archive.h"
#include "tests/support/sources.h"

void add_record(struct archive *archive, const char *name, const void *bytes, uint64_t nbytes)
{
    archive->records[archive->n++] = (struct record){name, bytes, nbytes};
}

void add_text(struct archive *archive, const char *name, const char *text)
{
    add_record(archive, name, text, strlen(text));
}

struct record *find_record(struct archive *archive, const char *name)
{
    for (size_t i = 0; i < archive->n; i++)
        if (strcmp(archive->records[i].name, name) == 0)
            return &archive->records[i];
    cr_assert_fail("there is no record %s", name);
    return NULL;
}

void remove_record(struct archive *archive, const char *name)
{
    struct record *record = find_record(archive, name);

    archive->n--;
    memmove(record, record + 1, (size_t)(archive->records + archive->n - record) * sizeof *record);
}

void swap_records(struct archive *archive, const char *a, const char *b)
{
    struct record *first = find_record(archive, a), *second = find_record(archive, b);
    struct record kept = *first;

    *first = *second;
    *second = kept;
}

berth_tree *sample_tree(berth_value **root)
{
    static const int64_t weight_shape[] = {2, 3}, bias_shape[] = {3}, words_shape[] = {2};
    berth_tree *tree = berth_tree_new(NULL);

    *root = berth_make_ordered_dict(tree);
    berth_dict_set(*root, "weight",
                   test_tensor(tree, BERTH_FLOAT32, sample_weight, 2, weight_shape));
    berth_dict_set(*root, "bias", test_tensor(tree, BERTH_INT64, sample_bias, 1, bias_shape));
    berth_dict_set(*root, "words", test_tensor(tree, BERTH_UINT16, sample_words, 1, words_shape));
    berth_dict_set(*root, "epoch", berth_make_int(tree, 3));
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
    return tree;
}

struct archive sample(void)
{
    static const char *const keys[] = {"data/0", "data/1", "data/2"};
    struct archive archive = {0};
    berth_value *root;
    berth_error error = {0};

    archive.tree = sample_tree(&root);
    cr_assert_eq(bth_pickle_write(root, false, &archive.pickled, &error), 0, "%s", error.message);
    add_record(&archive, "data.pkl", archive.pickled.bytes, archive.pickled.nbytes);
    add_text(&archive, ".format_version", "1");
    add_text(&archive, ".storage_alignment", "64");
    add_text(&archive, "byteorder", NATIVE_BYTEORDER);
    for (size_t i = 0; i < archive.pickled.n_storages; i++)
        add_record(&archive, keys[i], archive.pickled.storages[i]->data,
                   archive.pickled.storages[i]->nbytes);
    add_text(&archive, "version", "3\n");
    add_text(&archive, ".data/serialization_id", "1234567890123456789012345678901234567890");
    return archive;
}

void free_archive(struct archive *archive)
{
    bth_pickled_free(&archive->pickled);
    berth_tree_free(archive->tree);
}

uint8_t *build(const struct archive *archive, uint32_t alignment, bool with_crc,
               const struct lie *lie, size_t *nbytes)
{
    composed file;

    compose_archive(&file, "sample/", archive->records, archive->n, alignment, with_crc, lie);
    *nbytes = file.nbytes;
    return file.bytes;
}

uint8_t *find_entry(uint8_t *file, size_t nbytes, const char *record)
{
    char name[64];

    (void)snprintf(name, sizeof name, "sample/%s", record);
    for (size_t at = 0; at + BTH_ZIP_CENTRAL_NBYTES + strlen(name) <= nbytes; at++)
        if (memcmp(file + at, "PK\1\2", 4) == 0 &&
            memcmp(file + at + BTH_ZIP_CENTRAL_NBYTES, name, strlen(name)) == 0)
            return file + at;
    cr_assert_fail("the directory has no %s", name);
    return NULL;
}

uint8_t *build_sample(bool with_crc, size_t *nbytes)
{
    struct archive archive = sample();
    uint8_t *file = build(&archive, 64, with_crc, NULL, nbytes);

    free_archive(&archive);
    return file;
}

int open_with(const void *bytes, size_t nbytes, const char *options, berth_stats *stats,
              berth_checkpoint **checkpoint, berth_error *error)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config, .stats = stats};

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, error), 0, "%s", error->message);
    int result = test_open_memory(bytes, nbytes, &call, checkpoint, error);
    berth_config_free(config);
    return result;
}

char *describe(berth_checkpoint *checkpoint)
{
    const berth_value *root = berth_root(checkpoint);
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    for (size_t i = 0; i < berth_value_count(root); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_value_item(root, i));
        const char *key = berth_as_text(bth_value_key(root, i), NULL);
        int64_t integer = 0;
        (void)fprintf(out, "%s:", key ? key : "?");
        if (!tensor) {
            (void)berth_as_int(bth_value_item(root, i), &integer);
            (void)fprintf(out, " %lld\n", (long long)integer);
            continue;
        }
        size_t tensor_nbytes = berth_tensor_nbytes(tensor);
        uint8_t *elements = malloc(tensor_nbytes + 1);
        berth_error error;
        (void)fprintf(out, " %s", berth_dtype_name(tensor->dtype));
        for (int32_t axis = 0; axis < tensor->rank; axis++)
            (void)fprintf(out, " %lld", (long long)tensor->shape[axis]);
        if (berth_tensor_read(checkpoint, tensor, 0, berth_tensor_numel(tensor), elements, &error) <
            0)
            (void)fprintf(out, " %s", error.message);
        else
            for (size_t k = 0; k < tensor_nbytes; k++)
                (void)fprintf(out, "%s%02x", k % 4 == 0 ? " " : "", elements[k]);
        free(elements);
        (void)fputc('\n', out);
    }
    (void)fclose(out);
    return text;
}

const char sample_text[] =
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    "weight: float32 2 3 00000000 3f800000 40000000 40400000 40800000 40a00000\n"
    "bias: int64 3 ffffffff ffffffff 00000000 00000000 00000000 00000001\n"
    "words: uint16 2 0001ffff\n"
    "epoch: 3\n";
#else
    "weight: float32 2 3 00000000 0000803f 00000040 00004040 00008040 0000a040\n"
    "bias: int64 3 ffffffff ffffffff 00000000 00000000 01000000 00000000\n"
    "words: uint16 2 0100ffff\n"
    "epoch: 3\n";
#endif

void expect_sample_values(berth_checkpoint *checkpoint)
{
    char *text = describe(checkpoint);

    cr_expect_str_eq(text, sample_text);
    free(text);
}

void expect_sample(const void *bytes, size_t nbytes, const char *options)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(open_with(bytes, nbytes, options, NULL, &checkpoint, &error), 0, "%s: %s", options,
                 error.message);
    char *text = describe(checkpoint);
    cr_expect_str_eq(text, sample_text, "%s", options);
    free(text);
    berth_close(checkpoint);
}

void expect_failure(const void *bytes, size_t nbytes, const char *options, int code,
                    const char *message)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    int result = open_with(bytes, nbytes, options, NULL, &checkpoint, &error);
    cr_expect_eq(result, code, "%s: %s", options, error.message);
    if (result == 0) {
        berth_close(checkpoint);
        return;
    }
    cr_expect_null(checkpoint);
    cr_expect_eq(error.code, code);
    cr_expect_str_eq(error.message, message, "%s: %s", options, error.message);
}

void expect_floats(berth_checkpoint *checkpoint, const char *name, const float *expected, int64_t n)
{
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
    float elements[64];
    berth_error error;

    cr_assert_not_null(tensor, "%s", name);
    cr_assert_eq(berth_tensor_numel(tensor), n);
    cr_assert_eq(berth_tensor_read(checkpoint, tensor, 0, n, elements, &error), 0, "%s",
                 error.message);
    cr_expect_arr_eq(elements, expected, (size_t)n * sizeof(float), "%s", name);
}
