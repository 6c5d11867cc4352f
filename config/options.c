/* SPDX-License-Identifier: BSD-3-Clause */
/* The layers, highest first: forced, patch of the thread, program, environment, default. */
#include "config/options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "config/error.h"
#include "config/layer.h"
#include "config/lock.h"
#include "config/memory.h"
#include "config/patch.h"

static const char by_program[] = "set by the program";

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
    bth_layer programs[2];    /* the values that the program has set: */
    _Atomic unsigned current; /* the index of these */
} process;

/* The caller holds the lock. */
static const bth_layer *program_layer_current(void)
{
    return &process.programs[atomic_load(&process.current)];
}

/* Acquires the lock and returns a copy to be changed. */
static bth_layer *program_layer_begin_change(void)
{
    (void)bth_lock_acquire(&process.lock);
    bth_layer *copy = &process.programs[1 - atomic_load(&process.current)];
    *copy = *program_layer_current();
    return copy;
}

static void program_layer_end_change(void)
{
    atomic_store(&process.current, 1 - atomic_load(&process.current));
    bth_lock_release(&process.lock);
}

/* The caller holds the lock. */
static int environment_read_once(berth_error *error)
{
    if (!atomic_load(&process.environment_is_read)) {
        bth_error_clear(&process.environment_error);
        (void)bth_environment_read(environ, &process.environment, &process.environment_error);
        atomic_store(&process.environment_is_read, true);
    }
    if (process.environment_error.code != BERTH_OK)
        *error = process.environment_error;
    return error->code;
}

void bth_config_forget_environment(void)
{
    (void)bth_lock_acquire(&process.lock);
    atomic_store(&process.environment_is_read, false);
    bth_lock_release(&process.lock);
}

/* ---- patches of the thread ---- */

int berth_config_patch(const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (bth_layer_parse_words(&layer, assignments, "in a patch", error) < 0)
        return error->code;
    return bth_patch_begin(&layer, error);
}

int berth_config_unpatch(berth_error *error)
{
    BTH_ERROR_BEGIN(error);

    return bth_patch_end() ? 0 : bth_fail_argument(error, "this thread has no patch to undo");
}

/* ---- values in force ---- */

/* The caller holds the lock and has read the environment. */
static int64_t option_value_in_force(const bth_option_row *row, const bth_layer *patched,
                                     const char **source)
{
    size_t i = bth_option_index(row);
    const bth_environment *environment = &process.environment;
    const bth_layer *layer = NULL;

    *source = "default";
    if (environment->force.is_set[i]) {
        *source = environment->force_source[i];
        layer = &environment->force;
    } else if (patched && patched->is_set[i]) {
        *source = "patch";
        layer = patched;
    } else if (program_layer_current()->is_set[i]) {
        *source = "program";
        layer = program_layer_current();
    } else if (environment->plain.is_set[i]) {
        *source = environment->plain_source[i];
        layer = &environment->plain;
    }
    return layer ? bth_option_value(&layer->values, row) : row->initial;
}

/* The values of n rows, and the source of the last. */
static int options_copy_values_in_force(const bth_option_row *row, size_t n, int64_t *values,
                                        const char **source, berth_error *error)
{
    const bth_layer *patched = bth_patch_values();

    (void)bth_lock_acquire(&process.lock);
    if (environment_read_once(error) == BERTH_OK)
        for (size_t i = 0; i < n; i++)
            values[i] = option_value_in_force(row + i, patched, source);
    bth_lock_release(&process.lock);
    return error->code;
}

int bth_config_copy_in_force(struct berth_config *config, berth_error *error)
{
    const bth_option_row *first = bth_option_at(0);
    const char *source;

    return options_copy_values_in_force(first, BTH_N_OPTIONS, bth_option_field(config, first),
                                        &source, error);
}

/* Forced values also override those of a configuration that belongs to the call. */
static int config_copy_with_forced(const struct berth_config *own, struct berth_config *config,
                                   berth_error *error)
{
    (void)bth_lock_acquire(&process.lock);
    if (environment_read_once(error) == BERTH_OK) {
        *config = *own;
        bth_layer_apply(&process.environment.force, config);
    }
    bth_lock_release(&process.lock);
    return error->code;
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
    int status = call && call->config ? config_copy_with_forced(call->config, config, error)
                                      : bth_config_copy_in_force(config, error);

    if (status == 0 && config->debug && config->load_check < BTH_CHECK_HEADERS)
        config->load_check = BTH_CHECK_HEADERS;
    return status;
}

/* ---- the program's values ---- */

static const bth_option_row *option_find_or_fail(const char *name, berth_error *error)
{
    const bth_option_row *row = name ? bth_option_find(name, strlen(name), false, NULL) : NULL;

    if (!row)
        (void)bth_fail_status(error, BERTH_E_OPTION, "%.100s: no such option",
                              name ? name : "(null)");
    return row;
}

/*
 * Puts values in force on this thread: in its patches, as far as they have the options; the others
 * become the program's.
 */
static void options_change_values(const bth_layer *changes)
{
    bth_layer others = *changes;

    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (others.is_set[i] && bth_patch_set_value(row, bth_option_value(&others.values, row)))
            others.is_set[i] = false;
    }
    bth_layer_merge(program_layer_begin_change(), &others);
    program_layer_end_change();
}

