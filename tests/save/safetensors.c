/* SPDX-License-Identifier: BSD-3-Clause */
/* Safetensors from C: metadata, ties, views, other sizes of tiles; debug mode finds a wrong byte.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/values/value.h"
#include "save/run.h"
#include "tests/support/support.h"

static const int64_t shape_2_3[] = {2, 3}, shape_3_2[] = {3, 2}, shape_4[] = {4};
static const int64_t across[] = {1, 3};
static const float numbers[6] = {0, 1, 2, 3, 4, 5};
static const float complexes[8] = {1, -2, 3, 4, -5, 6, 7, 8};
static berth_error error;
static berth_tree *tree;
static berth_value *root;

/* "a" and "tied" are one; "t" is its transpose; "c" has a conjugate and a negative bit. */
static void begin(void)
{
    tree = berth_tree_new(NULL);
    root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, numbers, sizeof numbers, NULL);
    const berth_tensor a = {
        .dtype = BERTH_FLOAT32, .rank = 2, .shape = shape_2_3, .storage = storage};
    const berth_tensor t = {.dtype = BERTH_FLOAT32,
                            .rank = 2,
                            .shape = shape_3_2,
                            .stride = across,
                            .storage = storage};
    const berth_tensor c = {.dtype = BERTH_COMPLEX64,
                            .rank = 1,
                            .shape = shape_4,
                            .flags = BERTH_CONJ | BERTH_NEG,
                            .data = complexes};

    berth_dict_set(root, "tied", berth_make_tensor(tree, &a));
    berth_dict_set(root, "a", berth_make_tensor(tree, &a));
    berth_dict_set(root, "t", berth_make_tensor(tree, &t));
    berth_dict_set(root, "c", berth_make_tensor(tree, &c));
    assert_ok(berth_tree_error(tree, &error));
}

static void end(void)
{
    berth_tree_free(tree);
}

static berth_checkpoint *saved_and_opened(const berth_value *metadata, uint32_t flags,
                                          const char *options, void **bytes)
{
    const berth_content content = berth_of_safetensors(root, metadata, flags);
    berth_config *config = berth_config_new(NULL);
    const berth_params params = {.config = config};
    berth_checkpoint *checkpoint;
    size_t nbytes;

    assert_ok(berth_config_apply(config, "load.tied_names=all", &error));
    assert_ok(berth_config_apply(config, options, &error));
    assert_ok(berth_save_to(TO_MEMORY(bytes, &nbytes), &content, &params, &error));
    const berth_source source = berth_from_memory(*bytes, nbytes);
    assert_ok(berth_open_source(&source, &params, &checkpoint, &error));
    berth_config_free(config);
    return checkpoint;
}

static void expect_elements(berth_checkpoint *checkpoint, const char *name, const float *wanted,
                            size_t nbytes)
{
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, &error);
    float found[8] = {0};

    cr_assert(tensor, "%s", error.message);
    cr_assert_eq(berth_tensor_nbytes(tensor), nbytes);
    assert_ok(berth_tensor_read(checkpoint, tensor, 0, berth_tensor_numel(tensor), found, &error));
    cr_expect_eq(memcmp(found, wanted, nbytes), 0, "%s", name);
}

static const char *text_of(const berth_value *metadata, const char *key)
{
    return berth_as_text(berth_dict_get(metadata, key), NULL);
}

/* A tile of an odd size cuts elements of views. */
Test(safetensors, same_elements_whatever_the_tiles, .init = begin, .fini = end)
{
    static const char *const options[] = {"", "io.chunk_nbytes=25\nio.threads=1",
                                          "io.chunk_nbytes=31\nio.threads=3"};
    static const float t[] = {0, 3, 1, 4, 2, 5};
    static const float c[] = {-1, -2, -3, 4, 5, 6, -7, 8};
    void *bytes;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        berth_checkpoint *checkpoint = saved_and_opened(NULL, 0, options[i], &bytes);
        expect_elements(checkpoint, "a", numbers, sizeof numbers);
        expect_elements(checkpoint, "tied", numbers, sizeof numbers);
        expect_elements(checkpoint, "t", t, sizeof t);
        expect_elements(checkpoint, "c", c, sizeof c);
        berth_close(checkpoint);
        berth_free(bytes);
    }
}

