/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration, from the environment or from assignments. */
#include "config/layer.h"

#include <stdio.h>
#include <string.h>

#include "config/error.h"

void bth_layer_merge(bth_layer *layer, const bth_layer *more)
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

/* PyTorch's name for `debug` ranks behind all of ours. */
#define TORCH_DEBUG "TORCH_SERIALIZATION_DEBUG"
#define TORCH_RANK 100

typedef struct variable {
    const char *name;
    size_t name_n;
    const char *value;
    bool is_forced;
    const bth_option_row *row; /* NULL: it sets no option */
    unsigned rank;             /* of several variables for one option, the lowest rank counts */
} variable;

/* Skips the prefix, if the variable's name begins with it. */
static bool variable_skip_prefix(const char **name, size_t *n, const char *prefix)
{
    size_t prefix_n = strlen(prefix);

    if (*n < prefix_n || memcmp(*name, prefix, prefix_n) != 0)
        return false;
    *name += prefix_n;
    *n -= prefix_n;
    return true;
}

/* Finds the option that a variable sets. Fails if it looks like one of ours and sets none. */
static int variable_identify(const char *entry, variable *found, berth_error *error)
{
    size_t n = strcspn(entry, "=");
    const char *rest = entry;

    *found = (variable){.name = entry, .name_n = n, .value = entry[n] ? entry + n + 1 : entry + n};
    if (variable_skip_prefix(&rest, &n, TORCH_DEBUG)) {
        if (n == 0 && strcmp(found->value, "1") == 0) /* PyTorch ignores all other values */
            found->row = bth_option_find("debug", strlen("debug"), false, NULL);
        found->rank = TORCH_RANK;
        return 0;
    }
    if (!variable_skip_prefix(&rest, &n, "BERTH_"))
        return 0;
    found->is_forced = variable_skip_prefix(&rest, &n, "FORCE_");
    found->row = bth_option_find(rest, n, true, &found->rank);
    if (!found->row && (found->is_forced || bth_variable_name_has_section(rest, n)))
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s in the environment: no such option",
                               (int)(found->name_n < 100 ? found->name_n : 100), entry);
    return 0;
}

static int environment_add_variable(const variable *found, bth_environment *environment,
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
    /* If a name occurs twice, the first counts, as for getenv. */
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
        if (variable_identify(*variables, &found, error) < 0 ||
            (found.row && environment_add_variable(&found, environment, ranks, error) < 0))
            return error->code;
    }
    return 0;
}

/* ---- assignments ---- */

#define SPACE " \t\n\v\f\r"

/* Drops white space at both ends. */
static void text_trim(const char **text, size_t *n)
{
    for (; *n > 0 && strchr(SPACE, **text); --*n)
        ++*text;
    while (*n > 0 && strchr(SPACE, (*text)[*n - 1]))
        --*n;
}

static int layer_parse_assignment(bth_layer *layer, const char *text, size_t n, const char *source,
                                  berth_error *error)
{
    const char *equals = memchr(text, '=', n);
    const char *name = text;
    size_t name_n = equals ? (size_t)(equals - text) : n;

    if (!equals)
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s: not of the form name=value (%s)",
                               (int)(n < 100 ? n : 100), text, source);
    const char *value = equals + 1;
    size_t value_n = n - name_n - 1;
    text_trim(&name, &name_n);
    text_trim(&value, &value_n);
    const bth_option_row *row = bth_option_find(name, name_n, false, NULL);
    if (!row)
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s: no such option (%s)",
                               (int)(name_n < 100 ? name_n : 100), name, source);
    layer->is_set[bth_option_index(row)] = true;
    return bth_option_parse(row, value, value_n, source, bth_option_field(&layer->values, row),
                            error);
}

int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source,
                          berth_error *error)
{
    if (!text)
        return bth_fail_argument(error, "the assignments are NULL (%s)", source);
    for (size_t n; *(text += strspn(text, SPACE)); text += n) {
        n = strcspn(text, SPACE);
        if (layer_parse_assignment(layer, text, n, source, error) < 0)
            return error->code;
    }
    return 0;
}

int bth_layer_parse_lines(bth_layer *layer, const char *text, berth_error *error)
{
    char source[40];

    if (!text)
        return bth_fail_argument(error, "the text is NULL");
    for (size_t line_number = 1; *text; line_number++) {
        const char *line = text;
        size_t n = strcspn(line, "#\n");
        text += strcspn(line, "\n");
        text += *text == '\n';
        text_trim(&line, &n);
        (void)snprintf(source, sizeof source, "in line %zu", line_number);
        if (n > 0 && layer_parse_assignment(layer, line, n, source, error) < 0)
            return error->code;
    }
    return 0;
}
