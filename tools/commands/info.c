/* SPDX-License-Identifier: BSD-3-Clause */
/* berth info: what a file is and what it contains. */
#include <berth/config.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/files.h"
#include "tools/common/globals.h"
#include "tools/common/inputs.h"
#include "tools/common/nearest.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/set.h"
#include "tools/common/urls.h"
#include "tools/dcp/dcp.h"

/* What `berth info` was asked, and the sums over all files so far. */
typedef struct info_report {
    const common *options;
    size_t n_files, n_storages, n_tensors;
    uint64_t nbytes, storages_nbytes;
} info_report;

/* Storages that were on one device when they were saved. */
typedef struct device_summary {
    const char *device;
    size_t n_storages;
    uint64_t nbytes;
} device_summary;

static int compare_devices(const void *left, const void *right)
{
    const device_summary *a = left, *b = right;

    return strcmp(a->device, b->device);
}

/* Groups storages by device: a file can name as many as it has storages (P3). */
static size_t group_storages_by_device(device_summary *devices, size_t n)
{
    size_t n_joined = 0;

    qsort(devices, n, sizeof *devices, compare_devices);
    for (size_t i = 0; i < n; i++) {
        device_summary *last = n_joined ? &devices[n_joined - 1] : NULL;
        if (last && !strcmp(last->device, devices[i].device)) {
            last->n_storages++;
            last->nbytes += devices[i].nbytes;
        } else {
            devices[n_joined++] = devices[i];
        }
    }
    return n_joined;
}

/* The devices by name; the caller frees *devices. Returns 0, or EXIT_TROUBLE after printing why. */
static int list_devices_of_storages(const berth_checkpoint *checkpoint, size_t n_storages,
                                    device_summary **devices, size_t *n)
{
    const berth_storage *storage = NULL;

    *n = 0;
    *devices = calloc(n_storages + 1, sizeof **devices);
    if (!*devices)
        return print_trouble("out of memory (%zu storages)", n_storages);
    while (*n < n_storages && (storage = berth_storage_next(checkpoint, storage)) != NULL)
        (*devices)[(*n)++] = (device_summary){.device = berth_storage_get_info(storage)->location,
                                              .n_storages = 1,
                                              .nbytes = berth_storage_get_info(storage)->nbytes};
    *n = group_storages_by_device(*devices, *n);
    return 0;
}

static json_t *devices_json(const device_summary *devices, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array,
                              json_pack("{s:o,s:I,s:I}", "device", text_json(devices[i].device),
                                        "storages", (json_int_t)devices[i].n_storages, "nbytes",
                                        (json_int_t)devices[i].nbytes));
    return array;
}

static json_t *info_json(const berth_info *info)
{
    return json_pack("{s:s,s:s,s:o,s:o,s:s,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:b,s:I,s:I}",
                     "archive", info->archive, "container", info->container, "format_version",
                     info->format_version ? json_integer(info->format_version) : json_null(),
                     "storage_alignment",
                     info->storage_alignment ? json_integer(info->storage_alignment) : json_null(),
                     "byteorder", info->byteorder, "byteorder_recorded", info->byteorder_recorded,
                     "nbytes", (json_int_t)info->nbytes, "records", (json_int_t)info->n_records,
                     "unknown_records", (json_int_t)info->n_unknown_records, "storages",
                     (json_int_t)info->n_storages, "tensors", (json_int_t)info->n_tensors,
                     "storages_nbytes", (json_int_t)info->storages_nbytes, "crc32",
                     (json_int_t)info->n_crc32, "calculated_offsets", info->calculated_offsets,
                     "repacked", info->repacked, "deflated_storages", (json_int_t)info->n_deflated,
                     "behind_nbytes", (json_int_t)info->behind_nbytes);
}

static json_t *set_info_json(const set_facts *facts, const berth_info *info)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "container", facts->container, "files",
                     (json_int_t)facts->n_files, "pieces", (json_int_t)facts->n_pieces, "nbytes",
                     (json_int_t)facts->nbytes, "storages", (json_int_t)info->n_storages, "tensors",
                     (json_int_t)info->n_tensors, "storages_nbytes",
                     (json_int_t)info->storages_nbytes);
}

