/* SPDX-License-Identifier: BSD-3-Clause */
/* Z12: what is refused of files whose storages are deflated, and damage to them. */
#include <berth/rows.h>
#include <errno.h>
#include <unistd.h>

#include "tests/simulated/simulated.h"
#include "tests/support/format/zip_builder.h"
#include "tests/support/load/deflated_scene.h"

TestSuite(deflated_refused, .init = begin_deflated, .fini = end_sample);

/* ---- what is refused ---- */

/* Z12 */
Test(deflated_refused, none_is_believed_to_unfold_more_than_1032_to_1)
{
    uint8_t *entry = find_entry("data/1");
    bth_cursor cursor = bth_cursor_make(entry + CENTRAL_COMPRESSED, 4);
    uint32_t compressed = bth_cursor_u32(&cursor);
    char expected[300];

    for (uint32_t more = 0; more < 2; more++) {
        uint32_t size = 1032 * compressed + more;
        for (int i = 0; i < 4; i++)
            entry[CENTRAL_SIZE + i] = (uint8_t)(size >> 8 * i);
        cr_expect_eq(try_file(""), BERTH_E_ARCHIVE);
        (void)snprintf(expected, sizeof expected,
                       "deflated from %lu bytes to %lu: nothing is deflated more than 1032 to 1",
                       (unsigned long)size, (unsigned long)compressed);
        cr_expect_eq(strstr(error.message, expected) != NULL, more == 1, "%s", error.message);
    }
}

Test(deflated_refused, opening_inflates_nothing)
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

Test(deflated_refused, inflating_can_be_turned_off)
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
                                 &archive, NULL, &error));
    assert_ok(berth_archive_find(archive, "data/1", &record, &error));
    cr_expect_eq(berth_archive_read(archive, &record, bias, 8, 0, &error), BERTH_E_UNSUPPORTED);
    (void)snprintf(expected, sizeof expected,
                   "memory: data/1 at byte %zu: it is deflated: load.inflate=on inflates it",
                   data_of_record("data/1"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    berth_archive_close(archive);
    zip_again("");
    assert_ok(berth_archive_open(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL),
                                 &archive, NULL, &error));
    assert_ok(berth_archive_find(archive, "version", &record, &error));
    assert_ok(berth_archive_read(archive, &record, bias, 2, 0, &error));
    berth_archive_close(archive);
    assert_ok(berth_verify(FROM_MEMORY(file, file_nbytes), only("load.inflate=off", NULL), NULL,
                           NULL, NULL, &error));
}

Test(deflated_refused, memory_nbytes_limits_what_a_checkpoint_inflates)
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
Test(deflated_refused, a_failed_load_gives_its_memory_back)
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

Test(deflated_refused, a_load_can_be_cancelled)
{
    uint64_t at = 0;
    berth_params params = {.progress = cancel, .progress_context = &at};

    begin_large();
    open_file("");
    cr_expect_eq(berth_load(checkpoint, NULL, &params, &error), BERTH_E_CANCELLED);
    at = UINT64_MAX;
    assert_ok(berth_load(checkpoint, NULL, &params, &error));
}

Test(deflated_refused, rows_of_one_are_refused_with_a_way_out)
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

Test(deflated_refused, a_device_is_refused_with_a_way_out)
{
    static const berth_storage_rule to_device = {.device = "simulated:0"};
    char expected[400];

    bth_simulated_set(NULL);
    open_file("");
    assert_ok(berth_set_storage_rules(checkpoint, &to_device, 1, &error));
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_UNSUPPORTED);
    (void)snprintf(expected, sizeof expected,
                   "memory: \"weight\": data/0 at byte %zu: it is deflated: it cannot be loaded to "
                   "a device: load it to the host, and copy it from there; `berth convert` writes "
                   "a file where it is not",
                   data_of_record("data/0"));
    expect_error(BERTH_E_UNSUPPORTED, expected);
    cr_expect_null(data_of("weight"));
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
}

/* Z13 */
Test(deflated_refused, debug_mode_and_refuse_refuse_them)
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
Test(deflated_refused, the_crc_is_always_compared)
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

Test(deflated_refused, verify_sums_all_of_them_and_reports_each_bad_one)
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
/* A read that begins here fails. */
static size_t fails_at = SIZE_MAX;

static int read_until_broken(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    if (offset + nbytes > broken_from || offset == fails_at)
        return EIO;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static berth_source broken_at(size_t from)
{
    broken_from = from;
    return (berth_source){.nbytes = file_nbytes, .name = "broken", .read = read_until_broken};
}

Test(deflated_refused, a_read_that_fails_names_the_record)
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

/* Its bytes come slowly: the caller cancels while it is inflated. */
static int read_slowly(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    if (offset == data_of_record("data/0"))
        (void)usleep(150000);
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

Test(deflated_refused, a_load_can_be_cancelled_inside_a_storage)
{
    uint64_t at = 1;
    berth_params params = {.progress = cancel, .progress_context = &at};
    const berth_selection large = {.pattern = "large"};

    begin_large();
    berth_source source = {.nbytes = file_nbytes, .name = "slow", .read = read_slowly};
    assert_ok(berth_open_source(&source, only("", NULL), &checkpoint, &error));
    cr_expect_eq(berth_load(checkpoint, &large, &params, &error), BERTH_E_CANCELLED);
    expect_error(BERTH_E_CANCELLED, "slow: cancelled");
    cr_expect_not_null(data_of("large"), "%s", error.message);
}

/* Small records that are deflated are read when the file is opened. */
Test(deflated_refused, small_records_that_cannot_be_read_are_an_error)
{
    static const char *const which[] = {"version", "data.pkl"};

    for (size_t i = 0; i < 2; i++) {
        zip_again(which[i]);
        berth_source source = broken_at(SIZE_MAX);
        for (size_t at = file_nbytes; at > 0; at--) {
            fails_at = at;
            int code =
                berth_open_source(&source, only("load.head_nbytes=1", NULL), &checkpoint, &error);
            cr_expect(code == 0 || code == BERTH_E_CALLBACK, "%s", error.message);
            berth_close(checkpoint);
            checkpoint = NULL;
        }
    }
}

/* W6: each allocation fails once. */
Test(deflated_refused, memory_that_is_missing_is_an_error)
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
    begin_large();
    test_memory_watch();
    const void *large = NULL;
    for (nth = 0; !large && nth++ < 100;) {
        open_file("");
        const berth_tensor *tensor = tensor_named("large");
        test_memory_refuse(nth, false);
        large = berth_tensor_data(checkpoint, tensor, &error);
        test_memory_refuse(UINT64_MAX, false);
        cr_expect(large || error.code == BERTH_E_MEMORY, "%s", error.message);
    }
    close_opened();
    test_memory_unwatch();
}
