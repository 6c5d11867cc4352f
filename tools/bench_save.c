/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench save: how fast checkpoints are saved into the current folder. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/bench.h"

enum { KEY_DEVICE = 256 };

typedef struct save_options {
    bench_options bench;
    const char *device; /* NULL: main memory */
    positional words;
} save_options;

typedef struct save_bench {
    const save_options *options;
    bench_tensors tensors;
    bench_folder folder;
    bench_rounds rounds;
    berth_stats stats;             /* of the last round */
    berth_storage_stats *storages; /* of the last round, with --stats */
    uint64_t file_nbytes;
    uint64_t peak_nbytes;    /* of memory, above tensors and values; the most of all rounds */
    uint64_t written_nbytes; /* towards the device, by all rounds */
    char durability[16], crc32[8];
} save_bench;

static const struct argp_option own_options[] = {
    {"device", KEY_DEVICE, "NAME", 0,
     "where the tensors lie: cuda:0, or simulated:0 (cpu: in main memory)", 1},
    {0}};

static error_t parse(int key, char *word, struct argp_state *state)
{
    save_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->bench;
        return 0;
    case KEY_DEVICE:
        options->device = strcmp(word, "cpu") == 0 ? NULL : word;
        return 0;
    default:
        return take_positional(key, word, state, &options->words);
    }
}

/* ---- running ---- */

enum { PLAN, TRANSFER, SYNC, OTHER };

static const char *const phases[] = {"plan", "transfer", "sync", "other", NULL};

static void take_phases(bench_round *round, const berth_stats *stats)
{
    double known = stats->plan_seconds + stats->transfer_seconds + stats->sync_seconds;

    round->phases[PLAN] = stats->plan_seconds;
    round->phases[TRANSFER] = stats->transfer_seconds;
    round->phases[SYNC] = stats->sync_seconds;
    /* Opening, renaming, closing, freeing. */
    round->phases[OTHER] = round->seconds > known ? round->seconds - known : 0;
}

/* Saves once; what is measured about memory and device is measured around just that. */
static int save_once(save_bench *bench, const berth_value *value, const berth_params *call)
{
    bench_round *round = &bench->rounds.items[bench->rounds.n];
    struct stat status;
    berth_error error;

    reset_peak();
    uint64_t resident = resident_nbytes(), written = written_nbytes();
    double begin = seconds_now();
    int code = berth_save(bench->folder.path, value, call, &error);
    round->seconds = seconds_now() - begin;
    if (code < 0)
        return fail(&error);
    take_phases(round, &bench->stats);
    uint64_t peak = peak_nbytes();
    if (peak > resident && peak - resident > bench->peak_nbytes)
        bench->peak_nbytes = peak - resident;
    bench->written_nbytes += written_nbytes() - written;
    if (stat(bench->folder.path, &status) != 0)
        return trouble("%s: %s", bench->folder.path, strerror(errno));
    bench->file_nbytes = (uint64_t)status.st_size;
    return 0;
}

static int run_round(save_bench *bench)
{
    bench_round *round = &bench->rounds.items[bench->rounds.n];
    berth_error error;
    berth_params call;
    progress bar;
    char what[48];

    double begin = seconds_now();
    berth_tree *tree = berth_tree_new(&error);
    if (!tree)
        return fail(&error);
    /* Building the values is no part of the save. */
    berth_value *value = bench_tensors_value(&bench->tensors, tree);
    round->before_seconds = seconds_now() - begin;
    snprintf(what, sizeof what, "save, round %zu", bench->rounds.n + 1);
    progress_begin(&bar, what, &bench->options->bench.common, &call, &bench->stats);
    call.storage_stats = bench->storages;
    call.n_storage_stats = bench->storages ? bench->tensors.n : 0;
    int code = save_once(bench, value, &call);
    progress_end(&bar);
    berth_tree_free(tree);
    if (code == 0)
        bench->rounds.n++;
    /* Each round creates its file, none replaces one. */
    return bench_folder_remove_file(&bench->folder) == 0 ? code : EXIT_TROUBLE;
}

static int run_rounds(save_bench *bench)
{
    if (bench->options->bench.common.stats &&
        !(bench->storages = calloc(bench->tensors.n, sizeof *bench->storages)))
        return trouble("out of memory");
    int code = bench_folder_make(&bench->folder);

    for (uint64_t i = 0; i < bench->options->bench.rounds && code == 0 && !signal_code(0); i++)
        code = run_round(bench);
    if (bench_folder_remove(&bench->folder) != 0)
        code = EXIT_TROUBLE;
    return signal_code(code);
}

/* ---- telling ---- */

enum { MOST_WAYS = 16 };

/* Storages that got to the file in the same way, for the same reason. */
typedef struct way {
    const char *method, *reason;
    uint64_t n, nbytes;
} way;

