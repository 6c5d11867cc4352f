/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints built record by record, by the layout or with one lie in it; opened from memory with
 * named options; and a text of all values, to compare readings.
 */
#ifndef TESTS_LOAD_BUILDER_H
#define TESTS_LOAD_BUILDER_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "berth.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "format/zip/zip_write.h"

#define MAX_RECORDS 24
#define N_SAMPLE_STORAGES 3

struct record {
    const char *name;
    const void *bytes;
    uint64_t nbytes;
};

/* What is wrong about one record; zeros: nothing. */
struct lie {
    const char *record;
    uint64_t gap;            /* bytes of nothing before its header */
    uint32_t more_padding;   /* bytes between its header and its data, beyond the layout's */
    int64_t directory_shift; /* its directory entry's header offset is wrong by this */
    uint64_t descriptor_lie; /* the descriptor's sizes are larger by this */
    uint32_t descriptor_crc; /* xor */
    uint64_t directory_lie;  /* the directory's sizes are larger by this */
    bool unlisted;           /* not in the directory */
};

struct archive {
    struct record records[MAX_RECORDS];
    size_t n;
    bth_pickled pickled;
    berth_tree *tree;
};

/* The sample is of this machine's own order. */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define NATIVE_BYTEORDER "big"
#define OTHER_BYTEORDER "little"
#else
#define NATIVE_BYTEORDER "little"
#define OTHER_BYTEORDER "big"
#endif

static const float sample_weight[6] = {0, 1, 2, 3, 4, 5};
static const int64_t sample_bias[3] = {-1, 0, 1};
static const uint16_t sample_words[2] = {1, 65535};

static inline void add_record(struct archive *archive, const char *name, const void *bytes,
                              uint64_t nbytes)
{
    archive->records[archive->n++] = (struct record){name, bytes, nbytes};
}

static inline void add_text(struct archive *archive, const char *name, const char *text)
{
    add_record(archive, name, text, strlen(text));
}

static inline struct record *find_record(struct archive *archive, const char *name)
{
    for (size_t i = 0; i < archive->n; i++)
        if (strcmp(archive->records[i].name, name) == 0)
            return &archive->records[i];
    cr_assert_fail("there is no record %s", name);
    return NULL;
}

static inline void remove_record(struct archive *archive, const char *name)
{
    struct record *record = find_record(archive, name);

    archive->n--;
    memmove(record, record + 1, (size_t)(archive->records + archive->n - record) * sizeof *record);
}

static inline void swap_records(struct archive *archive, const char *a, const char *b)
{
    struct record *first = find_record(archive, a), *second = find_record(archive, b);
    struct record kept = *first;

    *first = *second;
    *second = kept;
}

static inline berth_tree *sample_tree(berth_value **root)
{
    static const int64_t weight_shape[] = {2, 3}, bias_shape[] = {3}, words_shape[] = {2};
    berth_tree *tree = berth_tree_new(NULL);

    *root = berth_make_ordered_dict(tree);
    berth_dict_set(*root, "weight",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                           .rank = 2,
                                                           .shape = weight_shape,
                                                           .data = sample_weight}));
    berth_dict_set(*root, "bias",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_INT64,
                                                           .rank = 1,
                                                           .shape = bias_shape,
                                                           .data = sample_bias}));
    berth_dict_set(*root, "words",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_UINT16,
                                                           .rank = 1,
                                                           .shape = words_shape,
                                                           .data = sample_words}));
    berth_dict_set(*root, "epoch", berth_make_int(tree, 3));
    cr_assert_eq(berth_tree_error(tree, NULL), 0);
    return tree;
}

/* All records that PyTorch writes for the sample, in its order. */
static inline struct archive sample(void)
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

static inline void free_archive(struct archive *archive)
{
    bth_pickled_free(&archive->pickled);
    berth_tree_free(archive->tree);
}

/* Places one record behind `cursor`, as the layout says, or as the lie does. */
static inline bth_place place_record(const struct record *record, const struct lie *lie,
                                     uint64_t cursor, uint32_t alignment)
{
    bool lies = lie && strcmp(lie->record, record->name) == 0;
    uint64_t at = cursor + (lies ? lie->gap : 0);
    bth_place place;

    cr_assert_eq(bth_layout_place(at, strlen("sample/") + strlen(record->name), record->nbytes,
                                  alignment, &place),
                 0);
    if (lies) {
        place.padding_nbytes += lie->more_padding;
        place.data_offset += lie->more_padding;
        place.next_offset += lie->more_padding;
    }
    return place;
}

static inline uint32_t crc_of(const struct record *record, bool with_crc)
{
    return with_crc ? bth_crc32(0, record->bytes, record->nbytes) : 0;
}

static inline void full_name(char name[64], const struct record *record)
{
    (void)snprintf(name, 64, "sample/%s", record->name);
}

