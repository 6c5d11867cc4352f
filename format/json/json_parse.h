/* SPDX-License-Identifier: BSD-3-Clause */
/* JSON texts in files, parsed by jansson in bounded memory. Only sources that need jansson see it.
 */
#ifndef BTH_FORMAT_JSON_JSON_PARSE_H
#define BTH_FORMAT_JSON_JSON_PARSE_H

#include <jansson.h>
#include <stdbool.h>

#include "berth.h"

/* A text, and what an error says of it. */
typedef struct bth_json_text {
    const uint8_t *bytes;
    size_t nbytes;
    const char *what;         /* "the safetensors header" */
    const char *record;       /* NULL: none */
    uint64_t offset;          /* of the text in the file */
    size_t min_object_nbytes; /* a text with shorter objects on average is refused (P3) */
    bool refuses_minus_zero;  /* for the parser, -0 is 0 */
} bth_json_text;

/* One object, with no name twice. The caller calls json_decref. NULL: an error. */
json_t *bth_json_parse(const bth_json_text *text, berth_error *error);

/* An integer of 0 or more. -1: none. */
int64_t bth_json_read_size(const json_t *value);
/* A list of sizes, or of {"as_int": size}, into an array of BERTH_MAX_RANK. Returns its length; -1:
 * it is none. */
int32_t bth_json_read_sizes(const json_t *list, bool in_objects, int64_t *sizes);

#endif