static void print_set_info(const set_facts *facts, const berth_info *info)
{
    char text[32];

    printf("%-18s %s\n", "container", facts->container);
    printf("%-18s %zu, with %zu pieces\n", "files", facts->n_files, facts->n_pieces);
    printf("%-18s %" PRIu64 " (%s)\n", "bytes", facts->nbytes, human_nbytes(facts->nbytes, text));
    printf("%-18s %zu, %s\n", "storages", info->n_storages,
           human_nbytes(info->storages_nbytes, text));
    printf("%-18s %zu\n", "tensors", info->n_tensors);
}

static void print_number_or_not_recorded(const char *what, int64_t number)
{
    if (number)
        printf("%-18s %" PRId64 "\n", what, number);
    else
        printf("%-18s not recorded\n", what);
}

static void print_storages_by_device(const device_summary *devices, size_t n)
{
    enum { MAX_DEVICES = 32 };
    char text[32];

    for (size_t i = 0; i < n && i < MAX_DEVICES; i++) {
        printf("%-18s ", i ? "" : "devices");
        print_shown(stdout, devices[i].device); /* the file's own text */
        printf(", %zu storages, %s\n", devices[i].n_storages,
               human_nbytes(devices[i].nbytes, text));
    }
    if (n > MAX_DEVICES)
        printf("%-18s and %zu more\n", "", n - MAX_DEVICES);
}

/* What only a zip has. */
static void print_archive(const berth_info *info)
{
    printf("%-18s %s\n", "archive", info->archive);
    print_number_or_not_recorded("format version", info->format_version);
    print_number_or_not_recorded("storage alignment", info->storage_alignment);
    printf("%-18s %zu, %zu of them unknown\n", "records", info->n_records, info->n_unknown_records);
    printf("%-18s %zu records have one\n", "CRC-32", info->n_crc32);
}

static void print_info(const char *path, const berth_info *info)
{
    char text[32];

    printf("%-18s %s\n", "container", info->container);
    if (info->n_records > 0)
        print_archive(info);
    printf("%-18s %s%s\n", "byte order", info->byteorder,
           info->byteorder_recorded ? "" : " (assumed)");
    printf("%-18s %" PRIu64 " (%s)\n", "bytes", info->nbytes, human_nbytes(info->nbytes, text));
    printf("%-18s %zu, %s\n", "storages", info->n_storages,
           human_nbytes(info->storages_nbytes, text));
    printf("%-18s %zu\n", "tensors", info->n_tensors);
    printf("%-18s %s\n", "offsets",
           info->calculated_offsets ? "calculated" : "from the file's own tables");
    if (info->repacked)
        printf("%-18s %s\n", "repacked", REPACKED_ADVICE);
    if (info->n_deflated > 0)
        printf("%-18s %zu storages, inflated when they are asked for; `berth convert` mends it\n",
               "compressed", info->n_deflated);
    if (info->behind_nbytes > 0) {
        printf("%-18s ", "behind the first");
        print_behind(stdout, path, info->nbytes, info->behind_nbytes);
        putchar('\n');
    }
}

static void report_add(info_report *report, const berth_info *info)
{
    report->n_files++;
    report->n_storages += info->n_storages;
    report->n_tensors += info->n_tensors;
    report->nbytes += info->nbytes;
    report->storages_nbytes += info->storages_nbytes;
}

static void report_print_total(const info_report *report)
{
    char nbytes[32], storages[32];

    printf("\n%-18s %zu files, %s; %zu tensors; %zu storages, %s\n", "total", report->n_files,
           human_nbytes(report->nbytes, nbytes), report->n_tensors, report->n_storages,
           human_nbytes(report->storages_nbytes, storages));
}

/* A file that was opened although it is refused: why, and what its pickle names. */
typedef struct refused_file {
    const berth_error *why; /* NULL: it is not refused */
    named_globals globals;
} refused_file;

/* ---- __metadata__ of safetensors ---- */

static json_t *metadata_json(const berth_value *metadata)
{
    json_t *texts = json_object();
    berth_value *key, *text;

    for (size_t i = 0; berth_dict_at(metadata, i, &key, &text); i++)
        json_object_set_new(texts, berth_as_text(key, NULL), text_json(berth_as_text(text, NULL)));
    return texts;
}

