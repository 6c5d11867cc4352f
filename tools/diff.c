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
    size_t number;              /* in the order of the walk */
    const berth_tensor *tensor; /* or NULL: */
    const berth_value *value;   /* another value; its text is made when it is needed */
} item;

typedef struct side {
    const char *file;
    berth_checkpoint *checkpoint;
    item *items;
    size_t n, capacity;
    size_t long_nbytes; /* of long paths */
} side;

typedef struct comparison {
    uint8_t *buffer; /* CHUNK_NBYTES of each side, once there is a tensor to compare */
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

static int add(side *s, const char *path, const berth_tensor *tensor, const berth_value *value)
{
    int code = count_long_name(&s->long_nbytes, strlen(path));

    if (code)
        return code;
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 64;
        item *items = realloc(s->items, capacity * sizeof *items);
        if (!items)
            return trouble("out of memory");
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n] = (item){strdup(path), s->n, tensor, value};
    return s->items[s->n++].path ? 0 : trouble("out of memory");
}

static int add_leaf(void *context, const char *path, const berth_value *value)
{
    return add(context, path, NULL, value);
}

static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;
    int order = strcmp(a->path, b->path);

    return order ? order : (a->number > b->number) - (a->number < b->number);
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
    for (size_t i = 0; i < s->n; i++)
        free(s->items[i].path);
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

enum { CHUNK_NBYTES = 4 << 20 };

/* A buffer for two chunks: that of the comparison, or a larger one, *own, for sub-byte kinds. */
static uint8_t *buffer_for(comparison *c, size_t chunk_nbytes, uint8_t **own)
{
    *own = NULL;
    if (chunk_nbytes > CHUNK_NBYTES)
        return *own = malloc(chunk_nbytes * 2);
    if (!c->buffer)
        c->buffer = malloc((size_t)CHUNK_NBYTES * 2);
    return c->buffer;
}

/* 0 and *at, the first element that differs, or -1; or an exit code. */
static int compare_bytes(comparison *c, const side *left, const berth_tensor *a, const side *right,
                         const berth_tensor *b, int64_t *at)
{
    int64_t numel = berth_tensor_numel(a), chunk = elements_per(a, CHUNK_NBYTES);
    size_t item_nbytes = berth_dtype_nbytes(a->dtype);
    berth_error error;
    uint8_t *own;

    *at = -1;
    if (is_sub_byte(a->dtype))
        chunk = numel ? numel : 1;
    uint8_t *buffer = buffer_for(c, (size_t)chunk * item_nbytes, &own);
    if (!buffer)
        return trouble("out of memory");
    int code = 0;
    for (int64_t first = 0; first < numel && *at < 0 && !code; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;
        uint8_t *other = buffer + (size_t)chunk * item_nbytes;
        memset(buffer, 0, (size_t)n * item_nbytes);
        memset(other, 0, (size_t)n * item_nbytes);
        if (read_elements(left->checkpoint, a, first, n, buffer, &error) < 0 ||
            read_elements(right->checkpoint, b, first, n, other, &error) < 0)
            code = fail(&error);
        else
            *at = first_difference(buffer, other, n, item_nbytes);
        if (*at >= 0)
            *at += first;
    }
    free(own);
    return code;
}

/*
 * Along an axis that both have expanded (stride 0), all elements are the first one: only that is
 * compared, for a file of a kilobyte can have 2^60 of them (P3). The first element that differs has
 * index 0 there, so its place among all follows from its place among the rest.
 */
static int compare_distinct(comparison *c, const side *left, const berth_tensor *a,
                            const side *right, const berth_tensor *b, int64_t *at)
{
    int64_t shape[BERTH_MAX_RANK] = {0};
    berth_tensor ours = *a, theirs = *b;
    int64_t place = 0, step = 1;

    for (int32_t i = 0; i < a->rank; i++)
        shape[i] = a->stride[i] == 0 && b->stride[i] == 0 && a->shape[i] > 1 ? 1 : a->shape[i];
    ours.shape = theirs.shape = shape;
    int code = compare_bytes(c, left, &ours, right, &theirs, at);
    if (code || *at < 0)
        return code;
    for (int32_t i = a->rank; i-- > 0; step *= a->shape[i]) {
        place += *at % shape[i] * step;
        *at /= shape[i];
    }
    *at = place;
    return 0;
}

