/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The layout against files that PyTorch 2.13 wrote: every number in these tables was read out of
 * one of its files (FORMAT.md sections 2 and 3), none was computed here.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "format/layout.h"

/* One record of a file: its name, its bytes, where header and data lie, where the next begins. */
struct row {
    const char *name;
    uint64_t nbytes;
    uint64_t header_offset;
    uint64_t data_offset;
    uint64_t next_offset;
};

struct pytorch_file {
    uint32_t alignment;
    uint64_t directory_nbytes;
    struct row rows[12]; /* up to a name of NULL */
};

static const struct pytorch_file small_files[] = {
    {1,
     538,
     {
         {"a1/data.pkl", 296, 0, 45, 357},
         {"a1/.format_version", 1, 357, 409, 426},
         {"a1/.storage_alignment", 1, 426, 481, 498},
         {"a1/byteorder", 6, 498, 544, 566},
         {"a1/data/0", 5, 566, 609, 630},
         {"a1/data/1", 0, 630, 673, 673},
         {"a1/data/2", 12, 673, 716, 744},
         {"a1/version", 2, 744, 788, 806},
         {"a1/.data/serialization_id", 40, 806, 865, 921},
     }},
    {2,
     538,
     {
         {"a2/data.pkl", 296, 0, 46, 358},
         {"a2/.format_version", 1, 358, 410, 427},
         {"a2/.storage_alignment", 1, 427, 482, 499},
         {"a2/byteorder", 6, 499, 546, 568},
         {"a2/data/0", 5, 568, 612, 633},
         {"a2/data/1", 0, 633, 676, 676},
         {"a2/data/2", 12, 676, 720, 748},
         {"a2/version", 2, 748, 792, 810},
         {"a2/.data/serialization_id", 40, 810, 870, 926},
     }},
    {3,
     538,
     {
         {"a3/data.pkl", 296, 0, 45, 357},
         {"a3/.format_version", 1, 357, 411, 428},
         {"a3/.storage_alignment", 1, 428, 483, 500},
         {"a3/byteorder", 6, 500, 546, 568},
         {"a3/data/0", 5, 568, 612, 633},
         {"a3/data/1", 0, 633, 678, 678},
         {"a3/data/2", 12, 678, 723, 751},
         {"a3/version", 2, 751, 795, 813},
         {"a3/.data/serialization_id", 40, 813, 873, 929},
     }},
    {64,
     547,
     {
         {"a64/data.pkl", 296, 0, 64, 376},
         {"a64/.format_version", 1, 376, 448, 465},
         {"a64/.storage_alignment", 2, 465, 576, 594},
         {"a64/byteorder", 6, 594, 704, 726},
         {"a64/data/0", 5, 726, 832, 853},
         {"a64/data/1", 0, 853, 960, 960},
         {"a64/data/2", 12, 960, 1024, 1052},
         {"a64/version", 2, 1052, 1152, 1170},
         {"a64/.data/serialization_id", 40, 1170, 1280, 1336},
     }},
    {512,
     556,
     {
         {"a512/data.pkl", 296, 0, 512, 824},
         {"a512/.format_version", 1, 824, 1024, 1041},
         {"a512/.storage_alignment", 3, 1041, 1536, 1555},
         {"a512/byteorder", 6, 1555, 2048, 2070},
         {"a512/data/0", 5, 2070, 2560, 2581},
         {"a512/data/1", 0, 2581, 3072, 3072},
         {"a512/data/2", 12, 3072, 3584, 3612},
         {"a512/version", 2, 3612, 4096, 4114},
         {"a512/.data/serialization_id", 40, 4114, 4608, 4664},
     }},
    {4096,
     565,
     {
         {"a4096/data.pkl", 296, 0, 4096, 4408},
         {"a4096/.format_version", 1, 4408, 8192, 8209},
         {"a4096/.storage_alignment", 4, 8209, 12288, 12308},
         {"a4096/byteorder", 6, 12308, 16384, 16406},
         {"a4096/data/0", 5, 16406, 20480, 20501},
         {"a4096/data/1", 0, 20501, 24576, 24576},
         {"a4096/data/2", 12, 24576, 28672, 28700},
         {"a4096/version", 2, 28700, 32768, 32786},
         {"a4096/.data/serialization_id", 40, 32786, 36864, 36920},
     }},
    {32768,
     574,
     {
         {"a32768/data.pkl", 296, 0, 32768, 33080},
         {"a32768/.format_version", 1, 33080, 65536, 65553},
         {"a32768/.storage_alignment", 5, 65553, 98304, 98325},
         {"a32768/byteorder", 6, 98325, 131072, 131094},
         {"a32768/data/0", 5, 131094, 163840, 163861},
         {"a32768/data/1", 0, 163861, 196608, 196608},
         {"a32768/data/2", 12, 196608, 229376, 229404},
         {"a32768/version", 2, 229404, 262144, 262162},
         {"a32768/.data/serialization_id", 40, 262162, 294912, 294968},
     }},
    {65536,
     574,
     {
         {"a65536/data.pkl", 296, 0, 65536, 65848},
         {"a65536/.format_version", 1, 65848, 131072, 131089},
         {"a65536/.storage_alignment", 5, 131089, 196608, 196629},
         {"a65536/byteorder", 6, 196629, 262144, 262166},
         {"a65536/data/0", 5, 262166, 327680, 327701},
         {"a65536/data/1", 0, 327701, 393216, 393216},
         {"a65536/data/2", 12, 393216, 458752, 458780},
         {"a65536/version", 2, 458780, 524288, 524306},
         {"a65536/.data/serialization_id", 40, 524306, 589824, 589880},
     }},
};

