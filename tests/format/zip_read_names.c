/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z8: which names are valid, and finding by name. More that is refused is in
 * tests/hostile/ambiguity/: canonical.txt, characters.txt, case.txt, duplicates.txt, folders.txt.
 */
#include "base/seeded_hash.h"
#include "tests/support/format/zip_builder.h"
#include <criterion/criterion.h>

/* An archive of data.pkl and of one record of this name, at byte 41; its central entry at 140. */
static test_zip with_name(const char *name)
{
    const test_entry entries[] = {test_stored("m/data.pkl", "pickle", 6),
                                  test_stored(name, "x", 1)};
    return test_zip_new_foreign(entries, 2);
}

/* The same, marked as UTF-8. */
static test_zip with_utf8_name(const char *name)
{
    test_zip zip = with_name(name);
    test_zip_put(&zip, zip.header_at[1] + LOCAL_FLAGS, 0x0800, 2);
    test_zip_put(&zip, zip.central_at[1] + CENTRAL_FLAGS, 0x0800, 2);
    return zip;
}

/* `sentence`: without the byte where it stands, which depends on the name's length. */
static void refuse_name(test_zip zip, const char *sentence)
{
    char whole[256];
    snprintf(whole, sizeof whole, "at byte %zu: %s", zip.central_at[1], sentence);
    expect_refused(zip, BERTH_E_ARCHIVE, whole);
}

Test(zip_names, a_drive_letter_is_refused)
{
    refuse_name(with_name("C:/data/0"), "a name with a drive letter: 'C:/data/0'");
    refuse_name(with_name("m/z:x"), "a name with a drive letter: 'm/z:x'");
    refuse_name(with_name("m/A:x"), "a name with a drive letter: 'm/A:x'");
    expect_read(with_name("m/1:x"), 2);
    expect_read(with_name("m/~:x"), 2);
    expect_read(with_name("m/:"), 2);
}

