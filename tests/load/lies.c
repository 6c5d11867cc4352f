/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files that are whole but not what the layout says, or that tell two stories (One reading). Each
 * check level finds its share. tests/load/debug.c: debug mode finds all of them.
 */
#include "format/bytes.h"
#include "format/zip/zip.h"
#include "tests/support/load/archive.h"

#define DEBUG "debug=on"
#define OFF "load.calculate_storage_offsets=off"
#define REFUSE "load.repacked=refuse"
#define NONE "load.check=none"
#define DIRECTORY "load.check=directory"
#define HEADERS "load.check=headers"
#define DATA "load.check=data"
#define OFF_NONE OFF " " NONE
#define OFF_DEBUG OFF " " DEBUG
#define SMALL_HEAD "load.head_nbytes=1"
#define SMALL_HEAD_DATA SMALL_HEAD " " DATA
#define MAX_OPTIONS 5

TestSuite(lies, .init = begin_sample, .fini = end_sample);

/* With each of these options opening says this after "memory: ", or gives the sample's values. */
struct expected {
    const char *options[MAX_OPTIONS];
    int code; /* 0: the values */
    const char *message;
};

static void expect(const struct expected *expected)
{
    char message[700];

    (void)snprintf(message, sizeof message, "memory: %s", expected->message);
    for (size_t i = 0; i < MAX_OPTIONS && expected->options[i]; i++)
        if (expected->code == 0)
            expect_sample(expected->options[i]);
        else
            expect_failure(expected->options[i], expected->code, message);
}

Test(lies, a_file_without_any_is_read_at_every_level)
{
    static const char *const options[] = {NONE, DIRECTORY, HEADERS,   DATA,       DEBUG,
                                          OFF,  OFF_NONE,  OFF_DEBUG, SMALL_HEAD, SMALL_HEAD_DATA};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(options[i]);
}

/* ---- one lie in the sample ---- */

