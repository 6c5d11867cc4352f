/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Z5, Z6, Z10: local headers and descriptors against the directory, and CRCs. More that is refused
 * is in tests/hostile/ambiguity/: local.txt, names.txt, sizes.txt. In the small archive the header
 * of data/0 is at byte 214, its 5 bytes at 256, its descriptor at 261.
 */
#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"
#include <criterion/criterion.h>

/* ---- the header by itself ---- */

Test(zip_local, a_header_tells_its_facts)
{
    test_zip zip = test_zip_small();
    bth_zip_local local;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_zip_parse_local_header(zip.bytes + 214, zip.nbytes - 214, 214, &local, &error),
                 0);
    cr_expect_eq(local.name_nbytes, 8);
    cr_expect_eq(memcmp(local.name, "m/data/0", 8), 0);
    cr_expect_eq(local.flags, 0x0808);
    cr_expect_eq(local.method, 0);
    cr_expect_eq(local.crc32, 0);
    cr_expect_eq(local.nbytes, 0);
    cr_expect_eq(local.compressed_nbytes, 0);
    cr_expect_not(local.has_zip64);
    cr_expect_eq(local.data_offset, 256);
    test_zip_free(&zip);
}

/* As PyTorch writes it for 2^32 + 5 bytes past 4 GiB: size, 0, header offset. */
Test(zip_local, a_header_tells_the_size_in_its_zip64_field)
{
    uint8_t bytes[128];
    bth_layout_entry place;
    bth_zip_local local;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_layout_entry_compute(0x100000007, 8, 0x100000005, 64, &place), 0);
    bth_zip_write_local(&place, "m/data/0", bytes);
    cr_assert_eq(bth_zip_parse_local_header(bytes, place.data_offset - place.header_offset,
                                            place.header_offset, &local, &error),
                 0, "%s", error.message);
    cr_expect(local.has_zip64);
    cr_expect_eq(local.nbytes, 0x100000005);
    cr_expect_eq(local.compressed_nbytes, 0);
    cr_expect_eq(local.data_offset, place.data_offset);
}

/* Without bit 3 the fields themselves say where to look. */
Test(zip_local, a_header_tells_the_sizes_of_its_saturated_fields)
{
    const char bytes[] = "PK\3\4\0\0\0\0\0\0\0\0\0\0\1\2\3\4\xff\xff\xff\xff\5\0\0\0\0\0\x14\0\1\0"
                         "\x10\0\5\0\0\0\0\0\0\0\4\0\0\0\0\0\0";
    bth_zip_local local;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(
        bth_zip_parse_local_header((const uint8_t *)bytes, sizeof bytes, 0, &local, &error), 0,
        "%s", error.message);
    cr_expect_eq(local.compressed_nbytes, 4);
    cr_expect_eq(local.nbytes, 5);
}

/* Without bit 3 a size of 0 is one. */
Test(zip_local, a_header_of_an_empty_record_has_no_other_size)
{
    bth_layout_entry place;
    uint8_t bytes[64];
    bth_zip_local local;
    berth_error error;
    bth_error_clear(&error);
    cr_assert_eq(bth_layout_entry_compute(0x100000000, 8, 0, 1, &place), 0);
    bth_zip_write_local(&place, "m/data/0", bytes);
    cr_assert_eq(
        bth_zip_parse_local_header(bytes, sizeof bytes, place.header_offset, &local, &error), 0);
    cr_expect_eq(local.nbytes, 0);
    cr_expect_eq(local.n_zip64, 1);
    cr_expect_eq(local.zip64[0], 0x100000000);
}

Test(zip_local, a_header_cut_off_anywhere_asks_for_more)
{
    test_zip zip = test_zip_small();
    for (size_t n = 0; n < 256 - 214; n++) {
        uint8_t *part = malloc(n + 1);
        bth_zip_local local;
        berth_error error;
        char sentence[96];
        memcpy(part, zip.bytes + 214, n);
        bth_error_clear(&error);
        cr_expect_eq(bth_zip_parse_local_header(part, n, 214, &local, &error), BERTH_E_TRUNCATED);
        snprintf(sentence, sizeof sentence,
                 "at byte 214: a local header does not end within %zu bytes", n);
        cr_expect_str_eq(error.message, sentence);
        free(part);
    }
    test_zip_free(&zip);
}

/* ---- Z5: the header against the directory ---- */

Test(zip_local, with_bit_3_crc_and_sizes_may_be_there_or_not_or_saturated)
{
    static const uint32_t sizes[] = {0, 5, 0xFFFFFFFF};
    for (size_t i = 0; i < 9; i++) {
        test_zip zip = test_zip_small();
        test_zip_put(&zip, zip.header_at[2] + LOCAL_CRC, i % 2 ? 0x470b99f4 : 0, 4);
        test_zip_put(&zip, zip.header_at[2] + LOCAL_SIZE, sizes[i % 3], 4);
        test_zip_put(&zip, zip.header_at[2] + LOCAL_COMPRESSED, sizes[i / 3], 4);
        expect_read(zip, 5);
    }
}

