/* SPDX-License-Identifier: BSD-3-Clause */
/* berth verify: checks a file; names bad records and the tensors in them. */
#include <berth/config.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/files.h"
#include "tools/common/globals.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/shards.h"
#include "tools/common/urls.h"
#include "tools/dcp/dcp.h"

/* The number of tensors that are named for a bad record. */
enum { MAX_NAMED = 3 };

typedef struct bad_record {
    char *record;
    uint64_t data_offset, nbytes;
    berth_crc_verdict crc32;
    berth_error error;
    char *tensors[MAX_NAMED]; /* names of the first that view it */
    size_t n_tensors;         /* of all */
} bad_record;

typedef struct findings {
    files *files;
    bad_record *bad; /* in the file's order */
    size_t n, capacity;
    bool is_short; /* of memory */
    berth_verdict verdict;
    berth_error error;
    named_globals globals; /* what its pickle names */
} findings;

static void findings_free(findings *found)
{
    for (size_t i = 0; i < found->n; i++) {
        free(found->bad[i].record);
        for (size_t k = 0; k < MAX_NAMED; k++)
            free(found->bad[i].tensors[k]);
    }
    free(found->bad);
    globals_free(&found->globals);
}

/* ---- bad records ---- */

static bool findings_reserve(findings *found)
{
    if (found->n < found->capacity)
        return true;
    size_t capacity = found->capacity * 2 + 8;
    bad_record *grown = realloc(found->bad, capacity * sizeof *grown);
    if (!grown)
        return false;
    found->bad = grown;
    found->capacity = capacity;
    return true;
}

static void findings_add_bad(void *context, const berth_record_verdict *record)
{
    findings *found = context;
    char *name = record->bad ? strdup(record->name) : NULL;

    if (!record->bad)
        return;
    if (!name || !findings_reserve(found)) {
        free(name);
        found->is_short = true;
        return;
    }
    found->bad[found->n++] = (bad_record){.record = name,
                                          .data_offset = record->offset,
                                          .nbytes = record->nbytes,
                                          .crc32 = record->crc32,
                                          .error = *record->bad};
}

/* ---- the tensors in them ---- */

static int compare_records(const void *left, const void *right)
{
    const bad_record *const *a = left, *const *b = right;

    return strcmp((*a)->record, (*b)->record);
}

static int compare_key(const void *key, const void *element)
{
    const bad_record *const *bad = element;

    return strcmp(key, (*bad)->record + strlen("data/"));
}

/* The *n bad records that are storages, sorted by name; the caller frees it. NULL: no memory. */
static bad_record **findings_list_sorted_bad_storages(const findings *found, size_t *n)
{
    bad_record **storages = calloc(found->n + 1, sizeof *storages);

    *n = 0;
    for (size_t i = 0; storages && i < found->n; i++)
        if (!strncmp(found->bad[i].record, "data/", strlen("data/")))
            storages[(*n)++] = &found->bad[i];
    if (storages)
        qsort(storages, *n, sizeof *storages, compare_records);
    return storages;
}

/* Long names are cut: one can have millions of bytes (P3). */
static void bad_record_add_tensor(bad_record *bad, const char *name)
{
    char text[512];

    if (bad->n_tensors < MAX_NAMED) {
        snprintf(text, sizeof text, "%s", name);
        shorten(text);
        bad->tensors[bad->n_tensors] = strdup(text);
    }
    bad->n_tensors++;
}

static void findings_add_tensors(berth_checkpoint *checkpoint, bad_record **storages, size_t n)
{
    berth_named_tensor named;
    size_t long_nbytes = 0;

    for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
        if (berth_tensor_at(checkpoint, i, &named, NULL) < 0 ||
            are_long_names_too_many(&long_nbytes, strlen(named.name)))
            return;
        if (!named.tensor->storage)
            continue;
        bad_record **bad = bsearch(berth_storage_get_info(named.tensor->storage)->key, storages, n,
                                   sizeof *storages, compare_key);
        if (bad)
            bad_record_add_tensor(*bad, named.name);
    }
}

