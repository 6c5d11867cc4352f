/* SPDX-License-Identifier: BSD-3-Clause */
/* F7: texts of files, as terminals may show them; and how alike two texts are. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/shown_text.h"
#include "base/utf8.h"
#include "berth.h"
#include "berth/more.h"

/*
 * Characters that move the cursor, end a line, turn or join other text, or are not seen: those of
 * Unicode's categories Cc, Cf, Zl, Zp, spaces but U+0020, the variation selectors, the fillers of
 * Hangul, and what is no character. Sorted.
 */
static const uint32_t unseen[][2] = {
    {0x0000, 0x001F},   {0x007F, 0x00A0},   {0x00AD, 0x00AD},   {0x034F, 0x034F},
    {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},   {0x070F, 0x070F},
    {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x115F, 0x1160},   {0x1680, 0x1680},
    {0x17B4, 0x17B5},   {0x180B, 0x180F},   {0x2000, 0x200F},   {0x2028, 0x202F},
    {0x205F, 0x206F},   {0x2800, 0x2800},   {0x3000, 0x3000},   {0x3164, 0x3164},
    {0xD800, 0xDFFF},   {0xFDD0, 0xFDEF},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
    {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
    {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0xE0000, 0xE0FFF},
};

bool bth_character_is_unseen(uint32_t point)
{
    if (point < 0x7F)
        return point < 0x20;
    for (size_t i = 0; i < sizeof unseen / sizeof *unseen && point >= unseen[i][0]; i++)
        if (point <= unseen[i][1])
            return true;
    return point > 0xFFFF && (point & 0xFFFE) == 0xFFFE;
}

size_t bth_show_character(const uint8_t *at, size_t nbytes, bool is_json,
                          char out[BTH_SHOWN_CHARACTER_NBYTES], size_t *out_nbytes)
{
    static const char from[] = "\n\r\t", to[] = "nrt";
    size_t n = bth_utf8_sequence_nbytes(at, nbytes);

    if (n == 0) {
        *out_nbytes = (size_t)sprintf(out, is_json ? "\\ufffd" : "\\x%02x", *at);
        return 1;
    }
    uint32_t point = n == 1 ? *at : *at & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        point = point << 6 | (at[i] & 0x3F);
    if (!bth_character_is_unseen(point)) {
        memcpy(out, at, *out_nbytes = n);
        return n;
    }
    const char *known = point > 0 && point < 0x20 ? strchr(from, (int)point) : NULL;
    if (known)
        *out_nbytes = (size_t)sprintf(out, "\\%c", to[known - from]);
    else if (is_json && point > 0xFFFF) /* JSON has no more than four digits */
        *out_nbytes = (size_t)sprintf(out, "\\u%04x\\u%04x", 0xD7C0u + (unsigned)(point >> 10),
                                      0xDC00u + (unsigned)(point & 0x3FF));
    else
        *out_nbytes = (size_t)sprintf(out,
                                      point > 0xFFFF            ? "\\U%08x"
                                      : point > 0x7F || is_json ? "\\u%04x"
                                                                : "\\x%02x",
                                      (unsigned)point);
    return n;
}

size_t berth_show_text(const char *text, size_t nbytes, berth_text_form form, char *out,
                       size_t out_nbytes)
{
    const uint8_t *at = (const uint8_t *)text;
    char shown[BTH_SHOWN_CHARACTER_NBYTES];
    size_t length = 0, written = 0, n, shown_nbytes;

    for (; nbytes > 0; at += n, nbytes -= n, length += shown_nbytes) {
        n = bth_show_character(at, nbytes, form == BERTH_TEXT_JSON, shown, &shown_nbytes);
        if (written == length && shown_nbytes < out_nbytes - written && out_nbytes > 0) {
            memcpy(out + written, shown, shown_nbytes);
            written += shown_nbytes;
        }
    }
    if (out_nbytes > 0)
        out[written] = '\0';
    return length;
}

size_t bth_text_distance(const char *a, size_t a_nbytes, const char *b, size_t b_nbytes)
{
    size_t rows[3][BTH_MAX_DISTANCE_NBYTES + 1]; /* the last three of the table */

    for (size_t k = 0; k <= b_nbytes; k++)
        rows[0][k] = k;
    for (size_t i = 1; i <= a_nbytes; i++) {
        size_t *row = rows[i % 3], *above = rows[(i - 1) % 3];
        row[0] = i;
        for (size_t k = 1; k <= b_nbytes; k++) {
            size_t changed = above[k - 1] + (a[i - 1] != b[k - 1]);
            row[k] = (size_t)bth_min(bth_min(above[k], row[k - 1]) + 1, changed);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                row[k] = (size_t)bth_min(row[k], rows[(i - 2) % 3][k - 2] + 1);
        }
    }
    return rows[a_nbytes % 3][b_nbytes];
}
