/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Heads that are not as PyTorch writes them: what is found in them is compared with the layout
 * (Z5, Z7, T1), or the directory is asked; each lie is told by its sentence. Headers that lie in
 * one field are recipes in tests/hostile/ambiguity/.
 */
#include "format/bytes.h"
#include "load/open/open.h"
#include "tests/support/load/archive.h"

TestSuite(strange_heads, .init = begin_sample, .fini = end_sample);

#define OFF "load.calculate_storage_offsets=off"
#define REFUSE " load.repacked=refuse"

enum { LOCAL_FLAGS = 6, LOCAL_CRC = 14, LOCAL_COMPRESSED = 18, LOCAL_SIZE = 22, LOCAL_NAME = 30 };

/* Overwrites a field of a local header, here of the first record. */
static void put(size_t at, uint64_t value, size_t width)
{
    bth_put_integer(file + at, value, width);
}

/* ---- the cache of the head ---- */

Test(strange_heads, a_range_outside_the_source_is_refused_before_memory_is_taken)
{
    static const uint64_t ranges[][2] = {{0, 9}, {8, 1}, {9, 0}, {9, 1}, {UINT64_MAX, 1}};
    const berth_source source = berth_from_memory("8 bytes.", 8);
    bth_head_cache cache;
    bth_reader reader;
    const uint8_t *bytes;

    cr_assert_eq(bth_reader_open_source(&source, &reader, &error), 0);
    bth_head_cache_initialize(&cache, &reader, BTH_LARGE_PAGES_AUTO);
    cr_expect_eq(bth_head_cache_get_or_read(&cache, 3, 5, 0, &bytes, &error), 0);
    cr_expect_eq(memcmp(bytes, "ytes.", 5), 0);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        error = (berth_error){0};
        cr_expect_eq(
            bth_head_cache_get_or_read(&cache, ranges[i][0], ranges[i][1], 0, &bytes, &error),
            BERTH_E_TRUNCATED, "%zu", i);
    }
    bth_head_cache_free(&cache);
    bth_reader_close(&reader);
}

/* ---- what the layout cannot place ---- */

/* T1: the pickle claims a storage that ends beyond what offsets can tell. */
Test(strange_heads, a_storage_that_ends_beyond_64_bits)
{
    static const char pickle[] =
        "\x80\x02"
        "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nByteStorage\n"
        "X\1\0\0\0"
        "0X\3\0\0\0cpu\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ftQK\0K\1\x85K\1\x85\x89"
        "ccollections\nOrderedDict\n)RtR.";

    set_record("data.pkl", pickle, sizeof pickle - 1);
    build(NULL);
    expect_failure("load.check=none", BERTH_E_ARCHIVE,
                   "memory: data/0 at byte 598: 9223372036854775807 bytes cannot be placed here");
    expect_failure(
        OFF, BERTH_E_TENSOR,
        "memory: data/0 at byte 598: data.pkl says 9223372036854775807 bytes, the record has 24");
}

static char logged[1024]; /* the first line */

static void keep_first(void *context, const char *message)
{
    (void)context;
    if (!logged[0])
        (void)snprintf(logged, sizeof logged, "%s", message);
}

/*
 * An alignment of 65,536 leaves places that no padding reaches: an extra field has 65,535 bytes.
 * The pickle is just as long that the next record comes to lie so.
 */
Test(strange_heads, a_small_record_that_no_padding_can_align)
{
    enum { BESIDE_TEXT = 10, DESCRIPTOR = 16, HEADER = 30 + 22 + 4 };
    enum { N_TEXT = 65537 - BESIDE_TEXT - DESCRIPTOR - HEADER };
    char *text = memset(malloc(N_TEXT), 'x', N_TEXT);
    berth_tree *tree = berth_tree_new(NULL);

    begin_records(tree, berth_make_str(tree, text, N_TEXT), NATIVE_BYTEORDER);
    free(text);
    cr_assert_eq((sample.pickled.nbytes + DESCRIPTOR + HEADER) % 65536, 1);
    add_text(".storage_alignment", "65536");
    swap_records(".storage_alignment", "byteorder");
    add_text("version", "3");
    build(&(struct lie){.record = "data.pkl", .more_padding = 65536 - 64});
    expect_failure("load.check=none", BERTH_E_ARCHIVE,
                   "memory: .format_version at byte 131017: 1 bytes cannot be placed here");
    berth_set_log(keep_first, NULL);
    open_file(OFF " debug=on");
    berth_set_log(NULL, NULL);
    cr_expect_str_eq(logged,
                     "memory: .format_version at byte 131017: 1 bytes cannot be placed here");
}