/* Through the checkpoint that was copied, from where the copy begins. */
Test(safetensors, elements_of_a_copied_view, .init = begin, .fini = end)
{
    static const uint32_t flags[] = {0, BERTH_COPY_COMPACT};
    static const int64_t shape[] = {2, 2};
    static const float wanted[] = {1, 4, 2, 5};
    const berth_content content = berth_of_value(root);
    const berth_tensor view = {.dtype = BERTH_FLOAT32,
                               .rank = 2,
                               .shape = shape,
                               .stride = across,
                               .storage_offset = 1,
                               .storage = berth_as_tensor(berth_dict_get(root, "a"))->storage};
    berth_checkpoint *from, *to;
    void *zip, *bytes;
    size_t nbytes;

    berth_dict_set(root, "view", berth_make_tensor(tree, &view));
    assert_ok(berth_save_to(TO_MEMORY(&zip, &nbytes), &content, NULL, &error));
    const berth_source source = berth_from_memory(zip, nbytes);
    assert_ok(berth_open_source(&source, NULL, &from, &error));
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        root = berth_make_dict(tree, BERTH_KIND_DICT);
        berth_dict_set(root, "view",
                       berth_value_copy(tree, berth_find(from, "view", NULL), flags[i]));
        to = saved_and_opened(NULL, 0, "", &bytes);
        expect_elements(to, "view", wanted, sizeof wanted);
        berth_close(to);
        berth_free(bytes);
    }
    berth_close(from);
    berth_free(zip);
}

Test(safetensors, metadata_and_ties, .init = begin, .fini = end)
{
    berth_value *texts = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_info info;
    void *bytes;

    berth_dict_set(texts, "by", berth_make_str(tree, "me", 2));
    berth_dict_set(texts, "a", berth_make_str(tree, "c", 1)); /* would be misread as a tie */
    berth_checkpoint *checkpoint = saved_and_opened(texts, 0, "", &bytes);
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_eq(berth_value_count(info.metadata), 2);
    cr_expect_str_eq(text_of(info.metadata, "by"), "me");
    cr_expect_str_eq(text_of(info.metadata, "tied"), "a");
    cr_expect_eq(berth_find_tensor(checkpoint, "a", NULL)->storage,
                 berth_find_tensor(checkpoint, "tied", NULL)->storage);
    cr_expect_str_eq(info.container, "safetensors");
    cr_expect_str_eq(info.archive, "");
    cr_expect_eq(info.n_storages, 3);
    berth_close(checkpoint);
    berth_free(bytes);

    checkpoint = saved_and_opened(NULL, BERTH_COPY_TIES, "", &bytes);
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_eq(berth_value_count(info.metadata), 1);
    cr_expect_str_eq(text_of(info.metadata, "format"), "pt");
    cr_expect_neq(berth_find_tensor(checkpoint, "a", NULL)->storage,
                  berth_find_tensor(checkpoint, "tied", NULL)->storage);
    berth_close(checkpoint);
    berth_free(bytes);

    for (int i = 0; i < 2; i++) { /* none, and empty ones */
        berth_value *none = i ? berth_make_dict(tree, BERTH_KIND_DICT) : berth_make_none(tree);
        checkpoint = saved_and_opened(none, BERTH_COPY_TIES, "", &bytes);
        assert_ok(berth_get_info(checkpoint, &info, &error));
        cr_expect_eq(info.metadata != NULL, i);
        cr_expect_eq(berth_value_count(info.metadata), 0);
        berth_close(checkpoint);
        berth_free(bytes);
    }
}

