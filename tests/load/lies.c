/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files that are whole but not what the layout says, or that tell two stories (One reading). Most
 * of them are recipes in tests/hostile/ambiguity/, which say what each check level finds; debug.c:
 * debug mode finds all of them. Here is what no recipe makes, and what load.repacked=refuse says
 * where it knows less than debug mode.
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
#define SMALL_HEAD "load.head_nbytes=1"

TestSuite(lies, .init = begin_sample, .fini = end_sample);

Test(lies, a_file_without_any_is_read_at_every_level)
{
    static const char *const options[] = {
        NONE, DIRECTORY,    HEADERS,       DATA,       DEBUG,
        OFF,  OFF " " NONE, OFF " " DEBUG, SMALL_HEAD, SMALL_HEAD " " DATA};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(options[i]);
}

/* ---- what load.repacked=refuse says ---- */

/* By this check, and at no other; what was repacked has the sample's values all the same. */
static void expect_refused(const char *check, const char *sentence)
{
    char options[100], message[400];

    (void)snprintf(options, sizeof options, "%s " REFUSE, check);
    (void)snprintf(message, sizeof message, "memory: %s" REPACKED_REFUSED, sentence);
    expect_failure(options, BERTH_E_OFFSETS, message);
    expect_sample(OFF);
    expect_sample(check);
}

Test(lies, the_directory_tells_what_follows_the_last_storage)
{
    build(&(struct lie){.record = "data/1", .more_padding = 64});
    expect_refused(
        DIRECTORY,
        "data/2 at byte 1128: the layout puts its header here, right after data/1; the "
        "directory has it at byte 1192; load.calculate_storage_offsets=off reads it there");
    build(&(struct lie){.record = "data/2", .more_padding = 16});
    expect_refused(
        DIRECTORY,
        "data/2 at byte 1236: the layout has its end here; the directory has what follows "
        "it at byte 1252; load.calculate_storage_offsets=off uses its local header");
}

Test(lies, the_head_tells_what_is_first)
{
    swap_records("data/0", "data/2");
    build(NULL);
    expect_refused(NONE, "data/0 at byte 854: the layout puts its header here, but here is "
                         "sample/data/2; load.calculate_storage_offsets=off uses the directory");
    swap_records("data/0", "data/2");
    set_text(".storage_alignment", "128");
    build(NULL);
    expect_refused(NONE,
                   "data.pkl at byte 128: the layout puts its data here, at the first multiple "
                   "of 128 after the header; its local header puts it at byte 64; "
                   "load.calculate_storage_offsets=off reads it there");
    set_text(".storage_alignment", "65537");
    build(NULL);
    expect_failure(NONE, BERTH_E_ARCHIVE,
                   "memory: .storage_alignment at byte 704: '65537' (5 bytes) is no decimal number "
                   "from 1 to 65536");
}

/*
 * Z13: no descriptor, and a header that is longer by as much: the data are elsewhere, but each
 * header is where the layout has it. The directory's flags tell.
 */
Test(lies, a_longer_header_in_place_of_a_descriptor)
{
    enum {
        SECOND_STORAGE = 1000,
        NAME_NBYTES = sizeof "sample/data/1" - 1,
        DESCRIPTOR_NBYTES = 16
    };
    enum { LOCAL_FLAGS = 6, LOCAL_CRC = 14, LOCAL_EXTRA = 28, LOCAL_NAME = 30 };
    enum { CENTRAL_FLAGS = 8, CENTRAL_CRC = 16 };
    static const char *const read_by[] = {HEADERS, DATA, SMALL_HEAD};
    uint8_t *header = file + SECOND_STORAGE, *extra = header + LOCAL_NAME + NAME_NBYTES;
    const size_t extra_nbytes = header[LOCAL_EXTRA] + DESCRIPTOR_NBYTES;
    uint8_t *data = extra + extra_nbytes, *entry = find_entry("data/1");

    memmove(data, data - DESCRIPTOR_NBYTES, sizeof sample_bias);
    header[LOCAL_EXTRA] = (uint8_t)extra_nbytes;
    bth_put_integer(extra + 2, extra_nbytes - 4, 2); /* of its one field, the padding */
    header[LOCAL_FLAGS] &= (uint8_t)~BTH_ZIP_FLAG_DESCRIPTOR;
    entry[CENTRAL_FLAGS] &= (uint8_t)~BTH_ZIP_FLAG_DESCRIPTOR;
    memcpy(header + LOCAL_CRC, entry + CENTRAL_CRC, 12); /* the sizes, too */
    for (size_t i = 0; i < sizeof read_by / sizeof *read_by; i++)
        expect_sample(read_by[i]);
    expect_failure(DEBUG, BERTH_E_OFFSETS,
                   "memory: data/1 at byte 1088: the layout puts its data here, at the first "
                   "multiple of 64 after the header; its local header puts it at byte 1104; "
                   "load.calculate_storage_offsets=off reads it there" REPACKED_REFUSED);
    expect_refused(DIRECTORY,
                   "data/1 at byte 1000: the layout has it with a descriptor, the "
                   "directory has it without; load.calculate_storage_offsets=off uses its "
                   "local header");
}

/* ---- records that the sample does not have ---- */

/* Z13: the layout gives an empty record no descriptor. */
Test(lies, a_descriptor_of_an_empty_storage_in_the_directory)
{
    enum { CENTRAL_FLAGS = 8 };
    berth_tree *tree = berth_tree_new(NULL);

    begin_records(tree, test_vector(tree, BERTH_UINT8, "", 0), NATIVE_BYTEORDER);
    add_record("data/0", "", 0);
    add_text("version", "3\n");
    build(NULL);
    find_entry("data/0")[CENTRAL_FLAGS] |= BTH_ZIP_FLAG_DESCRIPTOR;
    cr_expect_neq(try_file(DIRECTORY), 0);
    cr_expect_not_null(strstr(error.message, "flags"), "%s", error.message);
}

/* Without storages nothing follows by arithmetic that would not fit. */
Test(lies, a_byteorder_that_is_no_word_is_not_taken_for_a_missing_one)
{
    static const char *const options[] = {NONE, DIRECTORY, HEADERS, OFF};
    berth_tree *tree = berth_tree_new(NULL);

    begin_records(tree, berth_make_int(tree, 1), "middle");
    add_text("version", "3");
    build(NULL);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(options[i], BERTH_E_ARCHIVE,
                       "memory: byteorder at byte 320: 'middle' (6 bytes) is neither 'little' nor "
                       "'big'");
}
