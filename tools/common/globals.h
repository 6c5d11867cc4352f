/* SPDX-License-Identifier: BSD-3-Clause */
/* What the pickle of a file names: the second answer of `berth verify` and `berth info`. */
#ifndef BERTH_TOOLS_GLOBALS_H
#define BERTH_TOOLS_GLOBALS_H

#include <berth.h>
#include <jansson.h>

/* The classes and functions that the pickle of a file names. */
typedef struct named_globals {
    json_t *all; /* of {"module", "name", "allowed"}, each once */
    json_t *seen;
    size_t n_refused;
    berth_error error; /* why they cannot be listed, or not all of them */
} named_globals;

/* No verdict is lost if they cannot be listed: globals->error says why. globals_free is due. */
void globals_find(const char *path, named_globals *globals);
/* Adds one that is not allowed. */
void globals_note(named_globals *globals, const char *module, const char *name);
/* Adds those of a source. */
void globals_add(const berth_source *source, named_globals *globals);
/* How much of a refusal stands before the global that it names, if the list will name it. */
size_t globals_find_said(const named_globals *globals, const char *message);
/* As members of a report. */
void globals_set_json(const named_globals *globals, json_t *report);
void globals_free(named_globals *globals);
/* Prints `before` and those that are not allowed, without a newline. False: there are none. */
bool globals_print_refused(const named_globals *globals, const char *before);

#endif
