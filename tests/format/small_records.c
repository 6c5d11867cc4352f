/* SPDX-License-Identifier: BSD-3-Clause */
/* Z11: what the small records may say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/zip/zip.h"
#include "tests/support/support.h"

static const uint8_t *bytes_of(const char *text)
{
    return (const uint8_t *)text;
}

Test(small_records, byteorder_is_little_or_big)
{
    berth_error error;
    bool little = false;
    bth_error_clear(&error);
    cr_expect_eq(bth_record_parse_byteorder(bytes_of("little"), 6, 0, &little, &error), 0);
    cr_expect(little);
    cr_expect_eq(bth_record_parse_byteorder(bytes_of("big"), 3, 0, &little, &error), 0);
    cr_expect_not(little);
}

static void refuse_byteorder(const char *text, const char *sentence)
{
    berth_error error;
    bool little;
    bth_error_clear(&error);
    FAILS(bth_record_parse_byteorder(bytes_of(text), strlen(text), 700, &little, &error),
          BERTH_E_ARCHIVE, sentence);
}

Test(small_records, any_other_byteorder_is_refused)
{
    refuse_byteorder("bog", "byteorder at byte 700: 'bog' (3 bytes) is neither 'little' nor 'big'");
    refuse_byteorder("", "byteorder at byte 700: '' (0 bytes) is neither 'little' nor 'big'");
    refuse_byteorder("Little",
                     "byteorder at byte 700: 'Little' (6 bytes) is neither 'little' nor 'big'");
    refuse_byteorder("big\n",
                     "byteorder at byte 700: 'big\\n' (4 bytes) is neither 'little' nor 'big'");
    refuse_byteorder("a byteorder that is longer than what is shown",
                     "byteorder at byte 700: 'a byteorder that is longer than ' (45 bytes) is "
                     "neither 'little' nor 'big'");
}

static int alignment_of(const char *text, uint32_t *alignment, berth_error *error)
{
    bth_error_clear(error);
    return bth_record_parse_alignment(bytes_of(text), strlen(text), 576, alignment, error);
}

Test(small_records, alignments_are_decimal_from_1_to_65536)
{
    static const struct {
        const char *text;
        uint32_t value;
    } rows[] = {{"1", 1},         {"3", 3},     {"64", 64},        {"32768", 32768},
                {"65536", 65536}, {"64\n", 64}, {" +064\r\n", 64}, {"0000000000064", 64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t alignment = 0;
        berth_error error;
        cr_expect_eq(alignment_of(rows[i].text, &alignment, &error), 0, "%s", error.message);
        cr_expect_eq(alignment, rows[i].value);
    }
}

Test(small_records, any_other_alignment_is_refused)
{
    static const char *const texts[] = {"",    "0", "65537", "4294967360", "-1",   "+",  "+-64",
                                        "6 4", " ", "6_4",   "000",        "0x40", "6a", "6.4"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint32_t alignment = 7;
        berth_error error;
        char sentence[160];
        cr_expect_eq(alignment_of(texts[i], &alignment, &error), BERTH_E_ARCHIVE, "%s", texts[i]);
        cr_expect_eq(alignment, 7);
        snprintf(
            sentence, sizeof sentence,
            ".storage_alignment at byte 576: '%s' (%zu bytes) is no decimal number from 1 to 65536",
            texts[i], strlen(texts[i]));
        cr_expect_str_eq(error.message, sentence);
    }
}

Test(small_records, format_versions_are_decimal)
{
    uint32_t version = 7;
    berth_error error;
    bth_error_clear(&error);
    cr_expect_eq(bth_record_parse_format_version(bytes_of("1"), 1, 448, &version, &error), 0);
    cr_expect_eq(version, 1);
    cr_expect_eq(bth_record_parse_format_version(bytes_of("999999999"), 9, 448, &version, &error),
                 0);
    cr_expect_eq(version, 999999999);
    cr_expect_eq(bth_record_parse_format_version(bytes_of("0"), 1, 448, &version, &error), 0);
    cr_expect_eq(version, 0);
    cr_expect_eq(bth_record_parse_format_version(bytes_of(""), 0, 448, &version, &error),
                 BERTH_E_ARCHIVE);
    bth_error_clear(&error);
    cr_expect_eq(bth_record_parse_format_version(bytes_of("1\n"), 2, 448, &version, &error), 0);
    cr_expect_eq(version, 1);
    FAILS(bth_record_parse_format_version(bytes_of("1x\n"), 3, 448, &version, &error),
          BERTH_E_ARCHIVE,
          ".format_version at byte 448: '1x\\n' (3 bytes) is no decimal number of up to 9 digits");
}