/* The format counts elements, PyTorch the bytes of two; of six bits it has none. */
Test(safetensors, dtypes_of_less_than_a_byte, .init = begin, .fini = end)
{
    static const struct {
        berth_dtype dtype;
        const char *header, *pickle_says;
    } cases[] = {
        {BERTH_FLOAT4_E2M1FN_X2, "\"few\":{\"dtype\":\"F4\",\"shape\":[2,6],", NULL},
        {BERTH_FLOAT6_E2M3FN_X4, "\"few\":{\"dtype\":\"F6_E2M3\",\"shape\":[2,12],",
         "PyTorch has no dtype float6_e2m3fn_x4: only a safetensors file can hold it"},
        {BERTH_FLOAT6_E3M2FN_X4, "\"few\":{\"dtype\":\"F6_E3M2\",\"shape\":[2,12],",
         "PyTorch has no dtype float6_e3m2fn_x4: only a safetensors file can hold it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const berth_tensor few = {
            .dtype = cases[i].dtype, .rank = 2, .shape = shape_2_3, .data = numbers};
        void *bytes, *pickled = NULL;
        size_t nbytes;

        berth_dict_set(root, "few", berth_make_tensor(tree, &few));
        berth_checkpoint *checkpoint = saved_and_opened(NULL, 0, "", &bytes);
        const char *header = (const char *)bytes + 8;
        cr_expect(strstr(header, cases[i].header), "%.300s", header);
        const berth_tensor *read = berth_find_tensor(checkpoint, "few", &error);
        cr_expect_eq(memcmp(read->shape, shape_2_3, sizeof shape_2_3), 0);
        berth_close(checkpoint);
        berth_free(bytes);
        const berth_content content = berth_of_value(root);
        int status = berth_save_to(TO_MEMORY(&pickled, &nbytes), &content, NULL, &error);
        cr_expect_eq(status < 0, cases[i].pickle_says != NULL, "%s", error.message);
        cr_expect(!cases[i].pickle_says || strstr(error.message, cases[i].pickle_says), "%s",
                  error.message);
        berth_free(pickled);
    }
    cr_expect_null(berth_make_constant(tree, BERTH_KIND_DTYPE, BERTH_FLOAT6_E2M3FN_X4));
}

static void expect_names(const berth_value *value, const char *const *names, size_t n)
{
    const berth_content content = berth_of_safetensors(value, NULL, BERTH_COPY_TIES);
    void *bytes;
    size_t nbytes;

    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), &content, NULL, &error));
    for (size_t i = 0; i < n; i++)
        cr_expect_not_null(memmem(bytes, nbytes, names[i], strlen(names[i])), "%s", names[i]);
    berth_free(bytes);
}

/* A key of the root is a name as it is, unless it begins like a path and another name is one. What
 * is deeper has its path if the name is taken. */
Test(safetensors, names, .init = begin, .fini = end)
{
    static const char *const keys[] = {"", ".w", "..", "a.b", "[x", "['q']", "1"};
    static const char *const flat[] = {"\"\":{",   "\".w\":{",    "\"..\":{", "\"a.b\":{",
                                       "\"[x\":{", "\"['q']\":{", "\"1\":{"};
    static const char *const names[] = {"\"\":{",           "\".w\":{",     "\"..\":{",
                                        "\"a.b\":{",        "\"['[x']\":{", "\"1\":{",
                                        "\"['a']['b']\":{", "\"[1]\":{",    "\"['x\\\\x00y']\":{"};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *tensor = berth_dict_get(root, "a");

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        berth_dict_set(value, keys[i], tensor);
    expect_names(value, flat, sizeof flat / sizeof *flat);
    berth_dict_set(inner, "b", tensor);
    berth_dict_set(value, "a", inner);
    berth_dict_set_value(value, berth_make_int(tree, 1), tensor);
    berth_dict_set_value(value, berth_make_str(tree, "x\0y", 3), tensor); /* no name holds a NUL */
    expect_names(value, names, sizeof names / sizeof *names);
}

