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
/* A program may name a trace for each of its steps. */
#define BTH_MAX_OPTION_TEXTS 65536

/*
 * The number of n bytes of text; 0: of "". A new one is kept if there are fewer than max texts.
 * -1: it is not kept, or there is no memory. Any thread.
 */
int64_t bth_option_number_text(const char *text, size_t n, int64_t max);
/* "" if there is no such number. */
const char *bth_option_text(int64_t number);
int64_t bth_option_count_texts(void);

#endif