/* As PyTorch writes it for a:b.pt. */
Test(zip_names, a_top_folder_may_begin_like_one)
{
    static const struct {
        const char *folder;
        bool is_read;
    } cases[] = {{"a:b", true}, {"Z: c:", true}, {"a:", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char names[2][32], whole[256];
        snprintf(names[0], sizeof names[0], "%s/data.pkl", cases[i].folder);
        snprintf(names[1], sizeof names[1], "%s/data/0", cases[i].folder);
        const test_entry entries[] = {test_stored(names[0], "pickle", 6),
                                      test_stored(names[1], "x", 1)};
        test_zip zip = test_zip_new_foreign(entries, 2);
        snprintf(whole, sizeof whole, "at byte %zu: a name with a drive letter: '%s'",
                 zip.central_at[0], names[0]);
        if (cases[i].is_read)
            expect_read(zip, 2);
        else
            expect_refused(zip, BERTH_E_ARCHIVE, whole);
    }
}

/* They only look like "..", byteorder and version. */
Test(zip_names, near_names_are_read)
{
    expect_read(with_name("m/..x"), 2);
    expect_read(with_name("m/Version"), 2);
    expect_read(with_name("m/Byteorders"), 2);
}

Test(zip_names, names_in_utf8_are_read_when_they_are_marked_so)
{
    expect_read(with_utf8_name("m/\xc3\xa9"), 2);
    expect_read(with_utf8_name("m/\xe2\x82\xac"), 2);
    expect_read(with_utf8_name("m/\xe0\xa0\x80"), 2);
    expect_read(with_utf8_name("m/\xf0\x90\x80\x80"), 2);
    expect_read(with_utf8_name("m/\xed\x9f\xbf"), 2);
    expect_read(with_utf8_name("m/\xf0\x9f\x98\x80"), 2);
    expect_read(with_utf8_name("m/\xf4\x8f\xbf\xbf"), 2);
    expect_read(with_utf8_name("m/\xc2\xa0"), 2); /* the first that is no control character */
}

Test(zip_names, what_is_not_utf8_is_refused)
{
    static const char *const names[] = {
        "m/\x80",             /* a continuation alone */
        "m/\xc3",             /* cut off */
        "m/\xe2\x82",         /* cut off */
        "m/\xf0\x9f\x98",     /* cut off */
        "m/\xc3x",            /* no continuation */
        "m/\xe2\x82x",        /* no continuation */
        "m/\xc0\xaf",         /* '/', overlong */
        "m/\xc1\xbf",         /* overlong */
        "m/\xe0\x80\xaf",     /* '/', overlong */
        "m/\xf0\x80\x80\xaf", /* '/', overlong */
        "m/\xed\xa0\x80",     /* a surrogate */
        "m/\xf4\x90\x80\x80", /* beyond U+10FFFF */
        "m/\xf5\x80\x80\x80", /* beyond U+10FFFF */
        "m/\xff",             /* never in UTF-8 */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char sentence[64];
        snprintf(sentence, sizeof sentence, "a name that is not UTF-8: 0x%02x at its byte 2",
                 (unsigned char)names[i][2]);
        refuse_name(with_utf8_name(names[i]), sentence);
    }
}

/* ---- folders ---- */

Test(zip_names, empty_entries_of_folders_are_no_records)
{
    const test_entry entries[] = {test_stored("m/", "", 0), test_stored("m/data/", "", 0),
                                  test_stored("m/data.pkl", "pickle", 6),
                                  test_stored("m/data/", "", 0), test_stored("m/data/0", "12", 2)};
    test_zip zip = test_zip_new_foreign(entries, 5);
    bth_zip_directory directory;
    berth_error error;
    cr_assert_eq(test_zip_read(&zip, 0, &directory, &error), 0, "%s", error.message);
    cr_expect_eq(directory.n_entries, 2);
    cr_expect_eq(directory.n_folders, 3);
    cr_expect_str_eq(directory.archive, "m");
    cr_expect_str_eq(directory.entries[0].record, "data.pkl");
    cr_expect_str_eq(directory.entries[1].record, "data/0");
    cr_expect_null(bth_zip_find(&directory, "data/", 5));
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}

/* An archive of two records in a folder beyond ASCII; their flags. */
static test_zip with_folder(uint16_t first, uint16_t second)
{
    test_entry entries[] = {test_stored("\xc3\xa9/data.pkl", "pickle", 6),
                            test_stored("\xc3\xa9/x", "1", 1)};

    entries[0].flags = first;
    entries[1].flags = second;
    return test_zip_new_foreign(entries, 2);
}

/* Z8: zip on Linux and macOS' Finder write it in UTF-8 and do not mark it. */
Test(zip_names, a_top_folder_need_not_be_marked_as_utf8)
{
    const test_entry latin1[] = {test_stored("\xe9/data.pkl", "pickle", 6)};

    expect_read(with_folder(0, 0), 2);
    expect_read(with_folder(0x0800, 0x0800), 2);
    refuse_name(with_folder(0, 0x0800),
                "the top folder '\xc3\xa9' is marked as UTF-8 (flag bit 11) in some entries only");
    refuse_name(with_folder(0x0800, 0),
                "the top folder '\xc3\xa9' is marked as UTF-8 (flag bit 11) in some entries only");
    expect_refused(test_zip_new_foreign(latin1, 1), BERTH_E_ARCHIVE,
                   "at byte 46: a name that is not UTF-8: 0xe9 at its byte 0");
    refuse_name(
        with_name("m/\xc3\xa9"),
        "a name that is not ASCII and not marked as UTF-8 (flag bit 11): 0xc3 at its byte 2");
}

Test(zip_names, a_folder_that_the_top_folder_begins_with_is_another)
{
    const test_entry entries[] = {test_stored("mm/data.pkl", "pickle", 6),
                                  test_stored("m/x", "", 0)};
    expect_refused(
        test_zip_new_foreign(entries, 2), BERTH_E_ARCHIVE,
        "at byte 137: 'm/x' does not lie in the top folder 'mm' of the entries before it");
}

Test(zip_names, nothing_but_letters_has_another_case)
{
    static const char *const pairs[][2] = {{"m/data.pkl", "m/data.pk"},
                                           {"m/data.pkl", "m/data.pkl2"},
                                           {"m/a@[]^aaaaaaaa", "m/a`{}~aaaaaaaa"},
                                           {"m/aaaaaaaa@[]^", "m/aaaaaaaa`{}~"},
                                           {"m/0", "m/P"},
                                           {"m/az", "m/za"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const test_entry entries[] = {test_stored(pairs[i][0], "x", 1),
                                      test_stored(pairs[i][1], "y", 1)};
        expect_read(test_zip_new_foreign(entries, 2), 2);
    }
    expect_read(with_utf8_name("m/d\xc3\xa1ta.pkl"), 2);
}

/* Z8: those that a careless fold gives one hash would take a time that is quadratic. */
Test(zip_names, many_names_that_are_nearly_equal_take_no_longer, .timeout = 20)
{
    enum { N_NAMES = 1 << 16, NAME_NBYTES = 18 };
    static uint8_t bytes[N_NAMES * (BTH_ZIP_CENTRAL_NBYTES + NAME_NBYTES)];
    char name[NAME_NBYTES + 1] = "m/";
    bth_zip_directory directory;
    bth_layout_entry place = {0};
    berth_error error;
    for (size_t i = 0; i < N_NAMES; i++) {
        for (size_t bit = 0; bit < 16; bit++)
            name[2 + bit] = "@`"[i >> bit & 1];
        cr_assert_eq(bth_layout_entry_compute(place.next_offset, NAME_NBYTES, 1, 1, &place), 0);
        bth_zip_write_central(&place, name, 0, bytes + i * (sizeof bytes / N_NAMES));
    }
    const bth_zip_end end = {place.next_offset, sizeof bytes, N_NAMES};
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_read_directory(bytes, &end, &directory, &error), 0, "%s", error.message);
    cr_expect_eq(directory.n_entries, N_NAMES);
    bth_zip_free_directory(&directory);
}

/* ---- finding ---- */

Test(zip_names, records_are_found_by_their_own_whole_name)
{
    test_zip zip = test_zip_small();
    bth_zip_directory directory;
    berth_error error;
    cr_assert_eq(test_zip_read(&zip, 0, &directory, &error), 0);
    cr_expect_eq(bth_zip_find(&directory, "data/1", 6), &directory.entries[3]);
    cr_expect_eq(bth_zip_find(&directory, "version and more", 7), &directory.entries[4]);
    cr_expect_null(bth_zip_find(&directory, "m/data/1", 8));
    cr_expect_null(bth_zip_find(&directory, "data/", 5));
    cr_expect_null(bth_zip_find(&directory, "data/11", 7));
    cr_expect_null(bth_zip_find(&directory, "", 0));
    cr_expect_null(bth_zip_find(&directory, "Data/1", 6));
    cr_expect_eq(bth_zip_find_any_case(&directory, "Data/1", 6), &directory.entries[3]);
    cr_expect_null(bth_zip_find_any_case(&directory, "Data/11", 7));
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}

/* No file can be made to have two names of one hash: its seed is secret. Here all have that one. */
Test(zip_names, names_of_one_hash_are_told_apart)
{
    test_zip zip = test_zip_small();
    bth_zip_directory directory;
    berth_error error;
    uint64_t seed;
    char name[32];
    cr_assert_eq(test_zip_read(&zip, 0, &directory, &error), 0);
    memcpy(&seed, directory.index, sizeof seed); /* its first field */
    for (unsigned i = 0; i < 1000; i++) {
        size_t n = (size_t)snprintf(name, sizeof name, "%0*u", 6 + (int)(i % 4), i);
        for (size_t k = 0; k < directory.n_entries; k++)
            directory.entries[k].name_hash = bth_hash_any_case(seed, name, n);
        cr_expect_null(bth_zip_find_any_case(&directory, name, n), "%s", name);
    }
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}

Test(zip_names, nothing_is_found_in_a_directory_that_was_not_read)
{
    const bth_zip_directory directory = {0};
    cr_expect_null(bth_zip_find(&directory, "data.pkl", 8));
    cr_expect_null(bth_zip_find_any_case(&directory, "data.pkl", 8));
}