/* What the format cannot hold: its name, or its path; left out if that is wanted. */
Test(safetensors, what_it_cannot_hold, .init = begin, .fini = end)
{
    const berth_content strict = berth_of_safetensors(root, NULL, 0);
    const berth_content rest = berth_of_safetensors(root, NULL, BERTH_TENSORS_ONLY);
    berth_content unknown = strict;
    berth_stats stats;
    const berth_params params = {.stats = &stats};
    void *bytes;
    size_t nbytes;

    berth_dict_set(root, "epoch", berth_make_int(tree, 7));
    cr_expect_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), &strict, NULL, &error),
                 BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(error.message, "['epoch']: safetensors cannot hold an int");
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), &rest, &params, &error));
    cr_expect_eq(stats.n_left_out, 1);
    cr_expect_eq(stats.requested_nbytes, 2 * sizeof numbers + sizeof complexes);
    berth_free(bytes);
    unknown.flags = 4;
    cr_expect_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), &unknown, NULL, &error),
                 BERTH_E_ARGUMENT);
    berth_value *bad[] = {berth_make_list(tree), berth_make_dict(tree, BERTH_KIND_DICT),
                          berth_make_dict(tree, BERTH_KIND_DICT)};
    berth_list_append(bad[0], berth_make_str(tree, "a", 1));
    berth_dict_set(bad[1], "a", berth_make_int(tree, 1));
    berth_dict_set_value(bad[2], berth_make_int(tree, 1), berth_make_str(tree, "a", 1));
    for (size_t i = 0; i < 3; i++) {
        const berth_content content = berth_of_safetensors(root, bad[i], BERTH_TENSORS_ONLY);
        cr_expect_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), &content, NULL, &error),
                     BERTH_E_ARGUMENT);
        cr_expect_str_eq(error.message, "the metadata are no dict of texts");
    }
}

Test(safetensors, tensors_that_it_cannot_hold, .init = begin, .fini = end)
{
    static const int64_t none[] = {0}, too_long[] = {INT64_MAX / 2 + 1};
    berth_storage *pair = berth_storage_new(tree, BERTH_FLOAT4_E2M1FN_X2, numbers, 1, NULL);
    const struct {
        const char *name;
        berth_tensor tensor;
        const char *says;
    } cases[] = {
        {"a", {.dtype = BERTH_COMPLEX128, .data = complexes}, "no dtype for complex128"},
        {"a",
         {.dtype = BERTH_QINT8, .data = numbers, .qscheme = BERTH_PER_TENSOR_AFFINE, .scale = 1},
         "safetensors cannot hold quantized tensors"},
        {"a",
         {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape_4, .flags = BERTH_META},
         "a tensor on the meta device has no elements"},
        {"__metadata__",
         {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape_4, .data = numbers},
         "the name is reserved in safetensors"},
        {"a",
         {.dtype = BERTH_FLOAT4_E2M1FN_X2, .data = numbers},
         "holds float4_e2m1fn_x2 with at least one dimension"},
        {"a",
         {.dtype = BERTH_FLOAT4_E2M1FN_X2,
          .rank = 1,
          .shape = too_long,
          .stride = none,
          .storage = pair},
         "its last dimension is too large for safetensors"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
        void *bytes;
        size_t nbytes;
        berth_dict_set(dict, cases[i].name, berth_make_tensor(tree, &cases[i].tensor));
        assert_ok(berth_tree_error(tree, &error));
        const berth_content content = berth_of_safetensors(dict, NULL, 0);
        cr_expect_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), &content, NULL, &error),
                     BERTH_E_UNSUPPORTED);
        cr_expect(strstr(error.message, cases[i].says), "%s", error.message);
    }
}

/* T1: expanded tensors, each of 2^62 bytes, over one element. */
Test(safetensors, views_larger_than_any_file, .init = begin, .fini = end)
{
    static const int64_t stride[] = {0};
    int64_t shape[] = {(int64_t)1 << 60};
    const berth_tensor large = {.dtype = BERTH_FLOAT32,
                                .rank = 1,
                                .shape = shape,
                                .stride = stride,
                                .storage =
                                    berth_storage_new(tree, BERTH_FLOAT32, numbers, 4, NULL)};
    char name[16];

    for (int i = 0; i < 5; i++) {
        (void)snprintf(name, sizeof name, "big%d", i);
        shape[0]--; /* or they would be one */
        berth_dict_set(root, name, berth_make_tensor(tree, &large));
        assert_ok(berth_tree_error(tree, &error));
        if (i == 0) /* one alone is not larger than any file: memory for it would be asked for */
            continue;
        const berth_content content = berth_of_safetensors(root, NULL, 0);
        void *bytes;
        size_t nbytes;
        int code = berth_save_to(TO_MEMORY(&bytes, &nbytes), &content, NULL, &error);
        cr_expect(code == BERTH_E_UNSUPPORTED && strstr(error.message, "too large for a file"),
                  "%d: %s", i, error.message);
    }
}

