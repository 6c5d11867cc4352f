/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z3, Z4, Z9: the directory's entries. In the small archive they begin at bytes 402 (data.pkl),
 * 458 (byteorder), 515 (data/0), 569 (data/1, empty) and 623 (version); it ends at 678.
 */
#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"
#include <criterion/criterion.h>

/* Breaks one field of record i's central entry. */
static void refuse_field(size_t i, size_t field, uint64_t value, size_t width, int code,
                         const char *sentence)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[i] + field, value, width);
    expect_refused(zip, code, sentence);
}

static void accept_field(size_t i, size_t field, uint64_t value, size_t width)
{
    test_zip zip = test_zip_small();
    bth_zip_end end = {402, 276, 5};
    bth_zip_directory directory;
    berth_error error = {0};

    test_zip_put(&zip, zip.central_at[i] + field, value, width);
    cr_assert_eq(bth_zip_read_directory(zip.bytes + 402, &end, &directory, &error), 0, "%s",
                 error.message);
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}

static void set_count(test_zip *zip, uint64_t n_entries)
{
    test_zip_put(zip, zip->end64_at + END64_N_ENTRIES_HERE, n_entries, 8);
    test_zip_put(zip, zip->end64_at + END64_N_ENTRIES, n_entries, 8);
    test_zip_put(zip, zip->end_at + END_N_ENTRIES_HERE, 0xFFFF, 2);
    test_zip_put(zip, zip->end_at + END_N_ENTRIES, 0xFFFF, 2);
}

/* ---- what is read ---- */

Test(zip_directory, entries_are_read_with_all_their_facts)
{
    test_zip zip = test_zip_small();
    bth_zip_directory directory;
    berth_error error;
    cr_assert_eq(test_zip_read(&zip, 0, &directory, &error), 0);
    cr_expect_str_eq(directory.archive, "m");
    cr_expect_eq(directory.archive_nbytes, 1);
    const bth_zip_entry *entry = &directory.entries[2];
    cr_expect_str_eq(entry->name, "m/data/0");
    cr_expect_str_eq(entry->record, "data/0");
    cr_expect_eq(entry->name_nbytes, 8);
    cr_expect_eq(entry->flags, 0x0808);
    cr_expect_eq(entry->method, 0);
    cr_expect_eq(entry->crc32, bth_crc32(0, "\1\2\3\4\5", 5));
    cr_expect_eq(entry->compressed_nbytes, 5);
    cr_expect_eq(entry->nbytes, 5);
    cr_expect_eq(entry->header_offset, 214);
    cr_expect_eq(entry->data_offset, 256);
    cr_expect_eq(entry->end_offset, 277);
    cr_expect_eq(entry->next_offset, 277);
    cr_expect_eq(directory.entries[4].next_offset, 402,
                 "the last one is followed by the directory");
    bth_zip_free_directory(&directory);
    cr_expect_null(directory.entries, "freeing leaves zeros");
    test_zip_free(&zip);
}

/* Z3: a central entry as of PyTorch past 4 GiB; the header itself is not looked at here. */
Test(zip_directory, zip64_fields_give_what_32_bits_cannot_hold)
{
    uint8_t bytes[46 + 8 + 28];
    bth_layout_entry place;
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_layout_entry_compute(0x100000007, 8, 0x200000009, 64, &place), 0);
    cr_assert_eq(bth_layout_central_nbytes(&place), sizeof bytes);
    bth_zip_write_central(&place, "m/data/0", 0, bytes);
    const bth_zip_end end = {place.next_offset, sizeof bytes, 1};
    cr_assert_eq(bth_zip_read_directory(bytes, &end, &directory, &error), 0, "%s", error.message);
    cr_expect_eq(directory.entries[0].header_offset, 0x100000007);
    cr_expect_eq(directory.entries[0].nbytes, 0x200000009);
    cr_expect_eq(directory.entries[0].compressed_nbytes, 0x200000009);
    bth_zip_free_directory(&directory);
}

Test(zip_directory, comments_of_entries_are_skipped)
{
    test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6), test_stored("m/a", "a", 1)};
    entries[0].comment = "a comment";
    expect_read(test_zip_new_foreign(entries, 2), 2);
}

Test(zip_directory, other_extra_fields_are_skipped)
{
    test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6)};
    entries[0].local_extra = entries[0].extra = "ux\2\0\1\2UT\0\0";
    entries[0].local_extra_nbytes = entries[0].extra_nbytes = 10;
    expect_read(test_zip_new_foreign(entries, 1), 1);
}

/* ---- Z3: the entries are as many as announced, and fill the directory ---- */

