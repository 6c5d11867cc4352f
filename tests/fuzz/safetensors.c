/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Formats with JSON: any bytes as a safetensors file; behind a '2', as what a program of
 * torch.export says of its weights; or as a checkpoint (what begins as a zip archive does). What
 * opens is saved as safetensors and as a checkpoint, and read back: the same tensors.
 */
#include "format/values/value.h"
#include "tests/support/fuzz/archive.h"
#include "tests/support/support.h"

#include <jansson.h>

/* ---- memory of the JSON parser, counted with ours ---- */

static void *count_malloc(size_t nbytes)
{
    return count_memory(NULL, NULL, nbytes);
}

static void count_free(void *pointer)
{
    if (pointer)
        count_memory(NULL, pointer, 0);
}

/* ---- what is read ---- */

/* T1: the storages are the bytes behind the header, one after the other without gap or overlap. */
static void check_storages(berth_checkpoint *checkpoint, const uint8_t *bytes, size_t nbytes)
{
    uint64_t at = 8 + bth_little_u32(bytes);

    for (const berth_storage *s = berth_storage_next(checkpoint, NULL); s;
         s = berth_storage_next(checkpoint, s)) {
        MUST(s->offset == at, "a storage at %llu, not %llu", (unsigned long long)s->offset,
             (unsigned long long)at);
        at += s->nbytes;
    }
    MUST(at == nbytes, "the storages end at %llu of %zu", (unsigned long long)at, nbytes);
}

/* Dtype, shape, elements. */
static void check_same(berth_checkpoint *a, const berth_tensor *our, berth_checkpoint *b,
                       const berth_tensor *their)
{
    berth_error error;

    MUST(our && their, "a tensor is missing");
    if (our->flags & BERTH_META)
        return;
    int64_t numel = berth_tensor_numel(our);
    size_t n = berth_tensor_nbytes(our);
    uint8_t *left = malloc(n + 1), *right = malloc(n + 1);
    MUST(left && right && our->dtype == their->dtype && our->rank == their->rank &&
             (our->rank == 0 ||
              memcmp(our->shape, their->shape, (size_t)our->rank * sizeof *our->shape) == 0),
         "other facts");
    MUST(berth_tensor_read(a, our, 0, numel, left, &error) == 0 &&
             berth_tensor_read(b, their, 0, numel, right, &error) == 0,
         "%s", error.message);
    MUST(memcmp(left, right, n) == 0, "other bytes");
    free(left);
    free(right);
}

/* The keys of a safetensors file are the names of the tensors in what was saved. */
static void check_safetensors_same(berth_checkpoint *from, berth_checkpoint *saved)
{
    const berth_value *root = berth_root(saved);
    berth_error error;

    for (size_t i = 0; i < berth_value_count(root); i++) {
        berth_value *key, *value;
        MUST(berth_dict_at(root, i, &key, &value), "no item");
        check_same(from, berth_find_tensor(from, berth_as_text(key, NULL), &error), saved,
                   berth_as_tensor(value));
    }
}

/* A checkpoint has the same tensors in the same order. */
static void check_values_same(berth_checkpoint *from, berth_checkpoint *saved)
{
    berth_named_tensor one, other;
    berth_error error;

    MUST(berth_tensor_count(from) == berth_tensor_count(saved), "another number of tensors");
    for (size_t i = 0; i < berth_tensor_count(saved); i++) {
        MUST(berth_tensor_at(from, i, &one, &error) == 0 &&
                 berth_tensor_at(saved, i, &other, &error) == 0 && one.tensor && other.tensor,
             "%s", error.message);
        if (one.tensor->qscheme == BERTH_NOT_QUANTIZED)
            check_same(from, one.tensor, saved, other.tensor);
    }
}

/* ---- what is written of it ---- */

/* `content` is saved, and read back: the same tensors. Small enough to be written in full. */
static void check_saved(berth_checkpoint *checkpoint, const berth_content *content)
{
    berth_checkpoint *saved_checkpoint;
    void *saved;
    size_t nbytes;
    berth_error error;

    if (berth_save_to(TO_MEMORY(&saved, &nbytes), content, NAMED("a"), &error) < 0) {
        MUST(is_clean_text(error.message) && error.message[0], "no sentence");
        return;
    }
    MUST(open_memory_with(saved, nbytes, "", &saved_checkpoint, &error) == 0, "%s", error.message);
    if (content->kind == BERTH_CONTENT_SAFETENSORS) {
        check_storages(saved_checkpoint, saved, nbytes);
        check_safetensors_same(checkpoint, saved_checkpoint);
    } else {
        check_values_same(checkpoint, saved_checkpoint);
    }
    berth_close(saved_checkpoint);
    berth_free(saved);
}

