/* SPDX-License-Identifier: BSD-3-Clause */
/* The layers, highest first: forced, patch of the thread, program, environment, default. How a
 * program changes them; those who watch them are called. */
#include "config/options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/trace.h"
#include "config/layers.h"

/* ---- layers of the process ---- */

/*
 * X11: a child that is forked during a change sees the state before or after it. So a change is
 * made in a copy, and then one store makes the copy current.
 */
static struct {
    bth_lock lock; /* protects all that follows */
    atomic_bool environment_is_read;
    berth_error environment_error; /* of a bad variable: every operation fails with it */
    bth_environment environment;
    bth_notes notes;          /* are logged when the lock is released */
    bth_layer programs[2];    /* the values that the program has set: */
    _Atomic unsigned current; /* the index of these */
} process;

/* After a fork during a change the child reads the environment again. */
static void process_acquire(void)
{
    if (bth_lock_acquire(&process.lock) == BTH_LOCK_TORN)
        atomic_store(&process.environment_is_read, false);
}

/* The log function may use the configuration, so it is called without the lock. */
static void process_release(void)
{
    bth_notes notes = {0};

    if (process.notes.n > 0) {
        notes = process.notes;
        process.notes.n = 0;
    }
    bth_lock_release(&process.lock);
    bth_notes_log(&notes);
}

/* Acquires the lock and returns a copy to be changed. */
static bth_layer *program_layer_begin_change(void)
{
    process_acquire();
    unsigned current = atomic_load(&process.current);
    process.programs[1 - current] = process.programs[current];
    return &process.programs[1 - current];
}

static void program_layer_end_change(void)
{
    atomic_store(&process.current, 1 - atomic_load(&process.current));
    process_release();
}

/* The caller holds the lock. */
static int environment_read_once(berth_error *error)
{
    if (!atomic_load(&process.environment_is_read)) {
        bth_error_clear(&process.environment_error);
        (void)bth_environment_read(environ, 0, &process.environment, &process.notes,
                                   &process.environment_error);
        atomic_store(&process.environment_is_read, true);
    }
    if (process.environment_error.code != BERTH_OK)
        *error = process.environment_error;
    return error->code;
}

void bth_config_forget_environment(void)
{
    process_acquire();
    atomic_store(&process.environment_is_read, false);
    process_release();
}

/* ---- patches of the thread ---- */

typedef struct patch {
    struct patch *outer;
    bth_layer values;             /* with those of the outer patches */
    bool is_own[BTH_MAX_OPTIONS]; /* this patch set it, not an outer one */
} patch;

static pthread_once_t patch_once = PTHREAD_ONCE_INIT;
static pthread_key_t patch_key;
static bool patch_key_made;

/* At the end of a thread, also if it did not undo its patches. */
static void patch_free_all(void *innermost)
{
    patch *inner = innermost;

    while (inner) {
        patch *outer = inner->outer;
        bth_release(inner);
        inner = outer;
    }
}

static void patch_make_key(void)
{
    patch_key_made = pthread_key_create(&patch_key, patch_free_all) == 0;
}

static patch *patch_innermost(void)
{
    (void)pthread_once(&patch_once, patch_make_key);
    return patch_key_made ? pthread_getspecific(patch_key) : NULL;
}

/* Changes an option in the patch that has it, until that ends; patches inside hold copies of the
 * value. False: no patch of this thread has it. */
static bool patch_set_value(const bth_option_row *row, int64_t value)
{
    size_t i = bth_option_index(row);
    patch *at = patch_innermost();

    if (!at || !at->values.source[i])
        return false;
    for (bool is_owner = false; !is_owner; at = at->outer) {
        *bth_option_field(&at->values.values, row) = value;
        is_owner = at->is_own[i];
    }
    return true;
}

/*
 * Scopes of this thread whose assignments were refused: as long as there is one, every operation
 * fails with the first of these errors.
 */
static _Thread_local struct {
    unsigned n;
    berth_error error;
} refused_scopes;

/* ---- values in force ---- */

