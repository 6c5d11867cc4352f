/* SPDX-License-Identifier: BSD-3-Clause */
/* F5: errors are values, one line, that say where. */
#include <berth/more.h>

#include "base/error.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static berth_error cleared(void)
{
    berth_error error;

    memset(&error, 0x5A, sizeof error);
    bth_error_clear(&error);
    return error;
}

Test(error, names_record_byte_and_cause)
{
    berth_error error = cleared();

    cr_assert_eq(bth_fail(&error, BERTH_E_ARCHIVE, "data/3", 1048576, "size %d", 7),
                 BERTH_E_ARCHIVE);
    cr_assert_str_eq(error.message, "data/3 at byte 1048576: size 7");
    cr_assert_str_eq(error.record, "data/3");
    cr_assert_eq(error.offset, 1048576);
    cr_assert_eq(error.system_errno, 0);
}

Test(error, leaves_out_what_is_not_known)
{
    berth_error error = cleared();

    bth_fail(&error, BERTH_E_ARCHIVE, NULL, BERTH_NO_OFFSET, "broken");
    cr_assert_str_eq(error.message, "broken");
    cr_assert_eq(error.offset, BERTH_NO_OFFSET);
    error = cleared();
    bth_fail(&error, BERTH_E_ARCHIVE, "", 0, "broken");
    cr_assert_str_eq(error.message, "at byte 0: broken");
    error = cleared();
    bth_fail(&error, BERTH_E_ARCHIVE, "version", BERTH_NO_OFFSET, "broken");
    cr_assert_str_eq(error.message, "version: broken");
}

Test(error, the_first_wins)
{
    berth_error error = cleared();

    bth_fail(&error, BERTH_E_PICKLE, "data.pkl", 3, "first");
    cr_assert_eq(bth_fail(&error, BERTH_E_ARCHIVE, "x", 4, "second"), BERTH_E_PICKLE);
    cr_assert_eq(bth_fail_errno(&error, ENOSPC, "x", 4, "third"), BERTH_E_PICKLE);
    cr_assert_eq(bth_fail_memory(&error, 4), BERTH_E_PICKLE);
    cr_assert_str_eq(error.message, "data.pkl at byte 3: first");
    cr_assert_eq(error.system_errno, 0);
}

Test(error, of_a_system_call_ends_in_its_text_and_has_its_code)
{
    static const struct {
        int system_errno, code;
    } rows[] = {{ENOSPC, BERTH_E_NO_SPACE}, {EDQUOT, BERTH_E_NO_SPACE},  {EFBIG, BERTH_E_NO_SPACE},
                {ENOMEM, BERTH_E_MEMORY},   {ENOENT, BERTH_E_NOT_FOUND}, {EIO, BERTH_E_SYSTEM}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        berth_error error = cleared();
        bth_fail_errno(&error, rows[i].system_errno, NULL, BERTH_NO_OFFSET, "lost");
        cr_assert_eq(error.code, rows[i].code);
        cr_assert_eq(error.system_errno, rows[i].system_errno);
    }
    berth_error error = cleared();
    bth_fail_errno(&error, ENOSPC, "data/3", 9, "%d bytes not written", 5);
    cr_assert_str_eq(error.message,
                     "data/3 at byte 9: 5 bytes not written: No space left on device");
    error = cleared();
    bth_fail_errno(&error, 4000, NULL, BERTH_NO_OFFSET, "lost");
    cr_assert_str_eq(error.message, "lost: error 4000");
}

Test(error, is_one_line_whatever_a_file_says)
{
    berth_error error = cleared();

    bth_fail(&error, BERTH_E_ARCHIVE, "a\nb\x1B[2J", 1, "name \r%c", 0x7F);
    cr_assert_str_eq(error.message, "a\\nb\\x1b[2J at byte 1: name \\r\\x7f");
    cr_assert_str_eq(error.record, "a\\nb\\x1b[2J");
}

Test(error, is_cut_between_characters)
{
    char name[300];

    /* 127 bytes fit: the last of these two-byte characters would be cut in half. */
    for (size_t i = 0; i < sizeof name - 1; i++)
        name[i] = i % 2 ? (char)0xA9 : (char)0xC3;
    name[sizeof name - 1] = '\0';
    berth_error error = cleared();
    bth_fail(&error, BERTH_E_ARCHIVE, name, 1, "broken");
    cr_assert_eq(strlen(error.record), 126);
    char text[700];
    memset(text, 'x', sizeof text);
    memcpy(text + sizeof error.message - 3, "\xF0\x9F\x92\xA9", 4);
    text[sizeof text - 1] = '\0';
    error = cleared();
    bth_fail(&error, BERTH_E_ARCHIVE, NULL, BERTH_NO_OFFSET, "%s", text);
    cr_assert_eq(strlen(error.message), sizeof error.message - 3);
    text[sizeof error.message - 5] = '\0';
    memcpy(text + sizeof error.message - 5, "\xF0\x9F\x92\xA9z", 6);
    error = cleared();
    bth_fail(&error, BERTH_E_ARCHIVE, NULL, BERTH_NO_OFFSET, "%s", text);
    cr_assert_eq(strlen(error.message), sizeof error.message - 1, "a whole character stays");
}

