/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The bytes of headers against those of files that PyTorch 2.13 wrote, read out of the files
 * (FORMAT.md sections 2 and 3).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "format/zip/zip.h"

struct record {
    const char *name;
    uint64_t header_offset;
    uint64_t nbytes;
    uint32_t crc32;
    const char *local; /* hexadecimal */
    const char *descriptor;
    const char *central;
};

/* Small, empty, large, small past 4 GiB, empty past 4 GiB, large past 4 GiB. */
static const struct record records[] = {
    {"a64/.format_version", 376, 1, 0x83dcefb7,
     "504b030400000808000000000000000000000000000000000000130017006136342f2e666f726d61745f766572736"
     "96f6e464213005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
     "504b0708b7efdc830100000001000000",
     "504b0102000000000808000000000000b7efdc8301000000010000001300000000000000000000000000780100006"
     "136342f2e666f726d61745f76657273696f6e"},
    {"a64/data/1", 853, 0, 0x00000000,
     "504b0304000000080000000000000000000000000000000000000a0043006136342f646174612f3146423f005a5a5"
     "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
     "5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
     "",
     "504b01020000000000080000000000000000000000000000000000000a00000000000000000000000000550300006"
     "136342f646174612f31"},
    {"big-1/data/0", 854, 4294967295, 0x00000000,
     "504b0304000008080000000000000000000000000000000000000c0040006269672d312f646174612f3001001000f"
     "fffffff000000000000000000000000464228005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
     "5a5a5a5a5a5a5a5a5a5a5a5a5a",
     "504b070800000000ffffffff00000000ffffffff00000000",
     "504b010200000000080800000000000000000000ffffffffffffffff0c00140000000000000000000000560300006"
     "269672d312f646174612f3001001000ffffffff00000000ffffffff00000000"},
    {"big-1/data/2", 4294968415, 0, 0x00000000,
     "504b0304000000080000000000000000000000000000000000000c0037006269672d312f646174612f32010008005"
     "f04000001000000464227005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
     "5a5a5a5a",
     "",
     "504b01020000000000080000000000000000000000000000000000000c000c0000000000000000000000ffffffff6"
     "269672d312f646174612f32010008005f04000001000000"},
    {"big-1/data/3", 4294968512, 4294967295, 0x00000000,
     "504b0304000008080000000000000000000000000000000000000c0056006269672d312f646174612f3301001800f"
     "fffffff000000000000000000000000c004000001000000464236005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
     "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
     "504b070800000000ffffffff00000000ffffffff00000000",
     "504b010200000000080800000000000000000000ffffffffffffffff0c001c0000000000000000000000ffffffff6"
     "269672d312f646174612f3301001800ffffffff00000000ffffffff00000000c004000001000000"},
    {"big-1/data/4", 8589935959, 1, 0x00000000,
     "504b0304000008080000000000000000000000000000000000000c003f006269672d312f646174612f34010008005"
     "70500000200000046422f005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
     "5a5a5a5a5a5a5a5a5a5a5a5a",
     "504b07080000000001000000000000000100000000000000",
     "504b01020000000008080000000000000000000001000000010000000c000c0000000000000000000000ffffffff6"
     "269672d312f646174612f34010008005705000002000000"},
};

struct end {
    uint64_t n_entries;
    uint64_t directory_offset;
    uint64_t directory_nbytes;
    const char *bytes;
};

/* Of a file of 2 KB, and of one whose directory lies past 8 GiB. */
static const struct end ends[] = {
    {9, 1336, 547,
     "504b06062c000000000000001e032d000000000000000000090000000000000009000000000000002302000000000"
     "0003805000000000000504b0607000000005b0700000000000001000000504b050600000000090009002302000038"
     "0500000000"},
    {11, 8589936384, 789,
     "504b06062c000000000000001e032d0000000000000000000b000000000000000b000000000000001503000000000"
     "0000007000002000000504b060700000000150a00000200000001000000504b0506000000000b000b0015030000ff"
     "ffffff0000"},
};

static void expect_bytes(const uint8_t *bytes, size_t nbytes, const char *expected,
                         const char *what, const char *name)
{
    char text[1024] = "";
    cr_assert_lt(2 * nbytes, sizeof text);
    for (size_t i = 0; i < nbytes; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    cr_expect_str_eq(text, expected, "%s of %s:\n%s\nexpected\n%s", what, name, text, expected);
}

Test(zip_write, headers_have_pytorchs_bytes)
{
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        const struct record *record = &records[i];
        bth_layout_entry place;
        uint8_t bytes[512];
        cr_assert_eq(bth_layout_entry_compute(record->header_offset, strlen(record->name),
                                              record->nbytes, 64, &place),
                     0);
        bth_zip_write_local(&place, record->name, bytes);
        expect_bytes(bytes, place.data_offset - place.header_offset, record->local, "local header",
                     record->name);
        bth_zip_write_descriptor(&place, record->crc32, bytes);
        expect_bytes(bytes, place.descriptor_nbytes, record->descriptor, "descriptor",
                     record->name);
        bth_zip_write_central(&place, record->name, record->crc32, bytes);
        expect_bytes(bytes, bth_layout_central_entry_nbytes(&place), record->central,
                     "central entry", record->name);
    }
}

Test(zip_write, end_records_have_pytorchs_bytes)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        uint8_t bytes[BTH_ZIP_END_NBYTES];
        bth_zip_write_end(ends[i].n_entries, ends[i].directory_offset, ends[i].directory_nbytes,
                          bytes);
        expect_bytes(bytes, sizeof bytes, ends[i].bytes, "end records", "the file");
    }
}

/* Classic fields from 0xFFFF entries and 0xFFFFFFFF bytes on are saturated. */
Test(zip_write, end_records_saturate_what_their_classic_fields_cannot_hold)
{
    uint8_t bytes[BTH_ZIP_END_NBYTES];
    bth_zip_write_end(0x12345, 0x100000007, 0x200000008, bytes);
    expect_bytes(bytes + 24, 32, "4523010000000000452301000000000008000000020000000700000001000000",
                 "ZIP64 fields", "the file");
    expect_bytes(bytes + 76, 22, "504b050600000000ffffffffffffffffffffffff0000", "the end record",
                 "the file");
}

/* A header at 0xFFFFFFFF is the first whose offset goes to the zip64 field. */
Test(zip_write, the_first_saturated_offset_is_written_in_full)
{
    bth_layout_entry place;
    uint8_t bytes[128];
    cr_assert_eq(bth_layout_entry_compute(0xFFFFFFFF, 1, 0, 1, &place), 0);
    bth_zip_write_central(&place, "a", 0, bytes);
    expect_bytes(bytes + 42, 17, "ffffffff6101000800ffffffff00000000", "offset, name and field",
                 "the record");
}

Test(zip_write, an_empty_name_reads_nothing_of_its_pointer)
{
    bth_layout_entry place;
    uint8_t bytes[64];
    cr_assert_eq(bth_layout_entry_compute(0, 0, 1, 1, &place), 0);
    bth_zip_write_local(&place, NULL, bytes);
    expect_bytes(bytes + 26, 8, "0000040046420000", "lengths and extra field", "the record");
}
