/* SPDX-License-Identifier: BSD-3-Clause */
/* Z12: files whose storages are deflated, as `zip -r` makes them. */
#include <errno.h>
#include <zlib.h>

#include "tests/simulated/simulated.h"
#include "tests/support/format/zip_builder.h"
#include "tests/support/load/archive.h"
#include "tests/support/support.h"

#define LARGE_NBYTES ((size_t)8 << 20)
#define REPACKED                                                                                   \
    "repacked: readers that calculate offsets misread this file; `berth convert` mends it"

/* Raw deflate, malloc's. */
static void *deflate_bytes(const void *bytes, size_t nbytes, size_t *deflated_nbytes)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)nbytes};

    cr_assert_eq(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    *deflated_nbytes = deflateBound(&stream, nbytes);
    stream.next_out = malloc(*deflated_nbytes);
    void *deflated = stream.next_out;
    stream.avail_out = (uInt)*deflated_nbytes;
    cr_assert_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *deflated_nbytes = stream.total_out;
    deflateEnd(&stream);
    return deflated;
}

static test_entry deflated_entry(const char *name, const struct record *record)
{
    size_t nbytes;
    void *bytes = deflate_bytes(record->bytes, record->nbytes, &nbytes);
    test_entry entry = test_stored(name, bytes, nbytes);

    entry.method = BTH_ZIP_DEFLATED;
    entry.local_size = entry.size = (uint32_t)record->nbytes;
    entry.local_crc32 = entry.crc32 = bth_crc32(0, record->bytes, record->nbytes);
    return entry;
}

/* The records of the sample, zipped again: those that begin with `prefix` are deflated. Where in
 * the file each has its data is kept. */
static size_t data_at[MAX_RECORDS];

static void zip_again(const char *prefix)
{
    char names[MAX_RECORDS][64];
    test_entry entries[MAX_RECORDS];
    bool is_deflated[MAX_RECORDS];

    for (size_t i = 0; i < sample.n; i++) {
        const struct record *record = &sample.records[i];
        (void)snprintf(names[i], sizeof names[i], "sample/%s", record->name);
        is_deflated[i] = strncmp(record->name, prefix, strlen(prefix)) == 0;
        entries[i] = is_deflated[i] ? deflated_entry(names[i], record)
                                    : test_stored(names[i], record->bytes, record->nbytes);
    }
    test_zip zip = test_zip_new_foreign(entries, sample.n);
    free(file);
    file = memcpy(malloc(zip.nbytes), zip.bytes, zip.nbytes);
    file_nbytes = zip.nbytes;
    for (size_t i = 0; i < sample.n; i++) {
        data_at[i] = zip.data_at[i];
        if (is_deflated[i])
            free((void *)(uintptr_t)entries[i].data);
    }
    test_zip_free(&zip);
}

static size_t data_of_record(const char *name)
{
    return data_at[find_record(name) - sample.records];
}

static void begin_deflated(void)
{
    begin_sample();
    zip_again("data/");
}

TestSuite(deflated, .init = begin_deflated, .fini = end_sample);

/* A storage of 8 MiB of zeros, and two that are small; deflated. */
static void begin_large(void)
{
    static uint8_t zeros[LARGE_NBYTES];
    static const uint8_t few[1000] = {1, 2, 3};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);

    berth_dict_set(root, "large", test_vector(tree, BERTH_UINT8, zeros, LARGE_NBYTES));
    berth_dict_set(root, "few", test_vector(tree, BERTH_UINT8, few, sizeof few));
    berth_dict_set(root, "more", test_vector(tree, BERTH_UINT8, few + 1, sizeof few - 1));
    begin_records(tree, root, "little");
    add_record("data/0", zeros, sizeof zeros);
    add_record("data/1", few, sizeof few);
    add_record("data/2", few + 1, sizeof few - 1);
    zip_again("data/");
}

static const berth_tensor *tensor_named(const char *name)
{
    return berth_find_tensor(checkpoint, name, NULL);
}

static void expect_error(int code, const char *message)
{
    cr_expect_eq(error.code, code);
    cr_expect_str_eq(error.message, message, "says\n  %s\ninstead of\n  %s", error.message,
                     message);
}