int bth_options_copy_in_force(const bth_option_row *row, size_t n, int64_t *values,
                              const char **source, berth_error *error)
{
    const patch *inner = patch_innermost();

    if (refused_scopes.n > 0)
        *error = refused_scopes.error;
    process_acquire();
    (void)environment_read_once(error);
    const bth_layer *layers[] = {&process.environment.force, inner ? &inner->values : NULL,
                                 &process.programs[atomic_load(&process.current)],
                                 &process.environment.plain};
    const size_t n_layers = sizeof layers / sizeof *layers;
    for (size_t i = 0; i < n; i++) {
        size_t at = bth_option_index(&row[i]), k = 0;
        while (k < n_layers && !(layers[k] && layers[k]->source[at]))
            k++;
        *source = k < n_layers ? layers[k]->source[at] : "default";
        values[i] = k < n_layers ? bth_option_value(&layers[k]->values, &row[i]) : row[i].initial;
    }
    process_release();
    return error->code;
}

bool bth_option_is_set_by_environment(const bth_option_row *row)
{
    berth_error unused = {0};

    process_acquire();
    (void)environment_read_once(&unused);
    bool is_set = process.environment.plain.source[bth_option_index(row)] != NULL;
    process_release();
    return is_set;
}

int bth_config_copy_in_force(struct berth_config *config, berth_error *error)
{
    const bth_option_row *first = bth_option_at(0);
    const char *source;

    config->n_values = bth_option_count();
    return bth_options_copy_in_force(first, config->n_values, bth_option_field(config, first),
                                     &source, error);
}

int bth_check_reserved(const char *name, const uint64_t *reserved, size_t n, berth_error *error)
{
    for (size_t i = 0; i < n; i++)
        if (reserved[i] != 0)
            return bth_fail_argument(
                error,
                "%s: reserved[%zu] is not 0: a newer library may know its meaning, %s does not",
                name, i, BERTH_VERSION_STRING);
    return 0;
}

int bth_config_copy_for_operation(const berth_params *call, struct berth_config *config,
                                  berth_error *error)
{
    if (call && BTH_CHECK_RESERVED(berth_params, call, error) < 0)
        return error->code;
    if (!call || !call->config)
        (void)bth_config_copy_in_force(config, error);
    else { /* forced values override those of a configuration that belongs to the call, too */
        if (refused_scopes.n > 0)
            *error = refused_scopes.error;
        process_acquire();
        if (environment_read_once(error) == BERTH_OK) {
            *config = *call->config;
            bth_layer_apply(&process.environment.force, config);
        }
        process_release();
    }
    if (error->code == BERTH_OK && config->debug && config->load_check < BTH_CHECK_HEADERS)
        config->load_check = BTH_CHECK_HEADERS;
    if (error->code == BERTH_OK && config->trace != 0 && !bth_wing_trace.enter) {
        config->trace = 0;
        return bth_fail_status(error, BERTH_E_UNAVAILABLE,
                               "trace: this library was built without traces");
    }
    return error->code;
}

const bth_option_row *bth_option_find_or_fail(const char *name, berth_error *error)
{
    const bth_option_row *row = name ? bth_option_find(name, strlen(name), false, NULL) : NULL;
    char nearest[BTH_NEAREST_TEXT_NBYTES];
    bth_notes notes = {0};

    if (row) {
        row = bth_option_use(row, &notes);
        bth_notes_log(&notes);
        return row;
    }
    bth_option_print_nearest(name, name ? strlen(name) : 0, nearest);
    (void)bth_fail_status(error, BERTH_E_OPTION, "%.100s: no such option%s", name ? name : "(null)",
                          nearest);
    return NULL;
}

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

/* ---- changes by the program: patches of the thread ---- */

int berth_config_patch(const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};
    watch_state before;

    if (bth_layer_parse(&layer, assignments, false, "patch", error) < 0)
        return error->code;
    watch_begin_change(&before);
    patch *outer = patch_innermost(), *inner = bth_allocate_zeroed(sizeof *inner);
    if (!inner)
        return bth_fail_memory(error, sizeof *inner);
    inner->outer = outer;
    if (outer)
        inner->values = outer->values;
    bth_layer_apply(&layer, &inner->values.values);
    for (size_t i = 0; i < BTH_MAX_OPTIONS; i++) {
        inner->is_own[i] = layer.source[i] != NULL;
        if (inner->is_own[i])
            inner->values.source[i] = layer.source[i];
    }
    if (!patch_key_made || pthread_setspecific(patch_key, inner) != 0) {
        bth_release(inner);
        return bth_fail_status(error, BERTH_E_MEMORY, "out of memory for thread-local values");
    }
    watch_end_change(&before);
    return 0;
}

