/* SPDX-License-Identifier: BSD-3-Clause */
/* berth show: any value of a checkpoint, readable or as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/array.h"
#include "tools/common/elements.h"
#include "tools/common/inputs.h"
#include "tools/common/nearest.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

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

/* JSON_DEPTH: json_dumps recurses. */
enum { DEPTH = 6, LENGTH = 20, JSON_DEPTH = 100 };

static const struct argp_option own_options[] = {
    {"depth", 'd', "N", 0, "show N levels of containers; all: every level (6; JSON: 100)", 1},
    {"length", 'n', "N", 0,
     "show N items of each container, or elements of a tensor that PATH names; all: every item "
     "(20; JSON: all)",
     1},
    {0}};

static size_t parse_limit(const char *word, const char *option, struct argp_state *state)
{
    return strcmp(word, "all") == 0 ? NO_LIMIT
                                    : (size_t)parse_count(word, UINT32_MAX, option, state);
}

static error_t show_parse(int key, char *word, struct argp_state *state)
{
    show_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'd':
        options->depth = parse_limit(word, "--depth", state);
        return 0;
    case 'n':
        options->length = parse_limit(word, "--length", state);
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

/* ---- what a value is, and how much of it is shown ---- */

static bool show_value_is_row(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    if (kind != BERTH_KIND_LIST && kind != BERTH_KIND_TUPLE && kind != BERTH_KIND_SET)
        return false;
    for (size_t i = 0; i < berth_value_count(value); i++)
        if (berth_value_kind(berth_value_at(value, i)) > BERTH_KIND_STR) /* no scalar */
            return false;
    return true;
}

static bool show_value_has_inside(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    const berth_tensor *tensor = berth_as_tensor(value);
    bool is_container = kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET;

    return (is_container && berth_value_count(value) > 0) || kind == BERTH_KIND_SPARSE ||
           kind == BERTH_KIND_NESTED || kind == BERTH_KIND_CALL ||
           berth_value_part(value, BERTH_PART_STATE) || berth_value_part(value, BERTH_PART_INNER) ||
           (tensor && tensor->scales);
}

static int show_indent(size_t depth)
{
    enum { MAX_DEPTH = 20 }; /* P3: values can be nested a million times */

    return (int)(2 * (depth < MAX_DEPTH ? depth : MAX_DEPTH));
}

static size_t show_length(const show *s)
{
    return s->options->length ? s->options->length : s->options->common.json ? NO_LIMIT : LENGTH;
}

static int show_read_elements(const show *s, const berth_tensor *tensor, int64_t *n,
                              uint8_t **elements)
{
    enum { INSIDE = 4, ALONE = 20 }; /* many only of the tensor that was asked for */
    int64_t numel = berth_tensor_numel(tensor);
    size_t max = s->n_levels > 0 ? INSIDE : s->options->length ? s->options->length : ALONE;
    bool in_whole_bytes = elements_per_chunk(tensor, 1) == 1;
    berth_error error;

    *elements = NULL;
    *n = numel < 0 || (uint64_t)numel > max ? (int64_t)max : numel;
    if ((tensor->flags & BERTH_META) || !in_whole_bytes)
        *n = 0;
    if (*n == 0)
        return 0;
    *elements = calloc((size_t)*n, berth_dtype_nbytes(tensor->dtype));
    if (!*elements)
        return print_trouble("out of memory (%" PRId64 " elements)", *n);
    if (berth_tensor_read(s->checkpoint, tensor, 0, *n, *elements, &error) == 0)
        return 0;
    free(*elements);
    *elements = NULL;
    *n = 0;
    return fail(&error);
}

/* The tensor inside a Parameter or subclass is the same line. */
static bool value_is_inner_tensor(const show *s, const berth_value *value)
{
    const berth_value *outer = s->n_levels ? s->levels[s->n_levels - 1].value : NULL;

    return outer && berth_value_kind(outer) != BERTH_KIND_CALL &&
           berth_value_part(outer, BERTH_PART_INNER) == value;
}

/* ---- one value as a line ---- */

static void print_tensor_facts(FILE *out, const berth_tensor *tensor)
{
    char shape[256];

    shape_text(tensor, shape, sizeof shape);
    fprintf(out, "%s %s", berth_dtype_name(tensor->dtype), shape);
    if (tensor->qscheme == BERTH_PER_TENSOR_AFFINE || tensor->qscheme == BERTH_PER_TENSOR_SYMMETRIC)
        fprintf(out, " (scale %.9g, zero point %" PRId64 ")", tensor->scale, tensor->zero_point);
    if (tensor->flags & BERTH_META)
        fputs(" on the meta device", out);
}

/* Returns 0 or an exit code after printing why. */
static int show_print_tensor(const show *s, const berth_tensor *tensor)
{
    int64_t n;
    uint8_t *elements;
    int code = show_read_elements(s, tensor, &n, &elements);

    if (code)
        return code;
    print_tensor_facts(stdout, tensor);
    for (int64_t i = 0; i < n; i++) {
        fputs(i ? ", " : ": ", stdout);
        print_element(stdout, tensor->dtype,
                      elements + (size_t)i * berth_dtype_nbytes(tensor->dtype));
    }
    fputs(n && n < berth_tensor_numel(tensor) ? ", ..." : "", stdout);
    free(elements);
    return 0;
}

static void show_print_key(const show *s, size_t depth)
{
    printf("%*s", show_indent(depth), "");
    if (!s->key[0])
        return;
    char *key = strdup(s->key);
    if (key)
        shorten(key);
    print_painted(BLUE, key ? key : "...");
    free(key);
    fputs(": ", stdout);
}

static void print_leaf(const berth_value *value, bool whole)
{
    char *text = leaf_text_start(value, whole ? SIZE_MAX : SHOWN_TEXT_NBYTES);

    print_shown(stdout, text ? text : "out of memory");
    free(text);
}

static void show_print_row(show *s, const berth_value *row)
{
    static const char *const brackets[] = {
        [BERTH_KIND_LIST] = "[]", [BERTH_KIND_TUPLE] = "()", [BERTH_KIND_SET] = "{}"};
    berth_kind kind = berth_value_kind(row);
    size_t n = berth_value_count(row), max = show_length(s);

    putchar(brackets[kind][0]);
    for (size_t i = 0; i < n && i < max; i++) {
        fputs(i ? ", " : "", stdout);
        print_leaf(berth_value_at(row, i), false);
    }
    if (n > max) {
        printf(", ... %zu more", n - max);
        s->n_left_out += n - max;
    }
    printf("%s%c", kind == BERTH_KIND_TUPLE && n == 1 ? "," : "", brackets[kind][1]);
}

/* What a container is. What is in it follows on lines of its own. */
static void print_container_facts(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    const berth_value *called =
        kind == BERTH_KIND_CALL ? berth_value_part(value, BERTH_PART_INNER) : NULL;

    if (berth_as_text(called, NULL)) {
        print_leaf(called, false);
        fputs(", not built", stdout);
    } else if (kind == BERTH_KIND_SPARSE) {
        print_leaf(value, false);
    } else if (berth_value_count(value) || kind == BERTH_KIND_DICT) {
        printf("%s of %zu", berth_kind_name(kind), berth_value_count(value));
    } else {
        fputs(berth_kind_name(kind), stdout);
    }
}

/* Prints the line of a value. Returns 0 or an exit code after printing why. */
static int show_print_line(show *s, const berth_value *value, size_t depth)
{
    show_print_key(s, depth);
    if (berth_as_tensor(value))
        return show_print_tensor(s, berth_as_tensor(value));
    if (show_value_is_row(value))
        show_print_row(s, value);
    else if (show_value_has_inside(value) || berth_value_kind(value) == BERTH_KIND_DICT)
        print_container_facts(value);
    else
        print_leaf(value, depth == 0);
    return 0;
}

/* ---- one value as JSON ---- */

static json_t *element_json(berth_dtype dtype, const uint8_t *at)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    if (!out)
        return NULL;
    print_element(out, dtype, at);
    (void)fclose(out);
    json_t *number = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (!number && text && dtype == BERTH_BOOL)
        number = json_boolean(*at);
    else if (!number && text)
        number = json_string(text); /* nan, inf, complex numbers, numbers beyond 63 bits */
    free(text);
    return number;
}

