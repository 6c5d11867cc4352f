/* SPDX-License-Identifier: BSD-3-Clause */
/* One row of options.def, its value as text, and the check of a value against its row. */
#ifndef BTH_CONFIG_OPTION_ROW_H
#define BTH_CONFIG_OPTION_ROW_H

#include <stddef.h>

#include "config/options.h"

/* The number of own options; with room for registered ones. */
#define BTH_N_OWN_OPTIONS (offsetof(struct berth_config, registered) / sizeof(int64_t))
#define BTH_MAX_OPTIONS (BTH_N_OWN_OPTIONS + BTH_MAX_REGISTERED_OPTIONS)

enum bth_option_kind {
    BTH_OPTION_BOOL,
    BTH_OPTION_CHOICE,
    BTH_OPTION_INT,
    BTH_OPTION_BYTES,
    BTH_OPTION_FLAGS,
    BTH_OPTION_TEXT /* a value is the number of a text */
};

typedef struct bth_option_row bth_option_row;
struct bth_option_row {
    const char *name; /* "save.method" */
    enum bth_option_kind kind;
    uint32_t classes; /* berth_option_class */
    int64_t initial;
    const char *choices; /* "a | b | c": a value is the position; flags: word i + 1 is bit i */
    int64_t minimum, maximum;
    bool is_power_of_two;
    bool is_measured; /* 0: the library measures the best value */
    const char *unit;
    const char *aliases;
    const char *help;
    const bth_option_row *successor; /* this name is deprecated; it means that option */
};

/* Own options in the order of options.def, then registered ones. Rows are never removed. */
size_t bth_option_count(void);
const bth_option_row *bth_option_at(size_t i);
/* The caller adds rows from one thread at a time, at most BTH_MAX_OPTIONS in all. */
void bth_option_add_rows(const bth_option_row *more, size_t n);
size_t bth_option_index(const bth_option_row *row);

/*
 * The row with this name or alias. `rank`, if not NULL: 0 for the name, 1 for the first alias and
 * so on. `as_variable`: names are written as in the environment, "SAVE_METHOD".
 */
const bth_option_row *bth_option_find(const char *name, size_t n, bool as_variable, unsigned *rank);

/* The row with the most similar name; NULL: none is near. */
const bth_option_row *bth_option_find_nearest(const char *name, size_t n, bool as_variable);
/* "; the nearest is save.method", or "". */
#define BTH_NEAREST_TEXT_NBYTES 96
void bth_option_print_nearest(const char *name, size_t n, char text[BTH_NEAREST_TEXT_NBYTES]);
/* "SAVE_METHOD" */
void bth_option_print_variable(const bth_option_row *row, char *text, size_t text_nbytes);

/* Finds the next word of a list that is divided by spaces and bars; false: no more words. */
bool bth_list_next_word(const char **at, const char **word, size_t *n);

/* Whether a variable's name ("SAVE_METHD") begins with a section of options. */
bool bth_variable_name_has_section(const char *name, size_t n);

int64_t *bth_option_field(struct berth_config *config, const bth_option_row *row);
int64_t bth_option_value(const struct berth_config *config, const bth_option_row *row);

/*
 * Converts n bytes of text to a checked value. `source` names in messages where the value is from,
 * such as "set by the program".
 */
int bth_option_parse(const bth_option_row *row, const char *text, size_t n, const char *source,
                     int64_t *value, berth_error *error);
int64_t bth_option_count_choices(const bth_option_row *row);
bool bth_option_value_is_in_bounds(const bth_option_row *row, int64_t value);

/* Enough for any value as text, but for those of BTH_OPTION_TEXT, which are cut. */
#define BTH_OPTION_TEXT_NBYTES 64
void bth_option_print(const bth_option_row *row, int64_t value, char text[BTH_OPTION_TEXT_NBYTES]);
/* The whole value: a text that stays, or what is printed to the buffer. */
const char *bth_option_whole_text(const bth_option_row *row, int64_t value,
                                  char buffer[BTH_OPTION_TEXT_NBYTES]);
/* "none | file | full", "1 to 32768, a power of two", "0 to 1024, 0: measured". */
void bth_option_print_bounds(const bth_option_row *row, char *text, size_t text_nbytes);

/*
 * ---- values that are texts ----
 *
 * Each text has a number, which is what a configuration holds: equal texts have equal numbers.
 * Texts stay until the process ends.
 */
#define BTH_MAX_OPTION_TEXT_NBYTES 4095

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
