/* SPDX-License-Identifier: BSD-3-Clause */
/* berth diff: whether two checkpoints are equal. */
#include <berth/config.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/commands/commands.h"
#include "tools/commands/diff.h"
#include "tools/common/elements.h"
#include "tools/common/inputs.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

typedef struct diff_options {
    common common;
    positional words;
    bool all;
} diff_options;

static const struct argp_option own_options[] = {
    {"all", 'a', NULL, 0, "show all differences, not only the first 20", 1}, {0}};

static error_t diff_parse(int key, char *word, struct argp_state *state)
{
    diff_options *options = state->input;

    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = &options->common;
    else if (key == 'a')
        options->all = true;
    else
        return parse_positional(key, word, state, &options->words);
    return 0;
}

/* So many differences are shown without --all. */
enum { SHOWN_DIFFERENCES = 20 };

/* What can differ, in the order of the summary. */
static const char *const differing[] = {"only in", "kind",      "dtype", "shape",
                                        "device",  "quantizer", "bytes", "value"};
enum { N_DIFFERING = sizeof differing / sizeof *differing };

typedef struct side {
    const char *file;
    bool has_no_attributes; /* of dicts: safetensors, and sets of files */
    input opened;
    berth_stats stats; /* of opening it */
} side;

typedef struct comparison {
    side left, right;
    uint8_t *buffer;     /* of two chunks, once there is a tensor to compare */
    size_t chunk_nbytes; /* CHUNK_NBYTES at most */
    size_t long_nbytes;  /* of long paths that were printed */
    bool json, is_quiet;
    json_t *differences;
    name_pairs names;       /* if they are compared, not the dicts */
    const char *other_path; /* of a value that is in no pair */
    bool shows_all;
    size_t n_differences, n_of[N_DIFFERING];
    const berth_params *params;
    uint64_t total_nbytes; /* of the left side's storages */
} comparison;

/* Reports that so many bytes of each side were compared. */
static void comparison_report_progress(comparison *c, uint64_t nbytes)
{
    berth_stats *stats = c->params->stats;

    stats->requested_nbytes += 2 * nbytes;
    c->params->progress(c->params->progress_context, stats->requested_nbytes / 2, c->total_nbytes);
}

/* Prints one difference. Returns 0, or EXIT_TROUBLE after printing why. */
static int comparison_report_difference(comparison *c, const pair_walk *walk, const char *what,
                                        const char *a, const char *b)
{
    size_t kind = 0;

    while (kind < N_DIFFERING - 1 && strcmp(differing[kind], what) != 0)
        kind++;
    c->n_of[kind]++;
    if (c->n_differences++ >= SHOWN_DIFFERENCES && !c->shows_all && !c->json)
        return 0;
    char *path = walk ? pair_path(walk) : strdup(c->other_path);
    if (!path)
        return print_trouble("out of memory");
    int code = check_total_of_long_names(&c->long_nbytes, strlen(path));
    if (!code && c->json)
        json_array_append_new(c->differences,
                              json_pack("{s:o,s:s,s:o,s:o}", "path", text_json(path), "what", what,
                                        "a", text_json(a), "b", text_json(b)));
    else if (!code) {
        print_painted(BOLD, *path ? path : "the value itself");
        printf(": %s: ", what);
        print_painted(RED, a); /* it may come from a file, as the path does */
        fputs(" | ", stdout);
        print_painted(GREEN, b);
        putchar('\n');
    }
    free(path);
    return code;
}

enum { CHUNK_NBYTES = 4 << 20 };

/* A buffer for two chunks: the comparison's, or, for sub-byte dtypes, a larger one in *own. */
static uint8_t *comparison_get_chunk_buffer(comparison *c, size_t chunk_nbytes, uint8_t **own)
{
    *own = NULL;
    if (chunk_nbytes > CHUNK_NBYTES)
        return *own = malloc(chunk_nbytes * 2);
    if (!c->buffer || chunk_nbytes > c->chunk_nbytes) {
        free(c->buffer);
        c->buffer = malloc(chunk_nbytes * 2);
        c->chunk_nbytes = chunk_nbytes;
    }
    return c->buffer;
}

