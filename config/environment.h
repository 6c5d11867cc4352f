/* SPDX-License-Identifier: BSD-3-Clause */
/* The layers of the environment: variables of options, and the file that BERTH_CONFIG names. */
#ifndef BTH_CONFIG_ENVIRONMENT_H
#define BTH_CONFIG_ENVIRONMENT_H

#include "config/layer.h"

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

#endif
