/* SPDX-License-Identifier: BSD-3-Clause */
/* Options that a framework registers: rows made of the caller's, which are checked and copied. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "config/layers.h"

#define MAX_SECTION_NBYTES 20
#define MAX_NAME_NBYTES 32
#define MAX_HELP_NBYTES 1000

static bth_lock registration_lock; /* one registration at a time */

/* ---- checks ---- */

/* Lower-case letters, digits and underscores, first a letter: so it is a variable's name, too. */
static bool name_is_valid(const char *name, size_t n, size_t max)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz", all[] = "_0123456789";

    if (n == 0 || n > max || !strchr(letters, name[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr(letters, name[i]) && !strchr(all, name[i]))
            return false;
    return true;
}

/* A name or an alias must be new, also as a variable. */
static int name_check(const char *name, size_t n, size_t max, const bth_option_row *made,
                      size_t n_made, berth_error *error)
{
    char variable[BTH_OPTION_TEXT_NBYTES], other[BTH_OPTION_TEXT_NBYTES];
    const char *dot = memchr(name, '.', n);
    const char *rest = dot ? dot + 1 : name;

    if (!name_is_valid(rest, n - (size_t)(rest - name), max))
        return bth_fail_argument(
            error,
            "%.*s: a name must be 1 to %zu of a-z, 0-9 and _, beginning with a "
            "letter",
            (int)(n < 100 ? n : 100), name, max);
    (void)snprintf(other, sizeof other, "%.*s", (int)n, name);
    bth_option_print_variable(&(bth_option_row){.name = other}, variable, sizeof variable);
    bool is_taken = bth_option_find(variable, strlen(variable), true, NULL) != NULL ||
                    strcmp(variable, "CONFIG") == 0 || strncmp(variable, "FORCE_", 6) == 0;
    for (size_t i = 0; i < n_made; i++) {
        bth_option_print_variable(&made[i], other, sizeof other);
        is_taken |= strcmp(other, variable) == 0;
    }
    if (is_taken)
        return bth_fail_argument(error, "%.*s: the name, or BERTH_%s, is an option already", (int)n,
                                 name, variable);
    return 0;
}

/* ---- rows ---- */

/* "section.name", or a copy of a text; NULL: no memory, the error is set. */
static const char *text_copy_with_section(const char *section, const char *text, berth_error *error)
{
    char whole[MAX_HELP_NBYTES + 1];

    (void)snprintf(whole, sizeof whole, "%s%s%s", section ? section : "", section ? "." : "",
                   text ? text : "");
    char *copy = bth_duplicate_text(whole, strlen(whole));
    if (!copy)
        (void)bth_fail_memory(error, strlen(whole) + 1);
    return copy;
}

static int row_check_value(const berth_option_row *given, bth_option_row *row, berth_error *error)
{
    const char *choices = row->kind == BTH_OPTION_BOOL ? "off | on" : given->choices;

    if (row->kind == BTH_OPTION_BYTES || row->kind == BTH_OPTION_INT)
        choices = NULL;
    else if (!choices)
        return bth_fail_argument(error, "%s: type %s has no choices", row->name, given->type);
    row->choices = choices ? text_copy_with_section(NULL, choices, error) : NULL;
    row->unit =
        row->kind == BTH_OPTION_BYTES ? "bytes" : text_copy_with_section(NULL, given->unit, error);
    if (error->code != BERTH_OK)
        return error->code;
    /* Words that can be written in a shell and joined by commas, as many as a value has room for.
     */
    const char *at = row->choices ? row->choices : "", *word;
    size_t total = 0;
    for (size_t n; bth_list_next_word(&at, &word, &n); total += n + 1)
        for (size_t i = 0; i < n; i++)
            if (!(word[i] >= 'a' && word[i] <= 'z') && !(word[i] >= 'A' && word[i] <= 'Z') &&
                !(word[i] >= '0' && word[i] <= '9') && !strchr("_.-", word[i]))
                return bth_fail_argument(error, "%s: choice %.*s: only letters, digits, _, . and -",
                                         row->name, (int)(n < 60 ? n : 60), word);
    if (row->choices && (bth_option_count_choices(row) < 2 || total >= BTH_OPTION_TEXT_NBYTES))
        return bth_fail_argument(error,
                                 "%s: choices %.80s: must be 2 or more, of less than %d "
                                 "bytes together",
                                 row->name, row->choices, BTH_OPTION_TEXT_NBYTES);
    if (!row->choices && (row->minimum < 0 || row->minimum > row->maximum))
        return bth_fail_argument(error,
                                 "%s: bounds %lld to %lld: the minimum must be 0 or more, and at "
                                 "most the maximum",
                                 row->name, (long long)row->minimum, (long long)row->maximum);
    if (given->classes == 0 || given->classes > BERTH_CLASS_ALL)
        return bth_fail_argument(error, "%s: classes %u: must be some of BERTH_CLASS_...",
                                 row->name, (unsigned)given->classes);
    if (!given->initial)
        return bth_fail_argument(error, "%s: no default", row->name);
    return bth_option_parse(row, given->initial, strlen(given->initial), "the default",
                            &row->initial, error);
}

static int row_make(const char *section, const berth_option_row *given, bth_option_row *row,
                    const bth_option_row *made, size_t n_made, berth_error *error)
{
    static const char *const types[] = {"bool", "enum", "int", "bytes", "flags"};
    const size_t n_types = sizeof types / sizeof *types;
    const char *at, *word;
    size_t kind = 0;

    *row = (bth_option_row){.classes = given->classes,
                            .minimum = given->minimum,
                            .maximum = given->maximum,
                            .name = text_copy_with_section(section, given->name, error),
                            .aliases = text_copy_with_section(NULL, given->aliases, error),
                            .help = text_copy_with_section(NULL, given->help, error)};
    if (!row->name || error->code != BERTH_OK ||
        name_check(row->name, strlen(row->name), MAX_NAME_NBYTES, made, n_made, error) < 0)
        return error->code;
    at = row->aliases;
    for (size_t n; bth_list_next_word(&at, &word, &n);)
        if (name_check(word, n, MAX_NAME_NBYTES, made, n_made, error) < 0)
            return error->code;
    if (BTH_CHECK_RESERVED(berth_option_row, given, error) < 0)
        return error->code;
    if (given->successor && *given->successor) {
        /* A deprecated name has nothing of its own but its name and help. */
        const bth_option_row *meant =
            bth_option_find(given->successor, strlen(given->successor), false, NULL);
        row->successor = meant;
        if (!meant || meant->successor)
            return bth_fail_argument(
                error, "%s: successor %.80s: must be an option that is registered before",
                row->name, given->successor);
        row->kind = meant->kind;
        row->classes = meant->classes;
        row->initial = meant->initial;
        row->choices = meant->choices;
        row->minimum = meant->minimum;
        row->maximum = meant->maximum;
        row->unit = meant->unit;
        return 0;
    }
    while (kind < n_types && (!given->type || strcmp(given->type, types[kind]) != 0))
        kind++;
    if (kind == n_types)
        return bth_fail_argument(error, "%s: type %.40s: must be bool, enum, int, bytes or flags",
                                 row->name, given->type ? given->type : "(null)");
    row->kind = (enum bth_option_kind)kind;
    return row_check_value(given, row, error);
}

/* What a row that was refused has allocated, and no other row refers to. */
static void row_free(bth_option_row *row)
{
    bth_release((void *)(uintptr_t)row->name);
    bth_release((void *)(uintptr_t)row->aliases);
    bth_release((void *)(uintptr_t)row->help);
    if (!row->successor) {
        bth_release((void *)(uintptr_t)row->choices);
        if (row->kind != BTH_OPTION_BYTES)
            bth_release((void *)(uintptr_t)row->unit);
    }
}

int berth_config_register(const char *section, const berth_option_row *rows, size_t n,
                          berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    static const char *const reserved[] = {"force", "config", "debug", "trace"};
    bth_option_row made[BTH_MAX_REGISTERED_OPTIONS] = {0};
    bool is_valid = section && name_is_valid(section, strlen(section), MAX_SECTION_NBYTES);

    for (size_t i = 0; is_valid && i < sizeof reserved / sizeof *reserved; i++)
        is_valid = strcmp(section, reserved[i]) != 0;
    if (!is_valid)
        return bth_fail_argument(error,
                                 "section %.40s: must be 1 to %d of a-z, 0-9 and _, beginning with "
                                 "a letter, and not force, config, debug or trace",
                                 section ? section : "(null)", MAX_SECTION_NBYTES);
    if (!rows || n == 0)
        return bth_fail_argument(error, "section %s: no options", section);
    (void)bth_lock_acquire(&registration_lock);
    /* How many options the section has, and whether these are the rows' names, in their order. */
    size_t section_n = strlen(section), count = 0;
    bool is_same = true;
    for (size_t i = 0; i < bth_option_count(); i++) {
        const char *name = bth_option_at(i)->name;
        if (strncmp(name, section, section_n) != 0 || name[section_n] != '.')
            continue;
        is_same &=
            count < n && rows[count].name && strcmp(name + section_n + 1, rows[count].name) == 0;
        count++;
    }
    if (count > 0 && !(is_same && count == n))
        (void)bth_fail_argument(error, "section %s: has other options already", section);
    else if (count == 0 && n > BTH_MAX_OPTIONS - bth_option_count())
        (void)bth_fail_argument(error, "section %s: %zu options: there is room for %zu more",
                                section, n, BTH_MAX_OPTIONS - bth_option_count());
    else if (count == 0) {
        size_t n_made = 0;
        for (; n_made < n && error->code == BERTH_OK; n_made++)
            (void)row_make(section, &rows[n_made], &made[n_made], made, n_made, error);
        if (error->code == BERTH_OK)
            bth_options_register_rows(made, n);
        while (error->code != BERTH_OK && n_made > 0)
            row_free(&made[--n_made]);
    }
    bth_lock_release(&registration_lock);
    return error->code;
}