/* *at: the first element that differs, or -1. Returns 0 or an exit code. */
static int tensors_find_first_difference(comparison *c, const berth_tensor *a,
                                         const berth_tensor *b, int64_t *at)
{
    int64_t numel = berth_tensor_numel(a), chunk = elements_per_chunk(a, CHUNK_NBYTES);
    size_t item_nbytes = berth_dtype_nbytes(a->dtype);
    berth_error error;
    uint8_t *own;

    *at = -1;
    if (numel == 0)
        return 0;
    uint8_t *buffer = comparison_get_chunk_buffer(c, (size_t)chunk * item_nbytes, &own);
    if (!buffer)
        return print_trouble("out of memory");
    int code = 0;
    for (int64_t first = 0; first < numel && *at < 0 && !code; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;
        uint8_t *other = buffer + (size_t)chunk * item_nbytes;
        memset(buffer, 0, (size_t)n * item_nbytes);
        memset(other, 0, (size_t)n * item_nbytes);
        if (berth_tensor_read(c->left.opened.checkpoint, a, first, n, buffer, &error) < 0 ||
            berth_tensor_read(c->right.opened.checkpoint, b, first, n, other, &error) < 0)
            code = fail(&error);
        else if (memcmp(buffer, other, (size_t)n * item_nbytes) != 0) /* NaNs by their bits */
            for (*at = first; !memcmp(buffer, other, item_nbytes); ++*at) {
                buffer += item_nbytes;
                other += item_nbytes;
            }
        comparison_report_progress(c,
                                   n == numel ? berth_tensor_nbytes(a) : (uint64_t)n * item_nbytes);
    }
    free(own);
    return code;
}

/*
 * Along an axis that is expanded in both tensors (stride 0) all elements are the same. Only the
 * first is compared, because a file of a kilobyte can have 2^60 of them (P3). The first element
 * that differs then has index 0 on that axis.
 */
static int tensors_find_difference_unexpanded(comparison *c, const berth_tensor *a,
                                              const berth_tensor *b, int64_t *at)
{
    int64_t shape[BERTH_MAX_RANK] = {0};
    berth_tensor ours = *a, theirs = *b;
    int64_t position = 0, step = 1;

    for (int32_t i = 0; i < a->rank; i++)
        shape[i] = a->stride[i] == 0 && b->stride[i] == 0 && a->shape[i] > 1 ? 1 : a->shape[i];
    ours.shape = theirs.shape = shape;
    int code = tensors_find_first_difference(c, &ours, &theirs, at);
    if (code || *at < 0)
        return code;
    for (int32_t i = a->rank; i-- > 0; step *= a->shape[i]) {
        position += *at % shape[i] * step;
        *at /= shape[i];
    }
    *at = position;
    return 0;
}

static void quantizer_text(const berth_tensor *tensor, char *text, size_t nbytes)
{
    snprintf(text, nbytes, "qscheme %d, scale %.17g, zero point %" PRId64 ", axis %" PRId64,
             (int)tensor->qscheme, tensor->scale, tensor->zero_point, tensor->axis);
}

static int tensors_compare_elements(comparison *c, const pair_walk *walk, const berth_tensor *a,
                                    const berth_tensor *b)
{
    char position[64], total[64];
    int64_t at;
    int code = tensors_find_difference_unexpanded(c, a, b, &at);

    if (code || at < 0)
        return code;
    snprintf(position, sizeof position, "first at element %" PRId64, at);
    snprintf(total, sizeof total, "of %" PRId64, berth_tensor_numel(a));
    return comparison_report_difference(c, walk, "bytes", position, total);
}

static int tensors_compare(comparison *c, const pair_walk *walk, const berth_tensor *a,
                           const berth_tensor *b)
{
    char a_text[256], b_text[256];

    if (a->dtype != b->dtype)
        return comparison_report_difference(c, walk, "dtype", berth_dtype_name(a->dtype),
                                            berth_dtype_name(b->dtype));
    if (a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0) {
        shape_text(a, a_text, sizeof a_text);
        shape_text(b, b_text, sizeof b_text);
        return comparison_report_difference(c, walk, "shape", a_text, b_text);
    }
    if ((a->flags ^ b->flags) & BERTH_META)
        return comparison_report_difference(c, walk, "device",
                                            a->flags & BERTH_META ? "meta" : "has elements",
                                            b->flags & BERTH_META ? "meta" : "has elements");
    quantizer_text(a, a_text, sizeof a_text);
    quantizer_text(b, b_text, sizeof b_text);
    int code = strcmp(a_text, b_text)
                   ? comparison_report_difference(c, walk, "quantizer", a_text, b_text)
                   : 0;
    return code || (a->flags & BERTH_META) ? code : tensors_compare_elements(c, walk, a, b);
}

