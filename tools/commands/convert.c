/* SPDX-License-Identifier: BSD-3-Clause */
/* berth convert: .pt, .pth, .bin <-> .safetensors, and old to new .pt. */
#include <berth/config.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "adapters/curl/berth_curl.h"
#include "tools/commands/commands.h"
#include "tools/commands/convert.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/select.h"
#include "tools/common/shards.h"

typedef struct convert_options {
    selection selected;
    positional words;
    bool tensors_only;
    bool compact;
    bool keep_ties;
    bool state_dict;
    const char *to;        /* "pt" or "safetensors"; NULL: the name of OUT says it */
    uint64_t shard_nbytes; /* 0: not set */
    const char *base;      /* NULL: as save.base says */
} convert_options;

static const struct argp_option own_options[] = {
    {"tensors-only", 't', NULL, 0,
     "leave out what safetensors cannot express instead of refusing the file", 1},
    {"compact", 'c', NULL, 0,
     "between checkpoints: leave out bytes of storages that no tensor uses", 1},
    {"keep-ties", 'T', NULL, 0,
     "to safetensors: write a tensor that has several names once; only __metadata__ has the others",
     1},
    {"state-dict", 'd', NULL, 0,
     "write each pickled module as its state_dict, by the names that this has; nothing is run", 1},
    {"to", 'o', "FORMAT", 0, "pt or safetensors, whatever the name of OUT", 1},
    {"shard-size", 's', "SIZE", 0,
     "to an index: so large is a file at most, unless one tensor is larger: 5GB, 500MiB (5GB)", 1},
    BASE_OPTION,
    {0}};

