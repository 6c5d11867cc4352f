/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptions of options. */
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "config/option_text.h"
#include "config/values_in_force.h"

/* Of every row, made when one is asked for; berth_option refers to them. */
static struct {
    char bounds[80];
    char initial[BTH_OPTION_TEXT_NBYTES];
} row_texts[BTH_MAX_OPTIONS];
static size_t n_row_texts;
static bth_lock row_texts_lock;

static void options_make_description_texts(void)
{
    (void)bth_lock_acquire(&row_texts_lock);
    for (; n_row_texts < bth_option_count(); n_row_texts++) {
        const bth_option_row *row = bth_option_at(n_row_texts);
        bth_option_print_bounds(row, row_texts[n_row_texts].bounds, sizeof row_texts->bounds);
        bth_option_print(row, row->initial, row_texts[n_row_texts].initial);
    }
    bth_lock_release(&row_texts_lock);
}

static void option_describe(const bth_option_row *row, int64_t value, const char *source,
                            berth_option *option)
{
    static const char *const types[] = {"bool", "enum", "int", "bytes", "flags", "text"};
    size_t i = bth_option_index(row);

    options_make_description_texts();
    *option = (berth_option){.name = row->name,
                             .type = types[row->kind],
                             .unit = row->unit,
                             .bounds = row_texts[i].bounds,
                             .initial = row_texts[i].initial,
                             .help = row->help,
                             .aliases = row->aliases,
                             .source = source,
                             .successor = row->successor ? row->successor->name : "",
                             .number = value,
                             .classes = row->classes,
                             .is_default = value == row->initial};
    bth_option_print(row, value, option->value);
    if (row->kind == BTH_OPTION_TEXT)
        option->text = bth_option_text(value);
}

void bth_option_describe_in_force(const bth_option_row *row, berth_option *option)
{
    berth_error unused = {0}; /* of the environment, which the description shows as it is */
    const char *source;
    int64_t value;

    (void)bth_options_copy_in_force(row, 1, &value, &source, &unused);
    option_describe(row, value, source, option);
}

const char *berth_config_name(size_t i)
{
    return i < bth_option_count() ? bth_option_at(i)->name : NULL;
}

/* A deprecated name is described with its successor's value. */
static const bth_option_row *option_find_to_describe(const char *name, const berth_option *option,
                                                     berth_error *error)
{
    const bth_option_row *row = name ? bth_option_find(name, strlen(name), false, NULL) : NULL;

    if (!option) {
        (void)bth_fail_argument(error, "no place for the description");
        return NULL;
    }
    return row ? row : bth_option_find_or_fail(name, error);
}

int berth_config_describe(const berth_config *config, const char *name, berth_option *option,
                          berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const bth_option_row *row = option_find_to_describe(name, option, error);

    if (!row)
        return error->code;
    const bth_option_row *meant = row->successor ? row->successor : row;
    if (config)
        option_describe(meant, bth_config_value(config, meant), "configuration", option);
    else
        bth_option_describe_in_force(meant, option);
    option->name = row->name;
    option->successor = row->successor ? row->successor->name : "";
    return 0;
}
