/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration: some options set, the rest left to the layers below. */
#ifndef BERTH_CONFIG_LAYER_H
#define BERTH_CONFIG_LAYER_H

#include "config/option_row.h"

typedef struct berth_layer {
    struct berth_config values;
    bool is_set[BERTH_N_OPTIONS];
} berth_layer;

/* What the environment sets, and by which variable: "environment BERTH_…", "force BERTH_FORCE_…".
 */
typedef struct berth_environment {
    berth_layer plain, force;
    char plain_source[BERTH_N_OPTIONS][80];
    char force_source[BERTH_N_OPTIONS][80];
} berth_environment;

/* Reads all variables of an environment, "NAME=value" each, NULL at the end. */
int berth_environment_read(char *const *variables, berth_environment *environment,
                           berth_error *error);

/* Sets in `layer` what `more` sets. */
void berth_layer_add(berth_layer *layer, const berth_layer *more);
/* Sets in `config` what the layer sets. */
void berth_layer_apply(const berth_layer *layer, struct berth_config *config);

/*
 * Adds "name=value" words to a cleared layer. `source`: as for berth_option_parse. On failure the
 * layer is of no use.
 */
int berth_layer_parse_words(berth_layer *layer, const char *text, const char *source,
                            berth_error *error);
/* The same from lines; `#` starts a comment. */
int berth_layer_parse_lines(berth_layer *layer, const char *text, berth_error *error);

#endif
