/* SPDX-License-Identifier: BSD-3-Clause */
/* The container level where something is missing, wrong or elsewhere. */
#include "tests/support/load/archive.h"

TestSuite(archive_edges, .init = begin_sample, .fini = end_sample);

static int open_records(const char *options, berth_archive **archive)
{
    return berth_archive_open(FROM_MEMORY(file, file_nbytes), only(options, NULL), archive, NULL,
                              &error);
}

static void expect_no_records(const char *options, const char *message)
{
    berth_archive *archive;

    FAILS(open_records(options, &archive), BERTH_E_ARCHIVE, message);
    cr_expect_null(archive);
}

/* The record's place and bytes, however it was found. */
static void expect_record(berth_archive *archive, const char *name, const void *bytes,
                          size_t nbytes)
{
    berth_record record;
    uint8_t buffer[64];

    assert_ok(berth_archive_find(archive, name, &record, &error));
    cr_assert_eq(record.nbytes, nbytes);
    cr_assert_eq(berth_archive_read(archive, &record, buffer, nbytes, 0, &error), 0);
    cr_expect_arr_eq(buffer, bytes, nbytes);
}

/* Where the layout does not hold, local headers tell. */
static void expect_records(const struct lie *lie)
{
    berth_archive *opened;

    build(lie);
    assert_ok(open_records("load.check=none", &opened));
    expect_record(opened, "data/0", sample_weight, 24);
    expect_record(opened, "data/1", sample_bias, 24);
    berth_archive_close(opened);
}

Test(archive_edges, records_that_do_not_follow_the_layout_are_found_by_their_headers)
{
    expect_records(NULL);
    expect_records(&(struct lie){.record = "data/0", .more_padding = 64});
    find_record(".format_version")->bytes = "x";
    expect_records(NULL);
    find_record(".format_version")->bytes = "1";
    find_record(".storage_alignment")->bytes = "0x";
    expect_records(NULL);
    find_record(".storage_alignment")->bytes = "32";
    expect_records(NULL);
    remove_record(".storage_alignment");
    expect_records(NULL);
}

enum { DATA_0_AT = 854 /* its local header */, CENTRAL_METHOD = 10 };

/* Opens the file with a storage's header broken, which only who reads headers can tell. */
static void expect_headers_read(const char *options, const char *deflated, bool expected)
{
    berth_archive *opened;

    build(NULL);
    cr_assert_arr_eq(file + DATA_0_AT, "PK\3\4", 4);
    file[DATA_0_AT] = 'Q';
    if (deflated)
        find_entry(deflated)[CENTRAL_METHOD] = 8;
    if (expected) {
        expect_no_records(
            options, "memory: at byte 854: a local header begins with 0x04034b51, not 0x04034b50");
        return;
    }
    cr_expect_eq(open_records(options, &opened), 0, "%s", error.message);
    berth_archive_close(opened);
}

/* Without headers read, data.pkl's neighbours must say that the layout holds. */
Test(archive_edges, headers_are_read_unless_the_format_version_promises_the_layout)
{
    static const char off[] = "load.check=none load.calculate_storage_offsets=off";

    add_text("more", "KL\4\2"); /* with a zero behind it aaaaa, which is as long */
    sample.records[sample.n - 1].nbytes++;
    expect_headers_read("load.check=none", NULL, false);
    expect_headers_read(off, NULL, true);
    expect_headers_read("load.check=none", "more", true);
    add_record("folder/", "", 0);
    expect_headers_read("load.check=none", NULL, true);
    sample.n--;
    find_record(".format_version")->bytes = "0";
    expect_headers_read("load.check=none", NULL, true);
}

/* Z7: so much is not read to get over it. A smaller one: local.txt of tests/hostile/ambiguity/. */
Test(archive_edges, a_large_gap_behind_an_empty_record)
{
    berth_archive *opened;

    add_record("empty", "", 0);
    add_text("more", "more");
    build(&(struct lie){.record = "more", .gap = 300000});
    cr_expect_eq(open_records("load.check=none", &opened), 0);
    berth_archive_close(opened);
    expect_no_records("load.check=directory",
                      "memory: more at byte 301600: the entry before it ends at byte 1600");
}

static void expect_no_records_at_any_level(const char *message)
{
    expect_no_records("load.check=none", message);
    expect_no_records("load.check=directory", message);
    expect_no_records("load.check=headers", message);
}

/* Z7 */
Test(archive_edges, no_record_reaches_into_the_next_at_any_level)
{
    build(&(struct lie){.record = "data/0", .directory_lie = 36});
    expect_no_records_at_any_level(
        "memory: data/0 at byte 960: its 60 bytes overlap what begins at byte 1000");
}

/* Z1 */
Test(archive_edges, an_end_that_is_cut_is_told_at_any_level)
{
    file_nbytes--;
    expect_no_records_at_any_level(
        "memory: at byte 2178: the end record is cut off: 21 of its 22 bytes are there: a download "
        "or a save in place that did not end?");
}

/* Z7 */
Test(archive_edges, bytes_before_the_first_record_are_told_at_any_level)
{
    build(&(struct lie){.record = "data.pkl", .gap = 64});
    memcpy(file, "PK\3\4", 4); /* or it is no zip at all */
    expect_no_records_at_any_level(
        "memory: data.pkl at byte 64: the first entry, but the archive begins at byte 0");
}

/* An option of the environment that is none fails every way to open. */
Test(archive_edges, a_bad_environment_is_told_by_every_way_to_open)
{
    static const char text[] = "BERTH_LOAD_CHECK";
    berth_archive *archive;
    berth_source source = {.nbytes = 4, .read = NULL};

    cr_assert_eq(setenv(text, "nonsense", 1), 0);
    cr_expect_eq(berth_archive_open(FROM_PATH("/nowhere"), NULL, &archive, NULL, &error),
                 BERTH_E_OPTION);
    cr_expect_eq(berth_archive_open(FROM_FD(0), NULL, &archive, NULL, &error), BERTH_E_OPTION);
    cr_expect_eq(berth_archive_open(FROM_MEMORY("a", 1), NULL, &archive, NULL, &error),
                 BERTH_E_OPTION);
    cr_expect_eq(berth_archive_open(&source, NULL, &archive, NULL, &error), BERTH_E_OPTION);
    FAILS_SAYING(berth_open("/nowhere", NULL, &checkpoint, &error), BERTH_E_OPTION, text);
    cr_assert_eq(unsetenv(text), 0);
}

Test(archive_edges, sources_and_records_that_are_none)
{
    berth_archive *archive;
    berth_record record = {.name = "none"};
    berth_source source = {.nbytes = 4, .read = NULL};
    uint8_t buffer[8];

    cr_expect_eq(berth_archive_open(&source, NULL, &archive, NULL, &error), BERTH_E_ARGUMENT);
    source.name = "mine";
    cr_expect_eq(berth_archive_open(&source, NULL, &archive, NULL, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_archive_open(FROM_MEMORY(NULL, 5), NULL, &archive, NULL, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_null(archive);
    cr_assert_eq(open_records("load.check=directory", &archive), 0);
    FAILS(berth_archive_find(archive, "none", &record, &error), BERTH_E_NOT_FOUND,
          "memory: there is no record \"none\" among the 9 in sample/");
    record.name = "none";
    FAILS(berth_archive_read(archive, &record, buffer, 1, 0, &error), BERTH_E_NOT_FOUND,
          "memory: none: there is no such record");
    berth_archive_close(archive);
}
