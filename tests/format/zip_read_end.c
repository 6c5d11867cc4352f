/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z1, Z2, Z3: the end records. The small archive has its directory at bytes 402 to 678, then the
 * ZIP64 end record, its locator at 734, the end record at 754, and ends at 776.
 */
#include "tests/support/format/zip_builder.h"
#include <criterion/criterion.h>

/* ---- Z1: one end record ---- */

Test(zip_end, pytorchs_end_records_are_read)
{
    expect_read(test_zip_small(), 5);
}

Test(zip_end, an_end_record_without_zip64_is_read)
{
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6)};
    expect_read(test_zip_new_foreign(entries, 1), 1);
}

Test(zip_end, bytes_after_the_end_record_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_append(&zip, "x", 1);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 754: the end record announces a comment of 0 bytes, but 1 follow");
}

Test(zip_end, a_comment_that_ends_with_the_file_is_read)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_COMMENT_NBYTES, 5, 2);
    test_zip_append(&zip, "hello", 5);
    expect_read(zip, 5);
}

Test(zip_end, the_longest_comment_is_read)
{
    static const char comment[65535];
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_COMMENT_NBYTES, sizeof comment, 2);
    test_zip_append(&zip, comment, sizeof comment);
    expect_read(zip, 5);
}

Test(zip_end, a_comment_cut_off_is_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_COMMENT_NBYTES, 5, 2);
    test_zip_append(&zip, "hel", 3);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 754: the end record announces a comment of 5 bytes, but 3 follow");
}

Test(zip_end, a_second_end_record_in_the_comment_is_refused)
{
    uint8_t second[BTH_ZIP_END_RECORD_NBYTES];
    test_zip zip = test_zip_small();
    memcpy(second, zip.bytes + zip.end_at, sizeof second);
    test_zip_put(&zip, zip.end_at + END_COMMENT_NBYTES, sizeof second, 2);
    test_zip_append(&zip, second, sizeof second);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 754: a second end record, beside the one at byte 776");
}

/* Readers that search backwards take this one, whatever its comment's length says. */
Test(zip_end, an_end_record_in_the_comment_that_does_not_parse_is_refused)
{
    uint8_t second[BTH_ZIP_END_RECORD_NBYTES + 1] = "PK\5\6";
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_COMMENT_NBYTES, sizeof second, 2);
    test_zip_append(&zip, second, sizeof second);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 776: the end record announces a comment of 0 bytes, but 1 follow");
}

Test(zip_end, an_end_record_cut_off_is_refused)
{
    test_zip zip = test_zip_small();
    zip.nbytes -= 5;
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 754: the end record is cut off: 17 of its 22 bytes are there");
}

Test(zip_end, a_file_without_an_end_record_is_refused)
{
    test_zip zip = test_zip_small();
    zip.nbytes = zip.end_at;
    expect_refused(zip, BERTH_E_ARCHIVE, "no end record: not a zip archive, or cut off");
}

Test(zip_end, files_too_short_for_an_end_record_are_refused)
{
    for (size_t nbytes = 0; nbytes < 4; nbytes++) {
        test_zip zip = {0};
        test_zip_append(&zip, "PK\5\6", nbytes);
        expect_refused(zip, BERTH_E_ARCHIVE, "no end record: not a zip archive, or cut off");
    }
    test_zip zip = {0};
    test_zip_append(&zip, "PK\5\6", 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 0: the end record is cut off: 4 of its 22 bytes are there");
}

Test(zip_end, a_tail_that_is_too_short_is_asked_for_again)
{
    test_zip zip = test_zip_small();
    berth_error error;
    bth_zip_end end;
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_find_end(zip.bytes + zip.end64_at, 98, zip.nbytes, &end, &error),
                 BERTH_E_TRUNCATED);
    cr_expect_str_eq(error.message, "the last 98 bytes do not suffice to find the end record");
    test_zip_free(&zip);
}

/* A directory at byte 0x06054b50: its offset, within the end record, spells the signature. */
Test(zip_end, a_signature_among_the_end_records_own_fields_is_no_end_record)
{
    static uint8_t tail[BTH_ZIP_TAIL_NBYTES];
    const uint64_t directory_at = BTH_ZIP_END_SIGNATURE;
    uint64_t file_nbytes = directory_at + 46 + BTH_ZIP_END_NBYTES;
    berth_error error;
    bth_zip_end end;
    bth_error_clear(&error);
    bth_zip_write_end(1, directory_at, 46, tail + sizeof tail - BTH_ZIP_END_NBYTES);
    cr_expect_eq(bth_zip_find_end(tail, sizeof tail, file_nbytes, &end, &error), 0, "%s",
                 error.message);
    cr_expect_eq(end.directory_offset, directory_at);
    cr_expect_eq(end.directory_nbytes, 46);
    cr_expect_eq(end.n_entries, 1);
}

/* ---- Z2: ZIP64 end record and locator ---- */

/* Breaks one field of the small archive; `at`: of which record. */
static void refuse_field(size_t at, size_t field, uint64_t value, size_t width,
                         const char *sentence)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, at + field, value, width);
    expect_refused(zip, BERTH_E_ARCHIVE, sentence);
}

enum { END64_AT = 678, LOCATOR_AT = 734, END_AT = 754 };

Test(zip_end, a_locator_on_another_disk_is_refused)
{
    refuse_field(LOCATOR_AT, LOCATOR_DISK, 1, 4,
                 "at byte 734: the ZIP64 locator names disk 1 of 1; only 0 of 1 can be read");
    refuse_field(LOCATOR_AT, LOCATOR_N_DISKS, 2, 4,
                 "at byte 734: the ZIP64 locator names disk 0 of 2; only 0 of 1 can be read");
}

