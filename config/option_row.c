/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows of all options, and how one is found by its name. Their values as text, the check of a
 * value against its row, and values that are texts. */
#include "config/option_row.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/shown_text.h"
#include "base/utf8.h"
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

/* ---- values that are texts ---- */

#define CHUNK_N 256
#define MAX_CHUNKS (BTH_MAX_OPTION_TEXTS / CHUNK_N)

/* Only added to; the number is stored last. So texts are read without the lock, and a forked child
 * can use what is there (X11). */
static char **chunks[MAX_CHUNKS];
static _Atomic int64_t n_texts = 1; /* with "" */
static bth_lock texts_lock;

/* Whether it can stand in a line of options: no "#", no control character, no space at its ends. */
static bool option_text_is_valid(const char *text, size_t n)
{
    bool has_end_space = n > 0 && (text[0] == ' ' || text[n - 1] == ' ');

    for (size_t i = 0, length; i < n; i += length ? length : 1) {
        const uint8_t *at = (const uint8_t *)text + i;
        length = bth_utf8_sequence_nbytes(at, n - i); /* 0: a name need not be UTF-8 */
        if (*at == '#' || (length > 0 && bth_utf8_is_control(at)))
            return false;
    }
    return n <= BTH_MAX_OPTION_TEXT_NBYTES && !has_end_space;
}

int64_t bth_option_count_texts(void)
{
    return atomic_load_explicit(&n_texts, memory_order_acquire);
}

const char *bth_option_text(int64_t number)
{
    if (number <= 0 || number >= bth_option_count_texts())
        return "";
    return chunks[number / CHUNK_N][number % CHUNK_N];
}

int64_t bth_option_number_text(const char *text, size_t n, int64_t max)
{
    if (n == 0)
        return 0;
    (void)bth_lock_acquire(&texts_lock);
    int64_t count = bth_option_count_texts(), number = count - 1;
    while (number > 0 &&
           (strlen(bth_option_text(number)) != n || memcmp(bth_option_text(number), text, n) != 0))
        number--;
    if (number == 0) { /* it is new */
        char ***chunk = count < max ? &chunks[count / CHUNK_N] : NULL;
        if (chunk && !*chunk)
            *chunk = bth_allocate_zeroed(CHUNK_N * sizeof **chunk);
        char *copy = chunk && *chunk ? bth_duplicate_text(text, n) : NULL;
        number = copy ? count : -1;
        if (copy) {
            (*chunk)[count % CHUNK_N] = copy;
            atomic_store_explicit(&n_texts, count + 1, memory_order_release);
        }
    }
    bth_lock_release(&texts_lock);
    return number;
}

#define BIT(n) (INT64_C(1) << (n))

/* ---- values to text ---- */

/* Choice i, without a NUL at its end; "" after the last. */
static const char *option_choice_at(const bth_option_row *row, int64_t i, size_t *n)
{
    const char *at = row->choices, *word;

    while (bth_list_next_word(&at, &word, n))
        if (i-- == 0)
            return word;
    return "";
}

static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"}; /* powers of 1024 */

static void option_print_number(const bth_option_row *row, int64_t value, char *text,
                                size_t text_nbytes)
{
    int unit = row->kind == BTH_OPTION_BYTES && value != 0 ? 4 : 0;

    while (value % BIT(10 * unit) != 0)
        unit--;
    (void)snprintf(text, text_nbytes, "%lld%s", (long long)(value >> 10 * unit), units[unit]);
}

void bth_option_print(const bth_option_row *row, int64_t value, char text[BTH_OPTION_TEXT_NBYTES])
{
    const bool is_flags = row->kind == BTH_OPTION_FLAGS;
    const char *word;
    int length;
    size_t n;

    switch (row->kind) {
    case BTH_OPTION_INT:
    case BTH_OPTION_BYTES:
        option_print_number(row, value, text, BTH_OPTION_TEXT_NBYTES);
        break;
    case BTH_OPTION_TEXT:
        (void)snprintf(text, BTH_OPTION_TEXT_NBYTES, "%s", bth_option_text(value));
        break;
    default: /* of flags the first two exclude each other; the others are added */
        word = option_choice_at(row, is_flags ? value & 1 : value, &n);
        length = snprintf(text, BTH_OPTION_TEXT_NBYTES, "%.*s", (int)n, word);
        for (int64_t i = 2; is_flags && *(word = option_choice_at(row, i, &n)); i++)
            if (value & BIT(i - 1))
                length += snprintf(text + length, BTH_OPTION_TEXT_NBYTES - (size_t)length, ",%.*s",
                                   (int)n, word);
    }
}

const char *bth_option_whole_text(const bth_option_row *row, int64_t value,
                                  char buffer[BTH_OPTION_TEXT_NBYTES])
{
    if (row->kind == BTH_OPTION_TEXT)
        return bth_option_text(value);
    bth_option_print(row, value, buffer);
    return buffer;
}

