/* SPDX-License-Identifier: BSD-3-Clause */
/* What messages suggest: the most similar of some names, and words of a command line. */
#ifndef BERTH_TOOLS_NEAREST_H
#define BERTH_TOOLS_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

enum { NEAREST_NBYTES = 64, NEAREST_HINT_NBYTES = 160 };

/* The search for the name that is most similar to a word. */
typedef struct nearest {
    const char *word;
    char found[NEAREST_NBYTES]; /* "": none is near */
    size_t distance;
} nearest;

void nearest_offer(nearest *best, const char *candidate);
/* "; the nearest is '--json'", or "". Buffer of NEAREST_HINT_NBYTES; returned. */
const char *nearest_hint(const nearest *best, const char *prefix, char *buffer);
/* The path as a word of a command line, in quotes if it needs them. False, and "": it is too long,
 * or a terminal does not show it. */
bool print_word(const char *path, char *text, size_t room);

#endif
