/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of config/ ask each other about the values in force. */
#ifndef BTH_CONFIG_VALUES_IN_FORCE_H
#define BTH_CONFIG_VALUES_IN_FORCE_H

#include "berth/config.h"
#include "config/layer.h"

/*
 * The values of n rows in force on this thread, and the source of the last. If the environment is
 * invalid, it fails with that, but copies what is valid.
 */
int bth_options_copy_in_force(const bth_option_row *row, size_t n, int64_t *values,
                              const char **source, berth_error *error);
bool bth_option_is_set_by_environment(const bth_option_row *row);

/* The option that a name means; logs once if the name is deprecated. NULL: an error is set. */
const bth_option_row *bth_option_find_or_fail(const char *name, berth_error *error);

/* Changes the program's values. */
void bth_program_set_values(const bth_layer *values);
/* Removes the value of a row, NULL: of all; in the patch that has the option, its place is taken.
 */
void bth_program_reset_values(const bth_option_row *only);

/* Adds rows and reads their values in the environment. One thread at a time. */
void bth_options_register_rows(const bth_option_row *rows, size_t n);

/* A value of an own configuration, which may be older than the row. NULL: in force, if valid. */
int64_t bth_config_value(const struct berth_config *config, const bth_option_row *row);

void bth_option_describe_in_force(const bth_option_row *row, berth_option *option);

#endif
