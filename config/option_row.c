/* SPDX-License-Identifier: BSD-3-Clause */
#include "config/option_row.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/error.h"
#include "config/memory.h"

/* The words that options.def is written in. */
#define CHOICES(text) .choices = (text)
#define RANGE(min, max) .minimum = (min), .maximum = (max)
#define MEASURED(max) RANGE(0, max), .is_measured = true
#define POWER_OF_TWO(min, max) RANGE(min, max), .is_power_of_two = true

#define BIT(n) (INT64_C(1) << (n))

/* clang-format off */
/* Neither macro can use the other: expanded bounds contain commas. */
#define BTH_OPTION(section, option, type, value, bounds, unit_text, names, text)                 \
    {.name = #section "." #option, .kind = BTH_OPTION_##type, .initial = (value), bounds,          \
     .unit = (unit_text), .aliases = (names), .help = (text)},
#define BTH_OPTION_TOP(option, type, value, bounds, unit_text, names, text)                        \
    {.name = #option, .kind = BTH_OPTION_##type, .initial = (value), bounds,                       \
     .unit = (unit_text), .aliases = (names), .help = (text)},
static const bth_option_row rows[] = {
#include "config/options.def"
};
#undef BTH_OPTION
#undef BTH_OPTION_TOP
/* clang-format on */

_Static_assert(sizeof rows / sizeof *rows == BTH_N_OPTIONS, "one field a row");

const bth_option_row *bth_option_at(size_t i)
{
    assert(i < BTH_N_OPTIONS);
    return &rows[i];
}

size_t bth_option_index(const bth_option_row *row)
{
    return (size_t)(row - rows);
}

/* The fields are all int64_t, in the order of the rows. */
int64_t *bth_option_field(struct berth_config *config, const bth_option_row *row)
{
    return (int64_t *)(void *)config + bth_option_index(row);
}

int64_t bth_option_value(const struct berth_config *config, const bth_option_row *row)
{
    return ((const int64_t *)(const void *)config)[bth_option_index(row)];
}

/* ---- names ---- */

/* Finds the next word of a list that is divided by spaces and bars; false: no more words. */
static bool list_next_word(const char **at, const char **word, size_t *n)
{
    *at += strspn(*at, " |");
    *word = *at;
    *n = strcspn(*at, " |");
    *at += *n;
    return *n > 0;
}

static char option_char_to_variable(char c)
{
    if (c == '.')
        return '_';
    return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

static bool option_name_matches(const char *text, size_t n, const char *name, size_t name_n,
                                bool as_variable)
{
    if (n != name_n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (text[i] != (as_variable ? option_char_to_variable(name[i]) : name[i]))
            return false;
    return true;
}

const bth_option_row *bth_option_find(const char *name, size_t n, bool as_variable, unsigned *rank)
{
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const char *at = rows[i].aliases, *word = rows[i].name;
        size_t word_n = strlen(word);
        unsigned word_rank = 0;
        do {
            if (option_name_matches(name, n, word, word_n, as_variable)) {
                if (rank)
                    *rank = word_rank;
                return &rows[i];
            }
            word_rank++;
        } while (list_next_word(&at, &word, &word_n));
    }
    return NULL;
}

bool bth_variable_name_has_section(const char *name, size_t n)
{
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const char *dot = strchr(rows[i].name, '.');
        size_t section_n = dot ? (size_t)(dot - rows[i].name) + 1 : 0;
        if (dot && n >= section_n &&
            option_name_matches(name, section_n, rows[i].name, section_n, true))
            return true;
    }
    return false;
}

/* ---- values to text ---- */

/* Appends n bytes, as many as text_nbytes has room for. */
static void text_append(char *text, size_t text_nbytes, const char *more, size_t n)
{
    size_t length = strlen(text);

    (void)snprintf(text + length, text_nbytes - length, "%.*s", (int)n, more);
}