/* Compares values that have bytes without making texts, which may be long. 1: they have no bytes.
 */
static int value_bytes_differ_or_are_absent(const berth_value *a, const berth_value *b)
{
    size_t n = 0, m = 0;
    berth_kind kind = berth_value_kind(a);
    const void *ours = NULL, *theirs = NULL;

    if (kind != berth_value_kind(b))
        return 1;
    if (kind == BERTH_KIND_STR) {
        ours = berth_as_text(a, &n);
        theirs = berth_as_text(b, &m);
    } else if (kind == BERTH_KIND_BYTES || kind == BERTH_KIND_BYTEARRAY) {
        ours = berth_as_bytes(a, &n);
        theirs = berth_as_bytes(b, &m);
    }
    return !(ours && theirs && n == m && !memcmp(ours, theirs, n));
}

static int non_tensors_compare(comparison *c, const pair_walk *walk, const berth_value *a,
                               const berth_value *b)
{
    berth_storage *ours = berth_as_storage(a), *theirs = berth_as_storage(b);

    if (!value_bytes_differ_or_are_absent(a, b))
        return 0;
    if (ours && theirs &&
        berth_storage_get_info(ours)->nbytes == berth_storage_get_info(theirs)->nbytes) {
        berth_error error;
        size_t nbytes = berth_storage_get_info(ours)->nbytes;
        const void *left = berth_storage_data(c->left.opened.checkpoint, ours, &error);
        const void *right =
            left ? berth_storage_data(c->right.opened.checkpoint, theirs, &error) : NULL;
        if (!right) {
            fail(&error);
            return EXIT_TROUBLE;
        }
        comparison_report_progress(c, nbytes);
        if (!memcmp(left, right, nbytes))
            return 0;
        return comparison_report_difference(c, walk, "bytes", "of a storage", "of a storage");
    }
    char *a_text = leaf_text(a), *b_text = leaf_text(b);
    int code = 0;
    if (!a_text || !b_text) {
        code = print_trouble("out of memory");
    } else if (strcmp(a_text, b_text) != 0) {
        shorten(a_text);
        shorten(b_text);
        code = comparison_report_difference(c, walk, "value", a_text, b_text);
    }
    free(a_text);
    free(b_text);
    return code;
}

static int pair_compare(void *context, const pair_walk *walk, const berth_value *a,
                        const berth_value *b)
{
    const berth_tensor *ours = berth_as_tensor(a), *theirs = berth_as_tensor(b);

    if (ours && theirs)
        return tensors_compare(context, walk, ours, theirs);
    if (ours || theirs)
        return comparison_report_difference(context, walk, "kind",
                                            berth_kind_name(berth_value_kind(a)),
                                            berth_kind_name(berth_value_kind(b)));
    return non_tensors_compare(context, walk, unwrap_parameter_or_subclass(a),
                               unwrap_parameter_or_subclass(b));
}

static int comparison_report_only_in(comparison *c, const pair_walk *walk, bool in_left)
{
    return comparison_report_difference(c, walk, "only in", in_left ? c->left.file : "",
                                        in_left ? "" : c->right.file);
}

static int pair_report_one_sided_item(void *context, const pair_walk *walk, bool in_left)
{
    comparison *c = context;

    /* The version numbers of a state_dict's modules. */
    if (pair_is_attributes(walk) && (c->left.has_no_attributes || c->right.has_no_attributes))
        return 0;
    return comparison_report_only_in(c, walk, in_left);
}

/* ---- by names ---- */

