/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole configuration as text or code, and its hash. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/fnv.h"
#include "config/option_text.h"
#include "config/values_in_force.h"

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

/* A text as in C: "..." */
static void writer_append_c_text(writer *out, const char *text)
{
    for (; *text; text++)
        writer_append_formatted(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
}

static void writer_append_option(writer *out, const bth_option_row *row, int64_t value,
                                 berth_config_form form)
{
    char printed[BTH_OPTION_TEXT_NBYTES], variable[BTH_OPTION_TEXT_NBYTES];

    const char *whole = bth_option_whole_text(row, value, printed);
    if (form == BERTH_CONFIG_CODE) {
        writer_append_formatted(out, "berth_config_set(\"%s\", \"", row->name);
        writer_append_c_text(out, whole);
        writer_append_formatted(out, "\", &error);\n");
    } else if (form == BERTH_CONFIG_VARIABLES) {
        bth_option_print_variable(row, variable, sizeof variable);
        writer_append_formatted(out, "BERTH_%s=%s\n", variable, whole);
    } else
        writer_append_formatted(out, "%s=%s\n", row->name, whole);
}

/* A child inherits variables, so one that sets an option to a default again is needed, too. */
static bool option_is_printed(const bth_option_row *row, int64_t value, berth_config_form form)
{
    return form == BERTH_CONFIG_PORTABLE || value != row->initial ||
           (form == BERTH_CONFIG_VARIABLES && bth_option_is_set_by_environment(row));
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
        if (!row->successor && option_is_printed(row, value, form))
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
