/* SPDX-License-Identifier: BSD-3-Clause */
/* berth ls: the tensors of a checkpoint, or the records of any archive of its kind. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tools/shared.h"

typedef struct ls_options {
    common common;
    positional words;
    bool records;
} ls_options;

static const struct argp_option own_options[] = {
    {"records", 'r', NULL, 0, "list the records of the archive instead", 1}, {0}};

static error_t ls_parse(int key, char *word, struct argp_state *state)
{
    ls_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'r':
        options->records = true;
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

static void print_tensor(const berth_named_tensor *named)
{
    char shape[256];
    size_t n = strlen(tensor_device_name(named->tensor));

    shape_text(named->tensor, shape, sizeof shape);
    printf("%-13s %-20s %12" PRIu64 "  ", berth_dtype_name(named->tensor->dtype), shape,
           berth_tensor_nbytes(named->tensor));
    if (named->offset == BERTH_NO_OFFSET)
        printf("%14s", "-");
    else
        printf("%14" PRIu64, named->offset);
    fputs("  ", stdout);
    print_without_control_chars(stdout,
                                tensor_device_name(named->tensor)); /* also the file's own text */
    printf("%*s ", n < 7 ? 7 - (int)n : 0, "");
    print_without_control_chars(stdout, named->name);
    putchar('\n');
}

/* P3: a shared container is entered once. Later paths to it are shown as aliases. */
static int print_alias(void *context, const char *path, const char *first)
{
    (void)context;
    printf("%-13s %-20s %12s  %14s  %-7s ", "alias of", *first ? first : "the whole", "-", "-",
           "-");
    print_without_control_chars(stdout, path);
    putchar('\n');
    return 0;
}

static int list_tensors(files *all, berth_checkpoint *checkpoint, bool json)
{
    json_t *array = json ? json_array() : NULL;
    size_t n = berth_tensor_count(checkpoint), long_nbytes = 0;
    berth_named_tensor named;
    berth_error error;
    int code;

    if (!json) {
        files_print_heading(all);
        printf("%-13s %-20s %12s  %14s  %-7s %s\n", "dtype", "shape", "bytes", "offset", "device",
               "name");
    }
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(checkpoint, i, &named, &error) < 0) {
            json_decref(array);
            return fail(&error);
        }
        if ((code = check_total_of_long_names(&long_nbytes, strlen(named.path))) != 0) {
            json_decref(array);
            return code;
        }
        if (json)
            json_array_append_new(array, tensor_json(&named));
        else
            print_tensor(&named);
    }
    if (json)
        return files_print_json(all, array);
    code = walk_aliases(berth_root(checkpoint), print_alias, NULL);
    return code ? code : finish_output(EXIT_YES);
}

static int list_records(files *all, const common *options)
{
    json_t *array = options->json ? json_array() : NULL;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};
    const berth_source source = berth_from_path(all->path);

    if (berth_archive_open(&source, &call, &archive, &error) < 0) {
        json_decref(array);
        return fail(&error);
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
            print_without_control_chars(stdout, record.name);
            putchar('\n');
        }
    }
    berth_archive_close(archive);
    if (options->stats)
        print_stats(&stats);
    return array ? files_print_json(all, array) : finish_output(EXIT_YES);
}

const struct argp ls_argp = {
    own_options,
    ls_parse,
    "FILE...",
    "List the tensors of checkpoints: dtype, shape, bytes, offset of the first element in "
    "the file (-: it is compressed, or has no elements), device, and name: dict keys and list "
    "indices joined by dots, or a path like ['model'][0]['a.b'] if two tensors would have one "
    "name. A container that is there again is listed as an alias.",
    common_children,
    NULL,
    NULL};

static int ls_file(void *context, files *all)
{
    const ls_options *options = context;
    berth_checkpoint *checkpoint;
    berth_error error;
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};

    if (options->records)
        return list_records(all, &options->common);
    if (berth_open(all->path, &call, &checkpoint, &error) < 0)
        return fail(&error);
    int code = list_tensors(all, checkpoint, options->common.json);
    berth_close(checkpoint);
    if (options->common.stats)
        print_stats(&stats);
    return code;
}

int run_ls(int argc, char **argv)
{
    ls_options options = {.words = {.min = 1, .max = INT_MAX}};

    parse_options(&ls_argp, argc, argv, &options);
    return for_each_file(&options.words, &options.common, ls_file, &options);
}