/* ---- what can be read ---- */

Test(deflated, storages_are_inflated_when_they_are_asked_for)
{
    static const char *const options[] = {"",
                                          "load.check=none",
                                          "load.check=headers",
                                          "load.check=data",
                                          "load.calculate_storage_offsets=off",
                                          "load.method=map",
                                          "load.method=direct",
                                          "load.mmap=off io.threads=1",
                                          "load.prefetch=populate"};
    static const char *const which[] = {"data/", "data", "data/1", ""};

    for (size_t k = 0; k < sizeof which / sizeof *which; k++) {
        zip_again(which[k]);
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            berth_storage_stats stats;
            berth_info info;
            open_file(options[i]);
            assert_ok(berth_get_info(checkpoint, &info, &error));
            cr_expect_eq(info.n_deflated, k == 2 ? 1 : N_SAMPLE_STORAGES, "%s", options[i]);
            cr_expect(info.repacked && !info.calculated_offsets);
            expect_sample_values();
            cr_assert_not_null(data_of("bias"));
            assert_ok(
                berth_storage_get_stats(checkpoint, tensor_named("bias")->storage, &stats, &error));
            cr_expect_str_eq(stats.method, "read");
            cr_expect_str_eq(stats.reason, "it is deflated");
            cr_expect_eq(stats.crc32, BERTH_CRC_GOOD, "%s", options[i]);
        }
    }
}

Test(deflated, all_of_them_are_loaded_at_once)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4", "load.check=data"};

    for (size_t i = 0; i < 3; i++) {
        berth_stats stats;
        open_file("");
        assert_ok(berth_load(checkpoint, NULL, only(options[i], &stats), &error));
        cr_expect_eq(stats.n_storages, N_SAMPLE_STORAGES);
        expect_floats("weight", sample_weight, 6);
        expect_sample_values();
    }
}

/* T5 */
Test(deflated, storages_of_the_other_byte_order_are_swapped)
{
    set_text("byteorder", OTHER_BYTEORDER);
    zip_again("data/");
    open_file("");
    const uint16_t *words = data_of("words");
    cr_assert_not_null(words);
    cr_expect_eq(words[0], 256);
    cr_expect_eq(words[1], 65535);
    uint16_t read[2];
    open_file("");
    assert_ok(berth_tensor_read(checkpoint, tensor_named("words"), 0, 2, read, &error));
    cr_expect_eq(read[0], 256);
    open_file("");
    assert_ok(berth_tensor_read(checkpoint, tensor_named("words"), 1, 1, read, &error));
    cr_expect_eq(read[0], 65535);
    open_file("");
    berth_destination into = {
        .tensor = tensor_named("words"), .address = read, .nbytes = sizeof read};
    assert_ok(berth_load_into(checkpoint, &into, 1, NULL, &error));
    cr_expect_eq(read[0], 256);
}

/* T1: FORMAT.md 6 */
Test(deflated, a_record_may_be_longer_than_its_elements)
{
    uint8_t longer[25] = {0};

    memcpy(longer, sample_bias, sizeof sample_bias);
    longer[24] = 7;
    set_record("data/1", longer, sizeof longer);
    for (int i = 0; i < 2; i++) {
        zip_again(i == 0 ? "data/" : "data/1");
        open_file(i == 0 ? "" : "load.check=data");
        expect_sample_values();
        cr_expect_eq(try_file("debug=on"), BERTH_E_OFFSETS);
    }
}

Test(deflated, an_empty_one_is_no_work)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);

    berth_dict_set(root, "none", test_vector(tree, BERTH_UINT8, "", 0));
    begin_records(tree, root, "little");
    add_record("data/0", "", 0);
    zip_again("data/");
    open_file("load.check=data");
    cr_expect_not_null(data_of("none"));
    cr_expect_eq(
        berth_verify(FROM_MEMORY(file, file_nbytes), only("", NULL), NULL, NULL, NULL, &error), 0);
}

/* ---- parts ---- */