/* A checkpoint gives the elements that PyTorch shows, as the safetensors file has them. */
Test(safetensors, bits_of_a_checkpoint, .init = begin, .fini = end)
{
    static const float pair[] = {1, 2, 3, 4}, negative[] = {-1, -2, -3, -4},
                       conjugate[] = {1, -2, 3, -4}, both[] = {-1, 2, -3, 4};
    static const struct {
        const char *name;
        berth_dtype dtype;
        uint32_t flags;
        const float *expected; /* NULL: the bit has no meaning */
    } rows[] = {{"plain", BERTH_FLOAT32, 0, pair},
                {"negative", BERTH_FLOAT32, BERTH_NEG, negative},
                {"conjugate", BERTH_COMPLEX64, BERTH_CONJ, conjugate},
                {"both", BERTH_COMPLEX64, BERTH_CONJ | BERTH_NEG, both},
                {"conjugate real", BERTH_FLOAT32, BERTH_CONJ, NULL},
                {"negative int", BERTH_INT32, BERTH_NEG, NULL}};
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_checkpoint *checkpoint;
    void *file;
    size_t nbytes;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t n = rows[i].dtype == BERTH_COMPLEX64 ? 2 : 4;
        const berth_tensor tensor = {
            .dtype = rows[i].dtype, .rank = 1, .shape = &n, .data = pair, .flags = rows[i].flags};
        cr_assert_eq(berth_dict_set(dict, rows[i].name, berth_make_tensor(tree, &tensor)), 0);
    }
    const berth_content content = berth_of_value(dict);
    assert_ok(berth_save_to(TO_MEMORY(&file, &nbytes), &content, NULL, &error));
    const berth_source source = berth_from_memory(file, nbytes);
    assert_ok(berth_open_source(&source, NULL, &checkpoint, &error));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const berth_tensor *tensor = berth_find_tensor(checkpoint, rows[i].name, &error);
        const int64_t n = berth_tensor_numel(tensor), first = n / 2, rest = n - first;
        const int code = rows[i].expected ? 0 : BERTH_E_UNSUPPORTED;
        float read[4];
        cr_expect_eq(berth_tensor_read(checkpoint, tensor, 0, n, read, &error), code);
        cr_expect(code || memcmp(read, rows[i].expected, sizeof read) == 0, "%s", rows[i].name);
        cr_expect(!code || strstr(error.message, "the conjugate or negative bit is not supported"));
        cr_expect_eq(berth_tensor_read_slice(checkpoint, tensor, &first, &rest, read, &error),
                     code);
        cr_expect(code || memcmp(read, rows[i].expected + 2, 2 * sizeof *read) == 0, "%s",
                  rows[i].name);
        berth_tensor stored = *tensor;
        stored.flags = 0;
        cr_expect_eq(berth_tensor_read(checkpoint, &stored, 0, n, read, &error), 0);
        cr_expect_eq(memcmp(read, pair, sizeof read), 0, "%s", rows[i].name);
    }
    berth_close(checkpoint);
    berth_free(file);
}

/* ---- debug mode ---- */

/* Memory where one byte is stored wrongly. */
typedef struct spoiled {
    uint8_t *memory;
    uint64_t at;
} spoiled;

static int write_spoiled(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                         berth_error *unused)
{
    spoiled *s = context;

    (void)unused;
    for (size_t i = 0; i < n_pieces; offset += pieces[i++].iov_len) {
        memcpy(s->memory + offset, pieces[i].iov_base, pieces[i].iov_len);
        if (s->at >= offset && s->at - offset < pieces[i].iov_len)
            s->memory[s->at] ^= 1;
    }
    return 0;
}

static int read_spoiled(void *context, void *buffer, size_t nbytes, uint64_t offset,
                        berth_error *unused)
{
    (void)unused;
    memcpy(buffer, ((spoiled *)context)->memory + offset, nbytes);
    return 0;
}

