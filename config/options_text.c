/* SPDX-License-Identifier: BSD-3-Clause */
/* Configurations as text: the environment, assignments, the portable form, code, the hash. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/fnv.h"
#include "config/layer.h"

void bth_layer_add(bth_layer *layer, const bth_layer *more)
{
    bth_layer_apply(more, &layer->values);
    for (size_t i = 0; i < BTH_N_OPTIONS; i++)
        layer->is_set[i] |= more->is_set[i];
}

void bth_layer_apply(const bth_layer *layer, struct berth_config *config)
{
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (layer->is_set[i])
            *bth_option_field(config, row) = bth_option_value(&layer->values, row);
    }
}

/* ---- the environment ---- */

typedef struct variable {
    const char *name;
    size_t name_n;
    const char *value;
    bool is_forced;
    const bth_option_row *row; /* NULL: not an option's */
    unsigned rank;             /* of names for one option: the lowest counts */
} variable;

static bool starts_with(const char *text, size_t n, const char *prefix)
{
    return n >= strlen(prefix) && memcmp(text, prefix, strlen(prefix)) == 0;
}

/* Fills in what the variable means; an error if it claims to be an option's and is not. */
static int identify(const char *entry, variable *found, berth_error *error)
{
    static const char torch_debug[] = "TORCH_SERIALIZATION_DEBUG";
    size_t n = strcspn(entry, "=");

    *found = (variable){.name = entry, .name_n = n, .value = entry[n] ? entry + n + 1 : entry + n};
    if (n == strlen(torch_debug) && starts_with(entry, n, torch_debug)) {
        if (strcmp(found->value, "1") == 0) /* as PyTorch, to which all else is as not set */
            found->row = bth_option_find("debug", strlen("debug"), false, NULL);
        found->rank = 100; /* after every name of our own */
        return 0;
    }
    if (!starts_with(entry, n, "BERTH_"))
        return 0;
    const char *rest = entry + strlen("BERTH_");
    size_t rest_n = n - strlen("BERTH_");
    if (starts_with(rest, rest_n, "FORCE_")) {
        found->is_forced = true;
        rest += strlen("FORCE_");
        rest_n -= strlen("FORCE_");
    }
    found->row = bth_option_find(rest, rest_n, true, &found->rank);
    if (!found->row && (found->is_forced || bth_option_is_in_section(rest, rest_n)))
        return bth_fail(error, BERTH_E_OPTION, NULL, BERTH_NO_OFFSET,
                        "%.*s in the environment: no such option", (int)(n < 100 ? n : 100), entry);
    return 0;
}

static int take(const variable *found, bth_environment *environment,
                unsigned ranks[2][BTH_N_OPTIONS], berth_error *error)
{
    size_t i = bth_option_index(found->row);
    bth_layer *layer = found->is_forced ? &environment->force : &environment->plain;
    char *source = found->is_forced ? environment->force_source[i] : environment->plain_source[i];
    char where[96];
    int64_t value;

    (void)snprintf(where, sizeof where, "%.*s in the environment", (int)found->name_n, found->name);
    if (bth_option_parse(found->row, found->value, strlen(found->value), where, &value, error) < 0)
        return error->code;
    /* Of two names, or of one name twice, as getenv does: the first. */
    if (layer->is_set[i] && ranks[found->is_forced][i] <= found->rank)
        return 0;
    layer->is_set[i] = true;
    ranks[found->is_forced][i] = found->rank;
    *bth_option_field(&layer->values, found->row) = value;
    (void)snprintf(source, sizeof environment->plain_source[i], "%s %.*s",
                   found->is_forced ? "force" : "environment", (int)found->name_n, found->name);
    return 0;
}

int bth_environment_read(char *const *variables, bth_environment *environment, berth_error *error)
{
    unsigned ranks[2][BTH_N_OPTIONS] = {{0}};
    variable found;

    memset(environment, 0, sizeof *environment);
    for (; variables && *variables; variables++) {
        if (identify(*variables, &found, error) < 0)
            return error->code;
        if (found.row && take(&found, environment, ranks, error) < 0)
            return error->code;
    }
    return 0;
}

