/* SPDX-License-Identifier: BSD-3-Clause */
/* One layer of the configuration: it sets some options and leaves the others to lower layers. */
#ifndef BTH_CONFIG_LAYER_H
#define BTH_CONFIG_LAYER_H

#include "base/delayed_log.h"
#include "config/option_row.h"

typedef struct bth_layer {
    struct berth_config values;
    const char *source[BTH_MAX_OPTIONS]; /* what set it; it stays. NULL: it is not set here */
} bth_layer;

/* Adds the values that `more` sets to the layer. */
void bth_layer_merge(bth_layer *layer, const bth_layer *more);
/* Copies the values that the layer sets to `config`. */
void bth_layer_apply(const bth_layer *layer, struct berth_config *config);

/*
 * The option that a row stands for: of a deprecated one its successor, which the first use notes.
 */
const bth_option_row *bth_option_use(const bth_option_row *row, bth_notes *notes);

/*
 * Adds "name=value" words. `source`: of these values, such as "patch"; it must stay. After a
 * failure the layer is undefined.
 */
int bth_layer_parse_words(bth_layer *layer, const char *text, const char *source, bth_notes *notes,
                          berth_error *error);
/* Adds "name=value" lines; `#` starts a comment. Unknown names are noted and skipped. */
int bth_layer_parse_lines(bth_layer *layer, const char *text, const char *source, bth_notes *notes,
                          berth_error *error);

/* ---- lines of such a text ---- */

typedef struct bth_text_line {
    const char *text; /* without white space at the ends and comments */
    size_t n;
    size_t number; /* from 1; 0 before the first */
} bth_text_line;

/* Finds the next line that is not empty; false: there is none. */
bool bth_text_next_line(const char **at, bth_text_line *line);
int bth_line_divide(const bth_text_line *line, const char **name, size_t *name_n,
                    const char **value, size_t *value_n, const char *source, berth_error *error);
void bth_layer_note_unknown(const char *name, size_t n, const char *source, bth_notes *notes);

#endif