static error_t convert_parse(int key, char *word, struct argp_state *state)
{
    convert_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->selected;
        return 0;
    case 't':
        options->tensors_only = true;
        return 0;
    case 'c':
        options->compact = true;
        return 0;
    case 'T':
        options->keep_ties = true;
        return 0;
    case 'd':
        options->state_dict = true;
        return 0;
    case 'o':
        if (strcmp(word, "pt") != 0 && strcmp(word, "safetensors") != 0)
            print_usage_error_and_exit(state, "--to: '%s' is not pt or safetensors", word);
        options->to = word;
        return 0;
    case 's':
        options->shard_nbytes = parse_nbytes(word, "--shard-size", state);
        return 0;
    case 'b':
        options->base = word;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

/* What is read, and how it is written. */
typedef struct conversion {
    const char *in, *out;
    convert_options *options;
    berth_checkpoint *checkpoint;
    const berth_value *value; /* what is written */
    berth_info info;
    const berth_value *metadata; /* of safetensors */
    berth_tree *metadata_tree;   /* that it is of, if it is not the file's */
    berth_tree *modules_tree;    /* that it is of with --state-dict */
    berth_tree *selected_tree;   /* that it is of, if some of it is chosen */
    berth_tree *tree;            /* of a compact copy; or NULL */
    bool to_safetensors;
} conversion;

static int conversion_save(const conversion *c, const berth_params *params, berth_error *error)
{
    uint32_t flags = (c->options->tensors_only ? BERTH_TENSORS_ONLY : 0) |
                     (c->options->keep_ties ? 0 : BERTH_COPY_TIES);
    const berth_value *value =
        c->tree ? berth_value_copy(c->tree, c->value, BERTH_COPY_COMPACT) : c->value;

    if (!value)
        return berth_tree_error(c->tree, error);
    const berth_content content = c->to_safetensors
                                      ? berth_of_safetensors(c->value, c->metadata, flags)
                                      : berth_of_value(value);
    return save_output(c->out, &content, params, error);
}

/* Texts of __metadata__ that say neither the usual "format" nor which tensors are tied. */
static size_t conversion_count_other_metadata(const conversion *c)
{
    const berth_value *metadata = c->info.metadata;
    size_t n = 0;

    for (size_t i = 0; i < berth_value_count(metadata); i++) {
        berth_value *key, *text;
        (void)berth_dict_at(metadata, i, &key, &text);
        const char *name = berth_as_text(key, NULL);
        n += strcmp(name, "format") != 0 && !berth_dict_get(berth_root(c->checkpoint), name);
    }
    return n;
}

/* What the new file does not hold. */
static void conversion_tell_what_is_left_out(const conversion *c, const berth_stats *stats)
{
    size_t n_texts = c->to_safetensors ? 0 : conversion_count_other_metadata(c);

    if (c->options->selected.common.quiet)
        return;
    if (stats->n_left_out)
        (void)print_trouble("%s: left out %" PRIu64 " value%s that %s", c->in, stats->n_left_out,
                            stats->n_left_out == 1 ? "" : "s",
                            stats->n_left_out == 1 ? "is not a plain tensor"
                                                   : "are not plain tensors");
    if (n_texts)
        (void)print_trouble("%s: left out %zu entr%s of __metadata__", c->in, n_texts,
                            n_texts == 1 ? "y" : "ies");
}

static bool conversion_can_be_planned(const conversion *c, uint32_t flags)
{
    const berth_target target = output_target(c->out);
    const berth_content content = berth_of_safetensors(c->value, c->metadata, flags);
    berth_plan *plan = berth_plan_new(&target, &content, NULL, NULL, NULL);

    berth_plan_free(plan);
    return plan != NULL;
}

static int conversion_fail(const conversion *c, berth_error *error)
{
    if (error->code != BERTH_E_UNSUPPORTED || !c->to_safetensors)
        return fail(error);
    bool helps = !conversion_can_be_planned(c, 0) && !c->options->tensors_only &&
                 conversion_can_be_planned(c, BERTH_TENSORS_ONLY);

    if (value_has_modules(c->value))
        return print_trouble("%s; --state-dict writes the state_dict of a pickled module",
                             error->message);
    return print_trouble("%s%s", error->message, helps ? "; --tensors-only leaves it out" : "");
}

/* To an index and its files. */
static int conversion_write_shards(const conversion *c)
{
    const convert_options *options = c->options;
    const shards_to_write shards = {.index = c->out,
                                    .value = c->value,
                                    .metadata = c->metadata,
                                    .options = &options->selected.common,
                                    .max_nbytes = options->shard_nbytes,
                                    .to_safetensors = c->to_safetensors,
                                    .tensors_only = options->tensors_only,
                                    .copy_ties = c->to_safetensors && !options->keep_ties,
                                    .compact = options->compact};

    register_remark_printer(&options->selected.common);
    return shards_write(&shards);
}

static int conversion_run(const conversion *c)
{
    berth_stats stats = {0};
    berth_error error;
    berth_params params;
    progress bar;

    register_remark_printer(&c->options->selected.common);
    progress_begin(&bar, "convert", &c->options->selected.common, &params, &stats);
    params.base = c->options->base;
    int code = conversion_save(c, &params, &error);
    progress_finish(&bar);
    if (code == 0)
        conversion_tell_what_is_left_out(c, &stats);
    return print_stats_if_requested(&c->options->selected.common, &stats,
                                    code < 0 ? conversion_fail(c, &error) : EXIT_YES);
}

/* Safetensors holds only the bytes of its tensors. */
static int conversion_check_compact(const conversion *c)
{
    if (!c->options->compact ||
        (!c->to_safetensors && strcmp(c->info.container, "safetensors") != 0))
        return 0;
    return print_trouble("--compact does not apply: safetensors holds only the bytes of its "
                         "tensors");
}

/* Entries that name tied tensors are written anew: of those that were left out, none may be. */
static int conversion_set_metadata(conversion *c)
{
    const berth_value *all = c->info.metadata;
    berth_error error;

    c->metadata = all;
    if (!all || selection_is_all(&c->options->selected))
        return 0;
    berth_tree *tree = c->metadata_tree = berth_tree_new(&error);
    berth_value *some = tree ? berth_make_dict(tree, BERTH_KIND_DICT) : NULL;
    for (size_t i = 0; some && i < berth_value_count(all); i++) {
        berth_value *key, *text;
        (void)berth_dict_at(all, i, &key, &text);
        if (!berth_dict_get(berth_root(c->checkpoint), berth_as_text(key, NULL)))
            (void)berth_dict_set_value(some, berth_value_copy(tree, key, 0),
                                       berth_value_copy(tree, text, 0));
    }
    c->metadata = some;
    return tree && berth_tree_error(tree, &error) == 0 ? 0 : fail(&error);
}

static int conversion_open_and_run(conversion *c)
{
    berth_error error;
    input opened;

    /* It must not hide that the input is broken: its output has new checksums. */
    option_set_default("load.check", "data");
    option_set_default("load.tied_names", "rule");
    if (c->options->state_dict)
        option_set_default("load.unknown_globals", "inert");
    note_input(is_standard(c->options->words.words[0]) ? "-" : c->in);
    int code = input_open_selected(c->in, NULL, &c->options->selected, &opened);
    limit_readers_of(c->out);
    c->checkpoint = opened.checkpoint;
    if (!code && berth_get_info(c->checkpoint, &c->info, &error) < 0)
        code = fail(&error);
    if (!code)
        code = conversion_check_compact(c);
    if (!code)
        code = select_root(&c->options->selected, c->checkpoint, &c->value);
    if (!code && c->options->state_dict)
        code = modules_to_state_dicts(c->in, c->options->selected.common.quiet, &c->modules_tree,
                                      &c->value);
    if (!code)
        code = select_values(&c->options->selected, c->in, &c->selected_tree, &c->value);
    if (!code)
        code = conversion_set_metadata(c);
    if (!code && c->options->compact && !(c->tree = berth_tree_new(&error)))
        code = fail(&error);
    if (!code && !is_shard_index(c->out))
        code = check_in_place_output_is_not_read(c->out);
    if (!code)
        code = is_shard_index(c->out) ? conversion_write_shards(c) : conversion_run(c);
    berth_tree_free(c->tree);
    berth_tree_free(c->selected_tree);
    berth_tree_free(c->modules_tree);
    berth_tree_free(c->metadata_tree);
    input_close(&opened);
    return code;
}

const struct argp convert_argp = {
    .options = own_options,
    .parser = convert_parse,
    .args_doc = "IN OUT",
    .doc = "Convert between checkpoints (.pt, .pth, .bin, .ckpt) and .safetensors. "
           "OUT's extension or --to decides; IN may have any name; - is standard input "
           "or output. IN can be a DCP directory (torch.distributed.checkpoint), or the "
           "index of a set of files. OUT can be an index, model.safetensors.index.json "
           "or pytorch_model.bin.index.json, of a dict of tensors: its files "
           "model-00001-of-00002.safetensors, ... are written beside it.\n\n"
           "From checkpoint to checkpoint, write an older, repacked or compressed file "
           "in today's format.\n\n"
           "To safetensors, which has no views: each is written in full, and so is each "
           "name of tied tensors. With --keep-ties it holds one of them, and "
           "__metadata__ names the others: only programs that tie them anew, as "
           "load_model, should read that. Attributes of state_dicts are left out. Any "
           "other value is an error that names it, unless --tensors-only is set.\n\n"
           "With --state-dict a pickled torch.nn.Module, as torch.save(model) writes "
           "it, becomes what its state_dict() would give, without extra states; --only "
           "and --without choose among the names of that. Else --only, --without and "
           "--root write some of the values; in a list or tuple the others move up.\n\n"
           "Checksums are compared first, and indices of sparse tensors checked; --set "
           "load.check=directory skips that. Nobody can read a new file who could not "
           "read all of IN, unless --set save.readers=all.",
    .children = selection_and_root_children};

/* What the file becomes, by --to or its name. Returns 0, or EXIT_TROUBLE after printing why. */
static int choose_format(const char *out, const char *to, bool *to_safetensors)
{
    if (is_shard_index(out))
        return to ? print_trouble(
                        "%s: --to does not apply: the name of an index says what its files "
                        "are",
                        out)
                  : shards_choose_format(out, to_safetensors);
    *to_safetensors = to ? strcmp(to, "safetensors") == 0 : has_extension(out, ".safetensors");
    if (to || *to_safetensors || has_extension(out, ".pt") || has_extension(out, ".pth") ||
        has_extension(out, ".bin") || has_extension(out, ".ckpt"))
        return 0;
    if (is_standard(out))
        return print_trouble("-: --to pt or --to safetensors must set the format");
    return print_trouble("%s: the name must end in .pt, .pth, .bin, .ckpt or .safetensors, or --to "
                         "must be there: it sets the format",
                         out);
}

int run_convert(int argc, char **argv)
{
    convert_options options = {.words = {.min = 2, .max = 2}};

    parse_options(&convert_argp, argc, argv, &options);
    conversion c = {.out = options.words.words[1], .options = &options};
    if (options.shard_nbytes && !is_shard_index(c.out))
        return print_trouble("--shard-size does not apply: OUT is no index, such as "
                             "model.safetensors.index.json");
    if (options.base && is_shard_index(c.out))
        return print_trouble("--base does not apply: OUT is an index, whose files are several");
    if (berth_is_url(c.out) && is_shard_index(c.out))
        return print_trouble("%s: an index and its files are only written to a folder", c.out);
    if (refuse_empty(c.out) || choose_format(c.out, options.to, &c.to_safetensors) ||
        check_output(c.out, &options.selected.common) ||
        !(c.in = input_path(options.words.words[0])) || check_in_place_output_has_name(c.in, c.out))
        return EXIT_TROUBLE;
    return conversion_open_and_run(&c);
}