/* Does nothing if the file cannot be opened: the bad records are already known. */
static void findings_name_tensors(findings *found)
{
    berth_checkpoint *checkpoint = NULL;
    size_t n;
    bad_record **storages = findings_list_sorted_bad_storages(found, &n);
    berth_config *config = n > 0 ? berth_config_new(NULL) : NULL;

    if (config &&
        berth_config_apply(config, "debug=off load.check=directory load.prefetch=off", NULL) == 0 &&
        open_file_or_url(found->files->path, &(berth_params){.config = config}, &checkpoint,
                         NULL) == 0)
        findings_add_tensors(checkpoint, storages, n);
    berth_close(checkpoint);
    berth_config_free(config);
    free(storages);
}

/* ---- the report ---- */

static json_t *offset_json(uint64_t offset)
{
    return offset == BERTH_NO_OFFSET ? json_null() : json_integer((json_int_t)offset);
}

static json_t *bad_record_json(const bad_record *bad)
{
    static const char *const words[] = {"unchecked", "good", "absent", "bad"};
    json_t *tensors = json_array();

    for (size_t i = 0; i < MAX_NAMED && bad->tensors[i]; i++)
        json_array_append_new(tensors, text_json(bad->tensors[i]));
    return json_pack("{s:o,s:I,s:I,s:s,s:o,s:o,s:o,s:I}", "record", text_json(bad->record),
                     "data_offset", (json_int_t)bad->data_offset, "nbytes", (json_int_t)bad->nbytes,
                     "crc32", words[bad->crc32], "offset", offset_json(bad->error.offset), "reason",
                     text_json(bad->error.message), "tensors", tensors, "n_tensors",
                     (json_int_t)bad->n_tensors);
}

/* Two answers: whether the file is whole, and whether its pickle is allowed. */
static bool findings_is_allowed(const findings *found)
{
    return found->error.code == 0 || (!found->verdict.is_intact && found->globals.n_refused == 0 &&
                                      found->globals.error.code == 0);
}

/* A problem that belongs to no record is reported beside them. */
static json_t *findings_json(const findings *found, const berth_stats *stats)
{
    const berth_verdict *verdict = &found->verdict;
    json_t *bad = json_array();

    for (size_t i = 0; i < found->n; i++)
        json_array_append_new(bad, bad_record_json(&found->bad[i]));
    json_t *report = json_pack(
        "{s:b,s:b,s:b,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "ok", found->error.code == 0, "intact",
        found->verdict.is_intact, "allowed", findings_is_allowed(found), "repacked",
        stats->repacked, "records", (json_int_t)verdict->n_records, "storages",
        (json_int_t)verdict->n_storages, "verified", (json_int_t)verdict->n_verified, "unverified",
        (json_int_t)verdict->n_unverified, "nbytes", (json_int_t)verdict->nbytes, "behind_nbytes",
        (json_int_t)verdict->behind_nbytes, "bad", bad);
    globals_set_json(&found->globals, report);
    if (found->error.code < 0 && found->n == 0) {
        json_object_set_new(report, "record", text_json(found->error.record));
        json_object_set_new(report, "offset", offset_json(found->error.offset));
        json_object_set_new(report, "reason", text_json(found->error.message));
    }
    return report;
}

static void print_bad_record(const files *all, const bad_record *bad)
{
    files_print_prefix(all);
    print_shown(stdout, bad->error.message);
    for (size_t i = 0; i < MAX_NAMED && bad->tensors[i]; i++) {
        fputs(i == 0 ? "; in it: " : ", ", stdout);
        print_shown(stdout, bad->tensors[i]);
    }
    if (bad->n_tensors > MAX_NAMED)
        printf(" and %zu more", bad->n_tensors - MAX_NAMED);
    putchar('\n');
}

/* Without the global that the list of all says again. */
static void findings_print_reason(const findings *found)
{
    printf("%.*s", (int)globals_find_said(&found->globals, found->error.message),
           found->error.message);
}

static void findings_print_bad(const findings *found)
{
    for (size_t i = 0; i < found->n; i++)
        print_bad_record(found->files, &found->bad[i]);
    files_print_prefix(found->files);
    if (found->n > 0)
        printf("%sbad%s: %zu of %zu records", paint(RED), paint(PLAIN), found->n,
               found->verdict.n_records);
    else {
        printf("%s%s%s: ", paint(RED),
               files_is_missing(found->files, &found->error) ? "missing" : "bad", paint(PLAIN));
        findings_print_reason(found);
    }
    if (strcmp(found->globals.error.message, found->error.message) != 0) /* said already */
        (void)globals_print_refused(&found->globals, "; it ");
    putchar('\n');
}

