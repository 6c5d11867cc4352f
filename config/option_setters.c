/* SPDX-License-Identifier: BSD-3-Clause */
/* How a program changes options; those who watch them are called. */
#include <string.h>

#include "base/error.h"
#include "config/option_text.h"
#include "config/patch.h"
#include "config/values_in_force.h"
#include "config/watches.h"

/* ---- patches of the thread ---- */

int berth_config_patch(const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};
    bth_notes notes = {0};
    bth_watch_state before;

    int status = bth_layer_parse_words(&layer, assignments, "patch", &notes, error);
    bth_notes_log(&notes);
    if (status < 0)
        return status;
    bth_watch_begin_change(&before);
    if (bth_patch_begin(&layer, error) < 0)
        return error->code;
    bth_watch_end_change(&before);
    return 0;
}

int berth_config_unpatch(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_watch_state before;

    bth_watch_begin_change(&before);
    if (!bth_patch_end())
        return bth_fail_argument(error, "this thread has no patch to undo");
    bth_watch_end_change(&before);
    return 0;
}

berth_config_scope berth_config_open_scope(const char *assignments)
{
    berth_error error;

    if (berth_config_patch(assignments, &error) == 0)
        return (berth_config_scope){.runs = true, .is_patched = true};
    bth_patch_begin_refused_scope(&error);
    return (berth_config_scope){.runs = true};
}

void berth_config_close_scope(berth_config_scope *scope)
{
    if (scope->is_patched)
        (void)berth_config_unpatch(NULL);
    else
        bth_patch_end_refused_scope();
}

/* ---- the program's values ---- */

static const char by_program[] = "set by the program"; /* in messages */

/*
 * Puts values in force on this thread: in its patches, as far as they have the options; the others
 * become the program's.
 */
static void options_change_values(const bth_layer *changes)
{
    bth_layer others = *changes;
    bth_watch_state before;

    bth_watch_begin_change(&before);
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (others.source[i] && bth_patch_set_value(row, bth_option_value(&others.values, row)))
            others.source[i] = NULL;
    }
    bth_program_set_values(&others);
    bth_watch_end_change(&before);
}

static void option_change_value(const bth_option_row *row, int64_t value, const char *source)
{
    bth_layer changes = {0};

    *bth_option_field(&changes.values, row) = value;
    changes.source[bth_option_index(row)] = source;
    options_change_values(&changes);
}

/* Of texts that stay. More would take those that options need, and each is looked for among all. */
#define MAX_SOURCES 4096

/* The caller's text need not stay. One that cannot be kept is no reason to refuse the value. */
static const char *source_copy(const char *source)
{
    int64_t number = source ? bth_option_number_text(source, strlen(source), MAX_SOURCES) : -1;

    return number < 0 ? "program" : bth_option_text(number);
}

int berth_config_set_from(const char *name, const char *text, const char *source,
                          berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = bth_option_find_or_fail(name, error);
    int64_t value;

    if (!row)
        return error->code;
    if (!text)
        return bth_fail_argument(error, "%s: the value is NULL", row->name);
    if (bth_option_parse(row, text, strlen(text), source ? source : by_program, &value, error) < 0)
        return error->code;
    option_change_value(row, value, source_copy(source));
    return 0;
}

int berth_config_set(const char *name, const char *text, berth_error *error)
{
    return berth_config_set_from(name, text, NULL, error);
}

int berth_config_reset(const char *name, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *only = name ? bth_option_find_or_fail(name, error) : NULL;

    if (name && !only)
        return error->code;
    bth_watch_state before;
    bth_watch_begin_change(&before);
    bth_program_reset_values(only);
    bth_watch_end_change(&before);
    return 0;
}

int berth_config_parse(const char *text, const char *source, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};
    bth_notes notes = {0};

    int status = bth_layer_parse_lines(&layer, text, source_copy(source), &notes, error);
    bth_notes_log(&notes);
    if (status < 0)
        return status;
    options_change_values(&layer);
    return 0;
}
