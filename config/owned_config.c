/* SPDX-License-Identifier: BSD-3-Clause */
/* Configurations that a caller owns, and brings to its operations. */
#include "base/error.h"
#include "base/memory.h"
#include "config/layer.h"
#include "config/values_in_force.h"

berth_config *berth_config_new(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    berth_config *config = bth_allocate_zeroed(sizeof *config);

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

int64_t bth_config_value(const struct berth_config *config, const bth_option_row *row)
{
    return bth_option_index(row) < config->n_values ? bth_option_value(config, row) : row->initial;
}

/* Gives options their defaults that were registered after the configuration was made. */
static void config_add_later_options(berth_config *config)
{
    for (; config->n_values < bth_option_count(); config->n_values++) {
        const bth_option_row *row = bth_option_at(config->n_values);
        *bth_option_field(config, row) = row->initial;
    }
}

int berth_config_apply(berth_config *config, const char *assignments, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_layer layer = {0};
    bth_notes notes = {0};

    if (!config)
        return bth_fail_argument(error, "the configuration is NULL");
    int status =
        bth_layer_parse_words(&layer, assignments, "configuration of its own", &notes, error);
    bth_notes_log(&notes);
    if (status < 0)
        return status;
    config_add_later_options(config);
    bth_layer_apply(&layer, config);
    return 0;
}