/* What a flat file cannot hold; empty containers are no values of their own. */
static int comparison_report_other_value(comparison *c, const berth_walk *walk,
                                         const berth_value *value, bool in_left)
{
    berth_kind kind = berth_value_kind(value);

    if (berth_as_tensor(value))
        return BERTH_WALK_SKIP;
    if (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET)
        return 0;
    c->other_path = berth_walk_path(walk);
    int code = comparison_report_only_in(c, NULL, in_left);
    return code ? code : BERTH_WALK_SKIP;
}

static int report_other_value_of_left(void *context, const berth_walk *walk,
                                      const berth_value *value)
{
    return comparison_report_other_value(context, walk, value, true);
}

static int report_other_value_of_right(void *context, const berth_walk *walk,
                                       const berth_value *value)
{
    return comparison_report_other_value(context, walk, value, false);
}

static int compare_other_values(comparison *c)
{
    const berth_walker of_left = {
        .flags = BERTH_WALK_ITEMS, .enter = report_other_value_of_left, .context = c};
    const berth_walker of_right = {
        .flags = BERTH_WALK_ITEMS, .enter = report_other_value_of_right, .context = c};
    int code = berth_value_walk(berth_root(c->left.opened.checkpoint), &of_left, NULL);

    if (!code)
        code = berth_value_walk(berth_root(c->right.opened.checkpoint), &of_right, NULL);
    return code < 0 ? print_trouble("out of memory") : code;
}

/* Safetensors and indices have no dicts in dicts: then names are compared, if they tell more. */
static int compare_sides(comparison *c)
{
    const pair_visitor visitor = {pair_compare, pair_report_one_sided_item, c};
    berth_checkpoint *const checkpoints[2] = {c->left.opened.checkpoint,
                                              c->right.opened.checkpoint};
    bool is_left = c->left.has_no_attributes && value_is_flat(berth_root(checkpoints[0]));
    bool is_right = c->right.has_no_attributes && value_is_flat(berth_root(checkpoints[1]));
    int code = is_left || is_right ? name_pairs_make(&c->names, checkpoints, !is_left) : 0;

    if (!code && c->names.prefix) {
        const side *longer = c->names.longer == 0 ? &c->left : &c->right;
        if (*c->names.prefix && !c->json && !c->is_quiet) {
            fputs("names of ", stdout);
            print_shown(stdout, longer->file);
            fputs(" below '", stdout);
            print_shown(stdout, c->names.prefix);
            fputs("' are compared with those of ", stdout);
            print_shown(stdout, longer == &c->left ? c->right.file : c->left.file);
            putchar('\n');
        }
        code = walk_named_pairs(c->names.pairs, c->names.n, &visitor);
        return code ? code : compare_other_values(c);
    }
    return code ? code
                : walk_pairs(berth_root(c->left.opened.checkpoint),
                             berth_root(c->right.opened.checkpoint), &visitor);
}

static bool file_is_large(const char *file)
{
    struct stat status;

    return stat(file, &status) == 0 && status.st_size >= 32 << 20;
}

/* The indices of sparse tensors are checked, as everything is read; load.check can forbid it. */
static int open_side(side *s, const char *file)
{
    berth_error error;
    int code = input_open(file, &(berth_params){.stats = &s->stats}, &s->opened);
    berth_checkpoint *checkpoint = s->opened.checkpoint;

    s->file = file;
    berth_info info;
    if (!code)
        s->has_no_attributes = s->opened.set || (berth_get_info(checkpoint, &info, NULL) == 0 &&
                                                 strcmp(info.container, "safetensors") == 0);
    if (!code && option_is_default("load.check") &&
        berth_tensor_check_indices(checkpoint, berth_root(checkpoint), NULL, &error) < 0)
        return fail(&error);
    return code;
}

/* The method stays NULL: the library does not report how it read the compared bytes. */
static void comparison_finish_stats(const comparison *c, const progress *bar)
{
    const berth_stats *left = &c->left.stats, *right = &c->right.stats;
    berth_stats *stats = c->params->stats;

    stats->total_seconds = progress_elapsed_seconds(bar);
    stats->plan_seconds = left->plan_seconds + right->plan_seconds;
    stats->transfer_seconds = stats->total_seconds - stats->plan_seconds;
    stats->n_records = left->n_records + right->n_records;
    stats->n_storages = left->n_storages + right->n_storages;
}

