/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files that are whole but not what the layout says, or that tell two stories (One reading). Each
 * check level finds its share; debug mode finds all of them, with the exact sentence.
 */
#include "tests/support/load/archive.h"

#define DEBUG "debug=on"
#define OFF "load.calculate_storage_offsets=off"

/* One sample with one lie, refused with one sentence under some options. */
static void expect_lie(const struct lie *lie, const char *options, int code, const char *message)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, lie, &nbytes);

    expect_failure(file, nbytes, options, code, message);
    free(file);
    free_archive(&archive);
}

static void expect_unnoticed(const struct lie *lie, const char *options)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, lie, &nbytes);

    expect_sample(file, nbytes, options);
    free(file);
    free_archive(&archive);
}

Test(lies, a_file_without_any_is_read_at_every_level)
{
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);
    static const char *const options[] = {"load.check=none",
                                          "load.check=directory",
                                          "load.check=headers",
                                          "load.check=data",
                                          DEBUG,
                                          OFF,
                                          OFF " load.check=none",
                                          OFF " " DEBUG,
                                          "load.head_nbytes=1",
                                          "load.head_nbytes=1 load.check=data"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(file, nbytes, options[i]);
    free(file);
}

Test(lies, a_gap_before_a_storage)
{
    struct lie lie = {.record = "data/1", .gap = 192};

    expect_lie(
        &lie, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1192; load.calculate_storage_offsets=off reads it there");
    expect_lie(
        &lie, DEBUG, BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1192; load.calculate_storage_offsets=off reads it there");
    expect_lie(&lie, OFF, BERTH_E_ARCHIVE,
               "memory: data/0 at byte 984: 208 bytes lie between the data and the next entry, "
               "where a descriptor has 12, 16, 20 or 24");
    expect_unnoticed(&lie, OFF " load.check=none");
}

Test(lies, a_gap_before_the_first_storage_is_seen_in_the_head)
{
    struct lie lie = {.record = "data/0", .gap = 64};

    expect_lie(&lie, "load.check=none", BERTH_E_OFFSETS,
               "memory: data/0 at byte 854: the layout puts its header here, but it is not "
               "here; load.calculate_storage_offsets=off uses the directory");
    expect_lie(
        &lie, DEBUG, BERTH_E_OFFSETS,
        "memory: data/0 at byte 854: the layout puts its header here, right after byteorder; the "
        "directory has it at byte 918; load.calculate_storage_offsets=off reads it there");
}

Test(lies, padding_of_another_length)
{
    struct lie lie = {.record = "data/1", .more_padding = 64};

    expect_lie(
        &lie, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data/2 at byte 1128: the layout puts its header here, right after data/1; the "
        "directory has it at byte 1192; load.calculate_storage_offsets=off reads it there");
    expect_lie(&lie, DEBUG, BERTH_E_OFFSETS,
               "memory: data/1 at byte 1088: the layout puts its data here, at the first multiple "
               "of 64 after the header; its local header puts it at byte 1152; "
               "load.calculate_storage_offsets=off reads it there");
    expect_unnoticed(&lie, OFF);
}

Test(lies, padding_of_another_length_in_the_last_storage)
{
    struct lie lie = {.record = "data/2", .more_padding = 16};

    /* The directory knows where the next record begins. */
    expect_lie(&lie, "load.check=directory", BERTH_E_OFFSETS,
               "memory: data/2 at byte 1236: the layout has its end here; the directory has what "
               "follows it at byte 1252; load.calculate_storage_offsets=off uses its local header");
    expect_unnoticed(&lie, OFF " load.check=directory");
    expect_lie(&lie, DEBUG, BERTH_E_OFFSETS,
               "memory: data/2 at byte 1216: the layout puts its data here, at the first multiple "
               "of 64 after the header; its local header puts it at byte 1232; "
               "load.calculate_storage_offsets=off reads it there");
    expect_lie(&lie, "load.check=headers", BERTH_E_OFFSETS,
               "memory: data/2 at byte 1216: the layout puts its data here, at the first multiple "
               "of 64 after the header; its local header puts it at byte 1232; "
               "load.calculate_storage_offsets=off reads it there");
    expect_unnoticed(&lie, OFF);
}

Test(lies, padding_of_another_length_in_a_small_record)
{
    struct lie lie = {.record = ".format_version", .more_padding = 64};

    expect_lie(&lie, "load.check=none", BERTH_E_OFFSETS,
               "memory: .format_version at byte 576: the layout puts its data here, at the first "
               "multiple of 64 after the header; its local header puts it at byte 640; "
               "load.calculate_storage_offsets=off reads it there");
    expect_lie(&lie, DEBUG, BERTH_E_OFFSETS,
               "memory: .format_version at byte 576: the layout puts its data here, at the first "
               "multiple of 64 after the header; its local header puts it at byte 640; "
               "load.calculate_storage_offsets=off reads it there");
    expect_unnoticed(&lie, OFF);
}

Test(lies, a_shifted_offset_in_the_directory)
{
    struct lie lie = {.record = "data/1", .directory_shift = -64};

    expect_lie(
        &lie, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 936; load.calculate_storage_offsets=off reads it there");
    expect_lie(
        &lie, DEBUG, BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 936; load.calculate_storage_offsets=off reads it there");
    static const char *const levels[] = {OFF, OFF " load.check=headers", OFF " load.check=data",
                                         OFF " " DEBUG};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        expect_lie(&lie, levels[i], BERTH_E_ARCHIVE,
                   "memory: data/0 at byte 960: its 24 bytes reach into what begins at byte 936");
}

Test(lies, a_descriptor_of_another_size)
{
    struct lie lie = {.record = "data/1", .descriptor_lie = 8};

    expect_lie(&lie, DEBUG, BERTH_E_ARCHIVE,
               "memory: data/1 at byte 1112: the descriptor says CRC 0xc37f9b13 and sizes 32 and "
               "32, the directory 0xc37f9b13, 24 and 24");
    expect_lie(&lie, "load.check=headers", BERTH_E_ARCHIVE,
               "memory: data/1 at byte 1112: the descriptor says CRC 0xc37f9b13 and sizes 32 and "
               "32, the directory 0xc37f9b13, 24 and 24");
    expect_unnoticed(&lie, "load.check=directory");
}

Test(lies, a_descriptor_with_another_crc)
{
    struct lie lie = {.record = "data/1", .descriptor_crc = 1};

    expect_lie(&lie, DEBUG, BERTH_E_ARCHIVE,
               "memory: data/1 at byte 1112: the descriptor says CRC 0xc37f9b12 and sizes 24 and "
               "24, the directory 0xc37f9b13, 24 and 24");
}

Test(lies, a_descriptor_of_data_pkl_is_looked_at_at_every_level)
{
    struct lie size = {.record = "data.pkl", .descriptor_lie = 8};
    struct lie crc = {.record = "data.pkl", .descriptor_crc = 1};

    expect_lie(&size, "load.check=none", BERTH_E_ARCHIVE,
               "memory: data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8f and sizes 416 and "
               "416, the directory 0x1b5f4d8f, 408 and 408");
    expect_lie(&crc, "load.check=none", BERTH_E_ARCHIVE,
               "memory: data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8e and sizes 408 and "
               "408, the directory 0x1b5f4d8f, 408 and 408");
    expect_lie(&crc, DEBUG, BERTH_E_ARCHIVE,
               "memory: data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8e and sizes 408 and "
               "408, the directory 0x1b5f4d8f, 408 and 408");
}

Test(lies, a_size_in_the_directory)
{
    struct lie storage = {.record = "data/1", .directory_lie = 8};
    struct lie small = {.record = "byteorder", .directory_lie = 1};

    expect_lie(&storage, "load.check=directory", BERTH_E_TENSOR,
               "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 32");
    expect_lie(&small, "load.check=directory", BERTH_E_ARCHIVE,
               "memory: byteorder at byte 832: it has 6 bytes and CRC 0x19e33d85, the directory "
               "says 7 and 0x19e33d85");
    expect_unnoticed(&storage, "load.check=none");
}

/* Z5: what the directory says of a small record, against the record's own descriptor. */
Test(lies, a_sum_and_a_method_in_the_directory)
{
    enum { CENTRAL_METHOD = 10, CENTRAL_CRC = 16 };
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);
    uint8_t *entry = find_entry(file, nbytes, "byteorder");

    entry[CENTRAL_CRC] ^= 1;
    expect_failure(
        file, nbytes, "load.check=directory", BERTH_E_ARCHIVE,
        "memory: byteorder at byte 832: it has 6 bytes and CRC 0x19e33d85, the directory "
        "says 6 and 0x19e33d84");
    expect_sample(file, nbytes, "load.check=none");
    entry[CENTRAL_CRC] ^= 1;
    entry[CENTRAL_METHOD] = 8;
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_ARCHIVE,
                   "memory: byteorder at byte 832: it is stored, the directory says method 8");
    free(file);
}

/* Z7: room for it is in the padding before the data, for who does not read their header. */
Test(lies, an_entry_inside_a_storage)
{
    enum { INSIDE_AT = 930, MORE_AT = 1528 };
    struct archive archive = sample();
    struct lie lie = {.record = "more", .directory_shift = INSIDE_AT - MORE_AT};
    size_t nbytes;

    add_record(&archive, "more", "", 0);
    uint8_t *file = build(&archive, 64, true, &lie, &nbytes);
    cr_assert_arr_eq(file + MORE_AT, "PK\3\4", 4);
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_OFFSETS,
                   "memory: data/0 at byte 1000: the layout has its end here; the directory has "
                   "what follows it at byte 930; load.calculate_storage_offsets=off uses its local "
                   "header");
    free(file);
    free_archive(&archive);
}

Test(lies, a_storage_that_the_directory_does_not_list)
{
    struct lie lie = {.record = "data/1", .unlisted = true};

    expect_lie(&lie, "load.check=directory", BERTH_E_ARCHIVE,
               "memory: data/1: data.pkl names it, but the archive does not hold it");
    expect_lie(&lie, OFF " load.check=none", BERTH_E_ARCHIVE,
               "memory: data/1: data.pkl names it, but the archive does not hold it");
    expect_lie(&lie, OFF, BERTH_E_ARCHIVE,
               "memory: data/0 at byte 984: 144 bytes lie between the data and the next entry, "
               "where a descriptor has 12, 16, 20 or 24");
}

static void expect_built(struct archive *archive, const char *options, int code,
                         const char *message)
{
    size_t nbytes;
    uint8_t *file = build(archive, 64, true, NULL, &nbytes);

    if (code == 0)
        expect_sample(file, nbytes, options);
    else
        expect_failure(file, nbytes, options, code, message);
    free(file);
}

Test(lies, storages_in_another_order)
{
    struct archive archive = sample();

    swap_records(&archive, "data/1", "data/2");
    expect_built(
        &archive, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1108; load.calculate_storage_offsets=off reads it there");
    expect_built(
        &archive, DEBUG, BERTH_E_OFFSETS,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1108; load.calculate_storage_offsets=off reads it there");
    expect_built(&archive, OFF, 0, NULL);
    free_archive(&archive);
}

Test(lies, another_storage_first_is_seen_in_the_head)
{
    struct archive archive = sample();

    swap_records(&archive, "data/0", "data/2");
    expect_built(&archive, "load.check=none", BERTH_E_OFFSETS,
                 "memory: data/0 at byte 854: the layout puts its header here, but it is not "
                 "here; load.calculate_storage_offsets=off uses the directory");
    expect_built(&archive, OFF, 0, NULL);
    free_archive(&archive);
}

Test(lies, a_record_before_the_storages)
{
    struct archive archive = sample();

    add_text(&archive, "notes.txt", "mine");
    for (size_t i = archive.n - 1; i > 4; i--) {
        struct record kept = archive.records[i];
        archive.records[i] = archive.records[i - 1];
        archive.records[i - 1] = kept;
    }
    expect_built(&archive, "load.check=none", BERTH_E_OFFSETS,
                 "memory: data/0 at byte 854: the layout puts its header here, but it is not "
                 "here; load.calculate_storage_offsets=off uses the directory");
    expect_built(&archive, OFF, 0, NULL);
    free_archive(&archive);
}

Test(lies, data_pkl_not_first)
{
    struct archive archive = sample();

    swap_records(&archive, "data.pkl", "version");
    expect_built(&archive, "load.check=none", 0, NULL);
    expect_built(
        &archive, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data.pkl at byte 0: the layout puts its header here, first in the file; the "
        "directory has it at byte 852; load.calculate_storage_offsets=off reads it there");
    expect_built(
        &archive, DEBUG, BERTH_E_OFFSETS,
        "memory: data.pkl at byte 0: the layout puts its header here, first in the file; the "
        "directory has it at byte 852; load.calculate_storage_offsets=off reads it there");
    expect_built(&archive, OFF, 0, NULL);
    free_archive(&archive);
}

Test(lies, a_storage_shorter_or_longer_than_the_pickle_says)
{
    struct archive archive = sample();
    static const uint8_t bytes[64];

    *find_record(&archive, "data/1") = (struct record){"data/1", bytes, 16};
    expect_built(&archive, "load.check=directory", BERTH_E_TENSOR,
                 "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 16");
    expect_built(&archive, OFF, BERTH_E_TENSOR,
                 "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 16");
    *find_record(&archive, "data/1") = (struct record){"data/1", bytes, 32};
    expect_built(&archive, "load.check=directory", BERTH_E_TENSOR,
                 "memory: data/1 at byte 1000: data.pkl says 24 bytes, the record has 32");
    free_archive(&archive);
}

Test(lies, small_records_that_say_what_they_must_not)
{
    struct archive archive = sample();

    *find_record(&archive, "byteorder") = (struct record){"byteorder", "middle", 6};
    expect_built(&archive, OFF, BERTH_E_ARCHIVE,
                 "memory: byteorder at byte 832: 'middle' (6 bytes) is neither 'little' nor 'big'");
    *find_record(&archive, "byteorder") = (struct record){"byteorder", "little", 6};
    *find_record(&archive, ".storage_alignment") =
        (struct record){".storage_alignment", "65537", 5};
    expect_built(&archive, "load.check=none", BERTH_E_ARCHIVE,
                 "memory: .storage_alignment at byte 704: '65537' (5 bytes) is no decimal number "
                 "from 1 to 65536");
    *find_record(&archive, ".storage_alignment") = (struct record){".storage_alignment", "128", 3};
    expect_built(&archive, "load.check=none", BERTH_E_OFFSETS,
                 "memory: data.pkl at byte 128: the layout puts its data here, at the first "
                 "multiple of 128 after the header; its local header puts it at byte 64; "
                 "load.calculate_storage_offsets=off reads it there");
    expect_built(&archive, OFF, 0, NULL);
    free_archive(&archive);
}

/* One field of a local header of the sample, changed in the bytes: 14 CRC, 18 and 22 sizes, 8
 * method. */
static void expect_field(uint64_t header, size_t field, uint8_t value, const char *options,
                         int code, const char *message)
{
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);

    file[header + field] = value;
    expect_failure(file, nbytes, options, code, message);
    free(file);
}

/* Z5, at every level: what a small record's own header says is true, or left open. */
Test(lies, a_local_header_of_data_pkl)
{
    expect_field(0, 14, 1, "load.check=none", BERTH_E_ARCHIVE,
                 "memory: data.pkl at byte 0: the local header's CRC is 0x00000001, the "
                 "directory's 0x1b5f4d8f");
    expect_field(
        0, 18, 1, "load.check=none", BERTH_E_ARCHIVE,
        "memory: data.pkl at byte 0: the local header's compressed size is 1, the directory's 408");
    expect_field(0, 22, 1, "load.check=none", BERTH_E_ARCHIVE,
                 "memory: data.pkl at byte 0: the local header's size is 1, the directory's 408");
    expect_field(0, 8, 8, "load.check=none", BERTH_E_ARCHIVE,
                 "memory: data.pkl at byte 0: the local header's method is 8, the directory's 0");
}

Test(lies, a_local_header_of_the_first_storage)
{
    enum { FIRST_HEADER = 854 };

    expect_field(
        FIRST_HEADER, 8, 8, "load.check=none", BERTH_E_UNSUPPORTED,
        "memory: data/0 at byte 854: a deflated storage cannot be mapped or placed; unpack "
        "the archive and zip it again with `zip -0 -r`");
    expect_field(FIRST_HEADER, 22, 1, "load.check=none", BERTH_E_TENSOR,
                 "memory: data/0 at byte 960: data.pkl says 24 bytes, its local header 1");
    expect_field(FIRST_HEADER, 22, 1, DEBUG, BERTH_E_ARCHIVE,
                 "memory: data/0 at byte 854: the local header's size is 1, the directory's 24");
}

/*
 * Z5: load.check=directory does not read the local headers of later storages: nobody here goes by
 * them. From load.check=headers upwards, by verification and in debug mode they are compared.
 */
Test(lies, a_local_header_of_a_later_storage)
{
    enum { SECOND_HEADER = 1000 };
    static const char sentence[] =
        "memory: data/1 at byte 1000: the local header's size is 1, the directory's 24";
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);

    file[SECOND_HEADER + 22] = 1;
    expect_sample(file, nbytes, "load.check=none");
    expect_sample(file, nbytes, "load.check=directory");
    expect_sample(file, nbytes, "load.check=directory load.method=read");
    free(file);
    expect_field(SECOND_HEADER, 22, 1, "load.check=headers", BERTH_E_ARCHIVE, sentence);
    expect_field(SECOND_HEADER, 22, 1, "load.check=data", BERTH_E_ARCHIVE, sentence);
    expect_field(SECOND_HEADER, 22, 1, OFF, BERTH_E_ARCHIVE, sentence);
    expect_field(SECOND_HEADER, 22, 1, DEBUG, BERTH_E_ARCHIVE, sentence);
}

/* Z7: behind a record without a descriptor nothing else tells where it ends. */
Test(lies, a_gap_behind_an_empty_record)
{
    struct archive archive = sample();
    struct lie lie = {.record = "more", .gap = 8};
    size_t nbytes;

    add_record(&archive, "empty", "", 0);
    add_text(&archive, "more", "more");
    uint8_t *file = build(&archive, 64, true, &lie, &nbytes);
    expect_sample(file, nbytes, "load.check=none");
    expect_sample(file, nbytes, OFF " load.check=none");
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_ARCHIVE,
                   "memory: more at byte 1608: the entry before it ends at byte 1600");
    expect_failure(file, nbytes, DEBUG, BERTH_E_ARCHIVE,
                   "memory: more at byte 1608: the entry before it ends at byte 1600");
    expect_failure(file, nbytes, "load.check=headers", BERTH_E_ARCHIVE,
                   "memory: more at byte 1608: the entry before it ends at byte 1600");
    expect_failure(file, nbytes, OFF, BERTH_E_ARCHIVE,
                   "memory: more at byte 1608: the entry before it ends at byte 1600");
    free(file);
    free_archive(&archive);
}