/* ---- headers that lie ---- */

/* The same of the last small record, behind which no storage tells its end. Found by fuzzing. */
Test(strange_heads, a_last_record_without_its_descriptor)
{
    static const char *const checks[] = {"load.check=none", "load.check=directory",
                                         "load.check=data"};

    read_file("../fuzz/found/file/byteorder_without_descriptor.pt");
    for (size_t i = 0; i < 3; i++)
        expect_failure(checks[i], BERTH_E_ARCHIVE,
                       "memory: version at byte 470: the entry before it ends at byte 454");
}

/* As long as its name, or longer. */
Test(strange_heads, a_record_whose_name_begins_like_that_of_the_format_version)
{
    static const char *const names[] = {".format_versiom", ".format_version2"};
    struct record *record = find_record(".format_version");

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        record->name = names[i];
        build(NULL);
        logged[0] = 0;
        berth_set_log(keep_first, NULL);
        expect_sample("");
        berth_set_log(NULL, NULL);
        cr_expect_str_eq(logged, "memory: storages are found through the directory, not by "
                                 "calculated offsets: no .format_version follows data.pkl");
    }
}

/* A record that says no end of its own: the reason is this, and not that none was found. */
Test(strange_heads, a_small_record_that_is_longer_than_its_number)
{
    static const char *const names[] = {".format_version", ".storage_alignment"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct record *record = find_record(names[i]);
        const struct record kept = *record;
        record->bytes = i == 0 ? "1 " : "64 ";
        record->nbytes = kept.nbytes + 1;
        build(NULL);
        logged[0] = 0;
        berth_set_log(keep_first, NULL);
        open_file("load.check=none");
        berth_set_log(NULL, NULL);
        cr_expect_str_eq(logged,
                         "memory: storages are found through the directory, not by calculated "
                         "offsets: a small record after data.pkl is not as PyTorch writes it",
                         "%s: %s", names[i], logged);
        *record = kept;
    }
}

/* Z5: a CRC that the local header alone has, where all others say that none was computed. */
Test(strange_heads, a_sum_in_the_local_header_alone)
{
    const struct record *pickle = find_record("data.pkl");

    build_with(64, false, NULL);
    expect_sample("load.check=directory");
    put(LOCAL_CRC, bth_crc32(0, pickle->bytes, pickle->nbytes), 4);
    expect_failure("load.check=directory", BERTH_E_ARCHIVE,
                   "memory: data.pkl at byte 0: the local header's CRC is 0x1b5f4d8f, the "
                   "directory's 0x00000000");
}

enum { FIRST_STORAGE_AT = 854 };

/* Z5: its descriptor is as much shorter, so that the directory is just as it was. */
Test(strange_heads, padding_of_another_length_that_the_directory_does_not_show)
{
    enum { HEADER = 1000, EXTRAS = HEADER + LOCAL_NAME + 13, DATA = 1088, SHIFT = 4 };

    file[HEADER + LOCAL_NAME - 2] += SHIFT;
    file[EXTRAS + 2] += SHIFT;
    memmove(file + DATA + SHIFT, file + DATA, sizeof sample_bias); /* over the signature */
    expect_failure("load.check=headers", BERTH_E_OFFSETS,
                   "memory: data/1 at byte 1088: the layout puts its data here, at the first "
                   "multiple of 64 after the header; its local header puts it at byte 1092; "
                   "load.calculate_storage_offsets=off reads it there");
    expect_sample(OFF);
}

/* The same where the directory decides, because the byte order is behind the storages: it is not
 * enough. */
Test(strange_heads, padding_of_another_length_where_the_directory_decides)
{
    enum { SHIFT = 4 };

    remove_record("byteorder");
    add_text("byteorder", NATIVE_BYTEORDER);
    build(NULL);
    uint8_t *name = memmem(file, file_nbytes, "sample/data/1", 13);
    cr_assert_not_null(name);
    uint8_t *data = name + 13 + name[-2] + 256 * name[-1];
    expect_sample("load.check=directory");
    name[-2] += SHIFT;
    name[13 + 2] += SHIFT;
    memmove(data + SHIFT, data, sizeof sample_bias); /* over the signature of its descriptor */
    expect_failure("load.check=directory", BERTH_E_OFFSETS,
                   "memory: data/1 at byte 960: the layout puts its data here, at the first "
                   "multiple of 64 after the header; its local header puts it at byte 964; "
                   "load.calculate_storage_offsets=off reads it there");
    expect_sample("load.check=none");
}

