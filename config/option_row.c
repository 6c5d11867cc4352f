/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows of all options, and how one is found by its name. */
#include "config/option_row.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/shown_text.h"
#include "berth/config.h"
#include "berth/more.h"

/* The words that options.def is written in. */
#define CHOICES(text) .choices = (text)
#define RANGE(min, max) .minimum = (min), .maximum = (max)
#define MEASURED(max) RANGE(0, max), .is_measured = true
#define ANY_TEXT .choices = NULL
#define POWER_OF_TWO(min, max) RANGE(min, max), .is_power_of_two = true

/* clang-format off */
/* Neither macro can use the other: expanded bounds contain commas. */
#define BTH_OPTION(section, option, type, class_bits, value, bounds, unit_text, names, text)       \
    {.name = #section "." #option, .kind = BTH_OPTION_##type, .classes = (class_bits),              \
     .initial = (value), bounds, .unit = (unit_text), .aliases = (names), .help = (text)},
#define BTH_OPTION_TOP(option, type, class_bits, value, bounds, unit_text, names, text)            \
    {.name = #option, .kind = BTH_OPTION_##type, .classes = (class_bits), .initial = (value),      \
     bounds, .unit = (unit_text), .aliases = (names), .help = (text)},
static bth_option_row rows[BTH_MAX_OPTIONS] = {
#include "config/options.def"
};
#undef BTH_OPTION
#undef BTH_OPTION_TOP
/* clang-format on */

/* Rows are only added, behind those that are there; then the number is stored. */
static _Atomic size_t n_rows = BTH_N_OWN_OPTIONS;

size_t bth_option_count(void)
{
    return atomic_load_explicit(&n_rows, memory_order_acquire);
}

void bth_option_add_rows(const bth_option_row *more, size_t n)
{
    size_t count = bth_option_count();

    assert(n <= BTH_MAX_OPTIONS - count);
    memcpy(rows + count, more, n * sizeof *more);
    atomic_store_explicit(&n_rows, count + n, memory_order_release);
}

const bth_option_row *bth_option_at(size_t i)
{
    assert(i < bth_option_count());
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

bool bth_list_next_word(const char **at, const char **word, size_t *n)
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
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
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
        } while (bth_list_next_word(&at, &word, &word_n));
    }
    return NULL;
}

bool bth_variable_name_has_section(const char *name, size_t n)
{
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const char *dot = strchr(rows[i].name, '.');
        size_t section_n = dot ? (size_t)(dot - rows[i].name) + 1 : 0;
        if (dot && n >= section_n &&
            option_name_matches(name, section_n, rows[i].name, section_n, true))
            return true;
    }
    return false;
}

void bth_option_print_variable(const bth_option_row *row, char *text, size_t text_nbytes)
{
    size_t n = 0;

    for (; row->name[n] && n + 1 < text_nbytes; n++)
        text[n] = option_char_to_variable(row->name[n]);
    text[n] = '\0';
}

/* ---- the nearest name ---- */

#define MAX_NAME_NBYTES 63

/* A name is near if at most a quarter of its letters differ: "io.treads", "SAVE_METOD". */
const bth_option_row *bth_option_find_nearest(const char *name, size_t n, bool as_variable)
{
    const bth_option_row *nearest = NULL;
    size_t best = n / 4 + 1;

    if (n == 0 || n > MAX_NAME_NBYTES)
        return NULL;
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        char own[MAX_NAME_NBYTES + 1];
        const char *dot = strchr(rows[i].name, '.');
        size_t section_n = dot ? (size_t)(dot - rows[i].name) + 1 : 0;
        (void)snprintf(own, sizeof own, "%s", rows[i].name);
        if (as_variable)
            bth_option_print_variable(&rows[i], own, sizeof own);
        size_t distance = bth_text_distance(name, n, own, strlen(own));
        /* The section may be left out. */
        if (bth_text_distance(name, n, own + section_n, strlen(own) - section_n) == 0)
            distance = 0;
        if (distance < best) {
            best = distance;
            nearest = &rows[i];
        }
    }
    return nearest;
}

void bth_option_print_nearest(const char *name, size_t n, char text[BTH_NEAREST_TEXT_NBYTES])
{
    const bth_option_row *nearest = bth_option_find_nearest(name, n, false);

    (void)snprintf(text, BTH_NEAREST_TEXT_NBYTES, "%s%s", nearest ? "; the nearest is " : "",
                   nearest ? nearest->name : "");
}