/* ---- behind the storages, where the layout knows nothing: by default, and at every level above */

/* Z7, Z8: it is there for who reads from the front, and would be a second data/1. */
Test(lies, a_record_behind_all_others_that_the_directory_does_not_list)
{
    struct archive archive = sample();
    struct lie lie = {.record = "more", .unlisted = true};
    static const char sentence[] =
        "memory: .data/serialization_id at byte 1512: 106 bytes lie between the data and the next "
        "entry, where a descriptor has 12, 16, 20 or 24";
    size_t nbytes;

    add_text(&archive, "more", "of");
    uint8_t *file = build(&archive, 64, true, &lie, &nbytes);
    expect_sample(file, nbytes, "load.check=none");
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_ARCHIVE, sentence);
    expect_failure(file, nbytes, "load.check=headers", BERTH_E_ARCHIVE, sentence);
    expect_failure(file, nbytes, OFF, BERTH_E_ARCHIVE, sentence);
    expect_failure(file, nbytes, DEBUG, BERTH_E_ARCHIVE, sentence);
    free(file);
    free_archive(&archive);
}

/* Z5, Z6: no request more shows what its own header and descriptor say. */
Test(lies, a_local_header_and_a_descriptor_of_an_unknown_record)
{
    enum { VERSION_HEADER = 1236, VERSION_DESCRIPTOR = 1346 };

    expect_field(VERSION_HEADER, 14, 1, "load.check=directory", BERTH_E_ARCHIVE,
                 "memory: version at byte 1236: the local header's CRC is 0x00000001, the "
                 "directory's 0x55679ed1");
    expect_field(VERSION_HEADER, 30, 'S', "load.check=directory", BERTH_E_ARCHIVE,
                 "memory: version at byte 1236: the local header's name is 'Sample/version', the "
                 "directory's 'sample/version'");
    expect_field(VERSION_DESCRIPTOR, 4, 0, "load.check=directory", BERTH_E_ARCHIVE,
                 "memory: version at byte 1346: the descriptor says CRC 0x55679e00 and sizes 2 and "
                 "2, the directory 0x55679ed1, 2 and 2");
}