Test(deflated, a_part_loads_the_storage)
{
    static const int64_t starts[] = {1, 0}, lengths[] = {1, 2};
    float read[2];
    int64_t bias[2];

    open_file("");
    assert_ok(
        berth_tensor_read_slice(checkpoint, tensor_named("weight"), starts, lengths, read, &error));
    cr_expect_arr_eq(read, ((float[]){3, 4}), sizeof read);
    assert_ok(berth_tensor_read(checkpoint, tensor_named("bias"), 1, 2, bias, &error));
    cr_expect_arr_eq(bias, sample_bias + 1, sizeof bias);
    char expected[300];
    open_file("io.memory_nbytes=1");
    cr_expect_eq(berth_tensor_read(checkpoint, tensor_named("bias"), 1, 2, bias, &error),
                 BERTH_E_MEMORY);
    (void)snprintf(expected, sizeof expected,
                   "memory: \"bias\": data/1 at byte %zu: io.memory_nbytes=1 is too small to "
                   "inflate its 24 bytes, beside 0 bytes of other storages: 23 are missing",
                   data_of_record("data/1"));
    expect_error(BERTH_E_MEMORY, expected);
}

Test(deflated, whole_ones_go_straight_to_the_callers_memory)
{
    static const char *const options[] = {"", "load.check=data", "io.threads=1", "load.method=map"};
    float weight[6];
    int64_t bias[3];

    for (size_t i = 0; i < 4; i++) {
        open_file("io.memory_nbytes=1");
        berth_destination into[] = {
            {.tensor = tensor_named("bias"), .address = bias, .nbytes = sizeof bias},
            {.tensor = tensor_named("weight"), .address = weight, .nbytes = sizeof weight}};
        assert_ok(berth_load_into(checkpoint, into, 2, only(options[i], NULL), &error));
        cr_expect_arr_eq(weight, sample_weight, sizeof weight);
        cr_expect_arr_eq(bias, sample_bias, sizeof bias);
        memset(bias, 0, sizeof bias);
        assert_ok(berth_tensor_read(checkpoint, tensor_named("bias"), 0, 3, bias, &error));
        cr_expect_arr_eq(bias, sample_bias, sizeof bias);
    }
}

Test(deflated, records_of_an_archive_are_read_in_parts)
{
    berth_archive *archive;
    berth_record record;
    uint8_t read[24];

    assert_ok(berth_archive_open(FROM_MEMORY(file, file_nbytes), only("", NULL), &archive, &error));
    assert_ok(berth_archive_find(archive, "data/1", &record, &error));
    cr_expect_eq(record.method, 8);
    for (size_t from = 0; from <= 24; from++)
        for (size_t to = from; to <= 24; to++) {
            memset(read, 0x5a, sizeof read);
            assert_ok(berth_archive_read(archive, &record, read, to - from, from, &error));
            cr_expect_arr_eq(read, (const uint8_t *)sample_bias + from, to - from);
            cr_expect(to - from == 24 || read[to - from] == 0x5a);
        }
    berth_archive_close(archive);
}

/* ---- what is refused ---- */

Test(deflated, opening_inflates_nothing)
{
    begin_large();
    test_memory_watch();
    berth_stats stats;
    berth_info info;
    assert_ok(
        berth_open_source(FROM_MEMORY(file, file_nbytes), only("", &stats), &checkpoint, &error));
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_eq(info.storages_nbytes, LARGE_NBYTES + 1999);
    cr_expect_eq(berth_tensor_count(checkpoint), 3);
    berth_named_tensor named;
    assert_ok(berth_tensor_at(checkpoint, 0, &named, &error));
    cr_expect_eq(named.offset, BERTH_NO_OFFSET);
    cr_expect_lt(test_memory_seen().largest_nbytes, LARGE_NBYTES / 8);
    assert_ok(berth_verify(FROM_MEMORY(file, file_nbytes), only("io.threads=1", NULL), NULL, NULL,
                           NULL, &error));
    cr_expect_lt(test_memory_seen().largest_nbytes, LARGE_NBYTES / 8);
    cr_expect_not_null(data_of("large"));
    close_opened();
    test_memory_unwatch();
}

