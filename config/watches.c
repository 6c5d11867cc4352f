/* SPDX-License-Identifier: BSD-3-Clause */
#include "config/watches.h"

#include <stdatomic.h>

#include "base/error.h"
#include "base/lock.h"
#include "config/values_in_force.h"

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

void bth_watch_begin_change(bth_watch_state *before)
{
    berth_error unused = {0};

    before->is_watched = atomic_load(&watching.n) > 0;
    if (before->is_watched)
        (void)bth_config_copy_in_force(&before->values, &unused);
}

/* The next watch of an option from place i on; false: there is none. */
static bool watch_find_next(const bth_option_row *row, size_t *i, watch *found)
{
    bool is_found = false;

    (void)bth_lock_acquire(&watching.lock);
    for (; !is_found && *i < atomic_load(&watching.n); ++*i) {
        *found = watching.watches[*i];
        is_found = found->function && (!found->row || found->row == row);
    }
    bth_lock_release(&watching.lock);
    return is_found;
}

static void option_report_change(const bth_option_row *row)
{
    berth_option option;
    watch found;

    bth_option_describe_in_force(row, &option);
    for (size_t i = 0; watch_find_next(row, &i, &found);)
        found.function(found.context, &option);
}

void bth_watch_end_change(const bth_watch_state *before)
{
    struct berth_config after;
    berth_error unused = {0};

    if (!before->is_watched)
        return;
    (void)bth_config_copy_in_force(&after, &unused);
    for (size_t i = 0; i < before->values.n_values; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (bth_option_value(&before->values, row) != bth_option_value(&after, row))
            option_report_change(row);
    }
}

/* The caller holds the lock. */
static void watches_remove(const bth_option_row *row, bool of_all, const void *context)
{
    for (size_t i = 0; i < atomic_load(&watching.n); i++) {
        watch *one = &watching.watches[i];
        if (one->context == context && (of_all || one->row == row))
            one->function = NULL;
    }
}

/* The caller holds the lock. */
static int watches_add(const watch *added, berth_error *error)
{
    size_t i = 0;

    while (i < MAX_WATCHES && watching.watches[i].function)
        i++;
    if (i == MAX_WATCHES)
        return bth_fail_status(error, BERTH_E_ARGUMENT, "%d functions watch options already",
                               MAX_WATCHES);
    watching.watches[i] = *added;
    if (i >= atomic_load(&watching.n))
        atomic_store(&watching.n, i + 1);
    return 0;
}

int berth_config_watch(const char *name, berth_config_function function, void *context,
                       berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = name ? bth_option_find_or_fail(name, error) : NULL;

    if (name && !row)
        return error->code;
    (void)bth_lock_acquire(&watching.lock);
    if (function)
        (void)watches_add(&(watch){.function = function, .context = context, .row = row}, error);
    else
        watches_remove(row, !name, context);
    bth_lock_release(&watching.lock);
    return error->code;
}
