/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z3, Z4: what is read of the directory's entries, in which time and memory. What is refused is in
 * tests/hostile/ambiguity/: counts.txt, method.txt, encryption.txt, folders.txt, sizes.txt.
 */
#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"
#include <criterion/criterion.h>

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
    FAILS(bth_zip_read_directory(bytes, &end, &directory, &error), BERTH_E_ARCHIVE,
          "at byte 1053: 3473408 bytes of the directory follow its 1 entries");
    free(bytes);
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
    cr_assert_eq(bth_layout_central_entry_nbytes(&place), sizeof bytes);
    bth_zip_write_central(&place, "m/data/0", 0, bytes);
    const bth_zip_end end = {place.next_offset, sizeof bytes, 1};
    assert_ok(bth_zip_read_directory(bytes, &end, &directory, &error));
    cr_expect_eq(directory.entries[0].header_offset, 0x100000007);
    cr_expect_eq(directory.entries[0].nbytes, 0x200000009);
    cr_expect_eq(directory.entries[0].compressed_nbytes, 0x200000009);
    bth_zip_free_directory(&directory);
}

Test(zip_directory, a_last_entry_of_a_bare_header_is_read)
{
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                                  test_stored("m/data/0", "", 0)};
    expect_read(test_zip_new_foreign(entries, 2), 2);
}

/* ---- Z9: methods ---- */

/* Some tools deflate even the no bytes of a folder. The error does not call it a storage. */
Test(zip_directory, a_deflated_folder_is_refused_as_a_folder)
{
    test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                            test_stored("m/data/", "\3", 2)};
    entries[1].method = BTH_ZIP_DEFLATED;
    entries[1].size = entries[1].local_size = 0;
    expect_refused(test_zip_new_foreign(entries, 2), BERTH_E_ARCHIVE,
                   "data/ at byte 141: a folder with 0 bytes of data, 2 in the file");
}

/* ---- memory and time ---- */

Test(zip_directory, any_allocation_that_fails_gives_a_clean_error)
{
    test_zip zip = test_zip_small();
    bth_zip_end end = {402, 276, 5};
    struct test_refusals each = {0};
    while (test_refuse_next(&each)) {
        bth_zip_directory directory;
        berth_error error;
        bth_error_clear(&error);
        int result = bth_zip_read_directory(zip.bytes + 402, &end, &directory, &error);
        cr_assert_eq(result, test_memory_refused() ? BERTH_E_MEMORY : 0, "%s", error.message);
        cr_expect_eq(directory.entries == NULL, result < 0);
        bth_zip_free_directory(&directory);
    }
    cr_expect_eq(each.nth, 5, "four allocations fail");
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
    assert_ok(bth_zip_read_directory(bytes, &end, &directory, &error));
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
    assert_ok(bth_zip_read_directory(bytes, &end, &directory, &error));
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
