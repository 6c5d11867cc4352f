/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth_show_text is made of, and how alike two texts are. */
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

/* How many bytes of one text must change, be added, left out, or change places with the next one
 * for the other. The second has at most BTH_MAX_DISTANCE_NBYTES. */
enum { BTH_MAX_DISTANCE_NBYTES = 128 };
size_t bth_text_distance(const char *a, size_t a_nbytes, const char *b, size_t b_nbytes);

#endif