/* Expanded tensors are written in full: no more than so many bytes of them. */
static bool is_small(berth_checkpoint *checkpoint)
{
    berth_named_tensor named;
    berth_error error;
    uint64_t sum = 0;

    for (size_t i = 0; i < berth_tensor_count(checkpoint) && sum < 1 << 20; i++)
        if (berth_tensor_at(checkpoint, i, &named, &error) == 0 &&
            __builtin_add_overflow(sum, berth_tensor_nbytes(named.tensor), &sum))
            sum = 1 << 20;
    return sum < 1 << 20;
}

static void check_written(berth_checkpoint *checkpoint, uint32_t flags)
{
    berth_info info;
    berth_error error;

    if (!is_small(checkpoint))
        return;
    MUST(berth_get_info(checkpoint, &info, &error) == 0, "%s", error.message);
    const berth_content values = berth_of_value(berth_root(checkpoint));
    const berth_content tensors =
        berth_of_safetensors(berth_root(checkpoint), info.metadata, flags);
    check_saved(checkpoint, &tensors);
    if (info.metadata || flags & BERTH_COPY_TIES)
        check_saved(checkpoint, &values);
}

/* ---- programs of torch.export ---- */

/* The archive of a program with this text, and two records. The caller frees it. */
static uint8_t *make_program(const uint8_t *text, size_t nbytes, size_t *made_nbytes)
{
    static const uint8_t weights[48] = {1, 2, 3};
    const berth_new_record records[] = {
        {.name = "data/weights/weight_0", .data = weights, .nbytes = sizeof weights},
        {.name = "data/weights/weight_1", .data = weights, .nbytes = 0},
        {.name = "data/weights/model_weights_config.json", .data = text, .nbytes = nbytes},
        {.name = "version", .data = "3\n", .nbytes = 2},
        {.name = "archive_format", .data = "pt2", .nbytes = 3},
    };
    const berth_content content = berth_of_records(records, 5, BERTH_RECORDS_COMPLETE);
    void *made;
    berth_error error;

    MUST(berth_save_to(TO_MEMORY(&made, made_nbytes), &content, NAMED("m"), &error) == 0, "%s",
         error.message);
    uint8_t *copy = malloc(*made_nbytes);
    memcpy(copy, made, *made_nbytes);
    berth_free(made);
    return copy;
}

static size_t n_programs_opened;

/* T2, E3: the storages are the two records. */
static void check_program(berth_checkpoint *checkpoint)
{
    n_programs_opened++;
    for (const berth_storage *s = berth_storage_next(checkpoint, NULL); s;
         s = berth_storage_next(checkpoint, s)) {
        bool is_first = strcmp(s->key, "weights/weight_0") == 0;
        MUST(s->offset == 64 || !is_first, "it is at %llu", (unsigned long long)s->offset);
        MUST(s->nbytes == (is_first ? 48 : 0) || strstr(s->key, ".json"), "%s has %llu bytes",
             s->key, (unsigned long long)s->nbytes);
    }
}

static void check_file(const uint8_t *bytes, size_t nbytes, bool is_program, unsigned random)
{
    bool is_zip = nbytes > 4 && memcmp(bytes, "PK", 2) == 0;
    berth_checkpoint *checkpoint;
    berth_error error;

    count_memory_from_now();
    json_set_alloc_funcs(count_malloc, count_free);
    size_t before_nbytes = live_nbytes;
    double since = processor_seconds();
    most_nbytes = live_nbytes;
    if (open_memory_with(bytes, nbytes, "", &checkpoint, &error) == 0) {
        check_time(since, nbytes);
        MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + MEMORY_FIXED,
             "P3: %zu bytes of memory for %zu", most_nbytes - before_nbytes, nbytes);
        if (!is_zip)
            check_storages(checkpoint, bytes, nbytes);
        if (is_program)
            check_program(checkpoint);
        check_written(checkpoint, random % 4);
        berth_close(checkpoint);
    } else {
        MUST(is_clean_text(error.message) && error.message[0], "no sentence");
    }
    json_set_alloc_funcs(malloc, free);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    unsigned random = nbytes > 0 ? bytes[nbytes / 2] : 0;

    if (nbytes == 0 || bytes[0] != '2') {
        check_file(bytes, nbytes, false, random);
        return;
    }
    size_t made_nbytes;
    uint8_t *made = make_program(bytes + 1, nbytes - 1, &made_nbytes);
    check_file(made, made_nbytes, true, random);
    free(made);
}

/* ---- changed: the header's length is made right again ---- */

