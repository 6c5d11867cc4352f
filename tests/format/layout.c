/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The layout against files that PyTorch 2.13 wrote: every number in these tables was read out of
 * one of its files (FORMAT.md sections 2 and 3), none was computed here.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "format/layout.h"

/* What lies in all files of one kind, in this order. */
struct content {
    const char *name;
    uint64_t nbytes;
};
#define DIGITS UINT64_MAX      /* the alignment in decimal */
#define LARGE (UINT64_MAX - 1) /* the file's own size of it */

/* One file: where the bytes of each record lie, and where the next record begins. */
struct pytorch_file {
    struct {
        const char *archive;
        uint32_t alignment;
        uint64_t directory_nbytes, large_nbytes;
    } of;
    uint64_t data_offsets[11];
    uint64_t next_offsets[11];
};

static const struct content small_contents[] = {
    {"data.pkl", 296}, {".format_version", 1}, {".storage_alignment", DIGITS},
    {"byteorder", 6},  {"data/0", 5},          {"data/1", 0},
    {"data/2", 12},    {"version", 2},         {".data/serialization_id", 40},
    {NULL, 0},
};

static const struct pytorch_file small_files[] = {
    {{"a1", 1, 538, 0},
     {45, 409, 481, 544, 609, 673, 716, 788, 865},
     {357, 426, 498, 566, 630, 673, 744, 806, 921}},
    {{"a2", 2, 538, 0},
     {46, 410, 482, 546, 612, 676, 720, 792, 870},
     {358, 427, 499, 568, 633, 676, 748, 810, 926}},
    {{"a3", 3, 538, 0},
     {45, 411, 483, 546, 612, 678, 723, 795, 873},
     {357, 428, 500, 568, 633, 678, 751, 813, 929}},
    {{"a64", 64, 547, 0},
     {64, 448, 576, 704, 832, 960, 1024, 1152, 1280},
     {376, 465, 594, 726, 853, 960, 1052, 1170, 1336}},
    {{"a512", 512, 556, 0},
     {512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608},
     {824, 1041, 1555, 2070, 2581, 3072, 3612, 4114, 4664}},
    {{"a4096", 4096, 565, 0},
     {4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 36864},
     {4408, 8209, 12308, 16406, 20501, 24576, 28700, 32786, 36920}},
    {{"a32768", 32768, 574, 0},
     {32768, 65536, 98304, 131072, 163840, 196608, 229376, 262144, 294912},
     {33080, 65553, 98325, 131094, 163861, 196608, 229404, 262162, 294968}},
    {{"a65536", 65536, 574, 0},
     {65536, 131072, 196608, 262144, 327680, 393216, 458752, 524288, 589824},
     {65848, 131089, 196629, 262166, 327701, 393216, 458780, 524306, 589880}},
};

/* Storages of 2^32 - 2, 2^32 - 1, 2^32 and 2^32 + 5 bytes, and headers past 4 GiB and 8 GiB. */
static const struct content large_contents[] = {
    {"data.pkl", 410},
    {".format_version", 1},
    {".storage_alignment", DIGITS},
    {"byteorder", 6},
    {"data/0", LARGE},
    {"data/1", 7},
    {"data/2", 0},
    {"data/3", LARGE},
    {"data/4", 1},
    {"version", 2},
    {".data/serialization_id", 40},
    {NULL, 0},
};

static const struct pytorch_file large_files[] = {
    {{"big-2", 64, 753, 4294967294},
     {64, 576, 704, 832, 960, 4294968384, 4294968512, 4294968576, 8589936000, 8589936128,
      8589936256},
     {490, 593, 722, 854, 4294968270, 4294968415, 4294968512, 8589935894, 8589936025, 8589936154,
      8589936320}},
    {{"big-1", 64, 789, 4294967295},
     {64, 576, 704, 832, 960, 4294968384, 4294968512, 4294968640, 8589936064, 8589936192,
      8589936320},
     {490, 593, 722, 854, 4294968279, 4294968415, 4294968512, 8589935959, 8589936089, 8589936218,
      8589936384}},
    {{"big0", 64, 778, 4294967296},
     {64, 576, 704, 832, 960, 4294968384, 4294968512, 4294968640, 8589936064, 8589936192,
      8589936320},
     {490, 593, 722, 854, 4294968280, 4294968415, 4294968512, 8589935960, 8589936089, 8589936218,
      8589936384}},
    {{"big5", 64, 778, 4294967301},
     {64, 576, 704, 832, 960, 4294968384, 4294968512, 4294968640, 8589936064, 8589936192,
      8589936320},
     {490, 593, 722, 854, 4294968285, 4294968415, 4294968512, 8589935965, 8589936089, 8589936218,
      8589936384}},
};

static void check_record(const struct pytorch_file *file, const struct content *content, size_t i,
                         bth_layout_entry *place)
{
    char name[64];
    uint64_t nbytes = content->nbytes, header_offset = i > 0 ? file->next_offsets[i - 1] : 0;

    (void)snprintf(name, sizeof name, "%s/%s", file->of.archive, content->name);
    if (nbytes == DIGITS)
        nbytes = (uint64_t)snprintf(NULL, 0, "%u", file->of.alignment);
    if (nbytes == LARGE)
        nbytes = file->of.large_nbytes;
    cr_assert_eq(
        bth_layout_entry_compute(header_offset, strlen(name), nbytes, file->of.alignment, place),
        0);
    cr_expect_eq(place->header_offset, header_offset, "%s: header at %lu", name,
                 place->header_offset);
    cr_expect_eq(place->data_offset, file->data_offsets[i], "%s: data at %lu", name,
                 place->data_offset);
    cr_expect_eq(place->next_offset, file->next_offsets[i], "%s: next at %lu", name,
                 place->next_offset);
    cr_expect_eq(place->nbytes, nbytes);
    cr_expect_eq(place->name_nbytes, strlen(name));
    /* The parts add up to the whole. */
    cr_expect_eq(place->header_offset + BTH_ZIP_LOCAL_NBYTES + place->name_nbytes +
                     place->zip64_nbytes + 4 + place->padding_nbytes,
                 place->data_offset);
    cr_expect_eq(place->data_offset + place->nbytes + place->descriptor_nbytes, place->next_offset);
}

static void check_file(const struct pytorch_file *file, const struct content *contents)
{
    uint64_t directory_nbytes = 0;

    for (size_t i = 0; contents[i].name; i++) {
        bth_layout_entry place;
        check_record(file, &contents[i], i, &place);
        directory_nbytes += bth_layout_central_entry_nbytes(&place);
    }
    cr_expect_eq(directory_nbytes, file->of.directory_nbytes, "%s: directory of %lu bytes",
                 file->of.archive, directory_nbytes);
}

Test(layout, records_lie_where_pytorch_puts_them_at_every_alignment)
{
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++)
        check_file(&small_files[i], small_contents);
}

Test(layout, records_lie_where_pytorch_puts_them_around_and_past_4_gib)
{
    for (size_t i = 0; i < sizeof large_files / sizeof *large_files; i++)
        check_file(&large_files[i], large_contents);
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
