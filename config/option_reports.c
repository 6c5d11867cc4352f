/* SPDX-License-Identifier: BSD-3-Clause */
/* What a program can learn of options: descriptions, the whole configuration as text or code, a
 * hash. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fnv.h"
#include "base/lock.h"
#include "config/layers.h"

/* ---- descriptions ---- */

/* Of every row, made when one is asked for; berth_option refers to them. */
static struct {
    char bounds[80];
    char initial[BTH_OPTION_TEXT_NBYTES];
} row_texts[BTH_MAX_OPTIONS];
static size_t n_row_texts;
static bth_lock row_texts_lock;

static void option_describe(const bth_option_row *row, int64_t value, const char *source,
                            berth_option *option)
{
    static const char *const types[] = {"bool", "enum", "int", "bytes", "flags", "text"};
    size_t i = bth_option_index(row);

    (void)bth_lock_acquire(&row_texts_lock);
    for (; n_row_texts < bth_option_count(); n_row_texts++) {
        const bth_option_row *next = bth_option_at(n_row_texts);
        bth_option_print_bounds(next, row_texts[n_row_texts].bounds, sizeof row_texts->bounds);
        bth_option_print(next, next->initial, row_texts[n_row_texts].initial);
    }
    bth_lock_release(&row_texts_lock);
    *option = (berth_option){.name = row->name,
                             .type = types[row->kind],
                             .unit = row->unit,
                             .bounds = row_texts[i].bounds,
                             .initial = row_texts[i].initial,
                             .help = row->help,
                             .aliases = row->aliases,
                             .source = source,
                             .successor = row->successor ? row->successor->name : "",
                             .number = value,
                             .classes = row->classes,
                             .is_default = value == row->initial};
    bth_option_print(row, value, option->value);
    if (row->kind == BTH_OPTION_TEXT)
        option->text = bth_option_text(value);
}

void bth_option_describe_in_force(const bth_option_row *row, berth_option *option)
{
    berth_error unused = {0}; /* of the environment, which the description shows as it is */
    const char *source;
    int64_t value;

    (void)bth_options_copy_in_force(row, 1, &value, &source, &unused);
    option_describe(row, value, source, option);
}

const char *berth_config_name(size_t i)
{
    return i < bth_option_count() ? bth_option_at(i)->name : NULL;
}

int berth_config_describe(const berth_config *config, const char *name, berth_option *option,
                          berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = name ? bth_option_find(name, strlen(name), false, NULL) : NULL;

    if (!option)
        return bth_fail_argument(error, "no place for the description");
    if (!row)
        row = bth_option_find_or_fail(name, error);
    if (!row)
        return error->code;
    /* A deprecated name is described with its successor's value. */
    const bth_option_row *meant = row->successor ? row->successor : row;
    if (config)
        option_describe(meant, bth_config_value(config, meant), "configuration", option);
    else
        bth_option_describe_in_force(meant, option);
    option->name = row->name;
    option->successor = row->successor ? row->successor->name : "";
    return 0;
}

/* ---- as text, as code, as a number ---- */

/* As snprintf: counts also the bytes that do not fit. */
typedef struct writer {
    char *text;
    size_t capacity;
    size_t length;
} writer;

static void writer_append_formatted(writer *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void writer_append_formatted(writer *out, const char *format, ...)
{
    size_t left = out->length < out->capacity ? out->capacity - out->length : 0;
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(left ? out->text + out->length : NULL, left, format, arguments);
    va_end(arguments);
    if (n > 0)
        out->length += (size_t)n;
}

static void writer_append_option(writer *out, const bth_option_row *row, int64_t value,
                                 berth_config_form form)
{
    char printed[BTH_OPTION_TEXT_NBYTES], variable[BTH_OPTION_TEXT_NBYTES];

    const char *whole = bth_option_whole_text(row, value, printed);
    if (form == BERTH_CONFIG_CODE) {
        writer_append_formatted(out, "berth_config_set(\"%s\", \"", row->name);
        for (; *whole; whole++) /* as in C */
            writer_append_formatted(out, *whole == '"' || *whole == '\\' ? "\\%c" : "%c", *whole);
        writer_append_formatted(out, "\", NULL, &error);\n");
    } else if (form == BERTH_CONFIG_VARIABLES) {
        bth_option_print_variable(row, variable, sizeof variable);
        writer_append_formatted(out, "BERTH_%s=%s\n", variable, whole);
    } else
        writer_append_formatted(out, "%s=%s\n", row->name, whole);
}

int64_t berth_config_print(const berth_config *config, berth_config_form form, char *text,
                           size_t text_nbytes, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    writer out = {.text = text, .capacity = text ? text_nbytes : 0};
    struct berth_config in_force;

    if (form < BERTH_CONFIG_PORTABLE || form > BERTH_CONFIG_VARIABLES)
        return bth_fail_argument(error, "a configuration cannot be printed in form %d", (int)form);
    if (!config && bth_config_copy_in_force(&in_force, error) < 0)
        return error->code;
    writer_append_formatted(&out, "%s", "");
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t value = bth_config_value(config ? config : &in_force, row);
        /* A child inherits variables, so one that sets an option to a default again is needed. */
        bool is_needed = form == BERTH_CONFIG_PORTABLE || value != row->initial ||
                         (form == BERTH_CONFIG_VARIABLES && bth_option_is_set_by_environment(row));
        if (!row->successor && is_needed)
            writer_append_option(&out, row, value, form);
    }
    return (int64_t)out.length;
}

/* Of the portable text of these options: the same on every machine. */
uint64_t berth_config_hash(const berth_config *config, uint32_t classes)
{
    struct berth_config in_force;
    berth_error unused = {0};
    uint64_t hash = BTH_FNV_BEGIN;

    if (!config && bth_config_copy_in_force(&in_force, &unused) < 0)
        return 0;
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        char line[BTH_OPTION_TEXT_NBYTES + BTH_MAX_OPTION_TEXT_NBYTES + 3] = {0};
        writer out = {.text = line, .capacity = sizeof line};
        if (row->successor || !(row->classes & classes))
            continue;
        writer_append_option(&out, row, bth_config_value(config ? config : &in_force, row),
                             BERTH_CONFIG_PORTABLE);
        assert(out.length < sizeof line);
        hash = bth_fnv_update(hash, line, out.length);
    }
    return hash;
}