/* A name in a local header is shown before it is known to be one: any bytes. */
Test(error, message_is_utf8_whatever_is_shown)
{
    static const struct {
        const char *shown, *message;
    } rows[] = {
        {"a\xFF\x62", "a\\xffb"},
        {"\x9B"
         "31m",
         "\\x9b31m"},
        {"\xC2\x9B"
         "31m",
         "\\u009b31m"},
        {"\xC0\xAF \xED\xA0\x80 \xF5\x80\x80\x80",
         "\\xc0\\xaf \\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80"},
        {"\xE2\x82", "\\xe2\\x82"},
        {"\xE2\x80\xAE \xEF\xBB\xBF \xF3\xA0\x80\x81", "\\u202e \\ufeff \\U000e0001"},
        {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x92\xA9", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x92\xA9"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        berth_error error = cleared();
        bth_fail(&error, BERTH_E_ARCHIVE, NULL, BERTH_NO_OFFSET, "%s", rows[i].shown);
        cr_expect_str_eq(error.message, rows[i].message, "row %zu: %s", i, error.message);
    }
}

Test(error, takes_a_name_in_front_once_it_is_known)
{
    berth_error error = cleared();

    cr_assert_eq(bth_error_prefix(&error, "model.pt"), BERTH_OK);
    cr_assert_str_eq(error.message, "");
    bth_fail(&error, BERTH_E_TRUNCATED, NULL, 7, "cut");
    cr_assert_eq(bth_error_prefix(&error, "model.pt"), BERTH_E_TRUNCATED);
    cr_assert_str_eq(error.message, "model.pt: at byte 7: cut");
}

Test(error, of_memory_tells_how_much)
{
    berth_error error = cleared();

    cr_assert_eq(bth_fail_memory(&error, 1000), BERTH_E_MEMORY);
    cr_assert_str_eq(error.message, "out of memory: 1000 bytes were requested");
}

Test(status, every_one_has_a_name_and_a_text_of_its_own)
{
    cr_assert_str_eq(berth_status_name(BERTH_E_ARGUMENT), "BERTH_E_ARGUMENT");
    cr_assert_str_eq(bth_status_text(BERTH_E_ARGUMENT), "invalid argument");
    cr_assert_str_eq(berth_status_name(BERTH_E_REPLACE), "BERTH_E_REPLACE");
    for (int status = BERTH_E_REPLACE; status < 0; status++)
        for (int other = status + 1; other <= 1; other++) {
            cr_assert_neq(strcmp(berth_status_name(status), berth_status_name(other)), 0);
            cr_assert_neq(strcmp(bth_status_text(status), bth_status_text(other)), 0);
        }
    cr_assert_str_eq(berth_status_name(BERTH_E_REPLACE - 1), "BERTH_E_UNKNOWN");
    cr_assert_str_eq(berth_status_name(0), "BERTH_OK");
    cr_assert_str_eq(bth_status_text(0), "success");
    cr_assert_str_eq(berth_status_name(-1000), "BERTH_E_UNKNOWN");
    cr_assert_str_eq(bth_status_text(1), "unknown status");
}

Test(version, is_that_of_the_header)
{
    char version[32];

    (void)snprintf(version, sizeof version, "%d.%d.%d", BERTH_VERSION_MAJOR, BERTH_VERSION_MINOR,
                   BERTH_VERSION_PATCH);
    cr_assert_str_eq(berth_version(), version);
}

static void keep_line(void *context, const char *message)
{
    (void)snprintf(context, 64, "%s", message);
}

Test(log, gives_its_hook_one_line_and_nothing_without_one)
{
    char line[64] = "";

    bth_log("lost %d", 1);
    berth_set_log(keep_line, line);
    bth_log("offsets\nof %d", 2);
    cr_assert_str_eq(line, "offsets\\nof 2");
    berth_set_log(NULL, NULL);
    bth_log("lost %d", 3);
    cr_assert_str_eq(line, "offsets\\nof 2");
}