static inline void write_record(const struct record *record, const struct lie *lie, bth_place place,
                                bool with_crc, uint8_t *file)
{
    bool lies = lie && strcmp(lie->record, record->name) == 0;
    uint32_t crc32 = crc_of(record, with_crc) ^ (lies ? lie->descriptor_crc : 0);
    char name[64];

    full_name(name, record);
    bth_zip_write_local(&place, name, file + place.header_offset);
    if (record->nbytes > 0)
        memcpy(file + place.data_offset, record->bytes, record->nbytes);
    uint64_t end = place.data_offset + place.nbytes;
    if (lies)
        place.nbytes += lie->descriptor_lie;
    if (place.descriptor_nbytes > 0)
        bth_zip_write_descriptor(&place, crc32, file + end);
}

/* Writes a record's directory entry; returns its bytes. */
static inline uint64_t write_entry(const struct record *record, const struct lie *lie,
                                   bth_place place, bool with_crc, uint8_t *out)
{
    bool lies = lie && strcmp(lie->record, record->name) == 0;
    char name[64];

    if (lies && lie->unlisted)
        return 0;
    if (lies) {
        place.header_offset += (uint64_t)lie->directory_shift;
        place.nbytes += lie->directory_lie;
    }
    full_name(name, record);
    bth_zip_write_central(&place, name, crc_of(record, with_crc), out);
    return bth_layout_central_nbytes(&place);
}

/* The whole file, by malloc. */
static inline uint8_t *build(const struct archive *archive, uint32_t alignment, bool with_crc,
                             const struct lie *lie, size_t *nbytes)
{
    bth_place places[MAX_RECORDS];
    uint64_t cursor = 0, n_listed = archive->n - (lie && lie->unlisted);
    size_t capacity = 65536 + (lie ? lie->more_padding + lie->gap : 0);

    for (size_t i = 0; i < archive->n; i++)
        capacity += archive->records[i].nbytes + alignment;
    uint8_t *file = calloc(1, capacity);
    for (size_t i = 0; i < archive->n; i++) {
        places[i] = place_record(&archive->records[i], lie, cursor, alignment);
        write_record(&archive->records[i], lie, places[i], with_crc, file);
        cursor = places[i].next_offset;
    }
    uint64_t directory_offset = cursor;
    for (size_t i = 0; i < archive->n; i++)
        cursor += write_entry(&archive->records[i], lie, places[i], with_crc, file + cursor);
    bth_zip_write_end(n_listed, directory_offset, cursor - directory_offset, file + cursor);
    *nbytes = cursor + BTH_ZIP_END_NBYTES;
    return file;
}

/* A record's entry in the directory of a built file. */
static inline uint8_t *find_entry(uint8_t *file, size_t nbytes, const char *record)
{
    char name[64];

    full_name(name, &(struct record){.name = record});
    for (size_t at = 0; at + BTH_ZIP_CENTRAL_NBYTES + strlen(name) <= nbytes; at++)
        if (memcmp(file + at, "PK\1\2", 4) == 0 &&
            memcmp(file + at + BTH_ZIP_CENTRAL_NBYTES, name, strlen(name)) == 0)
            return file + at;
    cr_assert_fail("the directory has no %s", name);
    return NULL;
}

/* The sample without lies. */
static inline uint8_t *build_sample(bool with_crc, size_t *nbytes)
{
    struct archive archive = sample();
    uint8_t *file = build(&archive, 64, with_crc, NULL, nbytes);

    free_archive(&archive);
    return file;
}

/* ---- opening ---- */

/* Opens bytes with these options alone ("load.check=none …"), whatever the environment says. */
static inline int open_with(const void *bytes, size_t nbytes, const char *options,
                            berth_stats *stats, berth_checkpoint **checkpoint, berth_error *error)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config, .stats = stats};

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, error), 0, "%s", error->message);
    int result = berth_open_memory(bytes, nbytes, &call, checkpoint, error);
    berth_config_free(config);
    return result;
}

/* The text of all values of a dict of tensors and ints: what a reader can see of them. */
static inline char *describe(berth_checkpoint *checkpoint)
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

static const char sample_text[] =
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

/* The file opens with these options, and gives the sample's values. */
static inline void expect_sample(const void *bytes, size_t nbytes, const char *options)
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

/* Opening fails with this code and sentence. */
static inline void expect_failure(const void *bytes, size_t nbytes, const char *options, int code,
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

/* The elements of a tensor of n floats, at most 64. */
static inline void expect_floats(berth_checkpoint *checkpoint, const char *name,
                                 const float *expected, int64_t n)
{
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name);
    float elements[64];
    berth_error error;

    cr_assert_not_null(tensor, "%s", name);
    cr_assert_eq(berth_tensor_numel(tensor), n);
    cr_assert_eq(berth_tensor_read(checkpoint, tensor, 0, n, elements, &error), 0, "%s",
                 error.message);
    cr_expect_arr_eq(elements, expected, (size_t)n * sizeof(float), "%s", name);
}

#endif
