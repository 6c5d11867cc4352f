/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z7: which bytes belong to which entry. The small archive's headers are at bytes 0, 86, 214, 277
 * and 320, its directory at 402.
 */
#include "tests/support/format/zip_builder.h"
#include <criterion/criterion.h>

Test(zip_ranges, two_entries_of_one_header_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[2] + CENTRAL_HEADER_OFFSET, 277, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data/0 at byte 277: header, name and data need 43 bytes, but the next entry "
                   "begins at byte 277");
}

Test(zip_ranges, data_that_reaches_into_the_next_entry_is_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[2] + CENTRAL_SIZE, 26, 4);
    test_zip_put(&zip, zip.central_at[2] + CENTRAL_COMPRESSED, 26, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data/0 at byte 214: header, name and data need 64 bytes, but the next entry "
                   "begins at byte 277");
}

/* An entry inside the data of another: how small archives come to hold much. */
Test(zip_ranges, an_entry_inside_another_is_refused)
{
    char inner[34 + 1] = "PK\3\4";
    inner[LOCAL_COMPRESSED] = inner[LOCAL_SIZE] = 1;
    inner[LOCAL_NAME_NBYTES] = 3;
    memcpy(inner + LOCAL_NAME, "m/bx", 4);
    test_entry entries[] = {test_stored("m/a", inner, 34), test_stored("m/b", "x", 1)};
    test_zip zip = test_zip_new_foreign(entries, 2);
    test_zip_put(&zip, zip.central_at[1] + CENTRAL_HEADER_OFFSET, 33, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "a at byte 0: header, name and data need 67 bytes, but the next entry begins at "
                   "byte 33");
}

Test(zip_ranges, an_archive_inside_the_data_of_a_record_is_no_entry)
{
    test_zip inner = test_zip_small();
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                                  test_stored("m/inner", (const char *)inner.bytes, inner.nbytes)};
    expect_read(test_zip_new_foreign(entries, 2), 2);
    test_zip_free(&inner);
}

/* Makes all offsets true again after bytes were inserted. */
static void correct_offsets(test_zip *zip)
{
    test_zip_put(zip, zip->end_at + END_DIRECTORY_OFFSET, zip->directory_at, 4);
    test_zip_put(zip, zip->end64_at + END64_DIRECTORY_OFFSET, zip->directory_at, 8);
    test_zip_put(zip, zip->locator_at + LOCATOR_OFFSET, zip->end64_at, 8);
    for (size_t i = 0; i < zip->n_records; i++)
        test_zip_put(zip, zip->central_at[i] + CENTRAL_HEADER_OFFSET, zip->header_at[i], 4);
}

/* The small archive with bytes inserted before its record i, all offsets corrected. */
static test_zip with_gap(size_t at, size_t nbytes)
{
    static const char gap[64];
    test_zip zip = test_zip_small();
    test_zip_insert(&zip, at, gap, nbytes);
    correct_offsets(&zip);
    return zip;
}

Test(zip_ranges, a_gap_after_an_entry_without_descriptor_is_refused)
{
    expect_refused(with_gap(320, 1), BERTH_E_ARCHIVE,
                   "version at byte 321: the entry before it ends at byte 320");
}

Test(zip_ranges, a_gap_after_a_descriptor_is_refused)
{
    expect_refused(with_gap(277, 1), BERTH_E_ARCHIVE,
                   "data/0 at byte 261: 17 bytes lie between the data and the next entry, where a "
                   "descriptor has 12, 16, 20 or 24");
}

/* 4 and 8 bytes more make a length that a descriptor can have, but not its bytes. */
Test(zip_ranges, a_gap_of_a_descriptors_difference_is_refused)
{
    expect_refused(with_gap(277, 8), BERTH_E_ARCHIVE,
                   "data/0 at byte 261: the descriptor says CRC 0x470b99f4 and sizes 21474836485 "
                   "and 0, the directory 0x470b99f4, 5 and 5");
}

Test(zip_ranges, a_gap_before_the_directory_is_refused)
{
    const test_entry entry = test_stored("m/data.pkl", "pickle", 6);
    test_zip zip = test_zip_new_foreign(&entry, 1);
    test_zip_insert(&zip, zip.directory_at, "gap", 3);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_OFFSET, zip.directory_at, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 49: the directory begins here, but the last entry ends at byte 46");
}

Test(zip_ranges, bytes_before_the_first_entry_need_a_base_offset)
{
    expect_refused(with_gap(0, 7), BERTH_E_ARCHIVE,
                   "data.pkl at byte 7: the first entry, but the archive begins at byte 0");
    test_zip zip = with_gap(0, 7);
    bth_zip_directory directory;
    berth_error error;
    cr_expect_eq(test_zip_read(&zip, 7, &directory, &error), 0, "%s", error.message);
    bth_zip_free_directory(&directory);
    cr_expect_eq(test_zip_read(&zip, 8, &directory, &error), BERTH_E_ARCHIVE);
    cr_expect_str_eq(error.message,
                     "data.pkl at byte 7: the first entry, but the archive begins at byte 8");
    test_zip_free(&zip);
}

/* Data without descriptor, moved by a longer extra field than the next header leaves room for. */
Test(zip_ranges, data_that_its_local_header_pushes_beyond_its_place_is_refused)
{
    test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6), test_stored("m/b", "x", 1)};
    entries[0].local_extra = "ux\0\0";
    entries[0].local_extra_nbytes = 4;
    test_zip zip = test_zip_new_foreign(entries, 2);
    test_zip_put(&zip, zip.header_at[0] + LOCAL_EXTRA_NBYTES, 8, 2);
    memcpy(zip.bytes + zip.data_at[0], "ux\0", 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data.pkl at byte 48: its 6 bytes reach into what begins at byte 50");
}

/* PyTorch 1.6's directories follow no order. */
Test(zip_ranges, a_directory_in_another_order_than_the_file_is_read)
{
    test_zip zip = test_zip_small();
    uint8_t first[56];
    size_t rest = zip.end64_at - zip.directory_at - sizeof first;
    memcpy(first, zip.bytes + zip.directory_at, sizeof first);
    memmove(zip.bytes + zip.directory_at, zip.bytes + zip.directory_at + sizeof first, rest);
    memcpy(zip.bytes + zip.directory_at + rest, first, sizeof first);
    expect_read(zip, 5);
}
