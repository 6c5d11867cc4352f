/* SPDX-License-Identifier: BSD-3-Clause */
/* berth diff: do two checkpoints hold the same? */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"

typedef struct diff_options {
    common common;
    positional words;
} diff_options;

/* One tensor or other value of a file, under its path. */
typedef struct item {
    char *path;
    const berth_tensor *tensor; /* or NULL: */
    char *text;                 /* of another value */
} item;

typedef struct side {
    const char *file;
    berth_checkpoint *checkpoint;
    item *items;
    size_t n, capacity;
} side;

typedef struct comparison {
    bool json;
    json_t *differences;
    size_t n_differences;
} comparison;

static error_t parse(int key, char *word, struct argp_state *state)
{
    diff_options *options = state->input;

    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &options->common;
        return 0;
    }
    return take_positional(key, word, state, &options->words);
}

static int add(side *s, const char *path, const berth_tensor *tensor, char *text)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 64;
        item *items = realloc(s->items, capacity * sizeof *items);
        if (!items)
            return trouble("out of memory");
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n] = (item){strdup(path), tensor, text};
    return s->items[s->n++].path ? 0 : trouble("out of memory");
}

static int add_leaf(void *context, const char *path, const berth_value *value)
{
    char *text = leaf_text(value);

    return text ? add(context, path, NULL, text) : trouble("out of memory");
}

static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;

    return strcmp(a->path, b->path);
}

static int open_side(side *s, const char *file)
{
    berth_named_tensor named;
    berth_error error;

    s->file = file;
    if (berth_open(file, NULL, &s->checkpoint, &error) < 0)
        return fail(&error);
    for (size_t i = 0; i < berth_tensor_count(s->checkpoint); i++) {
        if (berth_tensor_at(s->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        int code = add(s, named.path, named.tensor, NULL);
        if (code)
            return code;
    }
    int code = walk_leaves(berth_root(s->checkpoint), add_leaf, s);
    if (s->n)
        qsort(s->items, s->n, sizeof *s->items, compare_items);
    return code;
}

static void close_side(side *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->items[i].path);
        free(s->items[i].text);
    }
    free(s->items);
    berth_close(s->checkpoint);
}

/* Tells one difference. */
static void differ(comparison *c, const char *path, const char *what, const char *a, const char *b)
{
    c->n_differences++;
    if (c->json)
        json_array_append_new(c->differences, json_pack("{s:s,s:s,s:s,s:s}", "path", path, "what",
                                                        what, "a", a, "b", b));
    else
        printf("%s: %s: %s | %s\n", path, what, a, b);
}

static void shape_text(const berth_tensor *tensor, char *text, size_t nbytes)
{
    size_t n = (size_t)snprintf(text, nbytes, "[");

    for (int32_t i = 0; i < tensor->rank && n < nbytes; i++)
        n +=
            (size_t)snprintf(text + n, nbytes - n, i ? ", %" PRId64 : "%" PRId64, tensor->shape[i]);
    if (n < nbytes)
        snprintf(text + n, nbytes - n, "]");
}

static bool same_shape(const berth_tensor *a, const berth_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
}

static bool is_sub_byte(berth_dtype dtype)
{
    return dtype == BERTH_QUINT4X2 || dtype == BERTH_QUINT2X4;
}

/* Position of the first differing element: NaNs compare by bits. -1: none. */
static int64_t first_difference(const uint8_t *a, const uint8_t *b, int64_t n, size_t nbytes)
{
    if (!memcmp(a, b, (size_t)n * nbytes))
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + (size_t)i * nbytes, b + (size_t)i * nbytes, nbytes))
            return i;
    return -1;
}

/* 0 and *at, the first element that differs, or -1; or an exit code. */
static int compare_bytes(const side *left, const berth_tensor *a, const side *right,
                         const berth_tensor *b, int64_t *at)
{
    enum { CHUNK_NBYTES = 4 << 20 };
    int64_t numel = berth_tensor_numel(a), chunk = elements_per(a, CHUNK_NBYTES);
    size_t item_nbytes = berth_dtype_nbytes(a->dtype);
    berth_error error;

    *at = -1;
    if (is_sub_byte(a->dtype))
        chunk = numel ? numel : 1;
    uint8_t *buffer = malloc((size_t)chunk * item_nbytes * 2);
    if (!buffer)
        return trouble("out of memory");
    int code = 0;
    for (int64_t first = 0; first < numel && *at < 0 && !code; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;
        uint8_t *other = buffer + (size_t)chunk * item_nbytes;
        memset(buffer, 0, (size_t)chunk * item_nbytes * 2);
        if (read_elements(left->checkpoint, a, first, n, buffer, &error) < 0 ||
            read_elements(right->checkpoint, b, first, n, other, &error) < 0)
            code = fail(&error);
        else
            *at = first_difference(buffer, other, n, item_nbytes);
        if (*at >= 0)
            *at += first;
    }
    free(buffer);
    return code;
}

