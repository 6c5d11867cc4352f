/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Values of options that are texts. Each text has a number, which is what a configuration holds:
 * equal texts have equal numbers. Texts stay until the process ends.
 */
#ifndef BTH_CONFIG_OPTION_TEXT_H
#define BTH_CONFIG_OPTION_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BTH_MAX_OPTION_TEXT_NBYTES 4095

/* Whether it can stand in a line of options: no "#", no control character, no space at its ends. */
bool bth_option_text_is_valid(const char *text, size_t n);
/* The number of n bytes of text; 0: of "". -1: no memory, or too many different texts. Any thread.
 */
int64_t bth_option_number_text(const char *text, size_t n);
/* "" if there is no such number. */
const char *bth_option_text(int64_t number);
int64_t bth_option_count_texts(void);

#endif