/* "different: only in: 1, bytes: 30; 20 of 31 differences are shown, `--all` shows them all". */
static void comparison_print_summary(const comparison *c)
{
    const char *comma = "";

    printf("%sdifferent%s: ", paint(RED), paint(PLAIN));
    for (size_t i = 0; i < N_DIFFERING; i++)
        if (c->n_of[i] > 0) {
            printf("%s%s: %zu", comma, differing[i], c->n_of[i]);
            comma = ", ";
        }
    if (c->n_differences > SHOWN_DIFFERENCES && !c->shows_all)
        printf("; %d of %zu differences are shown, `--all` shows them all", SHOWN_DIFFERENCES,
               c->n_differences);
    putchar('\n');
}

static int comparison_print(comparison *c, const common *options)
{
    int code = c->n_differences ? EXIT_NO : EXIT_YES;

    if (c->json) {
        json_t *report =
            json_pack("{s:b,s:O}", "equal", code == EXIT_YES, "differences", c->differences);
        if (options->stats)
            json_object_set_new(report, "stats", stats_json(c->params->stats));
        if (c->names.prefix && *c->names.prefix) {
            const side *longer = c->names.longer == 0 ? &c->left : &c->right;
            json_object_set_new(report, "prefix", text_json(c->names.prefix));
            json_object_set_new(report, "prefix_of", text_json(longer->file));
        }
        int printed = print_json(report);
        return printed ? printed : code;
    }
    if (options->stats)
        print_stats(c->params->stats);
    if (!options->quiet && code == EXIT_NO)
        comparison_print_summary(c);
    if (!options->quiet && code == EXIT_YES)
        printf("%sequal%s\n", paint(GREEN), paint(PLAIN));
    return finish_output(code);
}

const struct argp diff_argp = {
    .options = own_options,
    .parser = diff_parse,
    .args_doc = "A B",
    .doc = "Compare two checkpoints: names, dtypes, shapes and bytes of tensors (NaNs "
           "by their bits), and all other values and attributes. The first 20 "
           "differences are shown, and a summary. The exit code is 1 if they differ. A "
           "and B can be DCP directories or indexes.\n\n"
           "Not compared: layout, strides, sharing, the order of keys, list or tuple, "
           "tensor or Parameter, requires_grad, devices (but meta), and the attributes "
           "of dicts if a side is safetensors, which has none.\n\n"
           "If a side is safetensors or an index, names are compared, as `berth "
           "convert` makes them of dicts in dicts. If the names of one side are those "
           "of the other behind a prefix, they are compared without it, and the first "
           "line says so. Indices of sparse tensors are checked first; --set "
           "load.check=directory skips that.",
    .children = common_children};

int run_diff(int argc, char **argv)
{
    diff_options options = {.words = {.min = 2, .max = 2}};
    berth_stats stats = {0};
    berth_params params;
    comparison c = {.params = &params};
    berth_info info;
    progress bar;

    parse_options(&diff_argp, argc, argv, &options);
    const char *left = input_path(options.words.words[0]);
    const char *right = left ? input_path(options.words.words[1]) : NULL;
    if (!right)
        return EXIT_TROUBLE;
    progress_begin_without_signals(&bar, "diff", &options.common, &params, &stats);
    c.json = options.common.json;
    c.is_quiet = options.common.quiet;
    c.shows_all = options.all;
    c.differences = json_array();
    /* Large files are read once, in order. With two cold ones of 1 GiB, beside other work: 1.0
     * GiB/s instead of 0.5. */
    if (file_is_large(left) || file_is_large(right))
        option_set_default("load.prefetch", "populate");
    option_set_default("load.tied_names", "rule");
    int code = open_side(&c.left, left);
    if (!code)
        code = open_side(&c.right, right);
    if (!code && berth_get_info(c.left.opened.checkpoint, &info, NULL) == 0)
        c.total_nbytes = info.storages_nbytes;
    if (!code)
        code = compare_sides(&c);
    progress_finish(&bar);
    comparison_finish_stats(&c, &bar);
    if (!code)
        code = comparison_print(&c, &options.common);
    free(c.buffer);
    name_pairs_free(&c.names);
    json_decref(c.differences);
    input_close(&c.left.opened);
    input_close(&c.right.opened);
    return code;
}