static size_t collect_ways(const save_bench *bench, way ways[MOST_WAYS])
{
    size_t n = 0;

    for (size_t i = 0; i < bench->tensors.n; i++) {
        const berth_storage_stats *storage = &bench->storages[i];
        size_t at = 0;
        while (at < n && (strcmp(ways[at].method, storage->method) != 0 ||
                          strcmp(ways[at].reason, storage->reason) != 0))
            at++;
        if (at == MOST_WAYS)
            continue;
        if (at == n)
            ways[n++] = (way){.method = storage->method, .reason = storage->reason};
        ways[at].n++;
        ways[at].nbytes += storage->nbytes;
    }
    return n;
}

static json_t *ways_json(const save_bench *bench)
{
    way ways[MOST_WAYS];
    json_t *array = json_array();
    size_t n = collect_ways(bench, ways);

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array,
                              json_pack("{s:s,s:s,s:I,s:I}", "method", ways[i].method, "reason",
                                        ways[i].reason, "n_storages", (json_int_t)ways[i].n,
                                        "nbytes", (json_int_t)ways[i].nbytes));
    return array;
}

static void print_ways(const save_bench *bench)
{
    way ways[MOST_WAYS];
    char nbytes[32];
    size_t n = collect_ways(bench, ways);

    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "storages: %" PRIu64 " of %s, %s (%s)\n", ways[i].n,
                human_nbytes(ways[i].nbytes, nbytes), ways[i].method, ways[i].reason);
}

static const char *device_of(const save_bench *bench)
{
    return bench->options->device ? bench->options->device : "cpu";
}

/* One object, also with --stats. */
static int print_report(const save_bench *bench)
{
    json_t *report = bench_rounds_json(&bench->rounds);

    json_object_update_new(
        report, json_pack("{s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:b,s:I,s:I}", "file_nbytes",
                          (json_int_t)bench->file_nbytes, "tensors", (json_int_t)bench->tensors.n,
                          "shape", bench->options->bench.shape.name, "device", device_of(bench),
                          "method", bench->stats.method, "reason", bench->stats.reason,
                          "durability", bench->durability, "crc32", !strcmp(bench->crc32, "on"),
                          "peak_nbytes", (json_int_t)bench->peak_nbytes, "written_nbytes",
                          (json_int_t)(bench->written_nbytes / bench->rounds.n)));
    if (bench->storages) {
        json_object_set_new(report, "stats", stats_json(&bench->stats));
        json_object_set_new(report, "storages", ways_json(bench));
    }
    return print_json(report);
}

/* Bytes are those of tensors, not of the file: what the user wanted moved. */
static int report_text(const save_bench *bench)
{
    char size[32], peak[32];

    printf("%zu tensors (%s) on %s, %s; %s (%s), durability %s, CRC-32 %s\n", bench->tensors.n,
           bench->options->bench.shape.name, device_of(bench),
           human_nbytes(bench->tensors.nbytes, size), bench->stats.method, bench->stats.reason,
           bench->durability, bench->crc32);
    bench_rounds_print(&bench->rounds);
    printf("memory above tensors and values: %s at most\n", human_nbytes(bench->peak_nbytes, peak));
    return finish_output(EXIT_YES);
}

int run_bench_save(int argc, char **argv)
{
    static const struct argp argp = {
        own_options,
        parse,
        "",
        "Save a checkpoint into the current folder several times, tell how fast, and remove what "
        "was written. The options that count: --set save.durability=none, save.compute_crc32=off, "
        "io.threads=1.",
        bench_children,
        NULL,
        NULL};
    save_options options = {.bench = {.shape = {.name = "uniform"}, .rounds = 3}};
    save_bench bench = {.options = &options,
                        .rounds = {.phases = phases, .before = "build_seconds"}};
    const common *common_options = &options.bench.common;
    berth_params call;
    progress bar;
    int code = EXIT_TROUBLE;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    berth_config_get("save.durability", bench.durability, sizeof bench.durability, NULL);
    berth_config_get("save.compute_crc32", bench.crc32, sizeof bench.crc32, NULL);
    /* From here on a signal only cancels: what was written is removed before this ends. */
    progress_begin(&bar, "save", common_options, &call, &bench.stats);
    if (bench_rounds_begin(&bench.rounds, options.bench.rounds) == 0 &&
        bench_tensors_list(&options.bench.shape, &bench.tensors) == 0 &&
        bench_tensors_fill(&bench.tensors, options.device) == 0)
        code = run_rounds(&bench);
    bench.rounds.nbytes = bench.tensors.nbytes;
    if (code == EXIT_YES)
        code = common_options->json ? print_report(&bench) : report_text(&bench);
    if (code == EXIT_YES && bench.storages && !common_options->json) {
        print_stats(&bench.stats);
        print_ways(&bench);
    }
    free(bench.storages);
    bench_tensors_free(&bench.tensors);
    bench_rounds_free(&bench.rounds);
    return signal_code(code);
}
