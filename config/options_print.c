/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole configuration as text or code, and its hash. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "config/error.h"
#include "config/fnv.h"
#include "config/option_row.h"

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

int64_t berth_config_print(const berth_config *config, berth_config_form form, char *text,
                           size_t text_nbytes, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    writer out = {.text = text, .capacity = text ? text_nbytes : 0};
    char printed[BTH_OPTION_TEXT_NBYTES];
    struct berth_config in_force;

    if (form < BERTH_CONFIG_PORTABLE || form > BERTH_CONFIG_CODE)
        return bth_fail_argument(error, "a configuration cannot be printed in form %d", (int)form);
    if (!config && bth_config_copy_in_force(&in_force, error) < 0)
        return error->code;
    writer_append_formatted(&out, "%s", "");
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t value = bth_option_value(config ? config : &in_force, row);
        if (form != BERTH_CONFIG_PORTABLE && value == row->initial)
            continue;
        bth_option_print(row, value, printed);
        if (form == BERTH_CONFIG_CODE)
            writer_append_formatted(&out, "berth_config_set(\"%s\", \"%s\", &error);\n", row->name,
                                    printed);
        else
            writer_append_formatted(&out, "%s=%s\n", row->name, printed);
    }
    return (int64_t)out.length;
}

/* Of the portable text: the same on every machine. */
uint64_t berth_config_hash(const berth_config *config)
{
    char text[BTH_N_OPTIONS * 2 * BTH_OPTION_TEXT_NBYTES] = {0};
    int64_t n = berth_config_print(config, BERTH_CONFIG_PORTABLE, text, sizeof text, NULL);

    assert(n < (int64_t)sizeof text);
    return n < 0 ? 0 : bth_fnv_update(BTH_FNV_BEGIN, text, (size_t)n);
}