/* *json stays NULL on failure. Returns 0 or an exit code after printing why. */
static int show_tensor_json(const show *s, const berth_tensor *tensor, json_t **json)
{
    int64_t n;
    uint8_t *elements;
    int code = show_read_elements(s, tensor, &n, &elements);

    if (code)
        return code;
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(
            list,
            element_json(tensor->dtype, elements + (size_t)i * berth_dtype_nbytes(tensor->dtype)));
    free(elements);
    *json =
        json_pack("{s:s,s:s,s:o,s:o}", "kind", "tensor", "dtype", berth_dtype_name(tensor->dtype),
                  "shape", json_ints(tensor->shape, tensor->rank), "first_elements", list);
    return 0;
}

/*
 * P3: a file can have one text in many places. When long ones took so much, their beginnings must
 * do.
 */
static bool show_has_room_for_text(show *s, size_t nbytes)
{
    enum { LONG_NBYTES = 1024, MAX_NBYTES = 16 << 20 };

    if (nbytes <= LONG_NBYTES)
        return true;
    s->text_nbytes += nbytes;
    return s->text_nbytes <= MAX_NBYTES;
}

static json_t *leaf_json(show *s, const berth_value *value)
{
    size_t nbytes = 0;
    const char *text = berth_as_text(value, &nbytes);
    bool is_true;
    int64_t integer;
    double number;

    if (berth_value_kind(value) == BERTH_KIND_NONE)
        return json_null();
    if (berth_as_bool(value, &is_true))
        return json_boolean(is_true);
    if (berth_as_int(value, &integer))
        return json_integer(integer);
    if (berth_as_float(value, &number) && isfinite(number))
        return json_real(number);
    if (!text)
        (void)berth_as_bytes(value, &nbytes);
    bool whole = show_has_room_for_text(s, nbytes);
    json_t *string =
        berth_value_kind(value) == BERTH_KIND_STR && whole ? json_stringn(text, nbytes) : NULL;
    if (string)
        return string;
    char *shown = leaf_text_start(value, whole ? SIZE_MAX : SHOWN_TEXT_NBYTES);
    json_t *json = json_pack("{s:s,s:o}", "kind", berth_kind_name(berth_value_kind(value)), "text",
                             text_json(shown ? shown : ""));
    free(shown);
    return json;
}