/* Choice i, without a NUL at its end; "" after the last. */
static const char *option_choice_at(const bth_option_row *row, int64_t i, size_t *n)
{
    const char *at = row->choices, *word;

    while (list_next_word(&at, &word, n))
        if (i-- == 0)
            return word;
    return "";
}

static const char *const units[] = {"", "KiB", "MiB", "GiB"}; /* powers of 1024 */

static void option_print_number(const bth_option_row *row, int64_t value, char *text,
                                size_t text_nbytes)
{
    int unit = row->kind == BTH_OPTION_BYTES && value != 0 ? 3 : 0;

    while (value % BIT(10 * unit) != 0)
        unit--;
    (void)snprintf(text, text_nbytes, "%lld%s", (long long)(value >> 10 * unit), units[unit]);
}

static void option_print_flags(const bth_option_row *row, int64_t value, char *text,
                               size_t text_nbytes)
{
    size_t n;
    /* The first two exclude each other; the others are added. */
    const char *word = option_choice_at(row, value & 1, &n);

    text[0] = '\0';
    text_append(text, text_nbytes, word, n);
    for (int64_t i = 2; *(word = option_choice_at(row, i, &n)); i++)
        if (value & BIT(i - 1)) {
            text_append(text, text_nbytes, ",", 1);
            text_append(text, text_nbytes, word, n);
        }
}

void bth_option_print(const bth_option_row *row, int64_t value, char text[BTH_OPTION_TEXT_NBYTES])
{
    size_t n;

    switch (row->kind) {
    case BTH_OPTION_BOOL:
    case BTH_OPTION_CHOICE:
        text[0] = '\0';
        const char *word = option_choice_at(row, value, &n);
        text_append(text, BTH_OPTION_TEXT_NBYTES, word, n);
        break;
    case BTH_OPTION_INT:
    case BTH_OPTION_BYTES:
        option_print_number(row, value, text, BTH_OPTION_TEXT_NBYTES);
        break;
    case BTH_OPTION_FLAGS:
        option_print_flags(row, value, text, BTH_OPTION_TEXT_NBYTES);
        break;
    }
}

void bth_option_print_bounds(const bth_option_row *row, char *text, size_t text_nbytes)
{
    char min[BTH_OPTION_TEXT_NBYTES], max[BTH_OPTION_TEXT_NBYTES];

    if (row->choices) {
        (void)snprintf(text, text_nbytes, "%s", row->choices);
        return;
    }
    option_print_number(row, row->minimum, min, sizeof min);
    option_print_number(row, row->maximum, max, sizeof max);
    (void)snprintf(text, text_nbytes, "%s to %s%s%s", min, max,
                   row->is_power_of_two ? ", a power of two" : "",
                   row->is_measured ? ", 0: measured" : "");
}

/* ---- text to values ---- */

static int option_fail_bounds(const bth_option_row *row, const char *text, size_t n,
                              const char *source, berth_error *error)
{
    char bounds[128];

    bth_option_print_bounds(row, bounds, sizeof bounds);
    return bth_fail_status(error, BERTH_E_OPTION, "%s = %.*s: must be %s (%s)", row->name,
                           (int)(n < 100 ? n : 100), text, bounds, source);
}

static int64_t option_count_choices(const bth_option_row *row)
{
    int64_t count = 0;

    for (size_t n; *option_choice_at(row, count, &n);)
        count++;
    return count;
}

static bool option_value_is_in_bounds(const bth_option_row *row, int64_t value)
{
    switch (row->kind) {
    case BTH_OPTION_BOOL:
    case BTH_OPTION_CHOICE:
        return value >= 0 && value < option_count_choices(row);
    case BTH_OPTION_FLAGS:
        return value >= 0 && value < BIT(option_count_choices(row) - 1);
    default:
        if (row->is_power_of_two && (value & (value - 1)) != 0)
            return false;
        return value >= row->minimum && value <= row->maximum;
    }
}