Test(zip_directory, an_archive_without_records_is_refused)
{
    expect_refused(test_zip_new_foreign(NULL, 0), BERTH_E_ARCHIVE,
                   "at byte 0: an archive without records");
}

Test(zip_directory, fewer_entries_announced_than_there_are_is_refused)
{
    test_zip zip = test_zip_small();
    set_count(&zip, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 623: 55 bytes of the directory follow its 4 entries");
}

Test(zip_directory, more_entries_announced_than_there_are_is_refused)
{
    /* Six would fit by their fixed fields, so it is found when the names leave too little. */
    test_zip zip = test_zip_small();
    set_count(&zip, 6);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 402: name, extra fields and comment of entry 0 have 10 + 0 + 0 bytes, "
                   "but the directory has only 230 for them and 5 more entries");
}

Test(zip_directory, a_count_beyond_the_directorys_bytes_is_refused_before_memory_is_taken)
{
    test_zip zip = test_zip_small();
    set_count(&zip, 7);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 402: 7 entries do not fit a directory of 276 bytes");
    zip = test_zip_small();
    set_count(&zip, UINT64_MAX);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 402: 18446744073709551615 entries do not fit a directory of 276 bytes");
}

/* 65,537 entries, and a 16 bit count of 1 that some readers take modulo 65,536. */
Test(zip_directory, a_count_that_is_right_modulo_65536_is_refused)
{
    const size_t n = 65537, entry_nbytes = 46 + 7;
    uint8_t *bytes = calloc(n, entry_nbytes);
    bth_zip_directory directory;
    berth_error error;
    for (size_t i = 0; i < n; i++) {
        bth_put_u32(bytes + i * entry_nbytes, BTH_ZIP_CENTRAL_SIGNATURE);
        bth_put_u16(bytes + i * entry_nbytes + CENTRAL_NAME_NBYTES, 7);
        char name[24];
        snprintf(name, sizeof name, "m/%05zx", i);
        memcpy(bytes + i * entry_nbytes + CENTRAL_NAME, name, 7);
    }
    const bth_zip_end end = {1000, n * entry_nbytes, 1};
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_read_directory(bytes, &end, &directory, &error), BERTH_E_ARCHIVE);
    cr_expect_str_eq(error.message,
                     "at byte 1053: 3473408 bytes of the directory follow its 1 entries");
    free(bytes);
}

/* ---- Z4: one entry ---- */

Test(zip_directory, an_entry_without_its_signature_is_refused)
{
    refuse_field(1, 0, 0x02014b51, 4, BERTH_E_ARCHIVE,
                 "at byte 458: entry 1 of the directory begins with 0x02014b51, not 0x02014b50");
}

/* Fewer bytes than an entry has are left behind names, which a count of one less does not tell. */
Test(zip_directory, bytes_that_are_no_whole_entry_are_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[4] + CENTRAL_NAME_NBYTES, 8, 2);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "at byte 677: 1 bytes of the directory follow its 5 entries");
}

Test(zip_directory, lengths_beyond_the_directory_are_refused)
{
    refuse_field(4, CENTRAL_NAME_NBYTES, 10, 2, BERTH_E_ARCHIVE,
                 "at byte 623: name, extra fields and comment of entry 4 have 10 + 0 + 0 bytes, "
                 "but the directory has only 9 for them and 0 more entries");
    refuse_field(4, CENTRAL_EXTRA_NBYTES, 1, 2, BERTH_E_ARCHIVE,
                 "at byte 623: name, extra fields and comment of entry 4 have 9 + 1 + 0 bytes, "
                 "but the directory has only 9 for them and 0 more entries");
    refuse_field(4, CENTRAL_COMMENT_NBYTES, 65535, 2, BERTH_E_ARCHIVE,
                 "at byte 623: name, extra fields and comment of entry 4 have 9 + 0 + 65535 bytes, "
                 "but the directory has only 9 for them and 0 more entries");
}

/* All names together have room in memory sized by the directory, whichever is the long one. */
Test(zip_directory, a_name_that_takes_the_room_of_later_entries_is_refused)
{
    refuse_field(0, CENTRAL_NAME_NBYTES, 200, 2, BERTH_E_ARCHIVE,
                 "at byte 402: name, extra fields and comment of entry 0 have 200 + 0 + 0 bytes, "
                 "but the directory has only 230 for them and 4 more entries");
}