void bth_option_print_bounds(const bth_option_row *row, char *text, size_t text_nbytes)
{
    char min[BTH_OPTION_TEXT_NBYTES], max[BTH_OPTION_TEXT_NBYTES];

    if (row->choices || row->kind == BTH_OPTION_TEXT) {
        (void)snprintf(text, text_nbytes, "%s", row->choices ? row->choices : "a text");
        return;
    }
    option_print_number(row, row->minimum, min, sizeof min);
    option_print_number(row, row->maximum, max, sizeof max);
    (void)snprintf(text, text_nbytes, "%s to %s%s%s", min, max,
                   row->is_power_of_two ? ", a power of two" : "",
                   row->is_measured ? ", 0: measured" : "");
}

/* ---- text to values ---- */

int64_t bth_option_count_choices(const bth_option_row *row)
{
    int64_t count = 0;

    for (size_t n; *option_choice_at(row, count, &n);)
        count++;
    return count;
}

bool bth_option_value_is_in_bounds(const bth_option_row *row, int64_t value)
{
    switch (row->kind) {
    case BTH_OPTION_BOOL:
    case BTH_OPTION_CHOICE:
        return value >= 0 && value < bth_option_count_choices(row);
    case BTH_OPTION_FLAGS:
        return value >= 0 && value < BIT(bth_option_count_choices(row)) / 2;
    case BTH_OPTION_TEXT:
        return value >= 0 && value < bth_option_count_texts();
    default:
        if (row->is_power_of_two && (value & (value - 1)) != 0)
            return false;
        return value >= row->minimum && value <= row->maximum;
    }
}

static bool word_equals_ignoring_case(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && strncasecmp(text, word, n) == 0;
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

/* False also if it does not fit. */
static bool option_parse_number(const bth_option_row *row, const char *text, size_t n,
                                int64_t *value)
{
    uint64_t number = 0, binary = 1, decimal = 1;
    size_t at = 0;

    for (; at < n && text[at] >= '0' && text[at] <= '9'; at++)
        if (!bth_try_multiply(number, 10, &number) ||
            !bth_try_add(number, (uint64_t)(text[at] - '0'), &number))
            return false;
    /* A suffix, in any case of letters: "K" and "KiB" are powers of 1024, "KB" of 1000. */
    const char *suffix = text + at;
    size_t suffix_n = n - at;
    uint64_t factor = suffix_n == 0 || word_equals_ignoring_case(suffix, suffix_n, "B");
    for (size_t i = 1; i < sizeof units / sizeof *units; i++) {
        const char of_thousands[3] = {units[i][0], 'B', 0}, alone[2] = {units[i][0], 0};
        binary *= 1024;
        decimal *= 1000;
        if (word_equals_ignoring_case(suffix, suffix_n, units[i]) ||
            word_equals_ignoring_case(suffix, suffix_n, alone))
            factor = binary;
        else if (word_equals_ignoring_case(suffix, suffix_n, of_thousands))
            factor = decimal;
    }
    if (at == 0 || factor == 0 || (at < n && strcmp(row->unit, "bytes") != 0))
        return false;
    if (!bth_try_multiply(number, factor, &number) || number > INT64_MAX)
        return false;
    *value = (int64_t)number;
    return true;
}

int bth_option_parse(const bth_option_row *row, const char *text, size_t n, const char *source,
                     int64_t *value, berth_error *error)
{
    /* Python's spellings, too: scripts set these variables beside PyTorch's. */
    static const char *const bools[] = {"off", "0", "false", "no", "on", "1", "true", "yes"};
    const char *writing = ""; /* how a value is written, after its bounds */
    char bounds[128];
    int64_t parsed = 0;
    bool is_valid = false;

    switch (row->kind) {
    case BTH_OPTION_BOOL:
        writing = ", or 0 | 1, false | true, no | yes";
        for (size_t i = 0; i < 8 && !is_valid; i++) {
            is_valid = word_equals_ignoring_case(text, n, bools[i]);
            parsed = i >= 4;
        }
        break;
    case BTH_OPTION_CHOICE:
        is_valid = option_parse_choice(row, text, n, &parsed);
        break;
    case BTH_OPTION_FLAGS:
        writing = ", joined by commas";
        is_valid = option_parse_flags(row, text, n, &parsed);
        break;
    case BTH_OPTION_TEXT:
        writing = " of at most 4095 bytes, without # and control characters, or spaces at its ends";
        is_valid = option_text_is_valid(text, n);
        if (is_valid)
            parsed = bth_option_number_text(text, n, BTH_MAX_OPTION_TEXTS);
        if (parsed < 0)
            return bth_fail_status(error, BERTH_E_OPTION,
                                   "%s: no memory, or too many different texts (%s)", row->name,
                                   source);
        break;
    default:
        writing = row->is_power_of_two              ? ", written as 64, 512 or 4KiB"
                  : strcmp(row->unit, "bytes") == 0 ? ", written as 4096, 64KiB or 4GB"
                                                    : ", in digits";
        is_valid = option_parse_number(row, text, n, &parsed);
    }
    if (is_valid && bth_option_value_is_in_bounds(row, parsed)) {
        *value = parsed;
        return 0;
    }
    bth_option_print_bounds(row, bounds, sizeof bounds);
    return bth_fail_status(error, BERTH_E_OPTION, "%s = %.*s: must be %s%s (%s)", row->name,
                           (int)(n < 100 ? n : 100), text, bounds, writing, source);
}
