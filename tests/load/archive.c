/* SPDX-License-Identifier: BSD-3-Clause */
/* The container level, and verification: records listed, read, inflated, summed. */
#include "tests/support/load/archive.h"

TestSuite(archive, .init = begin_sample_file, .fini = end_sample_file);

/* Writes the sample, with one lie or none, to `path`. */
static void write_sample(bool with_crc, const struct lie *lie)
{
    build_with(64, with_crc, lie);
    test_write_file(path, file, file_nbytes);
}

static void flip(size_t at)
{
    file[at] ^= 4;
    test_write_file(path, file, file_nbytes);
}

static int try_records(const char *options, berth_archive **archive)
{
    return berth_archive_open(FROM_PATH(path), only(options, NULL), archive, NULL, &error);
}

/* Opens as an archive with these options. */
static berth_archive *open_records(const char *options)
{
    berth_archive *archive;

    assert_ok(try_records(options, &archive));
    return archive;
}

/* What the last verification said. */
static berth_verdict verdict;

static int verify(const berth_params *call)
{
    return berth_verify(FROM_PATH(path), call, NULL, NULL, &verdict, &error);
}

/* The message without the path before it, which differs from run to run. */
static const char *text_of(void)
{
    size_t n = strlen(path);

    cr_expect_eq(strncmp(error.message, path, n), 0, "%s", error.message);
    return strlen(error.message) > n + 2 ? error.message + n + 2 : "";
}

Test(archive, lists_its_records_with_their_places)
{
    berth_archive *archive;
    berth_record record;
    berth_archive_info info;

    assert_ok(berth_archive_open(FROM_PATH(path), only("load.check=none", NULL), &archive, &info,
                                 &error));
    cr_expect_str_eq(info.name, "sample");
    cr_expect_eq(info.n_records, 9);
    cr_assert_eq(berth_archive_at(archive, 4, &record), 0);
    cr_expect_str_eq(record.name, "data/0");
    cr_expect_eq(record.nbytes, 24);
    cr_expect_eq(record.header_offset, 854);
    cr_expect_eq(record.offset, 960);
    cr_expect_eq(record.method, 0);
    cr_expect_eq(record.crc32, bth_crc32(0, sample_weight, 24));
    cr_expect_eq(berth_archive_at(archive, 9, &record), BERTH_E_NOT_FOUND);
    cr_expect_eq(berth_archive_find(archive, "version", &record, &error), 0);
    cr_expect_eq(record.nbytes, 2);
    cr_expect_eq(berth_archive_find(archive, "nothing", &record, &error), BERTH_E_NOT_FOUND);
    cr_expect_str_eq(text_of(), "there is no record \"nothing\" among the 9 in sample/");
    berth_archive_close(archive);
    berth_archive_close(NULL);
}

