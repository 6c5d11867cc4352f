/* SPDX-License-Identifier: BSD-3-Clause */
/* berth ls: the tensors of a checkpoint, or the records of any archive of its kind. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/files.h"
#include "tools/common/inputs.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/select.h"
#include "tools/common/urls.h"

/* Of the files of an index, until it is their turn. */
typedef struct set_total {
    size_t n_files, n_tensors;
    uint64_t nbytes;
    json_t *unlisted; /* tensors of which the index does not say that they are in their file */
} set_total;

typedef struct ls_options {
    selection selected;
    positional words;
    bool records;
    bool exact;
    set_total total;
} ls_options;

/* Of the tensors of one file. */
typedef struct listing {
    files *files;
    ls_options *options;
    bool is_set;  /* tensors lie in several files */
    json_t *rows; /* with --json */
    size_t n_shown, long_nbytes;
    uint64_t nbytes; /* of all that are shown */
} listing;

static const struct argp_option own_options[] = {
    {"records", 'r', NULL, 0, "list the records of the archive instead", 1},
    {"bytes", 'b', NULL, 0, "show sizes in bytes: 1048576, not 1.0 MiB", 1},
    {0}};

static error_t ls_parse(int key, char *word, struct argp_state *state)
{
    ls_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->selected;
        return 0;
    case 'r':
        options->records = true;
        return 0;
    case 'b':
        options->exact = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static const char *tensor_device_name(const berth_tensor *tensor)
{
    return tensor->storage ? berth_storage_get_info(tensor->storage)->location : "meta";
}

static json_t *tensor_json(const berth_named_tensor *named)
{
    const berth_tensor *tensor = named->tensor;
    bool meta = named->offset == BERTH_NO_OFFSET;

    return json_pack(
        "{s:o,s:s,s:o,s:o,s:o,s:I,s:o,s:I,s:o,s:b,s:b}", "name", text_json(named->name), "dtype",
        berth_dtype_name(tensor->dtype), "shape", json_ints(tensor->shape, tensor->rank), "stride",
        json_ints(tensor->stride, tensor->rank), "storage",
        tensor->storage ? text_json(berth_storage_get_info(tensor->storage)->key) : json_null(),
        "storage_offset", (json_int_t)tensor->storage_offset, "offset",
        meta ? json_null() : json_integer((json_int_t)named->offset), "nbytes",
        (json_int_t)berth_tensor_nbytes(tensor), "device", text_json(tensor_device_name(tensor)),
        "requires_grad", named->requires_grad, "parameter", named->parameter);
}

/* "1.0 MiB", or with --bytes "1048576". Buffer of 32 bytes; returned. */
static const char *nbytes_text(const ls_options *options, uint64_t nbytes, char *buffer)
{
    if (!options->exact)
        return human_nbytes(nbytes, buffer);
    snprintf(buffer, 32, "%" PRIu64, nbytes);
    return buffer;
}

static void print_tensor(const ls_options *options, const berth_named_tensor *named)
{
    char shape[256], nbytes[32];
    size_t n = strlen(tensor_device_name(named->tensor));

    shape_text(named->tensor, shape, sizeof shape);
    printf("%s%-13s%s %-20s %12s  ", paint(BLUE), berth_dtype_name(named->tensor->dtype),
           paint(PLAIN), shape, nbytes_text(options, berth_tensor_nbytes(named->tensor), nbytes));
    if (named->offset == BERTH_NO_OFFSET)
        printf("%14s", "-");
    else
        printf("%14" PRIu64, named->offset);
    fputs("  ", stdout);
    print_shown(stdout, tensor_device_name(named->tensor)); /* also the file's own text */
    printf("%*s ", n < 7 ? 7 - (int)n : 0, "");
    print_painted(BOLD, named->name);
    putchar('\n');
}

/* P3: a shared container is entered once. Later paths to it are shown as aliases. */
static int print_alias(void *context, const char *path, const char *first)
{
    (void)context;
    printf("%-13s %-20s %12s  %14s  %-7s ", "alias of", *first ? first : "the whole", "-", "-",
           "-");
    print_shown(stdout, path);
    putchar('\n');
    return 0;
}

/* "9 tensors, 1.3 MiB; 8 storages, 1.0 MiB": tensors can share storages. */
static void listing_print_total(const listing *l, berth_checkpoint *checkpoint)
{
    char text[32];
    berth_info info;
    const char *unit = l->options->exact ? " bytes" : "";
    size_t n = berth_tensor_count(checkpoint);

    if (l->n_shown < n)
        printf("%zu of ", l->n_shown);
    printf("%zu tensor%s, %s%s", n, n == 1 ? "" : "s", nbytes_text(l->options, l->nbytes, text),
           unit);
    if (l->n_shown == n && berth_get_info(checkpoint, &info, NULL) == 0)
        printf("; %zu storage%s, %s%s", info.n_storages, info.n_storages == 1 ? "" : "s",
               nbytes_text(l->options, info.storages_nbytes, text), unit);
    putchar('\n');
}

static uint64_t add_nbytes(uint64_t sum, uint64_t nbytes)
{
    return nbytes > UINT64_MAX - sum ? UINT64_MAX : sum + nbytes;
}

static void total_add_tensor(set_total *total, const files *all, const char *name, uint64_t nbytes)
{
    const char *in = json_string_value(json_object_get(all->part_of->map, name));

    total->n_tensors++;
    total->nbytes = add_nbytes(total->nbytes, nbytes);
    if (in && strcmp(in, all->part) == 0)
        return;
    if (!total->unlisted)
        total->unlisted = json_array();
    json_array_append_new(total->unlisted, json_pack("{s:o,s:o}", "tensor", text_json(name), "in",
                                                     text_json(all->part)));
}

/* Returns 0 or an exit code after printing why. */
static int listing_add_tensor(listing *l, berth_named_tensor *named)
{
    uint64_t nbytes = berth_tensor_nbytes(named->tensor);
    int code = check_total_of_long_names(&l->long_nbytes, strlen(named->path));

    if (code || !selection_has_name(&l->options->selected, named->name))
        return code;
    if (l->is_set)
        named->offset = BERTH_NO_OFFSET;
    l->n_shown++;
    l->nbytes = add_nbytes(l->nbytes, nbytes);
    if (l->files->part_of)
        total_add_tensor(&l->options->total, l->files, named->name, nbytes);
    if (l->rows)
        json_array_append_new(l->rows, tensor_json(named));
    else
        print_tensor(l->options, named);
    return 0;
}

static int listing_end(listing *l, berth_checkpoint *checkpoint)
{
    int code = EXIT_YES;

    if (l->rows)
        return files_print_json(l->files, l->rows);
    if (!selection_has_globs(&l->options->selected))
        code = walk_aliases(berth_root(checkpoint), print_alias, NULL);
    listing_print_total(l, checkpoint);
    return finish_output(code);
}

static int list_tensors(files *all, const input *opened, ls_options *options)
{
    listing l = {.files = all, .options = options, .is_set = opened->set};
    berth_checkpoint *checkpoint = opened->checkpoint;
    berth_named_tensor named;
    berth_error error;
    int code = 0;

    if (options->selected.common.json) {
        l.rows = json_array();
    } else {
        files_print_heading(all);
        printf("%s%-13s %-20s %12s  %14s  %-7s %s%s\n", paint(FAINT), "dtype", "shape", "size",
               "offset", "device", "name", paint(PLAIN));
    }
    for (size_t i = 0; i < berth_tensor_count(checkpoint) && !code; i++)
        code = berth_tensor_at(checkpoint, i, &named, &error) < 0 ? fail(&error)
                                                                  : listing_add_tensor(&l, &named);
    if (code) {
        json_decref(l.rows);
        return code;
    }
    return listing_end(&l, checkpoint);
}

/* Of an index, behind the tensors of its files. */
static int list_set(files *all, ls_options *options)
{
    set_total total = options->total;
    size_t n_files = all->set->n_files, i;
    char text[32];
    json_t *each;

    options->total = (set_total){0};
    if (!total.unlisted)
        total.unlisted = json_array();
    if (options->selected.common.json)
        return files_print_json(
            all, json_pack("{s:I,s:I,s:I,s:o}", "tensors", (json_int_t)total.n_tensors, "nbytes",
                           (json_int_t)total.nbytes, "files", (json_int_t)total.n_files, "unlisted",
                           total.unlisted));
    files_print_heading(all);
    printf("%zu tensor%s, %s%s in ", total.n_tensors, total.n_tensors == 1 ? "" : "s",
           nbytes_text(options, total.nbytes, text), options->exact ? " bytes" : "");
    if (total.n_files < n_files)
        printf("%zu of ", total.n_files);
    printf("%zu file%s\n", n_files, n_files == 1 ? "" : "s");
    json_array_foreach(total.unlisted, i, each)
    {
        putchar('"');
        print_shown(stdout, json_string_value(json_object_get(each, "tensor")));
        fputs("\" in ", stdout);
        print_shown(stdout, json_string_value(json_object_get(each, "in")));
        puts(" is not in the index");
    }
    json_decref(total.unlisted);
    return finish_output(EXIT_YES);
}

static int list_records(files *all, const common *options)
{
    json_t *array = options->json ? json_array() : NULL;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};

    if (open_archive(all->path, &call, &archive, NULL, &error) < 0) {
        json_decref(array);
        return files_fail(all, &error);
    }
    if (!array)
        files_print_heading(all);
    for (size_t i = 0; berth_archive_at(archive, i, &record) == 0; i++) {
        if (array)
            json_array_append_new(
                array, json_pack("{s:o,s:I,s:I,s:I,s:s}", "record", text_json(record.name),
                                 "offset", (json_int_t)record.offset, "nbytes",
                                 (json_int_t)record.nbytes, "crc32", (json_int_t)record.crc32,
                                 "method", record.method ? "deflated" : "stored"));
        else {
            printf("%14" PRIu64 "  %14" PRIu64 "  %08x  %-8s  ", record.offset, record.nbytes,
                   record.crc32, record.method ? "deflated" : "stored");
            print_shown(stdout, record.name);
            putchar('\n');
        }
    }
    berth_archive_close(archive);
    if (options->stats)
        print_stats(&stats);
    return array ? files_print_json(all, array) : finish_output(EXIT_YES);
}

