/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench save: how fast checkpoints are saved into the current folder. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/bench/bench.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

typedef struct save_bench {
    bench_options options;
    bench_tensors tensors;
    bench_folder folder;
    bench_run run;
    double build_seconds; /* making the values: not part of the save */
    berth_stats stats;
    berth_storage_stats *storages; /* with --stats */
    uint64_t file_nbytes;
    char durability[16], crc32[8];
} save_bench;

/* ---- running ---- */

enum { PLAN, TRANSFER, SYNC, OTHER };

static const char *const phases[] = {"plan", "transfer", "sync", "other", NULL};

static void save_set_phases(save_bench *bench, double seconds)
{
    const berth_stats *stats = &bench->stats;
    double known = stats->plan_seconds + stats->transfer_seconds + stats->sync_seconds;

    bench_run_add_phase_seconds(&bench->run, PLAN, stats->plan_seconds);
    bench_run_add_phase_seconds(&bench->run, TRANSFER, stats->transfer_seconds);
    bench_run_add_phase_seconds(&bench->run, SYNC, stats->sync_seconds);
    /* Opening, renaming, closing, freeing. */
    bench_run_add_phase_seconds(&bench->run, OTHER, seconds > known ? seconds - known : 0);
}

/* Memory and disk are measured around the save alone. */
static int save_once(save_bench *bench)
{
    struct stat status;
    berth_error error;
    berth_params params;
    progress bar;

    double begin = seconds_now();
    berth_tree *tree = berth_tree_new(&error);
    if (!tree)
        return fail(&error);
    const berth_value *value = bench_tensors_value(&bench->tensors, tree);
    bench->build_seconds = seconds_now() - begin;
    progress_begin(&bar, "save", &bench->options.common, &params, &bench->stats);
    params.storage_stats = bench->storages;
    params.n_storage_stats = bench->storages ? bench->tensors.n : 0;
    bench_run_begin_memory_and_disk(&bench->run);
    begin = seconds_now();
    int code = berth_save(bench->folder.path, value, &params, &error);
    save_set_phases(bench, seconds_now() - begin);
    bench_run_end_memory_and_disk(&bench->run);
    progress_finish(&bar);
    berth_tree_free(tree);
    if (code < 0)
        return fail(&error);
    if (stat(bench->folder.path, &status) != 0)
        return print_trouble("%s: %s", bench->folder.path, strerror(errno));
    bench->file_nbytes = (uint64_t)status.st_size;
    return 0;
}

static int save_prepare_and_run(save_bench *bench)
{
    const bench_options *options = &bench->options;
    int code =
        options->words.n
            ? bench_tensors_list_file(&bench->tensors, options->words.words[0])
            : bench_tensors_list_equal_sizes(&bench->tensors, options->n_tensors, options->nbytes);

    if (code == 0)
        code = bench_folder_make(&bench->folder);
    if (code == 0)
        code = bench_tensors_allocate_and_fill(&bench->tensors, bench->options.device);
    if (code == 0 && bench->options.common.stats &&
        !(bench->storages = calloc(bench->tensors.n, sizeof *bench->storages)))
        code = print_trouble("out of memory");
    if (code == 0)
        code = save_once(bench);
    bench->run.nbytes = bench->tensors.nbytes;
    if (bench_folder_remove(&bench->folder) != 0)
        code = EXIT_TROUBLE;
    return caught_signal_code_or(code);
}

/* ---- the report ---- */

enum { MAX_METHODS = 16 };

/* Storages with the same I/O method, chosen for the same reason. */
typedef struct used_method {
    const char *method, *reason;
    uint64_t n, nbytes;
} used_method;

static size_t group_storages_by_method(const save_bench *bench, used_method used[MAX_METHODS])
{
    size_t n = 0;

    for (size_t i = 0; i < bench->tensors.n; i++) {
        const berth_storage_stats *storage = &bench->storages[i];
        size_t at = 0;
        while (at < n && (strcmp(used[at].method, storage->method) != 0 ||
                          strcmp(used[at].reason, storage->reason) != 0))
            at++;
        if (at == MAX_METHODS)
            continue;
        if (at == n)
            used[n++] = (used_method){.method = storage->method, .reason = storage->reason};
        used[at].n++;
        used[at].nbytes += storage->nbytes;
    }
    return n;
}