int berth_config_unpatch(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    watch_state before;

    watch_begin_change(&before);
    patch *inner = patch_innermost();
    if (!inner)
        return bth_fail_argument(error, "this thread has no patch to undo");
    (void)pthread_setspecific(patch_key, inner->outer); /* cannot fail: the key is in use */
    bth_release(inner);
    watch_end_change(&before);
    return 0;
}

void berth_config_switch_scope(berth_config_scope *scope, const char *assignments)
{
    berth_error error;

    if (scope->is_patched) {
        (void)berth_config_unpatch(NULL);
    } else if (scope->is_refused) {
        refused_scopes.n--;
    } else if (berth_config_patch(assignments, &error) == 0) {
        scope->is_patched = scope->runs = true;
    } else {
        if (refused_scopes.n++ == 0)
            refused_scopes.error = error;
        scope->is_refused = scope->runs = true;
    }
}

/* ---- the program's values ---- */

/* In the patches of this thread, as far as they have the options; the others become the program's.
 */
static void program_set_values(const bth_layer *values)
{
    watch_state before;

    watch_begin_change(&before);
    bth_layer *layer = program_layer_begin_change();
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t value = bth_option_value(&values->values, row);
        if (values->source[i] && !patch_set_value(row, value)) {
            layer->source[i] = values->source[i];
            *bth_option_field(&layer->values, row) = value;
        }
    }
    program_layer_end_change();
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

int berth_config_set(const char *name, const char *text, const char *source, berth_error *error)
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
    program_set_values(&changes);
    return 0;
}

/* In a patch an option gets the value that it would have without the program. */
int berth_config_reset(const char *name, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *only = name ? bth_option_find_or_fail(name, error) : NULL;
    berth_error of_environment = {0}; /* is for those who need a valid environment */
    watch_state before;

    if (name && !only)
        return error->code;
    watch_begin_change(&before);
    bth_layer *layer = program_layer_begin_change();
    const bth_layer *plain = &process.environment.plain;
    (void)environment_read_once(&of_environment);
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t below = plain->source[i] ? bth_option_value(&plain->values, row) : row->initial;
        if ((!only || row == only) && !patch_set_value(row, below))
            layer->source[i] = NULL;
    }
    program_layer_end_change();
    watch_end_change(&before);
    return 0;
}

int berth_config_parse(const char *text, const char *source, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (bth_layer_parse(&layer, text, true, source_copy(source), error) < 0)
        return error->code;
    program_set_values(&layer);
    return 0;
}

/* ---- configurations that a caller owns, and brings to its operations ---- */

berth_config *berth_config_new(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    berth_config *config = bth_allocate_zeroed(sizeof *config);

    if (!config)
        return bth_fail_memory(error, sizeof *config), NULL;
    if (bth_config_copy_in_force(config, error) < 0) {
        bth_release(config);
        return NULL;
    }
    return config;
}

void berth_config_free(berth_config *config)
{
    bth_release(config);
}

int64_t bth_config_value(const struct berth_config *config, const bth_option_row *row)
{
    return bth_option_index(row) < config->n_values ? bth_option_value(config, row) : row->initial;
}

int berth_config_apply(berth_config *config, const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (!config)
        return bth_fail_argument(error, "the configuration is NULL");
    if (bth_layer_parse(&layer, assignments, false, "configuration of its own", error) < 0)
        return error->code;
    /* Options that were registered after the configuration was made get their defaults. */
    for (; config->n_values < bth_option_count(); config->n_values++) {
        const bth_option_row *row = bth_option_at(config->n_values);
        *bth_option_field(config, row) = row->initial;
    }
    bth_layer_apply(&layer, config);
    return 0;
}

/* ---- registered options: rows made of the caller's, which are checked and copied ---- */

#define MAX_SECTION_NBYTES 20
#define MAX_NAME_NBYTES 32
#define MAX_HELP_NBYTES 1000

static bth_lock registration_lock; /* one registration at a time */

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
        if (error->code == BERTH_OK) { /* and reads their values in the environment */
            size_t first = bth_option_count();
            process_acquire();
            bth_option_add_rows(made, n);
            if (atomic_load(&process.environment_is_read))
                (void)bth_environment_read(environ, first, &process.environment, &process.notes,
                                           &process.environment_error);
            process_release();
        }
        while (error->code != BERTH_OK && n_made > 0)
            row_free(&made[--n_made]);
    }
    bth_lock_release(&registration_lock);
    return error->code;
}
