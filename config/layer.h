/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration: some options set, the rest left to the layers below. */
#ifndef BTH_CONFIG_LAYER_H
#define BTH_CONFIG_LAYER_H

#include "config/option_row.h"

typedef struct bth_layer {
    struct berth_config values;
    bool is_set[BTH_N_OPTIONS];
} bth_layer;

/* What the environment sets, and by which variable: "environment BERTH_…", "force BERTH_FORCE_…".
 */
typedef struct bth_environment {
    bth_layer plain, force;
    char plain_source[BTH_N_OPTIONS][80];
    char force_source[BTH_N_OPTIONS][80];
} bth_environment;

/* Reads all variables of an environment, "NAME=value" each, NULL at the end. */
int bth_environment_read(char *const *variables, bth_environment *environment, berth_error *error);

/* Sets in `layer` what `more` sets. */
void bth_layer_add(bth_layer *layer, const bth_layer *more);
/* Sets in `config` what the layer sets. */
void bth_layer_apply(const bth_layer *layer, struct berth_config *config);

/*
 * Adds "name=value" words to a cleared layer. `source`: as for bth_option_parse. On failure the
 * layer is of no use.
 */
int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source,
                          berth_error *error);
/* The same from lines; `#` starts a comment. */
int bth_layer_parse_lines(bth_layer *layer, const char *text, berth_error *error);

#endif
