/* SPDX-License-Identifier: BSD-3-Clause */
/* S1 to S4: headers of safetensors files, good ones and each kind of wrong ones. */
#include <jansson.h>

#include "tests/support/load/archive.h"

TestSuite(safetensors_read, .init = begin_sample, .fini = end_sample);

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define TWO_BYTES T("\"U8\"", "[2]", "0", "2")

/* The file of a header and so many bytes. */
static void make_file(const char *header, uint64_t announced_nbytes, size_t data_nbytes)
{
    size_t n = strlen(header);

    file_nbytes = 8 + n + data_nbytes;
    free(file);
    file = calloc(1, file_nbytes);
    for (size_t i = 0; i < 8; i++)
        file[i] = (uint8_t)(announced_nbytes >> 8 * i);
    memcpy(file + 8, header, n);
}

static const struct {
    const char *header;
    size_t data_nbytes;
    const char *says; /* part of the message; NULL: it opens */
} rows[] = {
    {"{}", 0, NULL},
    {"{\"a\":" TWO_BYTES "}", 2, NULL},
    {"{\"\\\"\\u0061{\":" TWO_BYTES "}", 2, NULL},
    {"{\"__metadata__\":null,\"a\":" TWO_BYTES "}", 2, NULL},
    {"{\"__metadata__\":{\"b\":\"a\",\"a\":\"a\",\"c\":\"no\",\"format\":\"a\"},\"a\":" TWO_BYTES
     "}",
     2, NULL},
    {"{\"a\":" T("\"F4\"", "[3,2]", "0", "3") "}", 3, NULL},
    {"{\"b\":" T("\"U8\"", "[0]", "0", "0") ",\"a\":" TWO_BYTES
                                            ",\"c\":" T("\"U8\"", "[0]", "0", "0") "}",
     2, NULL},
    {"{\"a\":" T("\"U8\"", "[0]", "0", "0") ",\"b\":" TWO_BYTES "}", 2, NULL},
    {"{\"b\":" T("\"U8\"", "[2]", "2", "4") ",\"a\":" TWO_BYTES "}", 4, NULL},
    {"{\"a\":", 0, "the safetensors header: it ends too early"},
    {"{\"a\":[{},{},{},{},{},{},{},{}]}", 0, "has too many objects for its length"},
    {"{\"a\":" TWO_BYTES ",\"a\":" TWO_BYTES "}", 2, "a key that the object has already"},
    {"{\"__metadata__\":[]}", 0, "\"__metadata__\": it is no map of texts"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "\"__metadata__\": it is no map of texts"},
    {"{\"a\":1}", 0, "\"a\": it has no dtype"},
    {"{\"a\":" T("\"U8\"", "[-0,2]", "0", "0") "}", 0,
     "at byte 36: the safetensors header: a size or an offset with a minus sign"},
    {"{\"-0\\\"-0\":" TWO_BYTES "}", 2, NULL},
    {"{\"abc\":-", 0, "the safetensors header: "},
    {"{\"a\":1}x", 0, "the safetensors header: more follows its end"},
    {"{\"a\\u0000\":1}", 0, "the safetensors header: a NUL in a text"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "the safetensors header: a NUL in a text"},
    {"{\"\xff\":1}", 0, "the safetensors header: a text that is not UTF-8"},
    {"{\"a\":99999999999999999999}", 0, "the safetensors header: a number that is too large"},
    {"{\"a\":x}", 0, "the safetensors header: this is not JSON"},
    {"{\"a\":" T("\"U9\"", "[2]", "0", "2") "}", 2, "\"a\": PyTorch has no dtype for 'U9'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, "its data_offsets are no two integers"},
    {"{\"a\":" T("\"U8\"", "[2]", "0", "2,2") "}", 2, "its data_offsets are no two integers"},
    {"{\"a\":" T("\"U8\"", "[2]", "0.0", "2") "}", 2, "its data_offsets are no two integers"},
    {"{\"a\":" T("\"U8\"", "[2]", "0", "\"2\"") "}", 2, "its data_offsets are no two integers"},
    {"{\"a\":" T("\"U8\"", "[2]", "-1", "1") "}", 2, "its data_offsets are no range"},
    {"{\"a\":" T("\"U8\"", "[2]", "2", "0") "}", 2, "its data_offsets are no range"},
    {"{\"a\":" T("\"U8\"", "[2]", "0", "3") "}", 2,
     "\"a\": it ends 1 bytes behind the end of the file: a download or a save in place that did "
     "not end?"},
    {"{\"a\":" T("\"U8\"", "2", "0", "2") "}", 2, "its shape is no list of at most 64 sizes"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2,
     "its shape is no list of at most 64 sizes"},
    {"{\"a\":" T("\"U8\"", "[-2]", "0", "2") "}", 2, "its shape is no list of at most 64 sizes"},
    {"{\"a\":" T("\"U8\"", "[2.0]", "0", "2") "}", 2, "its shape is no list of at most 64 sizes"},
    {"{\"a\":" T("\"F4\"", "[]", "0", "2") "}", 2, "its last dimension must be even"},
    {"{\"a\":" T("\"F4\"", "[3]", "0", "2") "}", 2, "its last dimension must be even"},
    {"{\"a\":" T("\"F6_E2M3\"", "[2,8]", "0", "12") "}", 12, NULL},
    {"{\"a\":" T("\"F6_E3M2\"", "[0,4]", "0", "0") "}", 0, NULL},
    {"{\"a\":" T("\"F6_E3M2\"", "[4]", "0", "4") "}", 4, "do not fit its number of bytes"},
    {"{\"a\":" T("\"F6_E3M2\"", "[4,2]", "0", "6") "}", 6, "must be a multiple of 4"},
    {"{\"a\":" T("\"F6_E3M2\"", "[]", "0", "3") "}", 3, "must be a multiple of 4"},
    {"{\"a\":" T("\"U8\"", "[3]", "0", "2") "}", 2, "do not fit its number of bytes"},
    {"{\"a\":" T("\"U8\"", "[4611686018427387904,4]", "0", "0") "}", 0,
     "do not fit its number of bytes"},
    {"{\"a\":" TWO_BYTES ",\"b\":" T("\"U8\"", "[2]", "3", "5") "}", 5,
     "\"b\": it overlaps another tensor, or follows a gap"},
    {"{\"a\":" TWO_BYTES ",\"b\":" TWO_BYTES "}", 2,
     "\"b\": it overlaps another tensor, or follows a gap"},
    {"{\"a\":" TWO_BYTES "}", 3, "1 bytes follow the last tensor"},
};

Test(safetensors_read, each_header)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make_file(rows[i].header, strlen(rows[i].header), rows[i].data_nbytes);
        int code = try_file("");
        cr_expect_eq(code < 0, rows[i].says != NULL, "row %zu: %s", i, error.message);
        cr_expect(!rows[i].says || strstr(error.message, rows[i].says), "row %zu: %s", i,
                  error.message);
    }
}