/* Storages of 2^32 - 2, 2^32 - 1, 2^32 and 2^32 + 5 bytes, and headers past 4 GiB and 8 GiB. */
static const struct pytorch_file large_files[] = {
    {64,
     753,
     {
         {"big-2/data.pkl", 410, 0, 64, 490},
         {"big-2/.format_version", 1, 490, 576, 593},
         {"big-2/.storage_alignment", 2, 593, 704, 722},
         {"big-2/byteorder", 6, 722, 832, 854},
         {"big-2/data/0", 4294967294, 854, 960, 4294968270},
         {"big-2/data/1", 7, 4294968270, 4294968384, 4294968415},
         {"big-2/data/2", 0, 4294968415, 4294968512, 4294968512},
         {"big-2/data/3", 4294967294, 4294968512, 4294968576, 8589935894},
         {"big-2/data/4", 1, 8589935894, 8589936000, 8589936025},
         {"big-2/version", 2, 8589936025, 8589936128, 8589936154},
         {"big-2/.data/serialization_id", 40, 8589936154, 8589936256, 8589936320},
     }},
    {64,
     789,
     {
         {"big-1/data.pkl", 410, 0, 64, 490},
         {"big-1/.format_version", 1, 490, 576, 593},
         {"big-1/.storage_alignment", 2, 593, 704, 722},
         {"big-1/byteorder", 6, 722, 832, 854},
         {"big-1/data/0", 4294967295, 854, 960, 4294968279},
         {"big-1/data/1", 7, 4294968279, 4294968384, 4294968415},
         {"big-1/data/2", 0, 4294968415, 4294968512, 4294968512},
         {"big-1/data/3", 4294967295, 4294968512, 4294968640, 8589935959},
         {"big-1/data/4", 1, 8589935959, 8589936064, 8589936089},
         {"big-1/version", 2, 8589936089, 8589936192, 8589936218},
         {"big-1/.data/serialization_id", 40, 8589936218, 8589936320, 8589936384},
     }},
    {64,
     778,
     {
         {"big0/data.pkl", 410, 0, 64, 490},
         {"big0/.format_version", 1, 490, 576, 593},
         {"big0/.storage_alignment", 2, 593, 704, 722},
         {"big0/byteorder", 6, 722, 832, 854},
         {"big0/data/0", 4294967296, 854, 960, 4294968280},
         {"big0/data/1", 7, 4294968280, 4294968384, 4294968415},
         {"big0/data/2", 0, 4294968415, 4294968512, 4294968512},
         {"big0/data/3", 4294967296, 4294968512, 4294968640, 8589935960},
         {"big0/data/4", 1, 8589935960, 8589936064, 8589936089},
         {"big0/version", 2, 8589936089, 8589936192, 8589936218},
         {"big0/.data/serialization_id", 40, 8589936218, 8589936320, 8589936384},
     }},
    {64,
     778,
     {
         {"big5/data.pkl", 410, 0, 64, 490},
         {"big5/.format_version", 1, 490, 576, 593},
         {"big5/.storage_alignment", 2, 593, 704, 722},
         {"big5/byteorder", 6, 722, 832, 854},
         {"big5/data/0", 4294967301, 854, 960, 4294968285},
         {"big5/data/1", 7, 4294968285, 4294968384, 4294968415},
         {"big5/data/2", 0, 4294968415, 4294968512, 4294968512},
         {"big5/data/3", 4294967301, 4294968512, 4294968640, 8589935965},
         {"big5/data/4", 1, 8589935965, 8589936064, 8589936089},
         {"big5/version", 2, 8589936089, 8589936192, 8589936218},
         {"big5/.data/serialization_id", 40, 8589936218, 8589936320, 8589936384},
     }},
};

static void check_record(const struct pytorch_file *file, const struct row *row, uint64_t cursor,
                         bth_layout_entry *place)
{
    cr_assert_eq(
        bth_layout_entry_compute(cursor, strlen(row->name), row->nbytes, file->alignment, place),
        0);
    cr_expect_eq(place->header_offset, row->header_offset, "%s: header at %lu", row->name,
                 place->header_offset);
    cr_expect_eq(place->data_offset, row->data_offset, "%s: data at %lu", row->name,
                 place->data_offset);
    cr_expect_eq(place->next_offset, row->next_offset, "%s: next at %lu", row->name,
                 place->next_offset);
    cr_expect_eq(place->nbytes, row->nbytes);
    cr_expect_eq(place->name_nbytes, strlen(row->name));
    /* The parts add up to the whole. */
    cr_expect_eq(place->header_offset + BTH_ZIP_LOCAL_NBYTES + place->name_nbytes +
                     place->zip64_nbytes + 4 + place->padding_nbytes,
                 place->data_offset);
    cr_expect_eq(place->data_offset + place->nbytes + place->descriptor_nbytes, place->next_offset);
}