Test(zip_end, a_locator_that_points_elsewhere_is_refused)
{
    refuse_field(LOCATOR_AT, LOCATOR_OFFSET, 677, 8,
                 "at byte 734: the ZIP64 locator points to byte 677, but the ZIP64 end record is "
                 "at byte 678");
    refuse_field(LOCATOR_AT, LOCATOR_OFFSET, UINT64_MAX, 8,
                 "at byte 734: the ZIP64 locator points to byte 18446744073709551615, but the "
                 "ZIP64 end record is at byte 678");
}

Test(zip_end, the_shortest_end_record_without_a_locator_is_refused)
{
    test_zip zip = test_zip_small();
    test_zip_remove(&zip, zip.locator_at, BTH_ZIP_LOCATOR_NBYTES);
    test_zip_remove(&zip, 0, zip.end64_at);
    expect_refused(zip, BERTH_E_ARCHIVE, "at byte 0: a ZIP64 end record without a locator");
}

Test(zip_end, a_locator_without_a_zip64_end_record_is_refused)
{
    refuse_field(END64_AT, 0, 0, 4,
                 "at byte 734: a ZIP64 locator without a ZIP64 end record directly before it");
    test_zip zip = test_zip_small();
    test_zip_remove(&zip, 0, zip.locator_at);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 0: a ZIP64 locator without a ZIP64 end record directly before it");
}

Test(zip_end, a_zip64_end_record_without_a_locator_is_refused)
{
    refuse_field(LOCATOR_AT, 0, 0, 4, "at byte 678: a ZIP64 end record without a locator");
    test_zip zip = test_zip_small();
    test_zip_remove(&zip, zip.locator_at, BTH_ZIP_LOCATOR_NBYTES);
    expect_refused(zip, BERTH_E_ARCHIVE, "at byte 678: a ZIP64 end record without a locator");
}

Test(zip_end, a_zip64_end_record_of_another_size_is_refused)
{
    refuse_field(END64_AT, END64_RECORD_NBYTES, 45, 8,
                 "at byte 678: the ZIP64 end record's size is 45, not 44");
}

Test(zip_end, end_records_that_differ_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_N_ENTRIES_HERE, 4, 2);
    test_zip_put(&zip, zip.end_at + END_N_ENTRIES, 4, 2);
    expect_refused(
        zip, BERTH_E_ARCHIVE,
        "at byte 754: the end record's number of entries is 4, the ZIP64 end record's 5");
    refuse_field(END_AT, END_DIRECTORY_NBYTES, 275, 4,
                 "at byte 754: the end record's directory size is 275, the ZIP64 end record's 276");
    refuse_field(
        END_AT, END_DIRECTORY_OFFSET, 401, 4,
        "at byte 754: the end record's directory offset is 401, the ZIP64 end record's 402");
}

Test(zip_end, saturated_classic_fields_say_see_zip64)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end_at + END_N_ENTRIES_HERE, 0xFFFF, 2);
    test_zip_put(&zip, zip.end_at + END_N_ENTRIES, 0xFFFF, 2);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_NBYTES, 0xFFFFFFFF, 4);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_OFFSET, 0xFFFFFFFF, 4);
    expect_read(zip, 5);
}

/* ---- Z3: disks, counts, and where the directory lies ---- */

Test(zip_end, other_disks_are_refused)
{
    refuse_field(END_AT, END_DISK, 1, 2,
                 "at byte 754: the end record names disks 1 and 0; only 0 can be read");
    refuse_field(END_AT, END_DIRECTORY_DISK, 1, 2,
                 "at byte 754: the end record names disks 0 and 1; only 0 can be read");
    refuse_field(END64_AT, END64_DISK, 1, 4,
                 "at byte 678: the ZIP64 end record names disks 1 and 0; only 0 can be read");
    refuse_field(END64_AT, END64_DIRECTORY_DISK, 7, 4,
                 "at byte 678: the ZIP64 end record names disks 0 and 7; only 0 can be read");
}

Test(zip_end, two_counts_that_differ_are_refused)
{
    refuse_field(END_AT, END_N_ENTRIES_HERE, 4, 2,
                 "at byte 754: the end record counts 4 entries and 5 entries");
    refuse_field(END64_AT, END64_N_ENTRIES, 6, 8,
                 "at byte 678: the ZIP64 end record counts 5 entries and 6 entries");
}

/* Moves directory size or offset, in both end records. */
static void refuse_directory(uint64_t offset, uint64_t nbytes, const char *sentence)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.end64_at + END64_DIRECTORY_NBYTES, nbytes, 8);
    test_zip_put(&zip, zip.end64_at + END64_DIRECTORY_OFFSET, offset, 8);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_NBYTES, 0xFFFFFFFF, 4);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_OFFSET, 0xFFFFFFFF, 4);
    expect_refused(zip, BERTH_E_ARCHIVE, sentence);
}

Test(zip_end, a_directory_that_does_not_end_where_the_end_records_begin_is_refused)
{
    refuse_directory(402, 275,
                     "at byte 678: the end records begin here, but the directory has 275 bytes "
                     "from byte 402");
    refuse_directory(401, 276,
                     "at byte 678: the end records begin here, but the directory has 276 bytes "
                     "from byte 401");
    refuse_directory(679, UINT64_MAX,
                     "at byte 678: the end records begin here, but the directory has "
                     "18446744073709551615 bytes from byte 679");
}

Test(zip_end, bytes_between_directory_and_end_records_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_insert(&zip, zip.end64_at, "gap", 3);
    test_zip_put(&zip, zip.locator_at + LOCATOR_OFFSET, zip.end64_at, 8);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 681: the end records begin here, but the directory has 276 bytes from "
                   "byte 402");
}