/* A list is an array, all else an object. */
static json_t *container_json(show *s, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    if (kind == BERTH_KIND_LIST || kind == BERTH_KIND_TUPLE || kind == BERTH_KIND_SET)
        return json_array();
    if (kind >= BERTH_KIND_DICT && kind <= BERTH_KIND_COUNTER)
        return json_object();
    return leaf_json(s, value);
}

/* The text of a key that is a text; NULL: another key, or one that no C string can hold. */
static const char *level_key_text(const show_level *in)
{
    berth_value *key = NULL;
    size_t nbytes = 0;

    (void)berth_dict_at(in->value, in->n_items - 1, &key, NULL);
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    return text && strlen(text) == nbytes ? text : NULL;
}

/* Puts a value into the container that it is in, or makes it the report. A key that is taken, as 1
 * after '1', is written as in paths. */
static void show_add_json(show *s, json_t *json)
{
    show_level *in = s->n_levels ? &s->levels[s->n_levels - 1] : NULL;
    const char *text = in ? level_key_text(in) : NULL;

    if (!in) {
        s->report = json;
    } else if (json_is_array(in->container)) {
        json_array_append_new(in->container, json);
    } else {
        if (!text || json_object_get(in->container, text) ||
            json_object_set(in->container, text, json) < 0)
            (void)json_object_set(in->container, s->key, json);
        json_decref(json);
    }
}

/* *json: what is in the value is added to it. Returns 0 or an exit code after printing why. */
static int show_add_value_json(show *s, const berth_value *value, json_t **json)
{
    const berth_tensor *tensor = berth_as_tensor(value);
    int code = 0;

    if (tensor)
        code = show_tensor_json(s, tensor, json);
    else
        *json = show_value_has_inside(value) || show_value_is_row(value) ? container_json(s, value)
                                                                         : leaf_json(s, value);
    if (!code)
        show_add_json(s, *json);
    return code;
}