/* A letter of a name, too, which leaves a header that reads well. */
Test(safetensors, every_wrong_byte_of_the_header_is_found, .init = begin, .fini = end)
{
    const berth_content content = berth_of_safetensors(root, NULL, 0);
    const bth_run_settings settings = {.tile_nbytes = 4096, .read_back = true};
    struct berth_config config;
    berth_stats stats;

    bth_error_clear(&error);
    assert_ok(bth_config_copy_for_operation(NULL, &config, &error));
    berth_plan *plan = bth_plan_make("archive", &content, &config, &error);
    cr_assert(plan, "%s", error.message);
    uint64_t header_nbytes = plan->records[1].layout.data_offset;
    spoiled s = {.memory = malloc(plan->nbytes)};
    const bth_output output = {.write = write_spoiled, .read = read_spoiled, .context = &s};
    for (s.at = 0; s.at <= header_nbytes; s.at++) {
        bool is_header = s.at < header_nbytes;
        stats = (berth_stats){0};
        bth_error_clear(&error);
        cr_expect_eq(bth_run(plan, &output, &settings, &stats, &error),
                     is_header ? BERTH_E_OFFSETS : 0, "byte %llu", (unsigned long long)s.at);
        cr_expect_eq(error.offset, is_header ? s.at : BERTH_NO_OFFSET);
    }
    free(s.memory);
    berth_plan_free(plan);
}

static int n_json_left;

static void *refuse_json(size_t nbytes)
{
    return n_json_left-- == 0 ? NULL : malloc(nbytes);
}

/* Saves where the JSON library's nth allocation is refused. True: it was. */
static bool save_with_json(int n, const berth_content *content, const char *options, int *code)
{
    berth_config *config = berth_config_new(NULL);
    const berth_params params = {.config = config};
    void *bytes = NULL;
    size_t nbytes;

    assert_ok(berth_config_apply(config, options, &error));
    n_json_left = n;
    json_set_alloc_funcs(refuse_json, free);
    *code = berth_save_to(TO_MEMORY(&bytes, &nbytes), content, &params, &error);
    json_set_alloc_funcs(malloc, free);
    berth_free(*code < 0 ? NULL : bytes);
    berth_config_free(config);
    return n_json_left < 0;
}

/* W6, of the JSON library's own allocations. */
Test(safetensors, every_failing_allocation_of_the_header_is_a_clean_error, .init = begin,
     .fini = end)
{
    berth_value *metadata = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(metadata, "by", berth_make_str(tree, "me", 2));
    const berth_content content = berth_of_safetensors(root, metadata, 0);
    int n = 0, code;

    for (bool refused = true; refused; n++) {
        refused = save_with_json(n, &content, "debug=off", &code);
        cr_expect_eq(code, refused ? BERTH_E_MEMORY : 0, "allocation %d: %s", n, error.message);
    }
    cr_expect_gt(n, 10);
}

/* Debug mode reads the header back, and takes some of these for an error of the text. */
Test(safetensors, every_failing_allocation_of_debug_mode_is_an_error, .init = begin, .fini = end)
{
    const berth_content content = berth_of_safetensors(root, NULL, 0);
    int n = 0, code;

    for (bool refused = true; refused; n++) {
        refused = save_with_json(n, &content, "debug=on", &code);
        cr_expect(refused ? code == BERTH_E_MEMORY || code == BERTH_E_ARCHIVE : code == 0,
                  "allocation %d: %s", n, error.message);
    }
    cr_expect_gt(n, 10);
}

/* W6 */
Test(safetensors, every_failing_allocation_is_a_clean_error, .init = begin, .fini = end)
{
    const berth_content content = berth_of_safetensors(root, NULL, 0);
    static const char *const keys[] = {".a", "[0]", ""}; /* written as they are, not as paths */
    void *bytes = NULL;
    size_t nbytes;
    uint64_t nth = 0;

    for (size_t i = 0; i < 3; i++)
        berth_dict_set(root, keys[i], test_vector(tree, BERTH_FLOAT32, numbers, 6));
    for (bool failed = true; failed;) {
        test_memory_watch();
        test_memory_refuse(++nth, false);
        failed = berth_save_to(TO_MEMORY(&bytes, &nbytes), &content, NULL, &error) < 0;
        berth_free(failed ? NULL : bytes);
        cr_expect_eq(failed, test_memory_seen().n_allocations >= nth, "%d", (int)nth);
        test_memory_unwatch();
        if (failed)
            cr_assert_eq(error.code, BERTH_E_MEMORY, "%s", error.message);
    }
    cr_expect_gt(nth, 4);
}
