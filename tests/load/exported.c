/* SPDX-License-Identifier: BSD-3-Clause */
/* E1, E2, E3: the weights of programs of torch.export, good ones and each kind of wrong ones. */
#include "format/json/exported.h"
#include "base/error.h"
#include "format/values/node.h"
#include "tests/support/load/archive.h"

TestSuite(exported, .init = begin_sample, .fini = end_sample);

#define CONFIG_OF(model) "data/weights/" model "_weights_config.json"

#define INT(n) "{\"as_int\":" n "}"
#define META(dtype, layout, sizes, strides, at)                                                    \
    "\"tensor_meta\":{\"dtype\":" dtype ",\"sizes\":[" sizes "],\"requires_grad\":true,"           \
    "\"device\":{\"type\":\"cuda\",\"index\":1},\"strides\":[" strides "],\"storage_offset\":" at  \
    ",\"layout\":" layout "}"
#define ENTRY(path, kind, meta)                                                                    \
    "\"w\":{\"path_name\":" path ",\"is_param\":" kind ",\"use_pickle\":false," meta "}"
#define ONE(entry) "{\"config\":{" entry "}}"
#define WEIGHT(path, meta) ONE(ENTRY("\"" path "\"", "true", meta))
#define GOOD META("7", "7", INT("2") "," INT("3"), INT("3") "," INT("1"), INT("0"))
#define OF(dtype, layout, sizes, strides, at)                                                      \
    WEIGHT("weight_0", META(dtype, layout, sizes, strides, at))

static const uint8_t bytes[24] = {0, 0, 128, 63};

/* The archive of a program: of one model, or of two with the same text; NULL: of one. */
static void save_program(const char *text, const char *format, const char *second_config)
{
    const berth_new_record records[] = {
        {.name = "data/weights/weight_0", .data = bytes, .nbytes = sizeof bytes},
        {.name = "data/weights/weight_1", .data = bytes, .nbytes = 10},
        {.name = "data/weights/weight_2", .data = bytes, .nbytes = 0},
        {.name = "version", .data = "3\n", .nbytes = 2},
        {.name = "archive_format", .data = format, .nbytes = strlen(format)},
        {.name = CONFIG_OF("model"), .data = text, .nbytes = strlen(text)},
        {.name = second_config, .data = text, .nbytes = strlen(text)},
    };
    const berth_content content =
        berth_of_records(records, second_config ? 7 : 6, BERTH_RECORDS_COMPLETE);
    void *saved;

    assert_ok(berth_save_to(TO_MEMORY(&saved, &file_nbytes), &content, NULL, &error));
    free(file);
    file = malloc(file_nbytes);
    memcpy(file, saved, file_nbytes);
    berth_free(saved);
}

Test(exported, a_parameter_and_a_buffer)
{
    save_program("{\"config\":{" ENTRY("\"weight_0\"", "true",
                                       GOOD) ",\"b.c\":{\"path_name\":\"weight_0\",\"is_param\":"
                                             "false,\"use_pickle\":false," GOOD "}}}",
                 "pt2", NULL);
    open_file("load.check=data debug=on");
    berth_info info;
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_str_eq(info.container, "pt2");
    const berth_value *w = berth_find(checkpoint, "w", &error),
                      *b = berth_find(checkpoint, "b.c", &error);
    cr_assert_eq(berth_value_kind(w), BERTH_KIND_PARAMETER);
    const berth_tensor *one = berth_find_tensor(checkpoint, "w", &error);
    const berth_tensor *other = berth_as_tensor(b);
    cr_assert_eq(one->storage, other->storage);
    cr_expect_eq(other->flags, BERTH_REQUIRES_GRAD);
    cr_expect_str_eq(berth_storage_get_info(one->storage)->location, "cuda:1");
    cr_expect_eq(memcmp(data_of("w"), bytes, sizeof bytes), 0);
}

/* What PyTorch may leave out, and a weight without elements, whose record is empty. */
Test(exported, less_is_said_of_some)
{
#define BRIEF(path, sizes, rest)                                                                   \
    "{\"path_name\":\"" path                                                                       \
    "\",\"use_pickle\":false,\"tensor_meta\":{\"dtype\":7,\"sizes\":[" sizes                       \
    "],\"strides\":[" sizes "],\"storage_offset\":" INT("0") ",\"layout\":7" rest "}}"
    save_program(
        ONE("\"a\":" BRIEF("weight_0", "", "") ",\"b\":" BRIEF(
            "weight_0", "", ",\"requires_grad\":false") ",\"c\":" BRIEF("weight_2", INT("0"), "")),
        "pt2", NULL);
    open_file("");
    for (const char *name = "abc"; *name; name++) {
        const berth_value *value = berth_find(checkpoint, (char[]){*name, 0}, &error);
        cr_assert_eq(berth_value_kind(value), BERTH_KIND_TENSOR, "%s", error.message);
        cr_expect_eq(berth_as_tensor(value)->flags, 0);
    }
}