/* ---- the walk ---- */

/* Returns 0 or an exit code after printing why. */
static int show_set_key(show *s, const berth_walk *walk)
{
    const char *path = berth_walk_path(walk);
    size_t nbytes = strlen(path), n = s->n_levels ? s->levels[s->n_levels - 1].path_nbytes : 0;
    const char *step = path + (n < nbytes ? n : 0);

    free(s->key);
    s->key = strdup(step + (step[0] == '[' || step[0] == '.'));
    if (!s->key)
        return print_trouble("out of memory");
    if (step[0] == '[')
        s->key[strlen(s->key) - 1] = '\0';
    return check_total_of_long_names(&s->long_nbytes, nbytes);
}

/* Whether the next item of the container is one too many. */
static bool show_leaves_out_item(show *s)
{
    return s->n_levels && ++s->levels[s->n_levels - 1].n_items > show_length(s);
}

/* Shows that n values of a container are not shown. */
static void show_note_left_out(show *s, const show_level *in, size_t n)
{
    json_t *note = in->container ? json_pack("{s:I}", "left_out", (json_int_t)n) : NULL;

    s->n_left_out += n;
    if (!note)
        printf("%*s%s... %zu more%s\n", show_indent(in->depth + 1), "", paint(FAINT), n,
               paint(PLAIN));
    else if (json_is_array(in->container))
        json_array_append_new(in->container, note);
    else
        json_object_set_new(in->container, "...", note);
}

/* Shows one value, and what it is; *inside: whether the walk goes into it. */
static int show_value(show *s, const berth_value *value, show_level *next, bool *inside)
{
    bool json = s->options->common.json;
    size_t depth = s->options->depth ? s->options->depth : json ? JSON_DEPTH : DEPTH;
    int code = json ? show_add_value_json(s, value, &next->container)
                    : show_print_line(s, value, next->depth);

    if (!json)
        putchar('\n');
    *inside = show_value_has_inside(value) && (json || !show_value_is_row(value));
    if (code || !*inside || next->depth < (json && depth > JSON_DEPTH ? JSON_DEPTH : depth))
        return code;
    *inside = false;
    if (berth_value_count(value))
        show_note_left_out(s, next, berth_value_count(value));
    return 0;
}

static int show_enter(void *context, const berth_walk *walk, const berth_value *value)
{
    show *s = context;
    bool inside = true;
    show_level next = s->n_levels ? s->levels[s->n_levels - 1] : (show_level){0};
    int code = 0;

    if (!value_is_inner_tensor(s, value)) {
        if (show_leaves_out_item(s))
            return BERTH_WALK_SKIP;
        next = (show_level){.depth = s->n_levels ? next.depth + 1 : 0};
        next.value = value;
        code = show_set_key(s, walk);
        if (!code)
            code = show_value(s, value, &next, &inside);
    }
    next.value = value;
    if (code || !inside)
        return code ? code : BERTH_WALK_SKIP;
    if (repeated_values_note_path(s->repeated, walk, value))
        return print_trouble("out of memory");
    if (!array_reserve(&s->levels, s->n_levels, &s->capacity, sizeof *s->levels))
        return EXIT_TROUBLE;
    next.path_nbytes = strlen(berth_walk_path(walk));
    s->levels[s->n_levels++] = next;
    return 0;
}

static int show_leave(void *context, const berth_walk *walk, const berth_value *value)
{
    show *s = context;
    const show_level *left = &s->levels[--s->n_levels];

    (void)walk, (void)value;
    if (left->n_items > show_length(s))
        show_note_left_out(s, left, left->n_items - show_length(s));
    return 0;
}

