/* SPDX-License-Identifier: BSD-3-Clause */
/* What a recipe (recipe.h) is made of, and the numbers and bytes that its lines give. */
#ifndef TESTS_SUPPORT_RECIPE_VALUES_H
#define TESTS_SUPPORT_RECIPE_VALUES_H

#include "format/bytes.h"
#include "format/zip/zip.h"
#include "tests/support/load/describe.h"

#define MAX_EDITS 24
#define MAX_PIECES 24

struct edit {
    char target[64]; /* a record, or directory, end64, locator, end, file; "alt:" before it */
    char field[40];
    char value[1024];
    bool is_used;
};

struct bytes {
    uint8_t *bytes;
    size_t n;
    size_t capacity;
};

/* A record, or what only looks like one. */
struct piece {
    char label[64]; /* "data/1" */
    struct bytes data;
    uint64_t header_at;
    uint64_t data_at;
};

/* One directory; the second is the one that "alt." items make. */
struct listing {
    uint64_t at;
    uint64_t nbytes;
    uint64_t n_entries;
    uint64_t end64_at;
};

struct recipe {
    struct edit edits[MAX_EDITS];
    size_t n_edits;
    struct piece pieces[MAX_PIECES];
    size_t n_pieces;
    bool is_foreign; /* as other tools write: sizes in local headers, no padding, no zip64 */
    bool is_lenient; /* a fact may be one that this archive does not have */
    struct listing listings[2];
    uint64_t end_at;
    struct bytes file;
};

static const char *const listing_prefix[2] = {"", "alt:"};
void add_bytes(struct bytes *to, const void *bytes, size_t n);
void add_number(struct bytes *to, uint64_t number, size_t width);

/* ---- values ---- */

uint64_t change_number(const struct recipe *recipe, const char *text, uint64_t before);
bool is_word(const char *text, size_t n, const char *word);

/* One item of a value of bytes; returns what follows it. `before`: what was there without it. */
const char *add_item(struct recipe *recipe, struct bytes *to, const char *text,
                     const struct bytes *before);

#endif
