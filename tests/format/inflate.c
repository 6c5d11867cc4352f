/* SPDX-License-Identifier: BSD-3-Clause */
/* Z9: deflated small records of other tools' archives, and their caps. More: method.txt in
 * tests/hostile/ambiguity/. */
#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"
#include <criterion/criterion.h>

/* "pickle pickle pickle pickle", raw deflate. */
static const uint8_t DEFLATED[] = {0x2b, 0xc8, 0x4c, 0xce, 0xce, 0x49,
                                   0x55, 0x28, 0xc0, 0x42, 0x01, 0x00};
static const char INFLATED[] = "pickle pickle pickle pickle";
enum { INFLATED_NBYTES = sizeof INFLATED - 1 };

static bth_zip_entry deflated(uint64_t compressed_nbytes, uint64_t nbytes)
{
    return (bth_zip_entry){.record = "data.pkl",
                           .method = BTH_ZIP_DEFLATED,
                           .compressed_nbytes = compressed_nbytes,
                           .nbytes = nbytes,
                           .data_offset = 100};
}

static void expect_failure(bth_zip_entry entry, const uint8_t *in, int code, const char *sentence)
{
    berth_error error;
    uint8_t *out = malloc(entry.nbytes < 4096 ? entry.nbytes + 1 : 1);
    bth_error_clear(&error);
    cr_expect_eq(bth_inflate(&entry, in, out, &error), code);
    cr_expect_str_eq(error.message, sentence, "says\n  %s\ninstead of\n  %s", error.message,
                     sentence);
    free(out);
}

Test(inflate, a_deflated_record_is_inflated)
{
    bth_zip_entry entry = deflated(sizeof DEFLATED, INFLATED_NBYTES);
    berth_error error;
    uint8_t out[INFLATED_NBYTES];
    bth_error_clear(&error);
    assert_ok(bth_inflate(&entry, DEFLATED, out, &error));
    cr_expect_eq(memcmp(out, INFLATED, sizeof out), 0);
}

Test(inflate, an_empty_record_is_inflated)
{
    bth_zip_entry entry = deflated(2, 0);
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_inflate(&entry, (const uint8_t *)"\3\0", NULL, &error), 0, "%s",
                 error.message);
}

Test(inflate, an_empty_record_may_have_no_bytes_at_all)
{
    bth_zip_entry entry = deflated(0, 0);
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_inflate(&entry, DEFLATED, NULL, &error), 0, "%s", error.message);
    expect_failure(deflated(0, 5), DEFLATED, BERTH_E_ARCHIVE,
                   "data.pkl at byte 100: 0 bytes inflate to 0, the directory has 0 and 5; the "
                   "deflated data do not end there");
}

Test(inflate, more_bytes_than_announced_are_refused)
{
    expect_failure(
        deflated(sizeof DEFLATED, INFLATED_NBYTES - 1), DEFLATED, BERTH_E_ARCHIVE,
        "data.pkl at byte 100: 12 bytes inflate to 27, the directory has 12 and 26; more follows");
}

Test(inflate, data_cut_off_is_refused)
{
    expect_failure(deflated(sizeof DEFLATED - 1, INFLATED_NBYTES), DEFLATED, BERTH_E_ARCHIVE,
                   "data.pkl at byte 100: 11 bytes inflate to 27, the directory has 11 and 27; the "
                   "deflated data do not end there");
}

Test(inflate, what_is_no_deflate_is_refused)
{
    expect_failure(deflated(4, 10), (const uint8_t *)"\7xyz", BERTH_E_ARCHIVE,
                   "data.pkl at byte 101: cannot be inflated: invalid block type");
}

/* zlib has no sentence for what is no fault of the data. */
Test(inflate, a_failure_without_a_sentence_gets_one)
{
    expect_failure(deflated(4, 10), NULL, BERTH_E_ARCHIVE,
                   "data.pkl at byte 100: cannot be inflated: bad data");
}

/* ---- the caps ---- */

Test(inflate, more_than_the_cap_is_refused_before_memory_is_taken)
{
    bth_zip_entry entry = deflated(5 << 20, BTH_INFLATE_MAX_NBYTES);
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_inflate_check_limits(&entry, &error), 0, "%s", error.message);
    entry = deflated(BTH_INFLATE_MAX_NBYTES, 10);
    cr_expect_eq(bth_inflate_check_limits(&entry, &error), 0, "%s", error.message);
    expect_failure(
        deflated(5 << 20, BTH_INFLATE_MAX_NBYTES + (uint64_t)1), DEFLATED, BERTH_E_UNSUPPORTED,
        "data.pkl at byte 100: deflated from 268435457 bytes to 5242880; at most 268435456 are "
        "inflated: unpack the archive and zip it again with `zip -0 -r`, which compresses nothing");
    expect_failure(
        deflated(0x100000001, 10), DEFLATED, BERTH_E_UNSUPPORTED,
        "data.pkl at byte 100: deflated from 10 bytes to 4294967297; at most 268435456 are "
        "inflated: unpack the archive and zip it again with `zip -0 -r`, which compresses nothing");
}

Test(inflate, more_than_64_to_1_is_refused_before_memory_is_taken)
{
    bth_zip_entry entry = deflated(1, BTH_INFLATE_FREE_NBYTES);
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_inflate_check_limits(&entry, &error), 0, "small ones are not asked");
    entry = deflated(10000, 640000 - 1);
    cr_expect_eq(bth_inflate_check_limits(&entry, &error), 0, "%s", error.message);
    expect_failure(
        deflated(10000, 640000), DEFLATED, BERTH_E_UNSUPPORTED,
        "data.pkl at byte 100: deflated from 640000 bytes to 10000, more than 64 to 1: unpack the "
        "archive and zip it again with `zip -0 -r`, which compresses nothing");
}

Test(inflate, zlibs_memory_comes_from_the_hook_and_may_fail)
{
    bth_zip_entry entry = deflated(sizeof DEFLATED, INFLATED_NBYTES);
    struct test_refusals each = {0};
    while (test_refuse_next(&each)) {
        uint8_t out[INFLATED_NBYTES];
        berth_error error;
        bth_error_clear(&error);
        cr_assert_eq(bth_inflate(&entry, DEFLATED, out, &error),
                     test_memory_refused() ? BERTH_E_MEMORY : 0, "%s", error.message);
    }
    cr_expect_gt(each.nth, 1);
}

/* ---- within an archive ---- */

Test(inflate, a_deflated_data_pkl_is_read_with_its_crc)
{
    uint32_t crc32 = bth_crc32(0, INFLATED, INFLATED_NBYTES);
    const test_entry entry = {.name = "m/data.pkl",
                              .data = DEFLATED,
                              .data_nbytes = sizeof DEFLATED,
                              .method = BTH_ZIP_DEFLATED,
                              .local_crc32 = crc32,
                              .local_compressed = sizeof DEFLATED,
                              .local_size = INFLATED_NBYTES,
                              .crc32 = crc32,
                              .compressed = sizeof DEFLATED,
                              .size = INFLATED_NBYTES};
    expect_read(test_zip_new_foreign(&entry, 1), 1);
}