Test(safetensors_read, lists_too_deep_in_each_other)
{
    char header[5000] = "{\"a\":";

    memset(header + strlen(header), '[', 4000);
    make_file(header, strlen(header), 0);
    cr_expect_lt(try_file(""), 0);
    cr_expect(strstr(error.message, "header: too many objects and lists in each other"), "%s",
              error.message);
}

Test(safetensors_read, a_rank_above_the_largest)
{
    char sizes[BERTH_MAX_RANK * 2 + 8] = "1", header[512];

    for (int i = 0; i < BERTH_MAX_RANK; i++)
        strcat(sizes, ",1");
    (void)snprintf(header, sizeof header, "{\"a\":" T("\"U8\"", "[%s]", "0", "1") "}", sizes);
    make_file(header, strlen(header), 1);
    cr_expect_eq(try_file(""), BERTH_E_TENSOR);
    cr_expect(strstr(error.message, "its shape is no list of at most 64 sizes"), "%s",
              error.message);
}

Test(safetensors_read, lengths)
{
    make_file("{}", 100, 0);
    expect_failure("", BERTH_E_TRUNCATED,
                   "memory: at byte 0: a safetensors header of 100 bytes in a file of 10: a "
                   "download or a save in place that did not end?");
    make_file("{}", 100000001, 0);
    expect_failure(
        "", BERTH_E_UNSUPPORTED,
        "memory: at byte 0: a safetensors header of 100000001 bytes: the format allows 100000000");
}

/* A length that no header has is the beginning of something else. */
Test(safetensors_read, lengths_that_are_none)
{
    static const uint64_t lengths[] = {0, 1, (uint64_t)UINT32_MAX + 1, UINT64_MAX};

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        make_file("{}", lengths[i], 0);
        cr_expect_eq(try_file(""), BERTH_E_NOT_CHECKPOINT, "%zu: %s", i, error.message);
    }
    make_file("{}", UINT32_MAX, 0);
    cr_expect_eq(try_file(""), BERTH_E_UNSUPPORTED, "%s", error.message);
}

static int n_reads_left;

static int read_some(void *bytes, void *buffer, size_t nbytes, uint64_t offset)
{
    if (n_reads_left-- == 0)
        return -1;
    memcpy(buffer, (const uint8_t *)bytes + offset, nbytes);
    return 0;
}

/* F5: a header that is longer than the head takes a second read. */
Test(safetensors_read, every_failing_read_is_a_clean_error)
{
    static char header[10000] = "{\"a\":" TWO_BYTES "}";
    int n = 0;

    memset(header + strlen(header), ' ', sizeof header - 1 - strlen(header));
    make_file(header, strlen(header), 2);
    const berth_source source = {.nbytes = file_nbytes, .read = read_some, .context = file};
    for (bool failed = true; failed; n++) {
        n_reads_left = n;
        failed = berth_open_source(&source, only("load.head_nbytes=4096", NULL), &checkpoint,
                                   &error) < 0;
        cr_expect_eq(error.code, failed ? BERTH_E_CALLBACK : 0, "%s", error.message);
        close_opened();
    }
    cr_expect_geq(n, 3);
}

