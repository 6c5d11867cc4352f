/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The layers of the configuration, highest first: forced, patch of the thread, program,
 * environment, default. A layer sets some options and leaves the others to lower layers.
 */
#ifndef BTH_CONFIG_LAYERS_H
#define BTH_CONFIG_LAYERS_H

#include "base/error.h"
#include "berth/config.h"
#include "config/option_row.h"

/* ---- layers.c: what sets options ---- */

/* One layer. */
typedef struct bth_layer {
    struct berth_config values;
    const char *source[BTH_MAX_OPTIONS]; /* what set it; it stays. NULL: it is not set here */
} bth_layer;

/* Copies the values that the layer sets to `config`. */
void bth_layer_apply(const bth_layer *layer, struct berth_config *config);

/*
 * The option that a row stands for: of a deprecated one its successor, which the first use notes.
 */
const bth_option_row *bth_option_use(const bth_option_row *row, bth_notes *notes);

/*
 * Adds "name=value" words; or lines, in which `#` starts a comment, and unknown names are noted and
 * skipped. `source`: of these values, such as "patch"; it must stay. After a failure the layer is
 * undefined. It logs: the caller holds no lock.
 */
int bth_layer_parse(bth_layer *layer, const char *text, bool are_lines, const char *source,
                    berth_error *error);

/* Variables of options, and the file that BERTH_CONFIG names. */
typedef struct bth_environment {
    bth_layer plain, force;
    /* The layers' sources: "environment BERTH_…" or "file …"; "force BERTH_FORCE_…". */
    char sources[2][BTH_MAX_OPTIONS][80];
} bth_environment;

/*
 * Reads the values of option `first` and those behind it; 0: of all, from the beginning. One thread
 * at a time. The first bad value is the error; the others are read nevertheless.
 * `variables`: "NAME=value" each, NULL at the end, as `environ`.
 */
int bth_environment_read(char *const *variables, size_t first, bth_environment *environment,
                         bth_notes *notes, berth_error *error);

/* ---- options.c: the values in force ---- */

/*
 * The values of n rows in force on this thread, and the source of the last. If the environment is
 * invalid, it fails with that, but copies what is valid.
 */
int bth_options_copy_in_force(const bth_option_row *row, size_t n, int64_t *values,
                              const char **source, berth_error *error);
bool bth_option_is_set_by_environment(const bth_option_row *row);

/* The option that a name means; logs once if the name is deprecated. NULL: an error is set. */
const bth_option_row *bth_option_find_or_fail(const char *name, berth_error *error);

/* A value of an own configuration, which may be older than the row. NULL: in force, if valid. */
int64_t bth_config_value(const struct berth_config *config, const bth_option_row *row);

/* ---- option_reports.c ---- */

void bth_option_describe_in_force(const bth_option_row *row, berth_option *option);

#endif