/* ---- assignments ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Takes white space off both ends. */
static void trim(const char **text, size_t *n)
{
    while (*n > 0 && is_space(**text)) {
        ++*text;
        --*n;
    }
    while (*n > 0 && is_space((*text)[*n - 1]))
        --*n;
}

static int assign(bth_layer *layer, const char *text, size_t n, const char *source,
                  berth_error *error)
{
    const char *equals = memchr(text, '=', n);
    const char *name = text;
    size_t name_n = equals ? (size_t)(equals - text) : n;

    if (!equals)
        return bth_fail(error, BERTH_E_OPTION, NULL, BERTH_NO_OFFSET,
                        "%.*s: not of the form name=value (%s)", (int)(n < 100 ? n : 100), text,
                        source);
    const char *value = equals + 1;
    size_t value_n = n - name_n - 1;
    trim(&name, &name_n);
    trim(&value, &value_n);
    const bth_option_row *row = bth_option_find(name, name_n, false, NULL);
    if (!row)
        return bth_fail(error, BERTH_E_OPTION, NULL, BERTH_NO_OFFSET, "%.*s: no such option (%s)",
                        (int)(name_n < 100 ? name_n : 100), name, source);
    layer->is_set[bth_option_index(row)] = true;
    return bth_option_parse(row, value, value_n, source, bth_option_field(&layer->values, row),
                            error);
}

int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source,
                          berth_error *error)
{
    if (!text)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "no assignments (%s)",
                        source);
    for (size_t n; *text; text += n) {
        for (n = 0; text[n] && !is_space(text[n]);)
            n++;
        if (n > 0 && assign(layer, text, n, source, error) < 0)
            return error->code;
        if (n == 0)
            text++;
    }
    return 0;
}

int bth_layer_parse_lines(bth_layer *layer, const char *text, berth_error *error)
{
    char source[40];

    if (!text)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "no text");
    for (size_t line_number = 1; *text; line_number++) {
        const char *line = text;
        size_t n = strcspn(line, "\n");
        text += n + (line[n] == '\n');
        size_t without_comment = strcspn(line, "#");
        if (n > without_comment)
            n = without_comment;
        trim(&line, &n);
        (void)snprintf(source, sizeof source, "in line %zu", line_number);
        if (n > 0 && assign(layer, line, n, source, error) < 0)
            return error->code;
    }
    return 0;
}

/* ---- printing ---- */

/* As snprintf: counts what does not fit. */
typedef struct writer {
    char *text;
    size_t capacity;
    size_t length;
} writer;

static void put(writer *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *out, const char *format, ...)
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
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "there is no form %d of a configuration", (int)form);
    if (!config && bth_config_in_force(&in_force, error) < 0)
        return error->code;
    put(&out, "%s", "");
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t value = bth_option_value(config ? config : &in_force, row);
        if (form != BERTH_CONFIG_PORTABLE && value == row->initial)
            continue;
        bth_option_print(row, value, printed);
        if (form == BERTH_CONFIG_CODE)
            put(&out, "berth_config_set(\"%s\", \"%s\", &error);\n", row->name, printed);
        else
            put(&out, "%s=%s\n", row->name, printed);
    }
    return (int64_t)out.length;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return bth_fnv(hash, text, strlen(text));
}

/* Over the portable text: the same on every machine. */
uint64_t berth_config_hash(const berth_config *config)
{
    uint64_t hash = BTH_FNV_BEGIN;
    char printed[BTH_OPTION_TEXT_NBYTES];
    struct berth_config in_force;
    berth_error error;

    bth_error_clear(&error);
    if (!config && bth_config_in_force(&in_force, &error) < 0)
        return 0;
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        bth_option_print(row, bth_option_value(config ? config : &in_force, row), printed);
        hash = hash_text(hash, row->name);
        hash = hash_text(hash, "=");
        hash = hash_text(hash, printed);
        hash = hash_text(hash, "\n");
    }
    return hash;
}