static const char *save_device_name(const save_bench *bench)
{
    return bench->options.device ? bench->options.device : "cpu";
}

/* One object, also with --stats. */
static int save_print_json_report(const save_bench *bench)
{
    json_t *report = bench_run_json(&bench->run);
    used_method used[MAX_METHODS];

    json_object_update_new(
        report,
        json_pack("{s:f,s:I,s:I,s:s,s:s,s:s,s:s,s:b}", "build_seconds", bench->build_seconds,
                  "file_nbytes", (json_int_t)bench->file_nbytes, "tensors",
                  (json_int_t)bench->tensors.n, "device", save_device_name(bench), "method",
                  bench->stats.method, "reason", bench->stats.reason, "durability",
                  bench->durability, "crc32", !strcmp(bench->crc32, "on")));
    if (bench->storages) {
        json_object_set_new(report, "stats", stats_json(&bench->stats));
        size_t n = group_storages_by_method(bench, used);
        json_t *array = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(array,
                                  json_pack("{s:s,s:s,s:I,s:I}", "method", used[i].method, "reason",
                                            used[i].reason, "n_storages", (json_int_t)used[i].n,
                                            "nbytes", (json_int_t)used[i].nbytes));
        json_object_set_new(report, "storages", array);
    }
    return print_json(report);
}

/* Counts the bytes of tensors, not of the file. */
static int save_print_text_report(const save_bench *bench)
{
    used_method used[MAX_METHODS];
    char size[32], peak[32];

    printf("%zu tensors on %s, %s; %s (%s), durability %s, CRC-32 %s\n", bench->tensors.n,
           save_device_name(bench), human_nbytes(bench->tensors.nbytes, size), bench->stats.method,
           bench->stats.reason, bench->durability, bench->crc32);
    bench_run_print(&bench->run);
    printf("memory beside tensors and values: %s at most\n",
           human_nbytes(bench->run.peak_nbytes, peak));
    if (bench->storages) {
        print_stats(&bench->stats);
        size_t n = group_storages_by_method(bench, used);
        for (size_t i = 0; i < n; i++)
            fprintf(stderr, "storages: %" PRIu64 " of %s, %s (%s)\n", used[i].n,
                    human_nbytes(used[i].nbytes, size), used[i].method, used[i].reason);
    }
    return finish_output(EXIT_YES);
}

static error_t bench_save_parse(int key, char *word, struct argp_state *state)
{
    save_bench *bench = state->input;

    (void)word;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = &bench->options;
    return 0;
}

const struct argp bench_save_argp = {
    .parser = bench_save_parse,
    .args_doc = "[FILE]",
    .doc =
        "Save the tensors of FILE, or tensors of random bytes, into the current folder, print how "
        "long each phase took, and remove the file. Options that matter: --set "
        "save.durability=none, save.compute_crc32=off, io.threads=1. tools/bench/save compares "
        "with other programs.",
    .children = bench_children};

int run_bench_save(int argc, char **argv)
{
    save_bench bench = {.options = {.words = {.max = 1}}, .run = {.phases = phases}};
    berth_params params;
    progress bar;

    parse_options(&bench_save_argp, argc, argv, &bench);
    int code = bench_check_file(&bench.options.words);
    if (code)
        return code;
    option_copy_value("save.durability", bench.durability, sizeof bench.durability);
    option_copy_value("save.compute_crc32", bench.crc32, sizeof bench.crc32);
    /* From here on a signal only cancels, so that the file is removed. */
    progress_begin(&bar, "save", &bench.options.common, &params, &bench.stats);
    code = save_prepare_and_run(&bench);
    if (code == EXIT_YES)
        code = bench.options.common.json ? save_print_json_report(&bench)
                                         : save_print_text_report(&bench);
    free(bench.storages);
    bench_tensors_free(&bench.tensors);
    return caught_signal_code_or(code);
}