const struct argp ls_argp = {
    .options = own_options,
    .parser = ls_parse,
    .args_doc = "FILE...",
    .doc = "List the tensors of checkpoints: dtype, shape, bytes, offset of the first "
           "element in the file (-: it is compressed, or has no elements), device, and "
           "name: dict keys and list indices joined by dots, or a path like "
           "['model'][0]['a.b'] if two tensors would have one name. A container that is "
           "there again is listed as an alias. The last line has the totals: tensors "
           "can share storages.\n\n"
           "An index (model.safetensors.index.json) stands for its files, and comes "
           "behind them: the totals of all, and the tensors that it does not list. A "
           "DCP directory (torch.distributed.checkpoint) has no offsets: its tensors "
           "are in pieces.",
    .children = selection_children};

static int ls_file(void *context, files *all)
{
    ls_options *options = context;
    input opened;
    berth_error error;
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};

    if (all->set)
        return list_set(all, options);
    if (options->records)
        return list_records(all, &options->selected.common);
    int code = input_open_quietly(all->path, &call, &opened, &error);
    if (error.code < 0)
        code = files_fail(all, &error);
    bool is_open = code == 0;
    if (is_open && !opened.set)
        tell_behind(all->path, opened.checkpoint, stats.behind_nbytes);
    options->total.n_files += is_open && all->part_of;
    if (is_open)
        code = list_tensors(all, &opened, options);
    input_close(&opened);
    if (is_open && options->selected.common.stats)
        print_stats(&stats);
    return code;
}

int run_ls(int argc, char **argv)
{
    ls_options options = {.words = {.min = 1, .max = INT_MAX}};

    parse_options(&ls_argp, argc, argv, &options);
    if (options.records && selection_has_globs(&options.selected))
        return print_trouble("--only and --without do not apply to records");
    int code = for_each_file(&options.words, &options.selected.common, !options.records, ls_file,
                             &options);
    return code ? code : selection_check_used(&options.selected, options.words.words[0]);
}