int bth_option_check(const bth_option_row *row, int64_t value, const char *source,
                     berth_error *error)
{
    char text[24];

    if (!option_value_is_in_bounds(row, value)) {
        int n = snprintf(text, sizeof text, "%lld", (long long)value);
        return option_fail_bounds(row, text, (size_t)n, source, error);
    }
    return 0;
}

static bool word_equals_ignoring_case(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && strncasecmp(text, word, n) == 0;
}

/* Accepts Python's spellings, too: scripts set these variables beside PyTorch's. */
static bool option_parse_bool(const char *text, size_t n, int64_t *value)
{
    static const char *const words[2][5] = {{"off", "0", "false", "no"},
                                            {"on", "1", "true", "yes"}};

    for (int64_t is_on = 0; is_on < 2; is_on++)
        for (size_t i = 0; words[is_on][i]; i++)
            if (word_equals_ignoring_case(text, n, words[is_on][i])) {
                *value = is_on;
                return true;
            }
    return false;
}

static bool option_parse_choice(const bth_option_row *row, const char *text, size_t n,
                                int64_t *value)
{
    size_t word_n;
    const char *word;

    for (int64_t i = 0; *(word = option_choice_at(row, i, &word_n)); i++)
        if (word_n == n && memcmp(text, word, n) == 0) {
            *value = i;
            return true;
        }
    return false;
}

/* Words joined by ",", "|" or "+"; "private" and "shared", the first two, exclude each other. */
static bool option_parse_flags(const bth_option_row *row, const char *text, size_t n,
                               int64_t *value)
{
    int64_t choice;
    bool is_private = false;

    *value = 0;
    for (size_t at = 0, length; at <= n; at += length + 1) {
        for (length = 0; at + length < n && !strchr(",|+", text[at + length]);)
            length++;
        if (!option_parse_choice(row, text + at, length, &choice))
            return false;
        is_private |= choice == 0;
        if (choice > 0)
            *value |= BIT(choice - 1);
    }
    return !(is_private && (*value & 1));
}

/* The exponent of two of a suffix, "K" or "KiB"; -1: not a suffix. */
static int size_suffix_shift(const char *suffix, size_t n)
{
    if (n == 0)
        return 0;
    for (int i = 1; i <= 3; i++)
        if ((n == 1 || n == strlen(units[i])) && memcmp(units[i], suffix, n) == 0)
            return 10 * i;
    return -1;
}

/* False also if it does not fit. */
static bool option_parse_number(const bth_option_row *row, const char *text, size_t n,
                                int64_t *value)
{
    uint64_t number = 0;
    size_t at = 0;

    for (; at < n && text[at] >= '0' && text[at] <= '9'; at++)
        if (!bth_try_multiply(number, 10, &number) ||
            !bth_try_add(number, (uint64_t)(text[at] - '0'), &number))
            return false;
    int shift = size_suffix_shift(text + at, n - at);
    if (at == 0 || shift < 0 || (shift > 0 && strcmp(row->unit, "bytes") != 0))
        return false;
    if (!bth_try_multiply(number, UINT64_C(1) << shift, &number) || number > INT64_MAX)
        return false;
    *value = (int64_t)number;
    return true;
}

static bool option_parse_value(const bth_option_row *row, const char *text, size_t n,
                               int64_t *value)
{
    switch (row->kind) {
    case BTH_OPTION_BOOL:
        return option_parse_bool(text, n, value);
    case BTH_OPTION_CHOICE:
        return option_parse_choice(row, text, n, value);
    case BTH_OPTION_FLAGS:
        return option_parse_flags(row, text, n, value);
    default:
        return option_parse_number(row, text, n, value);
    }
}

int bth_option_parse(const bth_option_row *row, const char *text, size_t n, const char *source,
                     int64_t *value, berth_error *error)
{
    int64_t parsed;

    if (!option_parse_value(row, text, n, &parsed) || !option_value_is_in_bounds(row, parsed))
        return option_fail_bounds(row, text, n, source, error);
    *value = parsed;
    return 0;
}