/* Puts or cuts a word that matters in a text, or changes it in any way. Returns its new length. */
static size_t mutate_text(uint8_t *text, size_t nbytes, size_t most)
{
    static const char *const telling[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "[0]",
                                          "[0,0]",
                                          "\"F32\"",
                                          "\"BF16\"",
                                          "\"shape\":",
                                          "\"dtype\":\"U8\"",
                                          "0",
                                          "4",
                                          "9223372036854775807",
                                          "-1",
                                          "1e3",
                                          ",",
                                          "\"a\":",
                                          "\"__metadata__\":{}",
                                          "\"data_offsets\":[0,0]",
                                          "{\"as_int\":1}",
                                          "{\"as_int\":0}",
                                          "\"dtype\":11",
                                          "\"path_name\":\"weight_1\"",
                                          "true",
                                          "null"};

    if (random_below(3) == 0)
        return LLVMFuzzerMutate(text, nbytes, most);
    const char *word = telling[random_below(sizeof telling / sizeof *telling)];
    size_t at = random_below(nbytes + 1), cut = random_below(2) ? random_below(4) : 0;
    cut = cut < nbytes - at ? cut : nbytes - at;
    return put_between(text, nbytes, most, at, cut, word, strlen(word));
}

static size_t mutate_header(uint8_t *bytes, size_t nbytes, size_t most)
{
    uint64_t n = bth_little_u32(bytes);

    if (n > nbytes - 8)
        n = nbytes - 8;
    size_t left = most - (nbytes - (size_t)n) - 8, changed;
    uint8_t *header = malloc(left + 1);
    memcpy(header, bytes + 8, n < left ? n : left);
    changed = mutate_text(header, (size_t)n, left);
    nbytes = put_between(bytes, nbytes, most, 8, (size_t)n, header, changed);
    bth_put_u64(bytes, changed);
    free(header);
    return nbytes;
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    if (nbytes > 2 && memcmp(bytes, "PK", 2) == 0)
        return mutate_archive(bytes, nbytes, most, number);
    if (nbytes > 1 && bytes[0] == '2')
        return 1 + mutate_text(bytes + 1, nbytes - 1, most - 1);
    if (nbytes < 16 || most < nbytes + 64 || random_below(6) == 0)
        return LLVMFuzzerMutate(bytes, nbytes, most);
    return mutate_header(bytes, nbytes, most);
}

/* ---- seeds ---- */

static void seed_text(const char *name, const char *header, size_t data_nbytes)
{
    uint8_t bytes[4096] = {0};
    size_t n = strlen(header);

    bth_put_u64(bytes, n);
    memcpy(bytes + 8, header, n);
    seed(name, bytes, 8 + n + data_nbytes);
}

/* Of a program with one weight. */
#define WEIGHT(name, path, dtype, sizes, strides)                                                  \
    "\"" name "\":{\"path_name\":\"" path "\",\"is_param\":true,\"use_pickle\":false,"             \
    "\"tensor_meta\":{\"dtype\":" dtype ",\"sizes\":[" sizes "],\"requires_grad\":true,"           \
    "\"device\":{\"type\":\"cuda\",\"index\":0},\"strides\":[" strides                             \
    "],\"storage_offset\":{\"as_int\":0},\"layout\":7}}"
#define INT(n) "{\"as_int\":" n "}"

static void seed_program(const char *name, const char *text)
{
    uint8_t bytes[4096] = "2";
    size_t n = strlen(text);

    memcpy(bytes + 1, text, n);
    seed(name, bytes, 1 + n);
}

void make_seeds(void)
{
    seed_program("program",
                 "{\"config\":{" WEIGHT("a", "weight_0", "7", INT("4") "," INT("3"),
                                        INT("3") "," INT("1")) "," WEIGHT("b.c", "weight_1", "5",
                                                                          INT("0"), INT("1")) "}}");
    seed_program("tied",
                 "{\"config\":{" WEIGHT("a", "weight_0", "7", INT("12"), INT("1")) "," WEIGHT(
                     "b", "weight_0", "7", INT("6"), INT("2")) "}}");
    seed_program("scalar", "{\"config\":{" WEIGHT("a", "weight_0", "11", "", "") "}}");
    seed_program("none", "{\"config\":{}}");
    seed_text("empty", "{}", 0);
    seed_text("metadata", "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"me\"}}", 0);
    seed_text("two",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
              "\"b.c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}}",
              32);
    seed_text("none",
              "{\"z\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],"
              "\"data_offsets\":[0,0]},\"a\\u0041\":{\"dtype\":\"BOOL\",\"shape\":[1],"
              "\"data_offsets\":[0,1]}}",
              1);
    seed_text("large",
              "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4611686018427387904,4],"
              "\"data_offsets\":[0,16]}}",
              16);
    seed_text("overlap",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
              8);
    seed_text("gap",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
              8);
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", "zip.pth");
    seed_folder("tests/fuzz/found/safetensors", "");
}

#ifndef BERTH_FUZZER

Test(safetensors, keep_all_properties)
{
    cr_assert_geq(replay_seeds(100), 25);
    cr_assert_geq(n_programs_opened, 4);
}
#endif