/* Records with names like those of a model's text, which say nothing of weights. */
Test(exported, what_is_no_text_of_a_model)
{
    static const char *const names[] = {CONFIG_OF(""), "data/samples/b_weights_config.json",
                                        "data/weights/b_weights_config.json2",
                                        "data/weights/a_record_with_a_name_as_long"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        save_program(WEIGHT("weight_0", GOOD), "pt2", names[i]);
        open_file("");
        cr_expect(berth_find_tensor(checkpoint, "w", &error), "%s: %s", names[i], error.message);
        close_opened();
    }
}

/* Where no record says that it is a program, one with weights is none. */
Test(exported, without_its_format)
{
    save_program(WEIGHT("weight_0", GOOD), "pt2", NULL);
    for (uint8_t *at; (at = memmem(file, file_nbytes, "archive_format", 14));)
        at[0] = 'A';
    cr_expect_eq(try_file(""), BERTH_E_NOT_CHECKPOINT, "%s", error.message);
}

Test(exported, of_two_models)
{
    save_program(WEIGHT("weight_0", GOOD), "pt2", CONFIG_OF("b"));
    open_file("");
    cr_expect(berth_find_tensor(checkpoint, "model.w", &error));
    cr_expect(berth_find_tensor(checkpoint, "b.w", &error));
}

static const struct {
    const char *text;
    int code;
    const char *says; /* part of the message */
} rows[] = {
    {"{", BERTH_E_ARCHIVE, "the list of weights: "},
    {"[]", BERTH_E_ARCHIVE, "the list of weights is no JSON object"},
    {"{}", BERTH_E_ARCHIVE, "the list of weights has no config"},
    {"{\"config\":[]}", BERTH_E_ARCHIVE, "the list of weights has no config"},
    {"{\"config\":{\"\\\"a\":[{},{},{},{},{},{},{},{}]}}", BERTH_E_ARCHIVE, "too many objects"},
    {ONE(ENTRY("1", "true", GOOD) "," ENTRY("1", "true", GOOD)), BERTH_E_ARCHIVE,
     "a key that the object has already"},
    {ONE("\"w\":1"), BERTH_E_UNSUPPORTED,
     "\"w\": a tensor subclass, which torch.export stores as a pickle"},
    {ONE("\"w\":{\"use_pickle\":true}"), BERTH_E_UNSUPPORTED, "\"w\": a tensor subclass"},
    {WEIGHT("weight_0", "\"tensor_meta\":null"), BERTH_E_ARCHIVE, "\"w\": it has no tensor_meta"},
    {WEIGHT("weight_0", "\"a\":1"), BERTH_E_ARCHIVE, "\"w\": it has no tensor_meta"},
    {WEIGHT("weight_0",
            "\"tensor_meta\":{\"dtype\":7,\"layout\":7,\"storage_offset\":" INT("0") "}"),
     BERTH_E_TENSOR, "are no numbers"},
    {WEIGHT("weight_0", "\"tensor_meta\":{\"dtype\":7,\"layout\":7,\"sizes\":2,\"strides\":1,"
                        "\"storage_offset\":" INT("0") "}"),
     BERTH_E_TENSOR, "are no numbers"},
    {OF("14", "7", "", "", INT("0")), BERTH_E_UNSUPPORTED, "\"w\": its dtype is not known"},
    {OF("99", "7", "", "", INT("0")), BERTH_E_UNSUPPORTED, "\"w\": its dtype is not known"},
    {OF("\"7\"", "7", "", "", INT("0")), BERTH_E_UNSUPPORTED, "\"w\": its dtype is not known"},
    {OF("7", "1", "", "", INT("0")), BERTH_E_UNSUPPORTED, "\"w\": it is no strided tensor"},
    {OF("7", "7", INT("-1"), INT("1"), INT("0")), BERTH_E_TENSOR, "are no numbers"},
    {OF("7", "7", "{\"as_expr\":{}}", INT("1"), INT("0")), BERTH_E_TENSOR, "are no numbers"},
    {OF("7", "7", "],\"sizes_\":[", "", "1"), BERTH_E_TENSOR, "are no numbers"},
    {OF("7", "7", INT("2"), "", INT("0")), BERTH_E_TENSOR, "are no numbers"},
    {OF("7", "7", INT("2"), INT("1"), INT("-1")), BERTH_E_TENSOR, "are no numbers"},
    {OF("7", "7", INT("7"), INT("1"), INT("0")), BERTH_E_TENSOR, "\"w\": "},
    {OF("7", "7", INT("6"), INT("1"), INT("1")), BERTH_E_TENSOR, "\"w\": "},
    {ONE("\"w\":{\"path_name\":\"weight_0\",\"use_pickle\":false,\"tensor_meta\":{\"dtype\":7,"
         "\"sizes\":[],\"strides\":[],\"storage_offset\":" INT(
             "0") ",\"layout\":7,\"device\":{\"type\":\"a device whose name is much too long\"}}}"),
     BERTH_E_UNSUPPORTED, "\"w\": its device has no name of PyTorch's"},
    {WEIGHT("weight_1", GOOD), BERTH_E_TENSOR, "does not hold a whole number of its elements"},
    {WEIGHT("weight_2", GOOD), BERTH_E_UNSUPPORTED, "the program was exported without weights"},
    {WEIGHT("weight_9", GOOD), BERTH_E_ARCHIVE, "\"w\": the archive does not hold its record"},
    {WEIGHT("../weights/weight_0", GOOD), BERTH_E_ARCHIVE, "does not hold its record"},
    {ONE(ENTRY("null", "true", GOOD)), BERTH_E_ARCHIVE, "does not hold its record"},
    {ONE(ENTRY("\"weight_0\"", "true",
               GOOD) ",\"v\":{\"path_name\":\"weight_0\",\"use_pickle\":false," META("4", "7", "",
                                                                                     "",
                                                                                     INT("0")) "}"),
     BERTH_E_TENSOR, "storage weights/weight_0 is of int32 here and of float32 before"},
};