Test(safetensors_read, has_no_records)
{
    berth_archive *archive = NULL;

    make_file("{}", 2, 0);
    FAILS_SAYING(berth_archive_open(FROM_MEMORY(file, file_nbytes), NULL, &archive, NULL, &error),
                 BERTH_E_NOT_CHECKPOINT, "safetensors");
}

static int n_json_left;

static void *refuse_json(size_t nbytes)
{
    return n_json_left-- == 0 ? NULL : malloc(nbytes);
}

/* W6, of the parser's own allocations; some of them it takes for an error of the text. */
Test(safetensors_read, every_failing_allocation_of_the_parser_is_a_clean_error)
{
    int n = 0, n_memory = 0;

    make_file(rows[4].header, strlen(rows[4].header), 2);
    json_set_alloc_funcs(refuse_json, free);
    for (bool refused = true; refused; n++) {
        n_json_left = n;
        int code = try_file("");
        const char *said = strstr(error.message, "header: ");
        refused = n_json_left < 0;
        n_memory += code == BERTH_E_MEMORY;
        cr_expect(code == (refused ? BERTH_E_MEMORY : 0) ||
                      (code == BERTH_E_ARCHIVE && said && said[sizeof "header: " - 1]),
                  "allocation %d: %s", n, error.message);
        close_opened();
    }
    json_set_alloc_funcs(malloc, free);
    cr_expect_gt(n, 10);
    cr_expect_gt(n_memory, 0);
}

/* S4: what no remark looks like; and only for load.tied_names=rule. */
Test(safetensors_read, ties_by_rule)
{
    static const struct {
        const char *name, *other;
        size_t n_off, n_rule, n_all;
    } texts[] = {
        {"lm_head.weight", "embed.weight", 1, 2, 2},
        {"best_layer", "weight", 1, 1, 2},
        {"b", "a", 1, 1, 2},
        {"best.weight", "weight", 1, 1, 2},
        {"zbest", "a.weight", 1, 1, 2},
        {"a.weight", "b.weight", 1, 1, 2},
        {"b.bias", "a.weight", 1, 1, 2},
        {"format", "a.format", 1, 1, 1},
        {"a.weight", "a.weight", 1, 1, 1},
        {"b.weight", "c.weight no tensor", 0, 0, 0},
    };
    char header[200];

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bool is_there = texts[i].n_off > 0;
        (void)snprintf(header, sizeof header, "{\"__metadata__\":{\"%s\":\"%s\"}%s%s%s}",
                       texts[i].name, texts[i].other, is_there ? ",\"" : "",
                       is_there ? texts[i].other : "",
                       is_there ? "\":" T("\"U8\"", "[2]", "0", "2") : "");
        make_file(header, strlen(header), is_there ? 2 : 0);
        const size_t n[] = {texts[i].n_off, texts[i].n_off, texts[i].n_rule, texts[i].n_all};
        static const char *const options[] = {"", "load.tied_names=off", "load.tied_names=rule",
                                              "load.tied_names=all"};
        for (size_t k = 0; k < sizeof n / sizeof *n; k++) {
            open_file(options[k]);
            cr_expect_eq(berth_value_count(berth_root(checkpoint)), n[k], "%s, %s", header,
                         options[k]);
            close_opened();
        }
    }
}

/* A text of __metadata__ ties a name only to a tensor, and only if no tensor has the name. */
Test(safetensors_read, ties)
{
    berth_info info;

    make_file(rows[4].header, strlen(rows[4].header), 2);
    open_file("load.check=data debug=on load.tied_names=all");
    cr_expect_eq(berth_value_count(berth_root(checkpoint)), 2);
    cr_expect_eq(berth_find_tensor(checkpoint, "a", &error)->storage,
                 berth_find_tensor(checkpoint, "b", &error)->storage);
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_eq(berth_value_count(info.metadata), 4);
}

/* W6 */
Test(safetensors_read, every_failing_allocation_is_a_clean_error)
{
    enum { N = 400 };
    static char text[N * 100] = "{\"__metadata__\":{\"format\":\"pt\"";
    for (int i = 0; i < N; i++)
        (void)snprintf(text + strlen(text), 100, ",\"x%d\":\"w0\"", i);
    strcat(text, "}");
    for (int i = 0; i < N; i++)
        (void)snprintf(text + strlen(text), 100, ",\"w%d\":" T("\"U8\"", "[0]", "0", "0"), i);
    strcat(text, "}");
    make_file(text, strlen(text), 0);
    expect_clean_failing_allocations("load.tied_names=all", 4);
    make_file("{\"__metadata__\":{}}", 19, 0);
    expect_clean_failing_allocations("", 4);
}