static void quantizer_text(const berth_tensor *tensor, char *text, size_t nbytes)
{
    snprintf(text, nbytes, "qscheme %d, scale %.17g, zero point %" PRId64 ", axis %" PRId64,
             (int)tensor->qscheme, tensor->scale, tensor->zero_point, tensor->axis);
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
    quantizer_text(a->tensor, a_text, sizeof a_text);
    quantizer_text(b->tensor, b_text, sizeof b_text);
    if (strcmp(a_text, b_text))
        differ(c, a->path, "quantizer", a_text, b_text);
    int code = compare_distinct(c, left, a->tensor, right, b->tensor, &at);
    if (!code && at >= 0) {
        snprintf(a_text, sizeof a_text, "first at element %" PRId64, at);
        snprintf(b_text, sizeof b_text, "of %" PRId64, berth_tensor_numel(a->tensor));
        differ(c, a->path, "bytes", a_text, b_text);
    }
    return code;
}

/* Equal by their bytes where they have some; no text is made of what may be long. 1: unknown. */
static int compare_text(const berth_value *a, const berth_value *b)
{
    size_t n = 0, m = 0;
    berth_kind kind = berth_value_kind(a);
    const void *ours = NULL, *theirs = NULL;

    if (kind != berth_value_kind(b))
        return 1;
    if (kind == BERTH_KIND_STR) {
        ours = berth_value_text(a, &n);
        theirs = berth_value_text(b, &m);
    } else if (kind == BERTH_KIND_BYTES || kind == BERTH_KIND_BYTEARRAY) {
        ours = berth_value_bytes(a, &n);
        theirs = berth_value_bytes(b, &m);
    }
    return !(ours && theirs && n == m && !memcmp(ours, theirs, n));
}

/* 1: the same, 0: not, -1: an error was told. */
static int same_storage(const side *left, const berth_storage *a, const side *right,
                        const berth_storage *b)
{
    berth_error error;

    if (berth_storage_nbytes(a) != berth_storage_nbytes(b))
        return 0;
    const void *ours = berth_storage_data(left->checkpoint, a, &error);
    const void *theirs = ours ? berth_storage_data(right->checkpoint, b, &error) : NULL;
    if (!theirs) {
        fail(&error);
        return -1;
    }
    return !memcmp(ours, theirs, berth_storage_nbytes(a));
}

/* Long texts are told by their beginning. */
static void shorten(char *text)
{
    enum { SHOWN_NBYTES = 400 };
    size_t n = strlen(text), at = SHOWN_NBYTES;

    if (n <= SHOWN_NBYTES)
        return;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--; /* not within a character */
    memcpy(text + at, "...", 4);
}

static int compare_values(comparison *c, const side *left, const item *a, const side *right,
                          const item *b)
{
    berth_storage *ours = berth_value_storage(a->value), *theirs = berth_value_storage(b->value);

    if (!compare_text(a->value, b->value))
        return 0;
    if (ours && theirs && berth_storage_nbytes(ours) == berth_storage_nbytes(theirs)) {
        int same = same_storage(left, ours, right, theirs);
        if (same == 0)
            differ(c, a->path, "bytes", "of a storage", "of a storage");
        return same < 0 ? EXIT_TROUBLE : 0;
    }
    char *a_text = leaf_text(a->value), *b_text = leaf_text(b->value);
    bool made = a_text && b_text;
    if (made && strcmp(a_text, b_text)) {
        shorten(a_text);
        shorten(b_text);
        differ(c, a->path, "value", a_text, b_text);
    }
    free(a_text);
    free(b_text);
    return made ? 0 : trouble("out of memory");
}

static int compare_pair(comparison *c, const side *left, const item *a, const side *right,
                        const item *b)
{
    if (a->tensor && b->tensor)
        return compare_tensors(c, left, a, right, b);
    if (a->value && b->value)
        return compare_values(c, left, a, right, b);
    const char *other = berth_kind_name(berth_value_kind(a->value ? a->value : b->value));
    differ(c, a->path, "kind", a->tensor ? "tensor" : other, b->tensor ? "tensor" : other);
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
                                    : strcmp(left->items[i].path, right->items[j].path);
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
    free(c.buffer);
    json_decref(c.differences);
    close_side(&left);
    close_side(&right);
    return code;
}
