/* SPDX-License-Identifier: BSD-3-Clause */
/* berth convert: .pt, .pth, .bin <-> .safetensors, and old to new .pt. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/shared.h"

typedef struct convert_options {
    common common;
    positional words;
    bool tensors_only;
    bool compact;
} convert_options;

static const struct argp_option own_options[] = {
    {"tensors-only", 't', NULL, 0,
     "leave out what safetensors cannot express instead of refusing the file", 1},
    {"compact", 'c', NULL, 0,
     "between checkpoints: leave out bytes of storages that no tensor uses", 1},
    {0}};

static error_t convert_parse(int key, char *word, struct argp_state *state)
{
    convert_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 't':
        options->tensors_only = true;
        return 0;
    case 'c':
        options->compact = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static bool is_checkpoint_name(const char *name)
{
    return has_extension(name, ".pt") || has_extension(name, ".pth") ||
           has_extension(name, ".bin") || has_extension(name, ".ckpt");
}

/* By its bytes, the length of a JSON object, and the object: its name may be .pt or .bin, too. */
static bool file_is_safetensors(const char *name)
{
    struct stat facts;
    unsigned char head[9];
    uint64_t length = 0;
    FILE *file = stat(name, &facts) == 0 && S_ISREG(facts.st_mode) ? fopen(name, "re") : NULL;

    if (!file)
        return false;
    size_t n = fread(head, 1, sizeof head, file);
    (void)fclose(file);
    for (size_t i = 8; n == sizeof head && i > 0; i--)
        length = length << 8 | head[i - 1];
    return length >= 2 && length <= (uint64_t)facts.st_size - 8 && head[8] == '{';
}

/* `tree` NULL: the value is written unchanged. */
static int save_value_or_compact_copy(const char *out, const berth_value *value, berth_tree *tree,
                                      const berth_params *params, berth_error *error)
{
    if (tree)
        value = berth_value_copy(tree, value, BERTH_COPY_COMPACT);
    if (!value)
        return berth_tree_error(tree, error);
    return berth_save(out, value, params, error);
}

/* Writes a checkpoint of any format that Berth reads, in today's format. */
static int convert_checkpoint_to_checkpoint(const char *in, const char *out, bool compact,
                                            const common *options)
{
    berth_checkpoint *checkpoint;
    berth_tree *tree = NULL;
    berth_stats stats = {0};
    berth_error error;
    berth_params params;
    progress bar;

    set_load_check_data_by_default();
    if (berth_open(in, NULL, &checkpoint, &error) < 0)
        return fail(&error);
    if (compact && !(tree = berth_tree_new(&error))) {
        berth_close(checkpoint);
        return fail(&error);
    }
    register_remark_printer(options);
    progress_begin(&bar, "convert", options, &params, &stats);
    int code = save_value_or_compact_copy(out, berth_root(checkpoint), tree, &params, &error);
    progress_finish(&bar);
    int exit_status = print_stats_if_requested(options, &stats, code < 0 ? fail(&error) : EXIT_YES);
    berth_tree_free(tree);
    berth_close(checkpoint);
    return exit_status;
}

int run_convert(int argc, char **argv)
{
    static const struct argp argp = {
        own_options,
        convert_parse,
        "IN OUT",
        "Convert between checkpoints (.pt, .pth, .bin, .ckpt) and .safetensors; OUT's extension "
        "decides. From checkpoint to checkpoint, write an older, repacked or compressed file in "
        "today's format. "
        "Safetensors has no views and no tied tensors: each is written in full. It has no "
        "attributes of state_dicts: they are left out. Any other value is an error that names it, "
        "unless --tensors-only is set. Checksums are compared first; --set load.check=directory "
        "skips "
        "that.",
        common_children,
        NULL,
        NULL};
    convert_options options = {.words = {.min = 2, .max = 2}};

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    const char *in = options.words.words[0], *out = options.words.words[1];
    bool from = has_extension(in, ".safetensors") || file_is_safetensors(in);
    bool to = has_extension(out, ".safetensors");
    if (!to && !is_checkpoint_name(out))
        return print_trouble("%s: the name must end in .pt, .pth, .bin, .ckpt or .safetensors: it "
                             "sets the format",
                             out);
    if (check_in_place_output_has_name(in, out))
        return EXIT_TROUBLE;
    if (from && to)
        return print_trouble("%s is safetensors already", in);
    if (options.compact && (from || to))
        return print_trouble(
            "--compact does not apply: safetensors holds only the bytes of its tensors");
    if (from)
        return convert_from_safetensors(in, out, &options.common);
    if (to)
        return convert_to_safetensors(in, out, options.tensors_only, &options.common);
    return convert_checkpoint_to_checkpoint(in, out, options.compact, &options.common);
}