/* "ok", or "intact" of a file that is refused all the same: why, and what it names. */
static void print_whole(const findings *found)
{
    const berth_verdict *verdict = &found->verdict;
    bool is_ok = found->error.code == 0;
    char text[32];

    if (!is_ok) {
        files_print_prefix(found->files);
        findings_print_reason(found);
        putchar('\n');
    }
    files_print_prefix(found->files);
    printf("%s%s%s: %zu records, %zu storages, %s; %zu checksums match",
           paint(is_ok ? GREEN : YELLOW), is_ok ? "ok" : "intact", paint(PLAIN), verdict->n_records,
           verdict->n_storages, human_nbytes(verdict->nbytes, text), verdict->n_verified);
    if (verdict->n_unverified)
        printf(", %zu records have none and are unverified", verdict->n_unverified);
    if (!is_ok && found->error.code == BERTH_E_NOT_CHECKPOINT)
        fputs("; but it is no checkpoint", stdout); /* a program's own classes say nothing */
    else if (!is_ok && !globals_print_refused(&found->globals, "; it "))
        fputs("; but its pickle is not allowed", stdout);
    putchar('\n');
}

static void findings_print_behind(const findings *found, const berth_stats *stats)
{
    files_print_prefix(found->files);
    fputs("behind the first: ", stdout);
    print_behind(stdout, found->files->path, stats->requested_nbytes,
                 found->verdict.behind_nbytes); /* all bytes were requested */
    putchar('\n');
}

/* In words or as JSON; the exit code. */
static int findings_print_report(const findings *found, const common *options,
                                 const berth_stats *stats)
{
    int code = found->error.code < 0 ? EXIT_NO : EXIT_YES;

    if (options->json) {
        json_t *value = findings_json(found, stats);
        if (options->stats)
            json_object_set_new(value, "stats", stats_json(stats));
        int printed = files_print_json(found->files, value);
        return printed ? printed : code;
    }
    (void)print_stats_if_requested(options, stats, EXIT_YES);
    if (stats->repacked) {
        files_print_prefix(found->files);
        printf("repacked: %s\n", REPACKED_ADVICE);
    }
    if (found->verdict.is_intact && found->verdict.behind_nbytes > 0)
        findings_print_behind(found, stats);
    if (found->verdict.is_intact)
        print_whole(found);
    else
        findings_print_bad(found);
    return finish_output(code);
}

/* Whether the error is that of the first bad record; if not, the error ended the verification. */
static bool findings_error_is_of_first_bad(const findings *found)
{
    return found->n > 0 &&
           strncmp(found->bad[0].record, found->error.record, sizeof found->error.record - 1) == 0;
}

static int findings_print_verdict_or_error(findings *found, int code, const common *options,
                                           const berth_stats *stats)
{
    if (found->is_short)
        return print_trouble("out of memory");
    bool is_missing = files_is_missing(found->files, &found->error);
    if (code < 0 && !is_missing && exit_code(&found->error) != EXIT_NO &&
        !findings_error_is_of_first_bad(found))
        return print_stats_if_requested(options, stats, fail(&found->error));
    if (caught_signal_code_or(0)) /* cancelled: nobody wants the verdict */
        return print_cancelled(found->files->path);
    berth_error broken; /* the network is no verdict on the file */
    if (!is_missing && url_failed(found->files->path, &broken))
        return fail(&broken);
    findings_name_tensors(found);
    if (found->error.code < 0 || options->json)
        globals_find(found->files->path, &found->globals);
    return findings_print_report(found, options, stats);
}

const struct argp verify_argp = {
    .parser = parse_plain_options,
    .args_doc = "FILE...",
    .doc = "Read whole checkpoints and check them: the archive, its directory against "
           "headers and descriptors, the pickle, the bounds of every tensor, every CRC, "
           "the indices of sparse tensors. List each record that is bad or unreadable, "
           "with the first tensors in it.\n\n"
           "The last line is `ok: ...`, `bad: ...`, or `intact: ...` of a file that is "
           "whole and is refused all the same, for what it is or for the classes and "
           "functions that its pickle names: all of them are listed, and nothing of "
           "them is run. The exit code is 0 for `ok`, else 1. It is 2 without such a "
           "line if the file cannot be read. Of several files, each line begins with "
           "the name of its file, and the exit code is the worst.\n\n"
           "Of a DCP directory, each piece is checked so, and that the pieces are and "
           "fill the tensors that .metadata names. An index "
           "(model.safetensors.index.json) stands for its files; then they must have "
           "every tensor that it names, and the line of a file that is not there is "
           "`missing: ...`.",
    .children = common_children};

