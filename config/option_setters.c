/* SPDX-License-Identifier: BSD-3-Clause */
/* How a program changes options; those who watch them are called. */
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "config/layers.h"

/* ---- who watches ---- */

#define MAX_WATCHES 64

typedef struct watch {
    berth_config_function function; /* NULL: the place is free */
    void *context;
    const bth_option_row *row; /* NULL: all options */
} watch;

static struct {
    bth_lock lock; /* protects all that follows; nobody calls a function while holding it */
    watch watches[MAX_WATCHES];
    _Atomic size_t n; /* places that were ever used */
} watching;

/* The values in force on this thread before a change; nothing if nobody watches. */
typedef struct watch_state {
    struct berth_config values;
    bool is_watched;
} watch_state;

/* The caller holds no lock in either of these two. */
static void watch_begin_change(watch_state *before)
{
    berth_error unused = {0};

    before->is_watched = atomic_load(&watching.n) > 0;
    if (before->is_watched)
        (void)bth_config_copy_in_force(&before->values, &unused);
}

static void watch_end_change(const watch_state *before)
{
    struct berth_config after;
    berth_error unused = {0};
    berth_option option;

    if (!before->is_watched)
        return;
    (void)bth_config_copy_in_force(&after, &unused);
    for (size_t i = 0; i < before->values.n_values; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (bth_option_value(&before->values, row) == bth_option_value(&after, row))
            continue;
        bth_option_describe_in_force(row, &option);
        for (size_t k = 0; k < atomic_load(&watching.n); k++) {
            (void)bth_lock_acquire(&watching.lock);
            watch found = watching.watches[k];
            bth_lock_release(&watching.lock);
            if (found.function && (!found.row || found.row == row))
                found.function(found.context, &option);
        }
    }
}

int berth_config_watch(const char *name, berth_config_function function, void *context,
                       berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = name ? bth_option_find_or_fail(name, error) : NULL;
    watch *watches = watching.watches;
    size_t i = 0;

    if (name && !row)
        return error->code;
    (void)bth_lock_acquire(&watching.lock);
    if (!function) {
        for (; i < atomic_load(&watching.n); i++)
            if (watches[i].context == context && (!name || watches[i].row == row))
                watches[i].function = NULL;
    } else {
        while (i < MAX_WATCHES && watches[i].function)
            i++;
        if (i < MAX_WATCHES) {
            watches[i] = (watch){.function = function, .context = context, .row = row};
            if (i >= atomic_load(&watching.n))
                atomic_store(&watching.n, i + 1);
        } else
            (void)bth_fail_status(error, BERTH_E_ARGUMENT, "%d functions watch options already",
                                  MAX_WATCHES);
    }
    bth_lock_release(&watching.lock);
    return error->code;
}

/* ---- patches of the thread ---- */

int berth_config_patch(const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};
    watch_state before;

    if (bth_layer_parse(&layer, assignments, false, "patch", error) < 0)
        return error->code;
    watch_begin_change(&before);
    if (bth_patch_begin(&layer, error) < 0)
        return error->code;
    watch_end_change(&before);
    return 0;
}

int berth_config_unpatch(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    watch_state before;

    watch_begin_change(&before);
    if (!bth_patch_end())
        return bth_fail_argument(error, "this thread has no patch to undo");
    watch_end_change(&before);
    return 0;
}

berth_config_scope berth_config_open_scope(const char *assignments)
{
    berth_error error;

    if (berth_config_patch(assignments, &error) == 0)
        return (berth_config_scope){.runs = true, .is_patched = true};
    bth_patch_refuse_scope(&error);
    return (berth_config_scope){.runs = true};
}

void berth_config_close_scope(berth_config_scope *scope)
{
    if (scope->is_patched)
        (void)berth_config_unpatch(NULL);
    else
        bth_patch_refuse_scope(NULL);
}

/* ---- the program's values ---- */

static void options_change_values(const bth_layer *changes)
{
    watch_state before;

    watch_begin_change(&before);
    bth_program_set_values(changes);
    watch_end_change(&before);
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
    bth_layer changes = {0};
    int64_t value;

    if (!row)
        return error->code;
    if (!text)
        return bth_fail_argument(error, "%s: the value is NULL", row->name);
    if (bth_option_parse(row, text, strlen(text), source ? source : "set by the program", &value,
                         error) < 0)
        return error->code;
    *bth_option_field(&changes.values, row) = value;
    changes.source[bth_option_index(row)] = source_copy(source);
    options_change_values(&changes);
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
    watch_state before;
    watch_begin_change(&before);
    bth_program_reset_values(only);
    watch_end_change(&before);
    return 0;
}

int berth_config_parse(const char *text, const char *source, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (bth_layer_parse(&layer, text, true, source_copy(source), error) < 0)
        return error->code;
    options_change_values(&layer);
    return 0;
}