/* The first ones, each in one line. */
static void print_metadata(const berth_value *metadata)
{
    enum { MAX_TEXTS = 32 };
    berth_value *key, *text;
    char shown[512];
    size_t i = 0;

    for (; berth_dict_at(metadata, i, &key, &text); i++) {
        if (i >= MAX_TEXTS)
            continue;
        printf("%-18s ", i ? "" : "__metadata__");
        snprintf(shown, sizeof shown, "%s: %s", berth_as_text(key, NULL),
                 berth_as_text(text, NULL));
        shorten(shown);
        print_shown(stdout, shown);
        putchar('\n');
    }
    if (i > MAX_TEXTS)
        printf("%-18s and %zu more\n", "", i - MAX_TEXTS);
}

/* What an open has seen of the file is whole. */
static void print_intact(const char *path)
{
    char word[512];

    bool is_word = print_word(path, word, sizeof word);
    printf("%-18s by its directory; `berth verify%s%s` reads every byte\n", "intact",
           is_word ? " " : "", word);
}

/* Two answers: whether it is whole, and what is not allowed. */
static void print_refused(const char *path, const named_globals *globals)
{
    print_intact(path);
    if (globals_print_refused(globals, "not allowed        it "))
        putchar('\n');
}

static int print_info_report(files *all, const file_set *set, const berth_info *info,
                             const device_summary *devices, size_t n, const berth_stats *stats,
                             const common *options, const refused_file *refused)
{
    if (options->json) {
        json_t *report = set ? set_info_json(set_get_facts(set), info) : info_json(info);
        if (info->metadata)
            json_object_set_new(report, "metadata", metadata_json(info->metadata));
        json_object_set_new(report, "devices", devices_json(devices, n));
        json_object_set_new(report, "allowed", json_boolean(!refused->why));
        if (refused->why) {
            json_object_set_new(report, "reason", text_json(refused->why->message));
            globals_set_json(&refused->globals, report);
        }
        if (options->stats)
            json_object_set_new(report, "stats", stats_json(stats));
        return files_print_json(all, report);
    }
    files_print_heading(all);
    if (set)
        print_set_info(set_get_facts(set), info);
    else
        print_info(all->path, info);
    print_storages_by_device(devices, n);
    print_metadata(info->metadata);
    if (refused->why)
        print_refused(all->path, &refused->globals);
    return print_stats_if_requested(options, stats, finish_output(EXIT_YES));
}

const struct argp info_argp = {
    .parser = parse_plain_options,
    .args_doc = "FILE...",
    .doc =
        "Show what a checkpoint is: container, format version, alignment, byte order, the number "
        "of records, storages and tensors, whether it has checksums, and on which devices its "
        "storages were; of a DCP directory, its files and pieces. An index "
        "(model.safetensors.index.json) stands for its files.",
    .children = common_children};

/* The same as info_open, of a directory: what could not be opened was printed. */
static int info_open_directory(const files *all, const berth_params *call, input *opened,
                               berth_error *refusal, named_globals *globals)
{
    dcp_notes notes;
    berth_error error;
    int code = EXIT_NO;
    bool is_whole = dcp_find_notes(all->path, &notes);

    input_close(opened);
    if (is_whole && berth_config_patch("load.unknown_globals=inert", NULL) == 0) {
        code = input_open_quietly(all->path, call, opened, &error);
        (void)!berth_config_unpatch(NULL);
    }
    const char *why = notes.broken ? notes.broken : notes.refused;
    error_set(refusal, is_whole && !code ? BERTH_E_FORBIDDEN : BERTH_E_ARCHIVE, "%s",
              why ? why : "");
    *globals = notes.globals;
    globals_add(NULL, globals);
    notes.globals = (named_globals){.n_refused = 0};
    dcp_notes_free(&notes);
    return code;
}

/* Opens it, a refused file with its unknown classes as they are; of one that is refused or bad, the
 * globals, too. Returns 0 or an exit code. */
static int info_open(const files *all, const berth_params *call, input *opened,
                     berth_error *refusal, named_globals *globals)
{
    int code = input_open_quietly(all->path, call, opened, refusal);

    if (code == EXIT_NO && refusal->code == 0 && is_dcp_directory(all->path))
        return info_open_directory(all, call, opened, refusal, globals);
    if (code == EXIT_YES || refusal->code != BERTH_E_FORBIDDEN)
        return refusal->code < 0 ? files_fail(all, refusal) : code;
    input_close(opened);
    berth_error error = {.code = BERTH_OK};
    berth_config *config = berth_config_new(NULL);
    berth_params inert = *call;
    inert.config = config;
    code = config && berth_config_apply(config, "load.unknown_globals=inert", NULL) == 0
               ? input_open_quietly(all->path, &inert, opened, &error)
               : EXIT_TROUBLE;
    berth_config_free(config);
    /* Damage first; else the refusal, and then what can be shown all the same. */
    if (code && error.code < 0 && error.code != BERTH_E_FORBIDDEN) {
        *refusal = error;
        return fail(&error);
    }
    int refused = fail(refusal);
    return code ? refused : EXIT_YES;
}