static void option_change_value(const bth_option_row *row, int64_t value)
{
    bth_layer changes = {0};

    *bth_option_field(&changes.values, row) = value;
    changes.is_set[bth_option_index(row)] = true;
    options_change_values(&changes);
}

int berth_config_set(const char *name, const char *text, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_or_fail(name, error);
    int64_t value;

    if (!row)
        return error->code;
    if (!text)
        return bth_fail_argument(error, "%s: the value is NULL", row->name);
    if (bth_option_parse(row, text, strlen(text), by_program, &value, error) < 0)
        return error->code;
    option_change_value(row, value);
    return 0;
}

int berth_config_set_int(const char *name, int64_t value, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_or_fail(name, error);

    if (!row || bth_option_check(row, value, by_program, error) < 0)
        return error->code;
    option_change_value(row, value);
    return 0;
}

int berth_config_get(const char *name, char *text, size_t text_nbytes, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_or_fail(name, error);
    char printed[BTH_OPTION_TEXT_NBYTES];
    const char *source;
    int64_t value;

    if (!row || options_copy_values_in_force(row, 1, &value, &source, error) != BERTH_OK)
        return error->code;
    bth_option_print(row, value, printed);
    if (!text || strlen(printed) >= text_nbytes)
        return bth_fail_argument(error, "%s: the buffer is too small: %zu bytes are needed",
                                 row->name, strlen(printed) + 1);
    memcpy(text, printed, strlen(printed) + 1);
    return 0;
}

int berth_config_get_int(const char *name, int64_t *value, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_or_fail(name, error);
    const char *source;

    return row ? options_copy_values_in_force(row, 1, value, &source, error) : error->code;
}

/*
 * In a patch the option gets the value that it would have without the program. False: no patch of
 * this thread has it.
 */
static bool option_reset_in_patch(const bth_option_row *row, const bth_environment *environment)
{
    const bth_layer *plain = &environment->plain;
    bool is_set = plain->is_set[bth_option_index(row)];

    return bth_patch_set_value(row, is_set ? bth_option_value(&plain->values, row) : row->initial);
}

int berth_config_reset(const char *name, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *only = name ? option_find_or_fail(name, error) : NULL;

    if (name && !only)
        return error->code;
    berth_error of_environment = {0}; /* is for those who need a valid environment */
    bth_layer *layer = program_layer_begin_change();
    (void)environment_read_once(&of_environment);
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        if ((!only || row == only) && !option_reset_in_patch(row, &process.environment))
            layer->is_set[i] = false;
    }
    program_layer_end_change();
    return 0;
}

int berth_config_parse(const char *text, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (bth_layer_parse_lines(&layer, text, error) < 0)
        return error->code;
    options_change_values(&layer);
    return 0;
}

/* ---- descriptions of options ---- */

/* Made once; berth_option refers to them. */
static struct {
    char bounds[80];
    char initial[BTH_OPTION_TEXT_NBYTES];
} row_texts[BTH_N_OPTIONS];
static pthread_once_t row_texts_once = PTHREAD_ONCE_INIT;

static void options_make_description_texts(void)
{
    for (size_t i = 0; i < BTH_N_OPTIONS; i++) {
        const bth_option_row *row = bth_option_at(i);
        bth_option_print_bounds(row, row_texts[i].bounds, sizeof row_texts[i].bounds);
        bth_option_print(row, row->initial, row_texts[i].initial);
    }
}

static int option_describe(const bth_option_row *row, berth_option *option, berth_error *error)
{
    static const char *const types[] = {"bool", "enum", "int", "bytes", "flags"};
    size_t i = bth_option_index(row);
    const char *source;
    int64_t value;

    if (options_copy_values_in_force(row, 1, &value, &source, error) != BERTH_OK)
        return error->code;
    (void)pthread_once(&row_texts_once, options_make_description_texts);
    *option = (berth_option){.name = row->name,
                             .type = types[row->kind],
                             .unit = row->unit,
                             .bounds = row_texts[i].bounds,
                             .initial = row_texts[i].initial,
                             .help = row->help,
                             .aliases = row->aliases,
                             .source = source};
    bth_option_print(row, value, option->value);
    return 0;
}

const char *berth_config_name(size_t i)
{
    return i < BTH_N_OPTIONS ? bth_option_at(i)->name : NULL;
}

int berth_config_describe(const char *name, berth_option *option, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_or_fail(name, error);

    return row ? option_describe(row, option, error) : error->code;
}

/* ---- configurations of a call ---- */

berth_config *berth_config_new(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    berth_config *config = bth_allocate(sizeof *config);

    if (!config) {
        (void)bth_fail_memory(error, sizeof *config);
        return NULL;
    }
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

int berth_config_apply(berth_config *config, const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};

    if (!config)
        return bth_fail_argument(error, "the configuration is NULL");
    if (bth_layer_parse_words(&layer, assignments, "in a configuration of its own", error) < 0)
        return error->code;
    bth_layer_apply(&layer, config);
    return 0;
}