/* ---- sets of files ---- */

/* Tensors that the index names, and their files have not. */
typedef struct absent_tensors {
    size_t n;
    const char *names[MAX_NAMED];
    const char *in[MAX_NAMED];
} absent_tensors;

static void find_absent_tensors(const shard_set *set, absent_tensors *absent)
{
    const char *name;
    json_t *file;

    json_object_foreach(set->map, name, file)
    {
        const berth_checkpoint *checkpoint = shard_set_find(set, json_string_value(file));
        if (!checkpoint || berth_dict_get(berth_root(checkpoint), name))
            continue;
        if (absent->n < MAX_NAMED) {
            absent->names[absent->n] = name;
            absent->in[absent->n] = json_string_value(file);
        }
        absent->n++;
    }
}

static json_t *set_json(const shard_set *set, const absent_tensors *absent, bool is_ok)
{
    json_t *list = json_array();

    for (size_t i = 0; i < absent->n && i < MAX_NAMED; i++)
        json_array_append_new(list, json_pack("{s:o,s:o}", "tensor", text_json(absent->names[i]),
                                              "in", text_json(absent->in[i])));
    return json_pack("{s:b,s:I,s:I,s:o,s:I}", "ok", is_ok, "files", (json_int_t)set->n_files,
                     "tensors", (json_int_t)json_object_size(set->map), "absent", list, "n_absent",
                     (json_int_t)absent->n);
}

static void print_set(files *all, const absent_tensors *absent, bool is_ok)
{
    size_t n = json_object_size(all->set->map);

    for (size_t i = 0; i < absent->n && i < MAX_NAMED; i++) {
        files_print_prefix(all);
        fputs("\"", stdout);
        print_shown(stdout, absent->names[i]);
        fputs("\" is not in ", stdout);
        print_shown(stdout, absent->in[i]);
        putchar('\n');
    }
    files_print_prefix(all);
    if (absent->n)
        printf("%sbad%s: %zu of %zu tensors are not in their files\n", paint(RED), paint(PLAIN),
               absent->n, n);
    else if (!is_ok)
        printf("%sbad%s: not all of its %zu files can be opened\n", paint(RED), paint(PLAIN),
               all->set->n_files);
    else
        printf("%sok%s: its %zu tensors are in its %zu files\n", paint(GREEN), paint(PLAIN), n,
               all->set->n_files);
}

/* Of the index, when its files are verified: whether they have what it names. */
static int verify_set(files *all, const common *options)
{
    absent_tensors absent = {0};
    bool is_ok = shard_set_open(all->set, true) == 0;

    find_absent_tensors(all->set, &absent);
    is_ok = is_ok && absent.n == 0;
    if (options->json) {
        int printed = files_print_json(all, set_json(all->set, &absent, is_ok));
        return printed ? printed : is_ok ? EXIT_YES : EXIT_NO;
    }
    print_set(all, &absent, is_ok);
    return finish_output(is_ok ? EXIT_YES : EXIT_NO);
}

static int verify_file(void *context, files *all)
{
    if (all->set)
        return verify_set(all, context);
    if (is_dcp_directory(all->path))
        return dcp_verify(all, context);
    const common *options = context;
    berth_stats stats = {0};
    findings found = {.files = all};
    berth_params params;
    progress bar;

    progress_begin(&bar, "verify", options, &params, &stats);
    berth_source source;
    int code = find_source(all->path, &source, &found.error);
    if (code == 0)
        code =
            berth_verify(&source, &params, findings_add_bad, &found, &found.verdict, &found.error);
    progress_finish(&bar);
    int exit = findings_print_verdict_or_error(&found, code, options, &stats);
    findings_free(&found);
    return exit;
}

int run_verify(int argc, char **argv)
{
    plain_options options = {.words = {.min = 1, .max = INT_MAX}};

    parse_options(&verify_argp, argc, argv, &options);
    return for_each_file(&options.words, &options.common, true, verify_file, &options.common);
}