Test(lies, one_in_the_sample)
{
    static const struct {
        struct lie lie;
        struct expected expected;
    } cases[] = {
        /* A gap before a storage. */
        {{.record = "data/1", .gap = 192},
         {{DIRECTORY, HEADERS, OFF},
          BERTH_E_ARCHIVE,
          "data/0 at byte 984: 208 bytes lie between the data and the next entry, but a descriptor "
          "has 12, 16, 20 or 24"}},
        {{.record = "data/1", .gap = 192}, {{OFF " " NONE}, 0, NULL}},
        /* Before the first storage it is seen in the head. */
        {{.record = "data/0", .gap = 64},
         {{NONE, DIRECTORY, HEADERS},
          BERTH_E_ARCHIVE,
          "byteorder at byte 838: 80 bytes lie between the data and the next entry, but a "
          "descriptor has 12, 16, 20 or 24"}},
        /* Padding of another length. */
        {{.record = "data/1", .more_padding = 64},
         {{DIRECTORY " " REFUSE},
          BERTH_E_OFFSETS,
          "data/2 at byte 1128: the layout puts its header here, right after data/1; the directory "
          "has it at byte 1192; load.calculate_storage_offsets=off reads it "
          "there" REPACKED_REFUSED}},
        {{.record = "data/1", .more_padding = 64}, {{OFF, DIRECTORY, HEADERS}, 0, NULL}},
        /* In the last storage: the directory knows where the next record begins. */
        {{.record = "data/2", .more_padding = 16},
         {{DIRECTORY " " REFUSE},
          BERTH_E_OFFSETS,
          "data/2 at byte 1236: the layout has its end here; the directory has what follows it at "
          "byte 1252; load.calculate_storage_offsets=off uses its local header" REPACKED_REFUSED}},
        {{.record = "data/2", .more_padding = 16},
         {{HEADERS " " REFUSE},
          BERTH_E_OFFSETS,
          "data/2 at byte 1216: the layout puts its data here, at the first multiple of 64 after "
          "the header; its local header puts it at byte 1232; load.calculate_storage_offsets=off "
          "reads it there" REPACKED_REFUSED}},
        {{.record = "data/2", .more_padding = 16},
         {{OFF " " DIRECTORY, OFF, DIRECTORY, HEADERS}, 0, NULL}},
        /* In a small record. */
        {{.record = ".format_version", .more_padding = 64},
         {{NONE " " REFUSE},
          BERTH_E_OFFSETS,
          ".format_version at byte 576: the layout puts its data here, at the first multiple of 64 "
          "after the header; its local header puts it at byte 640; "
          "load.calculate_storage_offsets=off reads it there" REPACKED_REFUSED}},
        {{.record = ".format_version", .more_padding = 64}, {{OFF, NONE, HEADERS}, 0, NULL}},
        /* A shifted offset in the directory. */
        {{.record = "data/1", .directory_shift = -64},
         {{DIRECTORY, OFF, OFF " " HEADERS, OFF " " DATA, OFF " " DEBUG},
          BERTH_E_ARCHIVE,
          "data/0 at byte 960: its 24 bytes overlap what begins at byte 936"}},
        /* Descriptors of another size or CRC; data.pkl's is compared at every level. */
        {{.record = "data/1", .descriptor_lie = 8},
         {{HEADERS},
          BERTH_E_ARCHIVE,
          "data/1 at byte 1112: the descriptor says CRC 0xc37f9b13 and sizes 32 and 32, the "
          "directory 0xc37f9b13, 24 and 24"}},
        {{.record = "data/1", .descriptor_lie = 8}, {{DIRECTORY}, 0, NULL}},
        {{.record = "data.pkl", .descriptor_lie = 8},
         {{NONE},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8f and sizes 416 and 416, the "
          "directory 0x1b5f4d8f, 408 and 408"}},
        {{.record = "data.pkl", .descriptor_crc = 1},
         {{NONE, DEBUG},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8e and sizes 408 and 408, the "
          "directory 0x1b5f4d8f, 408 and 408"}},
        /* A size in the directory. */
        {{.record = "data/1", .directory_lie = 8},
         {{DIRECTORY},
          BERTH_E_TENSOR,
          "data/1 at byte 1000: data.pkl says 24 bytes, the record has 32"}},
        {{.record = "data/1", .directory_lie = 8}, {{NONE}, 0, NULL}},
        {{.record = "byteorder", .directory_lie = 1},
         {{DIRECTORY},
          BERTH_E_ARCHIVE,
          "byteorder at byte 832: it has 6 bytes and CRC 0x19e33d85, the directory says 7 and "
          "0x19e33d85"}},
        /* A storage that the directory does not list. */
        {{.record = "data/1", .unlisted = true},
         {{DIRECTORY, OFF " " NONE},
          BERTH_E_ARCHIVE,
          "data/1: data.pkl names it, but the archive does not hold it"}},
        {{.record = "data/1", .unlisted = true},
         {{OFF},
          BERTH_E_ARCHIVE,
          "data/0 at byte 984: 144 bytes lie between the data and the next entry, but a descriptor "
          "has 12, 16, 20 or 24"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        build(&cases[i].lie);
        expect(&cases[i].expected);
    }
}

/* ---- fields changed in the bytes ---- */

enum {
    LOCAL_FLAGS = 6,
    LOCAL_METHOD = 8,
    LOCAL_CRC = 14,
    LOCAL_COMPRESSED = 18,
    LOCAL_SIZE = 22,
    LOCAL_EXTRA = 28,
    LOCAL_NAME = 30,
    CENTRAL_FLAGS = 8,
    CENTRAL_METHOD = 10,
    CENTRAL_CRC = 16,
    FIRST_STORAGE = 854, /* headers of the sample */
    SECOND_STORAGE = 1000,
    VERSION = 1236,
    VERSION_DESCRIPTOR = 1346,
};

/*
 * Z5: what a small record's own header says is true, or left open, at every level; and no request
 * more shows what header and descriptor of an unknown record behind the storages say (Z6).
 * load.check=directory does not read the local headers of later storages: nothing here uses them.
 * From load.check=headers upwards, by verification and in debug mode they are compared.
 */
Test(lies, one_field_of_a_local_header)
{
    static const struct {
        size_t at;
        uint8_t value;
        struct expected expected;
    } cases[] = {
        {LOCAL_CRC,
         1,
         {{NONE},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 0: the local header's CRC is 0x00000001, the directory's 0x1b5f4d8f"}},
        {LOCAL_COMPRESSED,
         1,
         {{NONE},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 0: the local header's compressed size is 1, the directory's 408"}},
        {LOCAL_SIZE,
         1,
         {{NONE},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 0: the local header's size is 1, the directory's 408"}},
        {LOCAL_METHOD,
         8,
         {{NONE},
          BERTH_E_ARCHIVE,
          "data.pkl at byte 0: the local header's method is 8, the directory's 0"}},
        {FIRST_STORAGE + LOCAL_METHOD,
         8,
         {{NONE},
          BERTH_E_ARCHIVE,
          "data/0 at byte 854: the local header's method is 8, the directory's 0"}},
        {FIRST_STORAGE + LOCAL_SIZE,
         1,
         {{NONE},
          BERTH_E_TENSOR,
          "data/0 at byte 960: data.pkl says 24 bytes, its local header 1"}},
        {FIRST_STORAGE + LOCAL_SIZE,
         1,
         {{DEBUG},
          BERTH_E_ARCHIVE,
          "data/0 at byte 854: the local header's size is 1, the directory's 24"}},
        {SECOND_STORAGE + LOCAL_SIZE,
         1,
         {{NONE, DIRECTORY, DIRECTORY " load.method=read"}, 0, NULL}},
        {SECOND_STORAGE + LOCAL_SIZE,
         1,
         {{HEADERS, DATA, OFF, DEBUG},
          BERTH_E_ARCHIVE,
          "data/1 at byte 1000: the local header's size is 1, the directory's 24"}},
        {VERSION + LOCAL_CRC,
         1,
         {{DIRECTORY},
          BERTH_E_ARCHIVE,
          "version at byte 1236: the local header's CRC is 0x00000001, the directory's "
          "0x55679ed1"}},
        {VERSION + LOCAL_NAME,
         'S',
         {{DIRECTORY},
          BERTH_E_ARCHIVE,
          "version at byte 1236: the local header's name is 'Sample/version', the directory's "
          "'sample/version'"}},
        {VERSION_DESCRIPTOR + 4,
         0,
         {{DIRECTORY},
          BERTH_E_ARCHIVE,
          "version at byte 1346: the descriptor says CRC 0x55679e00 and sizes 2 and 2, the "
          "directory 0x55679ed1, 2 and 2"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        build(NULL);
        file[cases[i].at] = cases[i].value;
        expect(&cases[i].expected);
    }
}

/*
 * Z13: no descriptor, and a header that is longer by as much: the data are elsewhere, but each
 * header is where the layout has it. The directory's flags tell.
 */
Test(lies, a_longer_header_in_place_of_a_descriptor)
{
    enum { NAME_NBYTES = sizeof "sample/data/1" - 1, DESCRIPTOR_NBYTES = 16 };
    uint8_t *header = file + SECOND_STORAGE, *extra = header + LOCAL_NAME + NAME_NBYTES;
    const size_t extra_nbytes = header[LOCAL_EXTRA] + DESCRIPTOR_NBYTES;
    uint8_t *data = extra + extra_nbytes, *entry = find_entry("data/1");

    memmove(data, data - DESCRIPTOR_NBYTES, sizeof sample_bias);
    header[LOCAL_EXTRA] = (uint8_t)extra_nbytes;
    bth_put_integer(extra + 2, extra_nbytes - 4, 2); /* of its one field, the padding */
    header[LOCAL_FLAGS] &= (uint8_t)~BTH_ZIP_FLAG_DESCRIPTOR;
    entry[CENTRAL_FLAGS] &= (uint8_t)~BTH_ZIP_FLAG_DESCRIPTOR;
    memcpy(header + LOCAL_CRC, entry + CENTRAL_CRC, 12); /* the sizes, too */
    expect(&(struct expected){{DIRECTORY, HEADERS, DATA, OFF, SMALL_HEAD}, 0, NULL});
    expect(&(struct expected){
        {DEBUG},
        BERTH_E_OFFSETS,
        "data/1 at byte 1088: the layout puts its data here, at the first multiple of 64 after the "
        "header; its local header puts it at byte 1104; load.calculate_storage_offsets=off reads "
        "it there" REPACKED_REFUSED});
    expect(&(struct expected){
        {REFUSE},
        BERTH_E_OFFSETS,
        "data/1 at byte 1000: the layout has it with a descriptor, the directory has it without; "
        "load.calculate_storage_offsets=off uses its local header" REPACKED_REFUSED});
}

/* Z5: what the directory says of a small record, against the record's own descriptor. */
Test(lies, a_sum_and_a_method_in_the_directory)
{
    uint8_t *entry = find_entry("byteorder");

    entry[CENTRAL_CRC] ^= 1;
    expect_failure(DIRECTORY, BERTH_E_ARCHIVE,
                   "memory: byteorder at byte 832: it has 6 bytes and CRC 0x19e33d85, the "
                   "directory says 6 and 0x19e33d84");
    expect_sample(NONE);
    entry[CENTRAL_CRC] ^= 1;
    entry[CENTRAL_METHOD] = 8;
    expect_failure(
        DIRECTORY, BERTH_E_ARCHIVE,
        "memory: byteorder at byte 832: its local header says method 0, the directory 8");
}

/* ---- other records ---- */

/* Z7: room for it is in the padding before the data, for who does not read their header. */
Test(lies, an_entry_inside_a_storage)
{
    enum { INSIDE_AT = 930, MORE_AT = 1528 };

    add_record("more", "", 0);
    build(&(struct lie){.record = "more", .directory_shift = INSIDE_AT - MORE_AT});
    cr_assert_arr_eq(file + MORE_AT, "PK\3\4", 4);
    expect_failure(DIRECTORY, BERTH_E_ARCHIVE,
                   "memory: data/0 at byte 960: its 24 bytes overlap what begins at byte 930");
}

Test(lies, storages_in_another_order)
{
    swap_records("data/1", "data/2");
    build(NULL);
    expect_failure(DIRECTORY " " REFUSE, BERTH_E_OFFSETS,
                   "memory: data/1 at byte 1000: the layout puts its header here, right after "
                   "data/0; the directory has it at byte 1108; load.calculate_storage_offsets=off "
                   "reads it there" REPACKED_REFUSED);
    expect_sample(OFF);
    expect_sample(DIRECTORY);
}

Test(lies, another_storage_first_is_seen_in_the_head)
{
    swap_records("data/0", "data/2");
    build(NULL);
    expect_failure(
        NONE " " REFUSE, BERTH_E_OFFSETS,
        "memory: data/0 at byte 854: the layout puts its header here, but here is sample/data/2; "
        "load.calculate_storage_offsets=off uses the directory" REPACKED_REFUSED);
    expect_sample(OFF);
    expect_sample(NONE);
}

Test(lies, a_record_before_the_storages)
{
    insert_text("notes.txt", "mine");
    build(NULL);
    expect_failure(
        NONE " " REFUSE, BERTH_E_OFFSETS,
        "memory: data/0 at byte 854: the layout puts its header here, but here is "
        "sample/notes.txt; load.calculate_storage_offsets=off uses the directory" REPACKED_REFUSED);
    expect_sample(OFF);
    expect_sample(NONE);
}

Test(lies, data_pkl_not_first)
{
    static const char *const options[] = {DIRECTORY " " REFUSE, DEBUG};

    swap_records("data.pkl", "version");
    build(NULL);
    expect_sample(NONE);
    for (size_t i = 0; i < 2; i++)
        expect_failure(options[i], BERTH_E_OFFSETS,
                       "memory: data.pkl at byte 0: the layout puts its header here, first in the "
                       "file; the directory has it at byte 852; load.calculate_storage_offsets=off "
                       "reads it there" REPACKED_REFUSED);
    expect_sample(OFF);
    expect_sample(DIRECTORY);
}

Test(lies, a_storage_shorter_or_longer_than_the_pickle_says)
{
    static const char *const options[] = {DIRECTORY, OFF};
    static const uint8_t bytes[64];

    set_record("data/1", bytes, 16);
    build(NULL);
    for (size_t i = 0; i < 2; i++)
        expect_failure(options[i], BERTH_E_TENSOR,
                       "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 16");
    set_record("data/1", bytes, 32);
    build(NULL);
    expect_failure(DIRECTORY, BERTH_E_TENSOR,
                   "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 32");
}

Test(lies, small_records_that_say_what_they_must_not)
{
    set_text("byteorder", "middle");
    build(NULL);
    expect_failure(
        OFF, BERTH_E_ARCHIVE,
        "memory: byteorder at byte 832: 'middle' (6 bytes) is neither 'little' nor 'big'");
    set_text("byteorder", "little");
    set_text(".storage_alignment", "65537");
    build(NULL);
    expect_failure(NONE, BERTH_E_ARCHIVE,
                   "memory: .storage_alignment at byte 704: '65537' (5 bytes) is no decimal number "
                   "from 1 to 65536");
    set_text(".storage_alignment", "128");
    build(NULL);
    expect_sample(NONE);
    expect_failure(NONE " " REFUSE, BERTH_E_OFFSETS,
                   "memory: data.pkl at byte 128: the layout puts its data here, at the first "
                   "multiple of 128 after the header; its local header puts it at byte 64; "
                   "load.calculate_storage_offsets=off reads it there" REPACKED_REFUSED);
    expect_sample(OFF);
}

/* Z7: behind a record without a descriptor nothing else tells where it ends. */
Test(lies, a_gap_behind_an_empty_record)
{
    static const char *const options[] = {DIRECTORY, DEBUG, HEADERS, OFF};

    add_record("empty", "", 0);
    add_text("more", "more");
    build(&(struct lie){.record = "more", .gap = 8});
    expect_sample(NONE);
    expect_sample(OFF " " NONE);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(options[i], BERTH_E_ARCHIVE,
                       "memory: more at byte 1608: the entry before it ends at byte 1600");
}

/* Z13: the layout gives an empty record no descriptor. */
Test(lies, a_descriptor_of_an_empty_storage_in_the_directory)
{
    berth_tree *tree = berth_tree_new(NULL);

    begin_records(tree, test_vector(tree, BERTH_UINT8, "", 0), NATIVE_BYTEORDER);
    add_record("data/0", "", 0);
    add_text("version", "3\n");
    build(NULL);
    find_entry("data/0")[CENTRAL_FLAGS] |= BTH_ZIP_FLAG_DESCRIPTOR;
    cr_expect_neq(try_file(DIRECTORY), 0);
    cr_expect_not_null(strstr(error.message, "flags"), "%s", error.message);
}

/* ---- small records (Z11, one reading) ---- */

/* Behind the storages it changes nothing of the layout (tests/load/byteorder.c). */
Test(lies, a_byteorder_among_the_storages_moves_them)
{
    remove_record("byteorder");
    add_text("byteorder", NATIVE_BYTEORDER);
    swap_records("byteorder", "data/1");
    build(NULL);
    expect_sample(DIRECTORY);
    expect_failure(DIRECTORY " " REFUSE, BERTH_E_OFFSETS,
                   "memory: data/1 at byte 872: the layout puts its header here, right after "
                   "data/0; the directory has it at byte 1400; load.calculate_storage_offsets=off "
                   "reads it there" REPACKED_REFUSED);
}

Test(lies, an_alignment_behind_the_storages_is_not_overlooked)
{
    remove_record(".storage_alignment");
    add_text(".storage_alignment", "64");
    build(NULL);
    expect_sample(HEADERS);
    expect_failure(
        HEADERS " " REFUSE, BERTH_E_OFFSETS,
        "memory: .storage_alignment at byte 1400: the directory has it here, but the layout has it "
        "before the storages; load.calculate_storage_offsets=off reads it here" REPACKED_REFUSED);
}

/* Without storages nothing follows by arithmetic that would not fit. */
Test(lies, a_byteorder_that_is_no_word_is_not_taken_for_a_missing_one)
{
    static const char *const options[] = {NONE, DIRECTORY, HEADERS};
    berth_tree *tree = berth_tree_new(NULL);

    begin_records(tree, berth_make_int(tree, 1), "middle");
    add_text("version", "3");
    build(NULL);
    for (size_t i = 0; i < 3; i++)
        expect_failure(
            options[i], BERTH_E_ARCHIVE,
            "memory: byteorder at byte 320: 'middle' (6 bytes) is neither 'little' nor 'big'");
}

/* ---- behind the storages, where the layout knows nothing: by default, and at every level above */

/* Z7, Z8: it is there for who reads from the front, and would be a second data/1. */
Test(lies, a_record_behind_all_others_that_the_directory_does_not_list)
{
    static const char *const options[] = {DIRECTORY, HEADERS, OFF, DEBUG};

    add_text("more", "of");
    build(&(struct lie){.record = "more", .unlisted = true});
    expect_sample(NONE);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(options[i], BERTH_E_ARCHIVE,
                       "memory: .data/serialization_id at byte 1512: 106 bytes lie between the "
                       "data and the next entry, but a descriptor has 12, 16, 20 or 24");
}