static void check_file(const struct pytorch_file *file)
{
    uint64_t cursor = 0, directory_nbytes = 0;

    for (const struct row *row = file->rows; row->name; row++) {
        bth_layout_entry place;
        check_record(file, row, cursor, &place);
        cursor = place.next_offset;
        directory_nbytes += bth_layout_central_nbytes(&place);
    }
    cr_expect_eq(directory_nbytes, file->directory_nbytes, "%s: directory of %lu bytes",
                 file->rows[0].name, directory_nbytes);
}

Test(layout, records_lie_where_pytorch_puts_them_at_every_alignment)
{
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++)
        check_file(&small_files[i]);
}

Test(layout, records_lie_where_pytorch_puts_them_around_and_past_4_gib)
{
    for (size_t i = 0; i < sizeof large_files / sizeof *large_files; i++)
        check_file(&large_files[i]);
}

static bth_layout_entry placed(uint64_t cursor, uint64_t nbytes)
{
    bth_layout_entry place;
    cr_assert_eq(bth_layout_entry_compute(cursor, 10, nbytes, 64, &place), 0);
    return place;
}

Test(layout, sizes_and_offsets_from_2_32_minus_1_on_take_a_zip64_field)
{
    cr_expect_eq(placed(0xFFFFFFFE, 0xFFFFFFFE).zip64_nbytes, 0);
    cr_expect_eq(placed(0xFFFFFFFF, 0xFFFFFFFE).zip64_nbytes, 12);
    cr_expect_eq(placed(0xFFFFFFFE, 0xFFFFFFFF).zip64_nbytes, 20);
    cr_expect_eq(placed(0xFFFFFFFF, 0xFFFFFFFF).zip64_nbytes, 28);
}

Test(layout, the_descriptor_is_wide_with_a_zip64_field_and_absent_of_empty_records)
{
    cr_expect_eq(placed(0, 1).descriptor_nbytes, 16);
    cr_expect_eq(placed(0xFFFFFFFF, 1).descriptor_nbytes, 24);
    cr_expect_eq(placed(0, 0).descriptor_nbytes, 0);
    cr_expect_eq(placed(0xFFFFFFFF, 0).descriptor_nbytes, 0);
}

Test(layout, an_alignment_outside_1_to_65536_has_no_place)
{
    bth_layout_entry place;
    cr_expect_eq(bth_layout_entry_compute(0, 10, 1, 0, &place), -1);
    cr_expect_eq(bth_layout_entry_compute(0, 10, 1, 65537, &place), -1);
}

Test(layout, a_name_longer_than_its_16_bits_has_no_place)
{
    bth_layout_entry place;
    cr_expect_eq(bth_layout_entry_compute(0, 65535, 1, 64, &place), 0);
    cr_expect_eq(bth_layout_entry_compute(0, 65536, 1, 64, &place), -1);
}

/* 30 + 10 + 4 = 44 bytes before the padding; the extra field has 4 + padding <= 65535 bytes. */
Test(layout, a_padding_longer_than_its_16_bits_has_no_place)
{
    bth_layout_entry place;
    cr_expect_eq(bth_layout_entry_compute(65536 + 5 - 44, 10, 1, 65536, &place), 0);
    cr_expect_eq(place.padding_nbytes, 65531);
    cr_expect_eq(bth_layout_entry_compute(65536 + 4 - 44, 10, 1, 65536, &place), -1);
}

Test(layout, an_end_beyond_63_bits_has_no_place)
{
    bth_layout_entry place;
    uint64_t largest = INT64_MAX - 64 - 24;
    cr_expect_eq(bth_layout_entry_compute(0, 10, largest - 64, 64, &place), 0);
    cr_expect_eq(bth_layout_entry_compute(0, 10, largest + 1, 64, &place), -1);
    /* 30 + 6 + 20 + 4 bytes and 4 of padding before the data, a descriptor of 24 after it. */
    cr_expect_eq(bth_layout_entry_compute(0, 6, largest, 64, &place), 0);
    cr_expect_eq(place.next_offset, INT64_MAX);
    cr_expect_eq(bth_layout_entry_compute(0, 6, largest + 1, 64, &place), -1);
    cr_expect_eq(bth_layout_entry_compute(UINT64_MAX - 20, 10, 1, 64, &place), -1, "start wraps");
    cr_expect_eq(bth_layout_entry_compute(UINT64_MAX - 63, 1, 1, 64, &place), -1, "padding wraps");
    cr_expect_eq(bth_layout_entry_compute(64, 10, UINT64_MAX - 100, 64, &place), -1, "data wraps");
    cr_expect_eq(bth_layout_entry_compute(0, 6, UINT64_MAX - 70, 64, &place), -1,
                 "descriptor wraps");
}
