/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z1, Z2, Z7: the end records and the first byte, as far as no whole checkpoint shows them. All
 * else is a recipe in tests/hostile/ambiguity/: end.txt, zip64.txt, counts.txt, offset.txt,
 * local.txt.
 */
#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"
#include <criterion/criterion.h>

Test(zip_end, files_too_short_for_an_end_record_are_refused)
{
    for (size_t nbytes = 0; nbytes < 4; nbytes++) {
        test_zip zip = {0};
        test_zip_append(&zip, "PK\5\6", nbytes);
        expect_refused(zip, BERTH_E_ARCHIVE,
                       "no end record: not a zip archive, or cut off: a download or a save in "
                       "place that did not end?");
    }
    test_zip zip = {0};
    test_zip_append(&zip, "PK\5\6", 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 0: the end record is cut off: 4 of its 22 bytes are there: a download "
                   "or a save in place that did not end?");
}

Test(zip_end, a_tail_that_is_too_short_is_asked_for_again)
{
    test_zip zip = test_zip_small();
    berth_error error;
    bth_zip_end end;
    bth_error_clear(&error);
    FAILS(bth_zip_find_end(zip.bytes + zip.end64_at, 98, zip.nbytes, &end, &error),
          BERTH_E_TRUNCATED, "the last 98 bytes do not suffice to find the end record");
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

/* Before it, there is no room for a locator, or for a ZIP64 end record. */
Test(zip_end, a_classic_end_record_near_byte_0_is_read)
{
    for (size_t before = 1; before <= 61; before += 20) {
        uint8_t bytes[61 + BTH_ZIP_END_RECORD_NBYTES] = {0};
        uint8_t *record = bytes + before;
        size_t nbytes = before + BTH_ZIP_END_RECORD_NBYTES;
        berth_error error;
        bth_zip_end end;
        bth_error_clear(&error);
        bth_put_u32(record, BTH_ZIP_END_SIGNATURE);
        bth_put_u16(record + 8, 1);
        bth_put_u16(record + 10, 1);
        bth_put_u32(record + 12, (uint32_t)before);
        cr_expect_eq(bth_zip_find_end(bytes, nbytes, nbytes, &end, &error), 0, "%zu: %s", before,
                     error.message);
        cr_expect_eq(end.directory_nbytes, before);
    }
}

/* Nothing lies before them: no byte is read in front of the file. */
Test(zip_end, halves_of_the_zip64_records_at_byte_0_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_remove(&zip, zip.locator_at, BTH_ZIP_LOCATOR_NBYTES);
    test_zip_remove(&zip, 0, zip.end64_at);
    expect_refused(zip, BERTH_E_ARCHIVE, "at byte 0: a ZIP64 end record without a locator");
    zip = test_zip_small();
    test_zip_remove(&zip, 0, zip.locator_at);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 0: a ZIP64 locator without a ZIP64 end record directly before it");
}

/* Seven bytes lie before all records, and every offset counts them. */
Test(zip_end, bytes_before_the_first_entry_need_a_base_offset)
{
    test_zip zip = test_zip_small();
    bth_zip_directory directory;
    berth_error error;

    test_zip_insert(&zip, 0, "seventh", 7);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_OFFSET, zip.directory_at, 4);
    test_zip_put(&zip, zip.end64_at + END64_DIRECTORY_OFFSET, zip.directory_at, 8);
    test_zip_put(&zip, zip.locator_at + LOCATOR_OFFSET, zip.end64_at, 8);
    for (size_t i = 0; i < zip.n_records; i++)
        test_zip_put(&zip, zip.central_at[i] + CENTRAL_HEADER_OFFSET, zip.header_at[i], 4);
    cr_expect_eq(test_zip_read(&zip, 7, &directory, &error), 0, "%s", error.message);
    bth_zip_free_directory(&directory);
    FAILS(test_zip_read(&zip, 8, &directory, &error), BERTH_E_ARCHIVE,
          "data.pkl at byte 7: the first entry, but the archive begins at byte 8");
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data.pkl at byte 7: the first entry, but the archive begins at byte 0");
}