/* An archive that is no checkpoint: its records are all that there is to tell. */
static bool info_of_archive(files *all, const berth_error *why, const common *options)
{
    berth_archive *archive;
    berth_archive_info info;

    if (open_archive(all->path, NULL, &archive, &info, NULL) < 0)
        return false;
    if (options->json) {
        (void)files_print_json(all, json_pack("{s:s,s:o,s:I,s:b,s:o}", "container", "zip",
                                              "archive", text_json(info.name), "records",
                                              (json_int_t)info.n_records, "allowed", false,
                                              "reason", text_json(why->message)));
    } else {
        files_print_heading(all);
        printf("%-18s zip, but no checkpoint\n%-18s %s\n%-18s %zu\n", "container", "archive",
               info.name, "records", info.n_records);
        print_intact(all->path);
        (void)finish_output(EXIT_NO);
    }
    berth_archive_close(archive);
    return true;
}

/* A file that is not whole: both answers all the same. What is wrong was printed. */
static void info_of_bad(files *all, const berth_error *why, const named_globals *globals,
                        const common *options)
{
    if (options->json) {
        json_t *report = json_pack("{s:b,s:b,s:o}", "intact", 0, "allowed",
                                   globals->n_refused == 0 && globals->error.code == 0, "reason",
                                   text_json(why->message));
        globals_set_json(globals, report);
        (void)files_print_json(all, report);
    } else {
        files_print_heading(all);
        printf("%-18s no\n", "intact");
        if (globals->error.code == 0 && globals_print_refused(globals, "not allowed        it "))
            putchar('\n');
        (void)finish_output(EXIT_NO);
    }
}

static int info_of_file(void *context, files *all)
{
    info_report *report = context;
    const common *options = report->options;
    input opened;
    berth_error error;
    berth_info info;
    berth_stats stats = {0};
    berth_params call = {.stats = &stats};
    device_summary *devices = NULL;
    size_t n = 0;
    berth_error refusal;
    refused_file refused = {0};

    int code = info_open(all, &call, &opened, &refusal, &refused.globals);
    if (!code && refusal.code < 0)
        refused.why = &refusal;
    if (!refused.globals.all && (refused.why || code == EXIT_NO))
        globals_find(all->path, &refused.globals);
    bool is_other = refusal.code == BERTH_E_NOT_CHECKPOINT || files_is_missing(all, &refusal);
    bool is_told = code == EXIT_NO && refusal.code == BERTH_E_NOT_CHECKPOINT &&
                   info_of_archive(all, &refusal, options);
    if (code == EXIT_NO && !is_told && (options->json || !is_other))
        info_of_bad(all, &refusal, &refused.globals, options);
    if (code) {
        globals_free(&refused.globals);
        input_close(&opened);
        return print_stats_if_requested(options, &stats, code);
    }
    if (berth_get_info(opened.checkpoint, &info, &error) < 0)
        code = fail(&error);
    else if ((code = list_devices_of_storages(opened.checkpoint, info.n_storages, &devices, &n)) ==
             EXIT_YES)
        code = print_info_report(all, opened.set, &info, devices, n, &stats, options, &refused);
    info.nbytes = opened.set ? set_get_facts(opened.set)->nbytes : info.nbytes;
    if (code == EXIT_YES)
        report_add(report, &info);
    free(devices);
    globals_free(&refused.globals);
    input_close(&opened);
    return code == EXIT_YES && refused.why ? EXIT_NO : code;
}

int run_info(int argc, char **argv)
{
    plain_options options = {.words = {.min = 1, .max = INT_MAX}};
    info_report report = {.options = &options.common};

    parse_options(&info_argp, argc, argv, &options);
    int code = for_each_file(&options.words, &options.common, false, info_of_file, &report);
    if (report.n_files > 1 && !options.common.json) {
        report_print_total(&report);
        return finish_output(code);
    }
    return code;
}