Test(exported, what_is_wrong_is_refused_by_name)
{
    char long_text[2048];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        save_program(rows[i].text, "pt2", NULL);
        cr_expect_eq(try_file(""), rows[i].code, "row %zu: %s", i, error.message);
        cr_expect(strstr(error.message, rows[i].says), "row %zu: %s", i, error.message);
    }
    (void)snprintf(long_text, sizeof long_text, WEIGHT("%0600d", GOOD), 0);
    save_program(long_text, "pt2", NULL);
    cr_expect_eq(try_file(""), BERTH_E_ARCHIVE, "%s", error.message);
}

/* A device by its type alone, and none. */
Test(exported, devices)
{
    static const char meta[] =
        "\"w\":{\"path_name\":\"weight_0\",\"is_param\":false,\"use_pickle\":false,\"tensor_meta\":"
        "{\"dtype\":7,\"sizes\":[],\"strides\":[],\"storage_offset\":" INT("0") ",\"layout\":7%s}}";
    static const struct {
        const char *device, *location;
    } devices[] = {{",\"device\":{\"type\":\"mps\",\"index\":null}", "mps"},
                   {",\"device\":{\"index\":2}", "cpu:2"},
                   {"", "cpu"}};
    char entry[512], text[1024];

    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        (void)snprintf(entry, sizeof entry, meta, devices[i].device);
        (void)snprintf(text, sizeof text, ONE("%s"), entry);
        save_program(text, "pt2", NULL);
        open_file("");
        const berth_tensor *w = berth_find_tensor(checkpoint, "w", &error);
        cr_expect_str_eq(berth_storage_get_info(w->storage)->location, devices[i].location);
    }
}

/* Z10: the two records that are read while opening. */
Test(exported, a_record_with_other_bytes)
{
    static const char *const texts[] = {"pt2", "{\"config\":"};

    for (size_t i = 0; i < 2; i++) {
        save_program(WEIGHT("weight_0", GOOD), "pt2", NULL);
        uint8_t *at = memmem(file, file_nbytes, texts[i], strlen(texts[i]));
        at[0] ^= 1;
        cr_expect_eq(try_file(""), BERTH_E_CHECKSUM, "%s", error.message);
    }
}