/* Z5: what cannot be read of it is told as that. */
Test(strange_heads, the_extra_fields_in_the_local_header_of_the_first_storage)
{
    enum { EXTRAS_AT = FIRST_STORAGE_AT + LOCAL_NAME + 13 /* sample/data/0 */ };

    put(EXTRAS_AT, 1, 2); /* the padding's id: now ZIP64's */
    expect_failure("load.check=none", BERTH_E_ARCHIVE,
                   "memory: at byte 854: a ZIP64 extra field of 59 bytes in the local header; it "
                   "has 8, 16 or 24");
    for (unsigned nbytes = 0; nbytes <= 5; nbytes++) { /* Z4: too short for a version and a CRC */
        put(EXTRAS_AT, 0x7075, 2);
        put(EXTRAS_AT + 2, nbytes, 2);
        expect_failure(
            "load.check=none", BERTH_E_ARCHIVE,
            "memory: at byte 854: a Unicode path extra field, which gives the entry a second name");
    }
}

/* The name of the first storage, byte by byte: archive, slash, record. */
Test(strange_heads, the_name_in_the_local_header_of_the_first_storage)
{
    uint8_t *name = file + FIRST_STORAGE_AT + LOCAL_NAME;

    for (size_t i = 0; i < strlen("sample/data/0"); i++) {
        name[i] ^= 1;
        int result = try_file("load.check=none");
        if (i != strlen("sample")) { /* the slash, which the length tells */
            cr_expect_eq(result, BERTH_E_ARCHIVE, "byte %zu: %s", i, error.message);
            cr_expect_not_null(
                strstr(error.message, "data/0 at byte 854: the local header's name is '"));
        }
        name[i] ^= 1;
    }
}

static uint32_t entry_header(const char *record)
{
    uint32_t header;

    memcpy(&header, find_entry(record) + 42, 4);
    return header;
}

/* Takes bytes of a record's padding out of the file; behind it are only `next` and the directory.
 */
static void take_padding(const char *record, const char *next, uint32_t nbytes)
{
    enum { END = 22, TAIL = 56 + 20 + END, EXTRA_NBYTES = 28 };
    uint32_t header = entry_header(record), directory;
    uint32_t extra_nbytes =
        (uint32_t)(file[header + EXTRA_NBYTES] | file[header + EXTRA_NBYTES + 1] << 8);
    size_t extra = header + LOCAL_NAME + strlen("sample/") + strlen(record);
    uint8_t *data = file + extra + extra_nbytes;

    memcpy(&directory, file + file_nbytes - END + 16, 4);
    if (next)
        put((size_t)(find_entry(next) - file) + 42, entry_header(next) - nbytes, 4);
    memmove(data - nbytes, data, file_nbytes - (size_t)(data - file));
    file_nbytes -= nbytes;
    put(header + EXTRA_NBYTES, extra_nbytes - nbytes, 2);
    put(extra + 2, extra_nbytes - 4 - nbytes, 2);
    put(file_nbytes - TAIL + 48, directory - nbytes, 8);
    put(file_nbytes - END - 20 + 8, file_nbytes - TAIL, 8);
    put(file_nbytes - END + 16, directory - nbytes, 4);
}

/* Z13: the last storage has less padding, so its layout is longer than the file. */
Test(strange_heads, a_repacked_file_that_is_shorter_than_its_layout)
{
    remove_record(".data/serialization_id");
    set_text(".storage_alignment", "32768");
    build_with(32768, true, NULL);
    take_padding("version", NULL, 32000);
    take_padding("data/2", "version", 32000);
    expect_sample("");
    expect_sample("load.check=none");
    expect_failure("load.check=none" REFUSE, BERTH_E_OFFSETS,
                   "memory: data/2 at byte 229396: the layout has its end here; the directory has "
                   "what follows it at byte 197396; load.calculate_storage_offsets=off uses its "
                   "local header" REPACKED_REFUSED);
    file_nbytes -= 1;
    expect_failure("", BERTH_E_TRUNCATED,
                   "memory: data/2 at byte 229376: its 4 bytes do not fit into the file's 198758: "
                   "a download or a save in place that did not end?");
}

/* ---- first records that name no archive ---- */
