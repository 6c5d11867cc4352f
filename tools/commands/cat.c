/* SPDX-License-Identifier: BSD-3-Clause */
/* berth cat: one tensor's elements, raw, to standard output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/common/elements.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

typedef struct cat_options {
    common common;
    positional words;
    bool force;
} cat_options;

static const struct argp_option own_options[] = {
    {"force", 'f', NULL, 0, "write to a terminal too", 1}, {0}};

static error_t cat_parse(int key, char *word, struct argp_state *state)
{
    cat_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'f':
        options->force = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

/* Reports progress and statistics through the params. */
static int tensor_write_elements(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                 const berth_params *params)
{
    enum { CHUNK_NBYTES = 4 << 20 };
    int64_t numel = berth_tensor_numel(tensor), chunk = elements_per_chunk(tensor, CHUNK_NBYTES);
    size_t item = berth_dtype_nbytes(tensor->dtype);
    uint64_t done = 0, total = berth_tensor_nbytes(tensor);
    int code = EXIT_YES;
    berth_error error;

    void *buffer = malloc((size_t)chunk * item);
    if (!buffer)
        return print_trouble("out of memory (%lld bytes)", (long long)chunk * (long long)item);
    for (int64_t first = 0; first < numel && code == EXIT_YES; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;
        size_t nbytes = n == numel ? (size_t)total : (size_t)n * item;
        if (berth_tensor_read(checkpoint, tensor, first, n, buffer, &error) < 0)
            code = fail(&error);
        else if (fwrite(buffer, 1, nbytes, stdout) != nbytes)
            code = print_trouble("standard output: %s", strerror(errno));
        done += nbytes;
        params->progress(params->progress_context, done, total);
    }
    params->stats->requested_nbytes = done;
    params->stats->method = NULL; /* it would be that of opening */
    free(buffer);
    return code == EXIT_YES ? finish_output(code) : code;
}

/* A hint for values that are not tensors. */
static const char *not_a_tensor_hint(berth_kind kind)
{
    switch (kind) {
    case BERTH_KIND_SPARSE:
    case BERTH_KIND_NESTED:
        return "; `berth ls` lists the tensors it is made of";
    case BERTH_KIND_LIST:
    case BERTH_KIND_TUPLE:
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
        return "; `berth ls` lists the tensors in it";
    default:
        return "";
    }
}

static int cat_tensor(berth_checkpoint *checkpoint, const char *file, const char *name,
                      const berth_params *params)
{
    berth_error error;
    const berth_value *value = berth_find(checkpoint, name, &error);

    if (!value)
        return fail(&error);
    const berth_tensor *tensor = berth_as_tensor(value);
    if (!tensor)
        return print_trouble("%s: \"%s\" is not a strided tensor; its kind is %s%s", file, name,
                             berth_kind_name(berth_value_kind(value)),
                             not_a_tensor_hint(berth_value_kind(value)));
    if (tensor->flags & BERTH_META)
        return print_trouble("%s: \"%s\" is on the meta device: it has no elements", file, name);
    return tensor_write_elements(checkpoint, tensor, params);
}

const struct argp cat_argp = {
    .options = own_options,
    .parser = cat_parse,
    .args_doc = "FILE NAME",
    .doc = "Write the elements of one tensor to standard output: raw, row-major, in this machine's "
           "byte order. NAME is as in `berth ls`, or a path like ['model'][0]['a.b'].",
    .children = common_children};

int run_cat(int argc, char **argv)
{
    cat_options options = {.words = {.min = 2, .max = 2}};
    input opened;
    berth_stats stats = {0};
    berth_params params;
    progress bar;

    parse_options(&cat_argp, argc, argv, &options);
    if (options.common.json)
        return print_trouble("--json does not apply: elements are written as raw bytes; use "
                             "`berth ls --json`");
    if (isatty(STDOUT_FILENO) && !options.force)
        return print_trouble(
            "raw bytes are not written to a terminal; redirect them, or use --force");
    const char *path = input_path(options.words.words[0]);
    if (!path)
        return EXIT_TROUBLE;
    progress_begin_without_signals(&bar, "cat", &options.common, &params, &stats);
    int code = input_open(path, &params, &opened);
    bool is_open = code == 0;
    if (is_open)
        code = cat_tensor(opened.checkpoint, path, kept_word(options.words.words[1]), &params);
    progress_finish(&bar);
    stats.total_seconds = progress_elapsed_seconds(&bar);
    stats.transfer_seconds = stats.total_seconds - stats.plan_seconds;
    input_close(&opened);
    if (options.common.stats && is_open)
        print_stats(&stats);
    return code;
}
