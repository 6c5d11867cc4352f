/* SPDX-License-Identifier: BSD-3-Clause */
/* berth demo: saves, verifies and loads a small checkpoint. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/curl/berth_curl.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

enum { LAYERS = 4, WIDTH = 256 };

/* A small model's state_dict over `weights`: LAYERS matrices and vectors, the last one tied. */
static berth_value *demo_build(berth_tree *tree, const float *weights)
{
    const int64_t matrix[] = {WIDTH, WIDTH}, vector[] = {WIDTH};
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_value *first = NULL;
    char name[32];

    for (int i = 0; i < LAYERS; i++) {
        const float *layer = weights + (size_t)i * (WIDTH * WIDTH + WIDTH);
        berth_value *weight = berth_make_tensor(
            tree,
            &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 2, .shape = matrix, .data = layer});
        berth_value *bias =
            berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                    .rank = 1,
                                                    .shape = vector,
                                                    .data = layer + (size_t)WIDTH * WIDTH});
        first = first ? first : weight;
        snprintf(name, sizeof name, "layers.%d.weight", i);
        berth_dict_set(state, name, weight);
        snprintf(name, sizeof name, "layers.%d.bias", i);
        berth_dict_set(state, name, bias);
    }
    berth_dict_set(state, "head.weight", first); /* tied: one storage under two names */
    berth_value *checkpoint = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(checkpoint, "model", state);
    berth_dict_set(checkpoint, "epoch", berth_make_int(tree, 3));
    berth_dict_set(checkpoint, "learning_rate", berth_make_float(tree, 1e-4));
    return checkpoint;
}

/* ---- whether demo made the file ---- */

static bool file_exists(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0;
}

static bool model_tensor_equals(berth_checkpoint *model, const char *name, size_t n,
                                const float *elements)
{
    const berth_tensor *tensor = berth_find_tensor(model, name, NULL);

    if (!tensor || tensor->dtype != BERTH_FLOAT32 || berth_tensor_numel(tensor) != (int64_t)n)
        return false;
    const void *data = berth_tensor_data(model, tensor, NULL);
    return data && !memcmp(data, elements, n * sizeof *elements);
}

/* Whether it contains exactly what demo_build() makes, in any layout. */
static bool model_is_from_demo(berth_checkpoint *model, const float *weights)
{
    enum { N_KEYS = 3, N_TENSORS = 2 * LAYERS + 1 };
    const berth_value *root = berth_root(model);
    bool is_ours = berth_value_count(root) == N_KEYS && berth_dict_get(root, "epoch") &&
                   berth_dict_get(root, "learning_rate") &&
                   berth_value_count(berth_dict_get(root, "model")) == N_TENSORS &&
                   berth_tensor_count(model) == N_TENSORS;
    char name[64];

    for (int i = 0; i < LAYERS && is_ours; i++) {
        const float *layer = weights + (size_t)i * (WIDTH * WIDTH + WIDTH);
        snprintf(name, sizeof name, "model.layers.%d.weight", i);
        is_ours = model_tensor_equals(model, name, (size_t)WIDTH * WIDTH, layer);
        snprintf(name, sizeof name, "model.layers.%d.bias", i);
        is_ours = is_ours && model_tensor_equals(model, name, WIDTH, layer + (size_t)WIDTH * WIDTH);
    }
    return is_ours &&
           model_tensor_equals(model, "model.head.weight", (size_t)WIDTH * WIDTH, weights);
}

/* A file that demo did not make is never replaced. */
static int demo_check_target(const char *path, const float *weights)
{
    berth_checkpoint *model = NULL;

    if (check_written_path(path))
        return EXIT_TROUBLE;
    if (!file_exists(path))
        return EXIT_YES;
    bool is_ours = berth_open(path, NULL, &model, NULL) == 0 && model_is_from_demo(model, weights);
    berth_close(model);
    if (is_ours)
        return EXIT_YES;
    return print_trouble(
        "%s exists, and `berth demo` did not make it: remove it, or name another file", path);
}

/* ---- the steps ---- */

