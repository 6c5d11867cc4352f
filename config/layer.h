/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration: it sets some options and leaves the others to lower layers. */
#ifndef BTH_CONFIG_LAYER_H
#define BTH_CONFIG_LAYER_H

#include "config/option_row.h"

typedef struct bth_layer {
    struct berth_config values;
    bool is_set[BTH_N_OPTIONS];
} bth_layer;

/* The values of the environment and their sources: "environment BERTH_…", "force BERTH_FORCE_…". */
typedef struct bth_environment {
    bth_layer plain, force;
    char plain_source[BTH_N_OPTIONS][80];
    char force_source[BTH_N_OPTIONS][80];
} bth_environment;

/* `variables`: "NAME=value" each, NULL at the end, as `environ`. */
int bth_environment_read(char *const *variables, bth_environment *environment, berth_error *error);

/* Adds the values that `more` sets to the layer. */
void bth_layer_merge(bth_layer *layer, const bth_layer *more);
/* Copies the values that the layer sets to `config`. */
void bth_layer_apply(const bth_layer *layer, struct berth_config *config);

/* Adds "name=value" words. `source`: see bth_option_parse. After a failure the layer is undefined.
 */
int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source,
                          berth_error *error);
/* Adds "name=value" lines; `#` starts a comment. */
int bth_layer_parse_lines(bth_layer *layer, const char *text, berth_error *error);

#endif