/* A list that is longer than a tensor's rank can be. */
Test(exported, a_rank_above_the_largest)
{
    char sizes[2048] = "", text[8192];

    for (int i = 0; i <= BERTH_MAX_RANK; i++)
        strcat(sizes, i ? "," INT("1") : INT("1"));
    (void)snprintf(text, sizeof text, OF("7", "7", "%s", "%s", INT("0")), sizes, sizes);
    save_program(text, "pt2", NULL);
    cr_expect_eq(try_file(""), BERTH_E_TENSOR);
    cr_expect(strstr(error.message, "are no numbers"), "%s", error.message);
}

Test(exported, another_format)
{
    static const char *const formats[] = {"pt3", "pt22"};

    for (size_t i = 0; i < 2; i++) {
        save_program(WEIGHT("weight_0", GOOD), formats[i], NULL);
        cr_expect_eq(try_file(""), BERTH_E_UNSUPPORTED);
        cr_expect(strstr(error.message, "it does not say \"pt2\""), "%s", error.message);
    }
}

/* W6 */
Test(exported, every_failing_allocation_is_a_clean_error)
{
    enum { N = 300 };
    static char text[N * 400] = "{\"config\":{";
    size_t n = strlen(text);
    for (int i = 0; i < N; i++)
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s\"w%d\":{\"path_name\":\"weight_0\",\"is_param\":true,\"use_pickle\":false," GOOD
            "}",
            i ? "," : "", i);
    strcat(text, "}}");
    save_program(text, "pt2", CONFIG_OF("b"));
    expect_clean_failing_allocations("", 4);
    save_program("{\"config\":{}}", "pt2", NULL);
    expect_clean_failing_allocations("", 4);
}

/* W6: the name of a model, where it needs memory of its own. */
Test(exported, the_name_of_a_second_model_needs_memory)
{
    char config[2048];

    (void)snprintf(config, sizeof config, CONFIG_OF("%01500d"), 0);
    save_program(WEIGHT("weight_0", GOOD), "pt2", config);
    expect_clean_failing_allocations("", 4);
}

/* An archive that has every record. */
static bool find_any(const void *context, const char *record, uint64_t *nbytes)
{
    (void)context;
    *nbytes = sizeof bytes;
    return record != NULL;
}

/* What is no name of a record is asked for nowhere. */
Test(exported, names_that_no_record_has)
{
    static char json[2][1024];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *weights;

    (void)snprintf(json[0], sizeof *json, "%s", ONE(ENTRY("null", "true", GOOD)));
    (void)snprintf(json[1], sizeof *json, WEIGHT("%0600d", GOOD), 0);
    for (int i = 0; i < 2; i++) {
        const bth_exported_text text = {.bytes = (const uint8_t *)json[i],
                                        .nbytes = strlen(json[i]),
                                        .record = CONFIG_OF("model"),
                                        .find_record = find_any};
        bth_error_clear(&error);
        cr_expect_eq(bth_exported_read_weights(&text, tree, &weights, &error), BERTH_E_ARCHIVE);
        cr_expect(strstr(error.message, "does not hold its record"), "%d: %s", i, error.message);
    }
    berth_tree_free(tree);
}

/* Whether it is read where `taken` bytes of the tree's chunk are gone and no other can be had. */
static bool read_behind(size_t taken, const bth_exported_text *text)
{
    berth_value *weights;

    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    for (size_t i = 0; i < taken; i += 8)
        (void)bth_tree_allocate(tree, 8);
    test_memory_refuse(1, true);
    bth_error_clear(&error);
    int code = bth_exported_read_weights(text, tree, &weights, &error);
    bool refused = test_memory_refused();
    cr_expect_eq(code, refused ? BERTH_E_MEMORY : 0, "%zu: %s", taken, error.message);
    test_memory_refuse(0, false);
    berth_tree_free(tree);
    cr_expect_eq(test_memory_seen().live_nbytes, 0, "%zu", taken);
    test_memory_unwatch();
    return !refused;
}

/* W6: any value, key or storage can be the one that no longer fits. */
Test(exported, wherever_a_chunk_ends)
{
    static const char json[] = ONE(ENTRY("\"weight_0\"", "true", GOOD));
    const bth_exported_text text = {.bytes = (const uint8_t *)json,
                                    .nbytes = sizeof json - 1,
                                    .record = CONFIG_OF("model"),
                                    .find_record = find_any};
    size_t n_read = 0, n_tried = 0;

    for (size_t taken = 8; taken <= 2048; taken += 8, n_tried++)
        n_read += read_behind(taken, &text);
    cr_expect_gt(n_read, 0);
    cr_expect_gt(n_tried - n_read, 40);
}