static int demo_save(const char *path, const float *weights, const berth_params *params)
{
    berth_error error;
    berth_tree *tree = berth_tree_new(&error);

    if (!tree)
        return fail(&error);
    int code = berth_save(path, demo_build(tree, weights), params, &error);
    berth_tree_free(tree);
    if (code < 0)
        return fail(&error);
    printf("saved     %s: %" PRIu64 " bytes, %" PRIu64
           " records, in %.1f ms (%.1f ms of it sync)\n",
           path, params->stats->moved_nbytes, params->stats->n_records,
           params->stats->total_seconds * 1e3, params->stats->sync_seconds * 1e3);
    return EXIT_YES;
}

static int demo_verify(const char *path, const berth_params *params)
{
    const berth_params silent = {.progress = params->progress,
                                 .progress_context = params->progress_context};
    const berth_source source = berth_from_path(path);
    berth_verdict verdict;
    berth_error error;

    if (berth_verify(&source, &silent, NULL, NULL, &verdict, &error) < 0)
        return fail(&error);
    printf("verified  %zu records, %zu checksums match\n", verdict.n_records, verdict.n_verified);
    return EXIT_YES;
}

/* Compares every element with what was saved. */
static int demo_compare_head_weight(berth_checkpoint *model, const float *weights)
{
    const int64_t numel = (int64_t)WIDTH * WIDTH;
    berth_error error;
    const berth_tensor *tied = berth_find_tensor(model, "model.head.weight", NULL);
    const float *data = berth_tensor_data(model, tied, &error);

    if (!data)
        return fail(&error);
    for (int64_t i = 0; i < numel; i++)
        if (data[i] < weights[i] || data[i] > weights[i])
            return print_trouble("element %" PRId64 " of model.head.weight differs", i);
    printf("mapped    model.head.weight: %" PRId64 " elements are what was saved, first %g\n",
           numel, (double)data[0]);
    return EXIT_YES;
}

static int demo_open_list_and_compare(const char *path, const float *weights)
{
    berth_checkpoint *model;
    berth_named_tensor named;
    berth_error error;
    int code = EXIT_YES;

    if (berth_open(path, NULL, &model, &error) < 0)
        return fail(&error);
    printf("opened    %zu tensors:\n", berth_tensor_count(model));
    for (size_t i = 0; i < berth_tensor_count(model) && code == EXIT_YES; i++) {
        if (berth_tensor_at(model, i, &named, &error) < 0)
            code = fail(&error);
        else
            printf("          %-24s %s, %" PRIu64 " bytes at %" PRIu64 "\n", named.name,
                   berth_dtype_name(named.tensor->dtype), berth_tensor_nbytes(named.tensor),
                   named.offset);
    }
    if (code == EXIT_YES)
        code = demo_compare_head_weight(model, weights);
    berth_close(model);
    return code;
}

const struct argp demo_argp = {
    .parser = parse_plain_options,
    .args_doc = "[FILE]",
    .doc = "Make a small checkpoint, save it to FILE (berth-demo.pt in the current folder), verify "
           "it, open it and show what is in it. PyTorch opens the file too. An existing file is "
           "replaced only if `berth demo` made it.",
    .children = common_children};

int run_demo(int argc, char **argv)
{
    const size_t n = (size_t)LAYERS * (WIDTH * WIDTH + WIDTH);
    plain_options options = {.words = {.max = 1}};
    berth_stats stats = {0};
    berth_params params;
    progress bar;

    parse_options(&demo_argp, argc, argv, &options);
    const char *path = options.words.n ? options.words.words[0] : "berth-demo.pt";
    float *weights = malloc(n * sizeof *weights);
    if (!weights)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n; i++)
        weights[i] = (float)(i % 1000) / 1000.0f - 0.5f;
    progress_begin(&bar, "demo", &options.common, &params, &stats);
    int code = demo_check_target(path, weights);
    if (code == EXIT_YES)
        code = demo_save(path, weights, &params);
    if (code == EXIT_YES)
        code = demo_verify(path, &params);
    progress_finish(&bar);
    if (code == EXIT_YES)
        code = demo_open_list_and_compare(path, weights);
    if (code == EXIT_YES)
        code = print_stats_if_requested(&options.common, &stats, code);
    free(weights);
    return code == EXIT_YES ? finish_output(code) : code;
}
