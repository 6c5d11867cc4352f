/* SPDX-License-Identifier: BSD-3-Clause */
/* UTF-8 without surrogates, and the control characters in it, which terminals execute. */
#ifndef BTH_BASE_UTF8_H
#define BTH_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the well-formed sequence at the start of the text; 0: malformed. nbytes > 0. */
static inline size_t bth_utf8_sequence_nbytes(const uint8_t *text, size_t nbytes)
{
    uint8_t lead = text[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;

    if (length == 0 || lead > 0xF4 || length > nbytes)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    /* The second byte shows overlong forms, surrogates, and characters beyond U+10FFFF. */
    uint8_t second = length > 1 ? text[1] : 0;
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
        return 0;
    return length;
}

/* Whether a well-formed sequence is a control character, which U+0080 to U+009F are, too. */
static inline bool bth_utf8_is_control(const uint8_t *sequence)
{
    return sequence[0] < 0x20 || sequence[0] == 0x7F || (sequence[0] == 0xC2 && sequence[1] < 0xA0);
}

#endif