/* A container that was shown before is named, all else is shown again. */
static int show_alias(void *context, const berth_walk *walk, const berth_value *value)
{
    show *s = context;
    const char *first = repeated_values_first_path(s->repeated, value);
    show_level next = {.depth = s->n_levels ? s->levels[s->n_levels - 1].depth + 1 : 0};
    bool inside;

    if (value_is_inner_tensor(s, value) || show_leaves_out_item(s))
        return 0;
    int code = show_set_key(s, walk);
    if (code || !first)
        return code ? code : show_value(s, value, &next, &inside);
    first = *first ? first : "the whole";
    if (s->options->common.json) {
        show_add_json(s, json_pack("{s:o}", "alias_of", text_json(first)));
        return 0;
    }
    show_print_key(s, next.depth);
    fputs("alias of ", stdout);
    print_shown(stdout, first);
    putchar('\n');
    return 0;
}

/* ---- the command ---- */

static int show_print_end(show *s, int code)
{
    if (code < 0)
        return print_trouble("out of memory");
    if (code)
        return code;
    if (s->options->common.json) {
        json_t *report = s->report;
        s->report = NULL;
        return print_json(report);
    }
    code = finish_output(EXIT_YES);
    if (s->n_left_out && !s->options->common.quiet)
        (void)print_trouble("%zu values are left out; --length all --depth all shows them",
                            s->n_left_out);
    return code;
}

/* The library knows the names of tensors; here it is a key beside the one that was meant. */
static int show_fail_not_found(const show *s, const char *name, berth_error *error)
{
    char hint[NEAREST_HINT_NBYTES], *parent = strdup(name);
    char *dot = parent ? strrchr(parent, '.') : NULL;
    nearest near = {.word = dot ? dot + 1 : name};
    berth_value *key;

    if (dot)
        *dot = '\0';
    const berth_value *beside = parent ? berth_find(s->checkpoint, dot ? parent : "", NULL) : NULL;
    for (size_t i = 0; berth_dict_at(beside, i, &key, NULL); i++)
        if (berth_value_kind(key) == BERTH_KIND_STR)
            nearest_offer(&near, berth_as_text(key, NULL));
    if (parent)
        snprintf(parent, strlen(name) + 1, "%.*s", dot ? (int)(dot - parent) + 1 : 0, name);
    int code = exit_code(error);
    if (error->code == BERTH_E_NOT_FOUND && near.found[0] && !strstr(error->message, "near:"))
        (void)print_trouble("%s%s", error->message,
                            nearest_hint(&near, parent ? parent : "", hint));
    else
        code = fail(error);
    free(parent);
    return code;
}

static int show_find_and_walk(show *s, const char *name)
{
    berth_error error;
    const berth_value *root = berth_find(s->checkpoint, name, &error);
    const berth_walker walker = {
        .enter = show_enter, .leave = show_leave, .alias = show_alias, .context = s};

    if (!root)
        return show_fail_not_found(s, name, &error);
    s->repeated = repeated_values_find(root);
    int code = s->repeated ? berth_value_walk(root, &walker, NULL) : BERTH_E_MEMORY;
    code = show_print_end(s, code);
    repeated_values_free(s->repeated);
    json_decref(s->report);
    free(s->levels);
    free(s->key);
    return code;
}

const struct argp show_argp = {
    .options = own_options,
    .parser = show_parse,
    .args_doc = "FILE [PATH]",
    .doc =
        "Show the values of a checkpoint: numbers, texts and settings as Python writes them, a "
        "tensor as dtype, shape and its first elements, containers with what is in them. PATH is "
        "a name as in `berth ls`, of any value, or a path like ['model'][0]['a.b']; without it, "
        "everything is shown. A container that is there again is shown as an alias of its first "
        "path below PATH. What is left out is counted.",
    .children = common_children};

int run_show(int argc, char **argv)
{
    show_options options = {.words = {.min = 1, .max = 2}};
    show s = {.options = &options};
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};
    input opened;

    parse_options(&show_argp, argc, argv, &options);
    const char *path = input_path(options.words.words[0]);
    if (!path)
        return EXIT_TROUBLE;
    int code = input_open(path, &call, &opened);
    bool is_open = code == 0;
    s.checkpoint = opened.checkpoint;
    if (is_open)
        code = show_find_and_walk(&s, options.words.n > 1 ? kept_word(options.words.words[1]) : "");
    input_close(&opened);
    if (options.common.stats && is_open)
        print_stats(&stats);
    return code;
}