Test(deflated, inflating_can_be_turned_off)
{
    static const char says[] = "it is deflated: load.inflate=on inflates it, and `berth convert` "
                               "writes a file where it is not";
    int64_t bias[3];
    char expected[300];

    open_file("load.inflate=off");
    cr_expect_eq(berth_tensor_count(checkpoint), 3);
    (void)snprintf(expected, sizeof expected, "memory: \"bias\": data/1 at byte %zu: %s",
                   data_of_record("data/1"), says);
    cr_expect_null(data_of("bias"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    cr_expect_eq(berth_tensor_read(checkpoint, tensor_named("bias"), 0, 3, bias, &error),
                 BERTH_E_UNSUPPORTED);
    expect_error(BERTH_E_UNSUPPORTED, expected);
    berth_destination into = {
        .tensor = tensor_named("bias"), .address = bias, .nbytes = sizeof bias};
    cr_expect_eq(berth_load_into(checkpoint, &into, 1, NULL, &error), BERTH_E_UNSUPPORTED);
    expect_error(BERTH_E_UNSUPPORTED, expected);
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_UNSUPPORTED);
    berth_archive *archive;
    berth_record record;
    assert_ok(berth_archive_open(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL),
                                 &archive, &error));
    assert_ok(berth_archive_find(archive, "data/1", &record, &error));
    cr_expect_eq(berth_archive_read(archive, &record, bias, 8, 0, &error), BERTH_E_UNSUPPORTED);
    (void)snprintf(expected, sizeof expected,
                   "memory: data/1 at byte %zu: it is deflated: load.inflate=on inflates it",
                   data_of_record("data/1"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    berth_archive_close(archive);
    assert_ok(berth_verify(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL), NULL,
                           NULL, NULL, &error));
}

Test(deflated, memory_nbytes_limits_what_a_checkpoint_inflates)
{
    char expected[300];

    begin_large();
    open_file("io.memory_nbytes=1500");
    cr_expect_not_null(data_of("few"));
    cr_expect_null(data_of("more"));
    (void)snprintf(expected, sizeof expected,
                   "memory: \"more\": data/2 at byte %zu: io.memory_nbytes=1500 is too small to "
                   "inflate its 999 bytes, beside 1000 bytes of other storages: 499 are missing",
                   data_of_record("data/2"));
    expect_error(BERTH_E_MEMORY, expected);
    cr_expect_null(data_of("large"));
    expect_error(BERTH_E_MEMORY, error.message);
    cr_expect_eq(berth_load(checkpoint, NULL, only("io.memory_nbytes=1500", NULL), &error),
                 BERTH_E_MEMORY);
    assert_ok(berth_load(checkpoint, NULL, only("io.memory_nbytes=9000000", NULL), &error));
    cr_expect_not_null(data_of("large"), "it was loaded");
}

/* What failed does not count. */
Test(deflated, a_failed_load_gives_its_memory_back)
{
    begin_large();
    open_file("io.memory_nbytes=8389000");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(berth_load(checkpoint, NULL, only("io.memory_nbytes=8389000", NULL), &error),
                     BERTH_E_MEMORY);
    file[data_of_record("data/1")] ^= 7;
    for (int i = 0; i < 20; i++)
        cr_expect_null(data_of("few"));
    cr_expect_eq(error.code, BERTH_E_ARCHIVE, "%s", error.message);
    cr_expect_not_null(data_of("large"), "%s", error.message);
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    uint64_t *at = context;

    cr_expect_leq(done_nbytes, total_nbytes);
    return done_nbytes >= *at;
}

Test(deflated, a_load_can_be_cancelled)
{
    uint64_t at = 0;
    berth_params params = {.progress = cancel, .progress_context = &at};

    begin_large();
    open_file("");
    cr_expect_eq(berth_load(checkpoint, NULL, &params, &error), BERTH_E_CANCELLED);
    at = UINT64_MAX;
    assert_ok(berth_load(checkpoint, NULL, &params, &error));
}

Test(deflated, rows_of_one_are_refused_with_a_way_out)
{
    static const berth_rows_limits limits = {.cache_nbytes = 65536};
    berth_rows *rows = NULL;
    size_t table;
    char expected[300];

    open_file("");
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    cr_expect_eq(berth_rows_add(rows, checkpoint, tensor_named("weight"), &table, &error),
                 BERTH_E_UNSUPPORTED);
    (void)snprintf(expected, sizeof expected,
                   "memory: \"weight\": data/0 at byte %zu: it is deflated: its rows cannot be "
                   "read one by one; `berth convert` writes a file where it is not",
                   data_of_record("data/0"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    berth_rows_free(rows);
}

Test(deflated, a_device_is_refused_with_a_way_out)
{
    static const berth_storage_rule to_device = {.device = "simulated:0"};
    char expected[400];

    bth_simulated_set(NULL);
    open_file("");
    assert_ok(berth_set_storage_rules(checkpoint, &to_device, 1, &error));
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_UNSUPPORTED);
    (void)snprintf(
        expected, sizeof expected,
        "memory: \"weight\": data/0 at byte %zu: it is deflated: it cannot be loaded to a "
        "device: load it to the host, and copy it from there; `berth convert` writes a "
        "file where it is not",
        data_of_record("data/0"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    cr_expect_null(data_of("weight"));
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
}

/* Z13 */
Test(deflated, debug_mode_and_refuse_refuse_them)
{
    static const char *const which[] = {"data/", "data/2"};

    for (size_t i = 0; i < 2; i++) {
        zip_again(which[i]);
        cr_expect_eq(try_file("debug=on"), BERTH_E_OFFSETS);
        cr_expect_eq(try_file("load.repacked=refuse"), BERTH_E_OFFSETS);
    }
}

/* ---- damage ---- */

/* Z10 */
Test(deflated, the_crc_is_always_compared)
{
    char expected[300];
    uint8_t *entry;

    entry = find_entry("data/1");
    entry[CENTRAL_CRC] ^= 1;
    file[data_of_record("data/1") - strlen("sample/data/1") - 30 + LOCAL_CRC] ^= 1;
    open_file("");
    cr_expect_null(data_of("bias"));
    (void)snprintf(expected, sizeof expected,
                   "memory: \"bias\": data/1 at byte %zu: its bytes have CRC 0x%08lx, the "
                   "directory says 0x%08lx",
                   data_of_record("data/1"), (unsigned long)bth_crc32(0, sample_bias, 24),
                   (unsigned long)bth_crc32(0, sample_bias, 24) ^ 1);
    expect_error(BERTH_E_CHECKSUM, expected);
    expect_floats("weight", sample_weight, 6);
}

struct verdicts {
    int n_bad;
    char bad[3][700];
};

static void keep_verdict(void *context, const berth_record_verdict *record)
{
    struct verdicts *verdicts = context;

    if (record->bad && verdicts->n_bad < 3)
        (void)snprintf(verdicts->bad[verdicts->n_bad++], 700, "%s", record->bad->message);
}

Test(deflated, verify_sums_all_of_them_and_reports_each_bad_one)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4", "io.memory_nbytes=65536"};

    file[data_of_record("data/0")] ^= 0x06; /* another kind of block */
    file[data_of_record("data/2")] ^= 0x06;
    for (size_t i = 0; i < 3; i++) {
        struct verdicts verdicts = {0};
        berth_verdict verdict;
        char expected[100];
        cr_expect_eq(berth_verify(FROM_MEMORY(file, file_nbytes), only(options[i], NULL),
                                  keep_verdict, &verdicts, &verdict, &error),
                     BERTH_E_ARCHIVE);
        cr_expect_eq(verdict.n_records, sample.n);
        cr_expect_eq(verdict.n_bad, 2);
        cr_expect_eq(verdict.n_verified, sample.n - 2);
        (void)snprintf(expected, sizeof expected, "data/0 at byte %zu: cannot be inflated",
                       data_of_record("data/0"));
        cr_expect_eq(strncmp(verdicts.bad[0], "data/0 at byte ", 15), 0, "%s", verdicts.bad[0]);
        cr_expect_eq(strncmp(verdicts.bad[1], "data/2 at byte ", 15), 0, "%s", verdicts.bad[1]);
    }
}

/* The source ends, or cannot be read, in the middle of one. */
static size_t broken_from;

static int read_until_broken(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    if (offset + nbytes > broken_from)
        return EIO;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static berth_source broken_at(size_t from)
{
    broken_from = from;
    return (berth_source){.nbytes = file_nbytes, .name = "broken", .read = read_until_broken};
}

Test(deflated, a_read_that_fails_names_the_record)
{
    berth_source source = broken_at(SIZE_MAX);

    assert_ok(berth_open_source(&source, only("", NULL), &checkpoint, &error));
    broken_from = 0;
    cr_expect_null(data_of("bias"));
    cr_expect_eq(error.code, BERTH_E_CALLBACK);
    cr_expect_eq(strncmp(error.message, "broken: \"bias\": data/1 at byte ", 31), 0, "%s",
                 error.message);
    broken_from = SIZE_MAX;
    expect_sample_values();
}

/* W6: each allocation fails once. */
Test(deflated, memory_that_is_missing_is_an_error)
{
    uint64_t nth = 0;
    const void *bias = NULL;

    test_memory_watch();
    while (!bias && nth++ < 100) {
        open_file("");
        const berth_tensor *tensor = tensor_named("bias");
        test_memory_refuse(nth, false);
        bias = berth_tensor_data(checkpoint, tensor, &error);
        test_memory_refuse(UINT64_MAX, false);
        cr_expect(bias || error.code == BERTH_E_MEMORY, "%s", error.message);
    }
    cr_expect_geq(nth, 5, "%llu", (unsigned long long)nth);
    cr_expect_arr_eq(bias, sample_bias, sizeof sample_bias);
    close_opened();
    test_memory_unwatch();
}

/* ---- from a file ---- */

static void begin_deflated_file(void)
{
    begin_sample_file();
    zip_again("data/1");
    test_write_file(path, file, file_nbytes);
}

/* The file's bytes of a deflated one are not its elements: a prefetch leaves it out. */
Test(deflated_file, a_prefetch_leaves_it_out, .init = begin_deflated_file, .fini = end_sample_file)
{
    static const char *const options[] = {"debug=off load.method=map", "debug=off load.mmap=off"};
    static const berth_selection bias = {.pattern = "bias"};
    berth_prefetch_stats stats;
    berth_prefetch *prefetch;

    for (size_t i = 0; i < 2; i++) {
        open_as(options[i]);
        assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
        assert_ok(berth_prefetch_advance(prefetch, tensor_named("bias"), 0, -1, &error));
        assert_ok(berth_prefetch_wait(prefetch, &error));
        assert_ok(berth_prefetch_get_stats(prefetch, &stats, &error));
        cr_expect_gt(stats.requested_nbytes, 0);
        berth_prefetch_free(prefetch);
        assert_ok(berth_prefetch_begin(checkpoint, &bias, 0, NULL, &prefetch, &error));
        assert_ok(berth_prefetch_wait(prefetch, &error));
        assert_ok(berth_prefetch_get_stats(prefetch, &stats, &error));
        cr_expect_eq(stats.requested_nbytes, 0);
        berth_prefetch_free(prefetch);
        cr_expect_not_null(data_of("bias"));
    }
    open_as("debug=off load.prefetch=populate");
    cr_expect_not_null(data_of("bias"));
    cr_expect_not_null(berth_storage_data(checkpoint, tensor_named("bias")->storage, &error));
}

Test(deflated_file, methods_of_a_file_fit_it, .init = begin_deflated_file, .fini = end_sample_file)
{
    static const char *const options[] = {"debug=off load.method=direct",
                                          "debug=off load.method=map", "debug=off load.method=read",
                                          "debug=off load.check=data"};

    for (size_t i = 0; i < 4; i++) {
        open_as(options[i]);
        assert_ok(berth_load(checkpoint, NULL, only(options[i], NULL), &error));
        expect_sample_values();
        cr_expect_eq(
            berth_verify(FROM_PATH(path), only(options[i], NULL), NULL, NULL, NULL, &error), 0,
            "%s", error.message);
    }
}

/* ---- files without .format_version ---- */

Test(deflated, an_older_file_is_not_called_repacked)
{
    berth_info info;

    remove_record(".format_version");
    zip_again("data/");
    open_file("debug=on");
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect(!info.repacked);
    cr_expect_eq(info.n_deflated, N_SAMPLE_STORAGES);
    expect_sample_values();
}
