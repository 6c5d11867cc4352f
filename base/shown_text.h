/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth_show_text is made of. */
#ifndef BTH_BASE_SHOWN_TEXT_H
#define BTH_BASE_SHOWN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two escapes of JSON, and NUL. */
enum { BTH_SHOWN_CHARACTER_NBYTES = 16 };

/* Whether a character is shown escaped. */
bool bth_character_is_unseen(uint32_t point);
/*
 * Writes the first character of a text, or its escape; nbytes > 0.
 * Returns: its bytes in the text; of what is no UTF-8 one.
 */
size_t bth_show_character(const uint8_t *at, size_t nbytes, bool is_json,
                          char out[BTH_SHOWN_CHARACTER_NBYTES], size_t *out_nbytes);

#endif