Test(zip_directory, another_disk_is_refused)
{
    refuse_field(2, CENTRAL_DISK, 1, 2, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: lies on disk 1; only 0 can be read");
}

/* An archive of one record, whose central entry has these extra fields. */
static test_zip with_extra(const char *extra, size_t nbytes)
{
    test_entry entry = test_stored("m/data.pkl", "pickle", 6);
    entry.extra = extra;
    entry.extra_nbytes = nbytes;
    return test_zip_new_foreign(&entry, 1);
}

Test(zip_directory, malformed_extra_fields_are_refused)
{
    expect_refused(with_extra("UT\0", 3), BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a malformed extra field, 3 bytes before the end of the "
                   "extra fields");
    expect_refused(with_extra("ux\0\0UT\5\0\1\2\3\4", 12), BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a malformed extra field, 8 bytes before the end of the "
                   "extra fields");
}

Test(zip_directory, a_unicode_path_is_refused)
{
    expect_refused(with_extra("up\6\0\1\0\0\0\0x", 10), BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a Unicode path extra field, which gives the entry a "
                   "second name");
}

Test(zip_directory, a_zip64_field_that_nothing_needs_is_refused)
{
    expect_refused(with_extra("\1\0\x8\0\6\0\0\0\0\0\0\0", 12), BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a ZIP64 extra field of 8 bytes, where 0 are needed");
}

Test(zip_directory, a_second_zip64_field_is_refused)
{
    expect_refused(with_extra("\1\0\0\0\1\0\0\0", 8), BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a second ZIP64 extra field");
}

Test(zip_directory, a_zip64_field_of_another_size_than_needed_is_refused)
{
    test_zip zip = with_extra("\1\0\x8\0\6\0\0\0\0\0\0\0", 12);
    test_zip_put(&zip, zip.central_at[0] + CENTRAL_SIZE, 0xFFFFFFFF, 4);
    test_zip_put(&zip, zip.central_at[0] + CENTRAL_COMPRESSED, 0xFFFFFFFF, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data.pkl at byte 46: a ZIP64 extra field of 8 bytes, where 16 are needed");
}

Test(zip_directory, a_zip64_field_may_hold_any_one_of_its_fields)
{
    static const size_t fields[] = {CENTRAL_SIZE, CENTRAL_COMPRESSED, CENTRAL_HEADER_OFFSET};
    for (size_t i = 0; i < 3; i++) {
        test_zip zip =
            with_extra(i < 2 ? "\1\0\x8\0\6\0\0\0\0\0\0\0" : "\1\0\x8\0\0\0\0\0\0\0\0\0", 12);
        test_zip_put(&zip, zip.central_at[0] + fields[i], 0xFFFFFFFF, 4);
        expect_read(zip, 1);
    }
}

Test(zip_directory, a_saturated_size_without_a_zip64_field_is_refused)
{
    refuse_field(2, CENTRAL_SIZE, 0xFFFFFFFF, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: no ZIP64 extra field, but 8 bytes of one are needed");
    refuse_field(2, CENTRAL_HEADER_OFFSET, 0xFFFFFFFF, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: no ZIP64 extra field, but 8 bytes of one are needed");
}

/* ---- Z7, as far as the directory tells ---- */

Test(zip_directory, a_header_in_or_behind_the_directory_is_refused)
{
    refuse_field(2, CENTRAL_HEADER_OFFSET, 402, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: a header at byte 402 and 5 bytes of data do not fit before "
                 "the directory at byte 402");
    refuse_field(2, CENTRAL_HEADER_OFFSET, 360, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: a header at byte 360 and 5 bytes of data do not fit before "
                 "the directory at byte 402");
}

Test(zip_directory, data_that_reaches_into_the_directory_is_refused)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[2] + CENTRAL_SIZE, 0xFFFFFFFE, 4);
    test_zip_put(&zip, zip.central_at[2] + CENTRAL_COMPRESSED, 0xFFFFFFFE, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data/0 at byte 515: a header at byte 214 and 4294967294 bytes of data do not "
                   "fit before the directory at byte 402");
}

Test(zip_directory, a_last_entry_of_a_bare_header_is_read)
{
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                                  test_stored("m/data/0", "", 0)};
    expect_read(test_zip_new_foreign(entries, 2), 2);
}

Test(zip_directory, a_folder_with_data_is_refused)
{
    test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6), test_stored("m/data/", "x", 1)};
    expect_refused(test_zip_new_foreign(entries, 2), BERTH_E_ARCHIVE,
                   "data/ at byte 140: a folder with 1 bytes of data, 1 in the file");
    /* Nothing, deflated. */
    entries[1] = test_stored("m/data/", "\3\0", 2);
    entries[1].method = BTH_ZIP_DEFLATED;
    entries[1].size = entries[1].local_size = entries[1].crc32 = entries[1].local_crc32 = 0;
    expect_refused(test_zip_new_foreign(entries, 2), BERTH_E_ARCHIVE,
                   "data/ at byte 141: a folder with 0 bytes of data, 2 in the file");
}

/* ---- Z9: methods ---- */

Test(zip_directory, encryption_is_refused)
{
    refuse_field(2, CENTRAL_FLAGS, 0x0809, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: encrypted (flags 0x0809)");
    refuse_field(2, CENTRAL_FLAGS, 0x0848, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: encrypted (flags 0x0848)");
    refuse_field(2, CENTRAL_FLAGS, 0x2808, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: encrypted (flags 0x2808)");
}

Test(zip_directory, patch_data_is_refused)
{
    refuse_field(2, CENTRAL_FLAGS, 0x0828, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: patch data (flags 0x0828)");
}

Test(zip_directory, other_methods_are_refused)
{
    refuse_field(0, CENTRAL_METHOD, 93, 2, BERTH_E_UNSUPPORTED,
                 "data.pkl at byte 402: compression method 93; only stored (0) and deflated (8) "
                 "can be read");
}

Test(zip_directory, a_version_that_is_not_there_yet_is_refused)
{
    refuse_field(2, CENTRAL_VERSION_NEEDED, 64, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: needs version 6.4 of the format; the last is 6.3");
    accept_field(2, CENTRAL_VERSION_NEEDED, 63, 2);
    /* The upper byte says which system's, and nobody reads it. */
    accept_field(2, CENTRAL_VERSION_NEEDED, 0x6300, 2);
}

Test(zip_directory, a_deflated_storage_is_refused_with_the_repair)
{
    refuse_field(2, CENTRAL_METHOD, 8, 2, BERTH_E_UNSUPPORTED,
                 "data/0 at byte 515: a deflated storage cannot be mapped or placed; unpack the "
                 "archive and zip it again with `zip -0 -r`");
}

Test(zip_directory, a_stored_record_of_two_sizes_is_refused)
{
    refuse_field(2, CENTRAL_SIZE, 6, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: stored, but of 5 bytes in the file and 6 outside");
}

/* ---- memory and time ---- */

Test(zip_directory, any_allocation_that_fails_gives_a_clean_error)
{
    test_zip zip = test_zip_small();
    bth_zip_end end = {402, 276, 5};
    size_t n_failed = 0;
    int result = -1;
    while (result < 0) {
        bth_zip_directory directory;
        berth_error error;
        bth_error_clear(&error);
        test_memory_watch();
        test_memory_refuse(n_failed + 1, false);
        result = bth_zip_read_directory(zip.bytes + 402, &end, &directory, &error);
        if (result < 0) {
            cr_assert_eq(result, BERTH_E_MEMORY, "%s", error.message);
            cr_expect_null(directory.entries);
            n_failed++;
        }
        bth_zip_free_directory(&directory);
        cr_expect_eq(test_memory_seen().live_nbytes, 0);
        test_memory_unwatch();
    }
    cr_expect_eq(n_failed, 4, "%zu allocations failed", n_failed);
    test_zip_free(&zip);
}

/* n entries "m/x00000000" of one byte each, in any order of their headers. */
static uint8_t *many(size_t n, bool backwards, bth_zip_end *end)
{
    const size_t entry_nbytes = 46 + 11, step = 30 + 11 + 1;
    uint8_t *bytes = calloc(n, entry_nbytes);
    for (size_t i = 0; i < n; i++) {
        uint8_t *entry = bytes + i * entry_nbytes;
        bth_put_u32(entry, BTH_ZIP_CENTRAL_SIGNATURE);
        bth_put_u32(entry + CENTRAL_COMPRESSED, 1);
        bth_put_u32(entry + CENTRAL_SIZE, 1);
        bth_put_u16(entry + CENTRAL_NAME_NBYTES, 11);
        bth_put_u32(entry + CENTRAL_HEADER_OFFSET, (backwards ? n - 1 - i : i) * step);
        char name[24];
        snprintf(name, sizeof name, "m/x%08zu", i);
        memcpy(entry + CENTRAL_NAME, name, 11);
    }
    *end = (bth_zip_end){n * step, n * entry_nbytes, n};
    return bytes;
}

Test(zip_directory, memory_is_in_proportion_to_the_directory)
{
    bth_zip_end end;
    uint8_t *bytes = many(20000, true, &end);
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    test_memory_watch();
    cr_expect_eq(bth_zip_read_directory(bytes, &end, &directory, &error), 0, "%s", error.message);
    cr_expect_lt(test_memory_seen().peak_nbytes, 8 * end.directory_nbytes);
    cr_expect_lt(test_memory_seen().largest_nbytes, 3 * end.directory_nbytes);
    bth_zip_free_directory(&directory);
    test_memory_unwatch();
    free(bytes);
}

Test(zip_directory, entries_in_any_order_are_put_in_the_files_order)
{
    bth_zip_end end;
    uint8_t *bytes = many(1001, true, &end);
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_zip_read_directory(bytes, &end, &directory, &error), 0, "%s", error.message);
    for (size_t i = 0; i < 1001; i++) {
        const bth_zip_entry *entry = &directory.entries[directory.by_offset[i]];
        cr_assert_eq(entry->header_offset, i * 42);
        cr_assert_eq(entry->next_offset, (i + 1) * 42);
    }
    bth_zip_free_directory(&directory);
    free(bytes);
}

Test(zip_directory, each_of_many_names_is_found)
{
    const size_t n = 100000;
    bth_zip_end end;
    uint8_t *bytes = many(n, false, &end);
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_zip_read_directory(bytes, &end, &directory, &error), 0, "%s", error.message);
    for (size_t i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof name, "x%08zu", i);
        cr_assert_eq(bth_zip_find(&directory, name, 9), &directory.entries[i]);
    }
    cr_expect_null(bth_zip_find(&directory, "x00100000", 9));
    bth_zip_free_directory(&directory);
    free(bytes);
}

/* Sanitizers take a request beyond all memory for a mistake, where malloc says no. */
static void *refuse_too_much(void *context, void *pointer, size_t nbytes)
{
    (void)context;
    if (nbytes == 0) {
        free(pointer);
        return NULL;
    }
    return nbytes < (size_t)1 << 30 ? realloc(pointer, nbytes) : NULL;
}

/* In 32 bits the size of so many entries, as a number, would be small. */
Test(zip_directory, of_more_entries_than_memory_has_is_refused_before_it_is_looked_at)
{
    uint64_t n = SIZE_MAX / sizeof(bth_zip_entry) + 1;
    bth_zip_end end = {.directory_nbytes = n * BTH_ZIP_CENTRAL_NBYTES, .n_entries = n};
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    berth_set_allocator(&(berth_allocator){.reallocate = refuse_too_much});
    cr_expect_eq(bth_zip_read_directory(NULL, &end, &directory, &error), BERTH_E_MEMORY);
    berth_set_allocator(NULL);
}

Test(zip_directory, of_more_names_than_memory_has_is_refused_before_it_is_looked_at)
{
    bth_zip_end end = {.directory_nbytes = SIZE_MAX / 2, .n_entries = 1};
    bth_zip_directory directory;
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_read_directory(NULL, &end, &directory, &error), BERTH_E_MEMORY);
    cr_expect_null(directory.entries);
}

/* ---- attributes ---- */

static void read_attributes(size_t i, uint32_t attributes)
{
    test_zip zip = test_zip_small();
    test_zip_put(&zip, zip.central_at[i] + CENTRAL_ATTRIBUTES, attributes, 4);
    expect_read(zip, 5);
}

/* Z8: PyTorch's reader goes by the bit of MS-DOS, others by the type in the mode of Unix. */
Test(zip_directory, attributes_of_a_record_that_say_otherwise_are_refused)
{
    refuse_field(2, CENTRAL_ATTRIBUTES, 0x10, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: its name is that of a record, but its attributes say folder");
    refuse_field(2, CENTRAL_ATTRIBUTES, 0x41ed0000, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: its name is that of a record, but its attributes say Unix "
                 "type 004");
    refuse_field(2, CENTRAL_ATTRIBUTES, 0xa1ff0000, 4, BERTH_E_ARCHIVE,
                 "data/0 at byte 515: its name is that of a record, but its attributes say Unix "
                 "type 012");
    read_attributes(2, 0x20);
    read_attributes(2, 0x81a40000);
    read_attributes(2, 0x01ff0000);
}

Test(zip_directory, attributes_of_a_folder_that_say_otherwise_are_refused)
{
    static const uint32_t good[] = {0, 0x10, 0x41ed0010, 0x41ed0000};
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                                  test_stored("m/f/", "", 0)};
    test_zip zip;
    for (size_t i = 0; i < 4; i++) {
        zip = test_zip_new_foreign(entries, 2);
        test_zip_put(&zip, zip.central_at[1] + CENTRAL_ATTRIBUTES, good[i], 4);
        expect_read(zip, 1);
    }
    zip = test_zip_new_foreign(entries, 2);
    test_zip_put(&zip, zip.central_at[1] + CENTRAL_ATTRIBUTES, 0x81a40000, 4);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "f/ at byte 136: its name is that of a folder, but its attributes say Unix type "
                   "010");
}
