/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the sources of `berth show` share: show.c walks, show_lines.c and show_json.c show one
 * value.
 */
#ifndef BERTH_TOOLS_SHOW_H
#define BERTH_TOOLS_SHOW_H

#include <berth.h>
#include <jansson.h>

#include "tools/common/non_tensor_values.h"
#include "tools/common/options.h"

#define NO_LIMIT SIZE_MAX
/* Of texts and bytes in a line. */
#define SHOWN_TEXT_NBYTES 400

typedef struct show_options {
    common common;
    positional words;
    size_t depth, length; /* NO_LIMIT; 0: not set */
} show_options;

/* One value that the walk is in. */
typedef struct show_level {
    const berth_value *value;
    size_t path_nbytes, n_items;
    size_t depth;      /* a tensor within a Parameter has the depth of the Parameter */
    json_t *container; /* object or array; owned by the report */
} show_level;

typedef struct show {
    berth_checkpoint *checkpoint;
    const show_options *options;
    repeated_values *repeated;
    show_level *levels;
    size_t n_levels, capacity;
    size_t n_left_out, long_nbytes;
    size_t text_nbytes; /* of long texts in the report */
    json_t *report;     /* with --json: the whole value */
    char *key;          /* of the value at hand, as its path has it: "'a'", "0", "__dict__" */
} show;

/* Spaces in front of a line. */
int show_indent(size_t depth);
/* How many items of a container are shown. */
size_t show_length(const show *s);
/* A list, tuple or set of scalars only: shown in one line. Empty ones, too. */
bool show_value_is_row(const berth_value *value);
/* Whether the walk finds something inside. */
bool show_value_has_inside(const berth_value *value);
/*
 * The first elements of a tensor, as many as are shown: *n of them, which the caller frees. Returns
 * 0, or an exit code after printing why.
 */
int show_read_elements(const show *s, const berth_tensor *tensor, int64_t *n, uint8_t **elements);

/* Prints the line of a value, without its newline. Returns 0 or an exit code after printing why. */
int show_print_line(show *s, const berth_value *value, size_t depth);
/* Prints the indent and the key of the value at hand. */
void show_print_key(const show *s, size_t depth);

/* Puts JSON into the container that the walk is in, or makes it the report. */
void show_add_json(show *s, json_t *json);
/*
 * The same with a value. *json: what is inside is added to it. Returns 0 or an exit code after
 * printing why.
 */
int show_add_value_json(show *s, const berth_value *value, json_t **json);

#endif