/* ---- Z5: zip64 fields of local headers, as seen in the wild ---- */

/* An archive of one record of 6 bytes, whose header's sizes are both `size`, with a zip64 field of
 * n values. */
static test_zip with_zip64(uint32_t size, size_t n, uint64_t a, uint64_t b, uint64_t c, bool bit_3)
{
    uint8_t extra[4 + 24];
    uint8_t *out = bth_put_u16(extra, BTH_ZIP_EXTRA_ZIP64);
    out = bth_put_u16(out, 8 * n);
    out = bth_put_u64(out, a);
    out = bth_put_u64(out, b);
    bth_put_u64(out, c);
    test_entry entry = test_stored("m/data.pkl", "pickle", 6);
    entry.local_size = entry.local_compressed = size;
    entry.local_extra = (const char *)extra;
    entry.local_extra_nbytes = 4 + 8 * n;
    if (bit_3) {
        entry.flags = BTH_ZIP_FLAG_DESCRIPTOR;
        entry.local_crc32 = 0;
        entry.descriptor = "PK\7\x8\x0e\x74\x43\xb7\6\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0";
        entry.descriptor_nbytes = 24;
    }
    return test_zip_new_foreign(&entry, 1);
}

Test(zip_local, zip64_fields_say_what_the_directory_says)
{
    static const struct {
        uint32_t size;
        size_t n;
        uint64_t values[3];
        bool bit_3;
        const char *differs; /* NULL: it is read */
    } cases[] = {
        {0xFFFFFFFF, 2, {6, 6}, false, NULL},
        {0xFFFFFFFF, 3, {6, 6, 0}, false, NULL},
        {6, 2, {6, 6}, false, NULL}, /* told twice, the same */
        {6, 0, {0}, false, NULL},    /* an empty one */
        {0, 1, {0}, true, NULL},     /* the header's offset, PyTorch's way */
        {0, 1, {6}, true, NULL},     /* the size */
        {0, 2, {6, 0}, true, NULL},  /* PyTorch's: no compressed size yet */
        {0xFFFFFFFF, 2, {0, 0}, true, NULL},
        {0xFFFFFFFF, 1, {0}, true, NULL},
        {0, 1, {7}, true, "value is 7, the directory's 6"},
        {0, 2, {7, 6}, true, "size is 7, the directory's 6"},
        {0, 2, {6, 7}, true, "compressed size is 7, the directory's 6"},
        {0, 3, {6, 6, 1}, true, "offset is 1, the directory's 0"},
        {0xFFFFFFFF, 2, {0, 6}, false, "size is 0, the directory's 6"},
        {6, 1, {7}, false, "value is 7, the directory's 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t *values = cases[i].values;
        test_zip zip =
            with_zip64(cases[i].size, cases[i].n, values[0], values[1], values[2], cases[i].bit_3);
        char sentence[128];
        snprintf(sentence, sizeof sentence, "data.pkl at byte 0: the local header's ZIP64 %s",
                 cases[i].differs ? cases[i].differs : "");
        if (cases[i].differs)
            expect_refused(zip, BERTH_E_ARCHIVE, sentence);
        else
            expect_read(zip, 1);
    }
}

/* ---- Z6: the descriptor ---- */

/* One record of 6 bytes with this descriptor. */
static test_zip with_descriptor(const char *descriptor, size_t nbytes)
{
    test_entry entry = test_stored("m/data.pkl", "pickle", 6);
    entry.flags = BTH_ZIP_FLAG_DESCRIPTOR;
    entry.local_crc32 = entry.local_size = entry.local_compressed = 0;
    entry.descriptor = descriptor;
    entry.descriptor_nbytes = nbytes;
    return test_zip_new_foreign(&entry, 1);
}

Test(zip_local, descriptors_are_read_in_both_widths_with_and_without_signature)
{
    expect_read(with_descriptor("\x0e\x74\x43\xb7\6\0\0\0\6\0\0\0", 12), 1);
    expect_read(with_descriptor("PK\7\x8\x0e\x74\x43\xb7\6\0\0\0\6\0\0\0", 16), 1);
    expect_read(with_descriptor("\x0e\x74\x43\xb7\6\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 20), 1);
    expect_read(with_descriptor("PK\7\x8\x0e\x74\x43\xb7\6\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 24), 1);
}

/* ---- the record check by itself ---- */

/* Bytes of the small zip's third record, and how often and how far they were asked for. */
typedef struct counted {
    bth_zip_part part;
    unsigned n_calls;
    uint64_t first, end;
} counted;

static int counted_get(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                       const uint8_t **bytes, berth_error *error)
{
    counted *asked = context;
    bth_zip_input input = bth_zip_input_over(&asked->part);

    cr_expect_leq(ahead, 100);
    asked->first = asked->n_calls++ > 0 ? asked->first : offset;
    asked->end = offset + nbytes;
    return input.get(input.context, offset, nbytes, ahead, bytes, error);
}

/* What the layout alone expects of a record "archive/data/0" of 6 bytes at the file's begin. */
static bth_zip_entry placed_entry(bth_layout_entry *place, uint8_t bytes[128])
{
    cr_assert_eq(bth_layout_entry_compute(0, 14, 6, 64, place), 0);
    bth_zip_write_local(place, "archive/data/0", bytes);
    bth_zip_write_descriptor(place, 0x12345678, bytes + place->data_offset + 6);
    return (bth_zip_entry){.flags = BTH_ZIP_FLAG_UTF8 | BTH_ZIP_FLAG_DESCRIPTOR,
                           .crc32 = 0x12345678,
                           .compressed_nbytes = 6,
                           .nbytes = 6,
                           .next_offset = place->next_offset};
}

Test(zip_record, what_the_layout_expects_is_checked_without_a_directory)
{
    bth_layout_entry place;
    uint8_t bytes[128] = "";
    bth_zip_entry entry = placed_entry(&place, bytes), other = entry;
    counted asked = {.part = {bytes, 0, place.next_offset}};
    const bth_zip_input input = {.get = counted_get, .context = &asked};
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(bth_zip_check_record(&input, 100, &entry, &error), 0, "%s", error.message);
    cr_expect_eq(entry.data_offset, place.data_offset);
    cr_expect_eq(entry.end_offset, place.next_offset);
    cr_expect_eq(asked.n_calls, 3); /* the header's fixed part, all of it, the descriptor */
    cr_expect_eq(asked.first, 0);
    cr_expect_eq(asked.end, place.next_offset);
    other.crc32 = 0;
    cr_expect_eq(bth_zip_check_record(&input, 0, &other, &error), BERTH_E_ARCHIVE);
}

Test(zip_record, what_the_callback_returns_ends_the_check)
{
    bth_layout_entry place;
    uint8_t bytes[128] = "";
    bth_zip_entry entry = placed_entry(&place, bytes);
    berth_error error;

    for (uint64_t n = 0; n < place.next_offset; n++) {
        uint8_t *copy = memcpy(malloc(n + 1), bytes, n);
        bth_zip_part part = {copy, 0, n};
        const bth_zip_input input = bth_zip_input_over(&part);
        bth_error_clear(&error);
        bth_zip_entry checked = entry;
        cr_expect_eq(bth_zip_check_record(&input, 0, &checked, &error), BERTH_E_TRUNCATED);
        cr_expect_eq(checked.end_offset, 0);
        free(copy);
    }
    cr_expect_str_eq(error.message, "at byte 70: 16 bytes needed, but only bytes 0 to 85 are here");
}

Test(zip_record, without_bit_3_no_descriptor_is_asked_for)
{
    const bth_zip_input input = {0};
    bth_zip_entry entry = {.compressed_nbytes = 6, .data_offset = 40, .next_offset = 46};
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_check_record_descriptor(&input, 0, &entry, &error), 0);
    cr_expect_eq(entry.end_offset, 46);
}

/* ---- Z7 ---- */

Test(zip_local, data_that_the_local_extra_pushes_into_the_next_entry_is_refused)
{
    test_zip zip = test_zip_small();
    /* 64 bytes of padding more than there is room for; the next header is at 277. */
    test_zip_put(&zip, zip.header_at[2] + LOCAL_EXTRA_NBYTES, 68, 2);
    test_zip_put(&zip, zip.extra_at[2] + 2, 64, 2);
    expect_refused(zip, BERTH_E_ARCHIVE,
                   "data/0 at byte 320: its 5 bytes overlap what begins at byte 277");
}

Test(zip_record, an_end_behind_the_next_entry_is_refused)
{
    const bth_zip_entry entry = {.record = "data/0",
                                 .flags = 1 << 3,
                                 .data_offset = 100,
                                 .compressed_nbytes = 300,
                                 .next_offset = 277};
    berth_error error;
    uint64_t end;

    bth_error_clear(&error);
    FAILS(bth_zip_find_entry_end(&entry, &end, &error), BERTH_E_ARCHIVE,
          "data/0 at byte 100: its 300 bytes overlap what begins at byte 277");
}

/* ---- Z10: CRCs ---- */

Test(zip_local, a_crc_of_zero_is_not_computed_and_accepted)
{
    bth_zip_entry entry = {.record = "data/0", .nbytes = 6, .crc32 = 0};
    berth_error error;
    bool present = true;
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_compare_crc(&entry, 0xb743740e, &present, &error), 0);
    cr_expect_not(present);
}

Test(zip_local, a_crc_that_matches_is_present)
{
    bth_zip_entry entry = {.record = "data/0", .nbytes = 6, .crc32 = 0xb743740e};
    berth_error error;
    bool present = false;
    bth_error_clear(&error);
    cr_expect_eq(bth_zip_compare_crc(&entry, 0xb743740e, &present, &error), 0);
    cr_expect(present);
    entry = (bth_zip_entry){.record = "data/1"};
    present = false;
    cr_expect_eq(bth_zip_compare_crc(&entry, 0, &present, &error), 0);
    cr_expect(present, "that of an empty record is 0");
}