static int compare_tensors(comparison *c, const side *left, const item *a, const side *right,
                           const item *b)
{
    char a_text[256], b_text[256];
    int64_t at;

    if (a->tensor->dtype != b->tensor->dtype) {
        differ(c, a->path, "dtype", berth_dtype_name(a->tensor->dtype),
               berth_dtype_name(b->tensor->dtype));
        return 0;
    }
    if (!same_shape(a->tensor, b->tensor)) {
        shape_text(a->tensor, a_text, sizeof a_text);
        shape_text(b->tensor, b_text, sizeof b_text);
        differ(c, a->path, "shape", a_text, b_text);
        return 0;
    }
    if ((a->tensor->flags | b->tensor->flags) & BERTH_META) {
        if ((a->tensor->flags ^ b->tensor->flags) & BERTH_META)
            differ(c, a->path, "device", a->tensor->flags & BERTH_META ? "meta" : "has elements",
                   b->tensor->flags & BERTH_META ? "meta" : "has elements");
        return 0;
    }
    int code = compare_bytes(left, a->tensor, right, b->tensor, &at);
    if (!code && at >= 0) {
        snprintf(a_text, sizeof a_text, "first at element %" PRId64, at);
        snprintf(b_text, sizeof b_text, "of %" PRId64, berth_tensor_numel(a->tensor));
        differ(c, a->path, "bytes", a_text, b_text);
    }
    return code;
}

static int compare_pair(comparison *c, const side *left, const item *a, const side *right,
                        const item *b)
{
    if (a->tensor && b->tensor)
        return compare_tensors(c, left, a, right, b);
    if (a->tensor || b->tensor)
        differ(c, a->path, "kind", a->tensor ? "tensor" : a->text, b->tensor ? "tensor" : b->text);
    else if (strcmp(a->text, b->text))
        differ(c, a->path, "value", a->text, b->text);
    return 0;
}

/* Both lists are sorted by path. */
static int compare_sides(comparison *c, const side *left, const side *right)
{
    size_t i = 0, j = 0;
    int code = 0;

    while ((i < left->n || j < right->n) && !code) {
        int order = i == left->n    ? 1
                    : j == right->n ? -1
                                    : compare_items(&left->items[i], &right->items[j]);
        if (order < 0)
            differ(c, left->items[i++].path, "only in", left->file, "");
        else if (order > 0)
            differ(c, right->items[j++].path, "only in", "", right->file);
        else
            code = compare_pair(c, left, &left->items[i++], right, &right->items[j++]);
    }
    return code;
}

static int tell(comparison *c, bool quiet)
{
    int code = c->n_differences ? EXIT_NO : EXIT_YES;

    if (c->json) {
        int printed = print_json(
            json_pack("{s:b,s:O}", "equal", code == EXIT_YES, "differences", c->differences));
        return printed ? printed : code;
    }
    if (!quiet && code == EXIT_YES)
        puts("equal");
    return finish_output(code);
}

int run_diff(int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        NULL,
        parse,
        "A B",
        "Compare two checkpoints: names, dtypes, shapes and bytes of their tensors (NaNs by their "
        "bits), and all other values. Layout, strides and sharing do not matter. Exit code 1 if "
        "they differ.",
        children,
        NULL,
        NULL};
    diff_options options = {.words = {.least = 2, .most = 2}};
    comparison c = {0};
    side left = {0}, right = {0};

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    c.json = options.common.json;
    c.differences = json_array();
    int code = open_side(&left, options.words.words[0]);
    if (!code)
        code = open_side(&right, options.words.words[1]);
    if (!code)
        code = compare_sides(&c, &left, &right);
    if (!code)
        code = tell(&c, options.common.quiet);
    json_decref(c.differences);
    close_side(&left);
    close_side(&right);
    return code;
}