Test(archive, reads_any_range_of_a_record)
{
    berth_archive *archive = open_records("");
    berth_record record;
    uint8_t buffer[24];

    cr_assert_eq(berth_archive_find(archive, "data/1", &record, &error), 0);
    for (size_t offset = 0; offset <= 24; offset++) {
        size_t n = 24 - offset;
        cr_expect_eq(berth_archive_read(archive, &record, buffer, n, offset, &error), 0);
        cr_expect_arr_eq(buffer, (const uint8_t *)sample_bias + offset, n);
    }
    cr_expect_eq(berth_archive_read(archive, &record, buffer, 2, 23, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(text_of(),
                     "data/1 at byte 1088: 2 bytes from byte 23 on were requested, but it has 24");
    record.nbytes = 100; /* what the caller's struct says is not relied on */
    cr_expect_eq(berth_archive_read(archive, &record, buffer, 24, 1, &error), BERTH_E_ARGUMENT);
    berth_archive_close(archive);
}

static berth_archive *open_fixture(const char *name)
{
    berth_archive *archive;
    char fixture[128];

    (void)snprintf(fixture, sizeof fixture, "tests/data/%s", name);
    assert_ok(berth_archive_open(FROM_PATH(fixture), NULL, &archive, NULL, &error));
    return archive;
}

/* Z9: the records of some other tool are inflated. */
Test(archive, inflates_deflated_records)
{
    berth_archive *deflated = open_fixture("torch/deflated-pickle.pt");
    berth_archive *stored = open_fixture("torch/small.pt");
    berth_record a, b;
    uint8_t first[4096], second[4096];

    cr_assert_eq(berth_archive_find(deflated, "data.pkl", &a, NULL), 0);
    cr_assert_eq(berth_archive_find(stored, "data.pkl", &b, NULL), 0);
    cr_expect_eq(a.method, 8);
    cr_assert_eq(a.nbytes, b.nbytes);
    cr_assert_eq(berth_archive_read(deflated, &a, first, a.nbytes, 0, NULL), 0);
    cr_assert_eq(berth_archive_read(stored, &b, second, b.nbytes, 0, NULL), 0);
    cr_expect_arr_eq(first, second, a.nbytes);
    cr_assert_eq(berth_archive_read(deflated, &a, first, 7, 100, NULL), 0);
    cr_expect_arr_eq(first, second + 100, 7);
    cr_expect_eq(berth_archive_read(deflated, &a, NULL, 0, a.nbytes, NULL), 0);
    berth_archive_close(deflated);
    berth_archive_close(stored);
}

Test(archive, lists_what_has_no_values_to_read)
{
    static const struct {
        const char *fixture, *record;
    } cases[] = {{"old/torchscript-1.13.pt", "constants.pkl"},
                 {"old/package-1.13.pt", ".data/extern_modules"},
                 {"torch/zipped-again.pt", "data/0"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_archive *archive = open_fixture(cases[i].fixture);
        berth_record record;
        cr_expect_eq(berth_archive_find(archive, cases[i].record, &record, NULL), 0, "%s",
                     cases[i].fixture);
        berth_archive_close(archive);
    }
}

static void expect_no_archive(const void *bytes, size_t nbytes, const char *message)
{
    berth_archive *archive;

    test_write_file(path, bytes, nbytes);
    cr_expect_eq(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error),
                 nbytes > 0 ? BERTH_E_NOT_CHECKPOINT : BERTH_E_TRUNCATED);
    cr_expect_null(archive);
    cr_expect_str_eq(text_of(), message, "%s", error.message);
}

Test(archive, other_files_are_told)
{
    expect_no_archive("", 0, "the file is empty: a download or a save in place that did not end?");
    expect_no_archive(
        "text", 4, "neither a zip archive nor PyTorch's legacy format: it begins with 74 65 78 74");
    char says[200];
    (void)snprintf(says, sizeof says, "a zip archive that holds a .pt file: `unzip %s` unpacks it",
                   path);
    expect_no_archive("PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\4\0\0\0m.pt", 34, says);
    expect_no_archive(
        "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15,
        "a file in the legacy format, from before PyTorch 1.6, has values but no records");
}

Test(archive, is_checked_as_load_check_says)
{
    berth_archive *archive;

    write_sample(true, &(struct lie){.record = "data/1", .descriptor_lie = 8});
    berth_archive_close(open_records("load.check=directory"));
    cr_expect_eq(try_records("load.check=headers", &archive), BERTH_E_ARCHIVE);
    cr_expect_eq(try_records("debug=on", &archive), BERTH_E_ARCHIVE);
}

enum { ELEMENT_AT = 1088 + 5 };

/* Z10 */
Test(archive, a_wrong_sum_names_its_record)
{
    berth_archive *archive;

    flip(ELEMENT_AT);
    berth_archive_close(open_records("load.check=headers"));
    cr_expect_eq(try_records("load.check=data", &archive), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "data/1");
    cr_expect_eq(verify(NULL), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "data/1");
    cr_expect_eq(error.offset, 1088);
    cr_expect_str_eq(text_of(), "\"bias\": data/1 at byte 1088: its bytes have CRC 0x2a1796f1, the "
                                "directory says 0xc37f9b13");
}

/* Z10 */
Test(archive, verification_tells_what_it_could_not_verify)
{
    assert_ok(verify(NULL));
    cr_expect_eq(verdict.n_records, 9);
    cr_expect_eq(verdict.n_storages, 3);
    cr_expect_eq(verdict.n_verified, 9);
    cr_expect_eq(verdict.n_unverified, 0);
    write_sample(false, NULL);
    flip(ELEMENT_AT);
    assert_ok(verify(NULL));
    cr_expect_eq(verdict.n_verified, 0);
    cr_expect_eq(verdict.n_unverified, 9);
    cr_expect_eq(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, NULL), 0,
                 "nothing but the answer is asked for");
}

Test(archive, verification_compares_everything_else_too)
{
    write_sample(true, &(struct lie){.record = "version", .gap = 64});
    cr_expect_eq(verify(NULL), BERTH_E_ARCHIVE);
    write_sample(true, &(struct lie){.record = "data/2", .descriptor_crc = 1});
    cr_expect_eq(verify(NULL), BERTH_E_ARCHIVE);
    read_file("torch/zipped-again.pt");
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(berth_verify(FROM_PATH(path), only("load.repacked=refuse", NULL), NULL, NULL,
                              &verdict, &error),
                 BERTH_E_OFFSETS);
    cr_expect_eq(verdict.n_records, 0);
    /* Z13 */
    assert_ok(berth_verify(FROM_PATH(path), only("debug=off", NULL), NULL, NULL, &verdict, &error));
    cr_expect(verdict.n_bad == 0 && verdict.n_records > 0);
}

static int stop(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    cr_expect_leq(done_nbytes, total_nbytes);
    return ++*(int *)context >= 1;
}

Test(archive, verification_can_be_cancelled)
{
    int n_calls = 0;
    berth_params call = {.progress = stop, .progress_context = &n_calls};

    cr_expect_eq(verify(&call), BERTH_E_CANCELLED);
    cr_expect_eq(n_calls, 1);
}

/* Records cut into chunks by several workers come to the sums of the whole. */
Test(archive, chunks_and_workers_come_to_the_same_sums)
{
    static uint8_t bytes[300001];
    char options[64];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    add_record("more", bytes, sizeof bytes);
    write_sample(true, NULL);
    for (int threads = 1; threads <= 4; threads++) {
        (void)snprintf(options, sizeof options, "io.chunk_nbytes=65536 io.threads=%d", threads);
        cr_expect_eq(verify(only(options, NULL)), 0, "%s", error.message);
        cr_expect_eq(verdict.n_verified, 10);
    }
    flip(file_nbytes / 2);
    cr_expect_eq(verify(only(options, NULL)), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "more");
}
