/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration: what it sets, and its text. config/options.c orders the layers.
 */
#include "config/layer.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

void bth_layer_merge(bth_layer *layer, const bth_layer *more)
{
    bth_layer_apply(more, &layer->values);
    for (size_t i = 0; i < BTH_MAX_OPTIONS; i++)
        if (more->source[i])
            layer->source[i] = more->source[i];
}

void bth_layer_apply(const bth_layer *layer, struct berth_config *config)
{
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (layer->source[i])
            *bth_option_field(config, row) = bth_option_value(&layer->values, row);
    }
}

const bth_option_row *bth_option_use(const bth_option_row *row, bth_notes *notes)
{
    static atomic_bool is_noted[BTH_MAX_OPTIONS];

    if (!row->successor)
        return row;
    if (!atomic_exchange(&is_noted[bth_option_index(row)], true))
        bth_notes_add(notes, "%s is deprecated: use %s", row->name, row->successor->name);
    return row->successor;
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

int bth_line_divide(const bth_text_line *line, const char **name, size_t *name_n,
                    const char **value, size_t *value_n, const char *source, berth_error *error)
{
    const char *equals = memchr(line->text, '=', line->n);

    if (!equals)
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s: not of the form name=value (%s)",
                               (int)(line->n < 100 ? line->n : 100), line->text, source);
    *name = line->text;
    *name_n = (size_t)(equals - line->text);
    *value = equals + 1;
    *value_n = line->n - *name_n - 1;
    text_trim(name, name_n);
    text_trim(value, value_n);
    return 0;
}

void bth_layer_note_unknown(const char *name, size_t n, const char *source, bth_notes *notes)
{
    char nearest[BTH_NEAREST_TEXT_NBYTES];

    bth_option_print_nearest(name, n, nearest);
    bth_notes_add(notes, "%.*s: no such option%s; it is skipped (%s)", (int)(n < 64 ? n : 64), name,
                  nearest, source);
}

/* Refuses unknown names, or skips them. `where` is for messages. */
static int layer_parse_assignment(bth_layer *layer, const bth_text_line *line, const char *where,
                                  const char *source, bool skip_unknown, bth_notes *notes,
                                  berth_error *error)
{
    const char *name, *value;
    char nearest[BTH_NEAREST_TEXT_NBYTES];
    size_t name_n, value_n;

    if (bth_line_divide(line, &name, &name_n, &value, &value_n, where, error) < 0)
        return error->code;
    const bth_option_row *row = bth_option_find(name, name_n, false, NULL);
    if (!row && skip_unknown) {
        bth_layer_note_unknown(name, name_n, where, notes);
        return 0;
    }
    if (!row) {
        bth_option_print_nearest(name, name_n, nearest);
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s: no such option%s (%s)",
                               (int)(name_n < 100 ? name_n : 100), name, nearest, where);
    }
    row = bth_option_use(row, notes);
    layer->source[bth_option_index(row)] = source;
    return bth_option_parse(row, value, value_n, where, bth_option_field(&layer->values, row),
                            error);
}

int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source, bth_notes *notes,
                          berth_error *error)
{
    char where[40];

    (void)snprintf(where, sizeof where, "in a %s", source);
    if (!text)
        return bth_fail_argument(error, "the assignments are NULL (%s)", where);
    for (bth_text_line word; *(text += strspn(text, SPACE)); text += word.n) {
        word = (bth_text_line){.text = text, .n = strcspn(text, SPACE)};
        if (layer_parse_assignment(layer, &word, where, source, false, notes, error) < 0)
            return error->code;
    }
    return 0;
}

bool bth_text_next_line(const char **at, bth_text_line *line)
{
    while (**at) {
        line->number++;
        line->text = *at;
        line->n = strcspn(*at, "#\n");
        *at += strcspn(*at, "\n");
        *at += **at == '\n';
        text_trim(&line->text, &line->n);
        if (line->n > 0)
            return true;
    }
    return false;
}

int bth_layer_parse_lines(bth_layer *layer, const char *text, const char *source, bth_notes *notes,
                          berth_error *error)
{
    bth_text_line line = {0};
    char where[40];

    if (!text)
        return bth_fail_argument(error, "the text is NULL");
    while (bth_text_next_line(&text, &line)) {
        (void)snprintf(where, sizeof where, "in line %zu", line.number);
        if (layer_parse_assignment(layer, &line, where, source, true, notes, error) < 0)
            return error->code;
    }
    return 0;
}
