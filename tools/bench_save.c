/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench save: how fast checkpoints are saved into the current folder. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench.h"

enum { MOST_ROUNDS = 1000 };
enum { KEY_SIZE = 256, KEY_TENSORS, KEY_SHAPE, KEY_ROUNDS, KEY_DEVICE };

typedef struct save_options {
    common common;
    positional words;
    bench_shape shape;
    uint64_t rounds;
} save_options;

/* Seconds of one round, by phase: building the values is no part of the save. */
typedef struct save_round {
    double build_seconds, seconds;
    berth_stats stats;
} save_round;

typedef struct save_bench {
    const save_options *options;
    bench_tensors tensors;
    char folder[32], path[48];
    save_round *rounds;
    size_t n_rounds; /* that are done */
    uint64_t file_nbytes;
    uint64_t peak_nbytes;    /* of memory, above tensors and values; the most of all rounds */
    uint64_t written_nbytes; /* towards the device, by all rounds */
    char durability[16], crc32[8];
} save_bench;

static const struct argp_option own_options[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "of all tensors, e.g. 4GiB (2GiB; llama and small: their own)",
     1},
    {"tensors", KEY_TENSORS, "N", 0, "how many (as many as make 64 MiB each; small: 100,000)", 1},
    {"shape", KEY_SHAPE, "NAME", 0,
     "uniform: all of one size, the default; llama: those of a 1.1 billion parameter model in "
     "bfloat16; small: 1 to 4 KiB each; one: a single tensor",
     1},
    {"rounds", KEY_ROUNDS, "N", 0, "save so often (3)", 1},
    {"device", KEY_DEVICE, "NAME", OPTION_HIDDEN, NULL, 1},
    {0}};

static uint64_t counted(const char *word, uint64_t most, const char *what, struct argp_state *state)
{
    char *end;

    errno = 0;
    uint64_t n = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno || n < 1 || n > most)
        argp_error(state, "%s wants a number from 1 to %" PRIu64 ", not '%s'", what, most, word);
    return n;
}

static error_t parse(int key, char *word, struct argp_state *state)
{
    save_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case KEY_SIZE:
        if (!parse_nbytes(word, &options->shape.nbytes) || !options->shape.nbytes)
            argp_error(state, "--size wants bytes such as 4GiB, not '%s'", word);
        return 0;
    case KEY_TENSORS:
        options->shape.n_tensors = counted(word, 50000000, "--tensors", state);
        return 0;
    case KEY_SHAPE:
        options->shape.name = word;
        return 0;
    case KEY_ROUNDS:
        options->rounds = counted(word, MOST_ROUNDS, "--rounds", state);
        return 0;
    case KEY_DEVICE:
        argp_failure(state, EXIT_TROUBLE, 0,
                     "--device is not part of this version: tensors lie in main memory");
        return 0;
    default:
        return take_positional(key, word, state, &options->words);
    }
}

/* ---- running ---- */

static int remove_file(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return trouble("%s could not be removed: %s", path, strerror(errno));
    return 0;
}

/* Saves once; what is measured about memory and device is measured around just that. */
static int save_once(save_bench *bench, const berth_value *value, const berth_call *call)
{
    save_round *round = &bench->rounds[bench->n_rounds];
    struct stat status;
    berth_error error;

    reset_peak();
    uint64_t resident = resident_nbytes(), written = written_nbytes();
    double begin = seconds_now();
    int code = berth_save(bench->path, value, call, &error);
    round->seconds = seconds_now() - begin;
    if (code < 0)
        return fail(&error);
    uint64_t peak = peak_nbytes();
    if (peak > resident && peak - resident > bench->peak_nbytes)
        bench->peak_nbytes = peak - resident;
    bench->written_nbytes += written_nbytes() - written;
    if (stat(bench->path, &status) != 0)
        return trouble("%s: %s", bench->path, strerror(errno));
    bench->file_nbytes = (uint64_t)status.st_size;
    return 0;
}

static int run_round(save_bench *bench)
{
    save_round *round = &bench->rounds[bench->n_rounds];
    berth_error error;
    berth_call call;
    progress bar;
    char what[48];

    double begin = seconds_now();
    berth_tree *tree = berth_tree_new(&error);
    if (!tree)
        return fail(&error);
    berth_value *value = bench_tensors_value(&bench->tensors, tree);
    round->build_seconds = seconds_now() - begin;
    snprintf(what, sizeof what, "save, round %zu", bench->n_rounds + 1);
    progress_begin(&bar, what, &bench->options->common, &call, &round->stats);
    int code = save_once(bench, value, &call);
    progress_end(&bar);
    berth_tree_free(tree);
    if (code == 0)
        bench->n_rounds++;
    /* Each round creates its file, none replaces one. */
    return remove_file(bench->path) == 0 ? code : EXIT_TROUBLE;
}

static int run_rounds(save_bench *bench)
{
    int code = 0;

    strcpy(bench->folder, "berth-bench-XXXXXX");
    if (!mkdtemp(bench->folder)) {
        code = errno;
        bench->folder[0] = '\0';
        return trouble("a folder for the files cannot be made here: %s", strerror(code));
    }
    snprintf(bench->path, sizeof bench->path, "%s/bench.pt", bench->folder);
    for (uint64_t i = 0; i < bench->options->rounds && code == 0 && !signal_code(0); i++)
        code = run_round(bench);
    if (rmdir(bench->folder) != 0)
        code = trouble("%s could not be removed: %s", bench->folder, strerror(errno));
    return signal_code(code);
}

/* ---- telling ---- */

typedef double (*round_number)(const save_round *round);

static double total_of(const save_round *round)
{
    return round->seconds;
}

static double build_of(const save_round *round)
{
    return round->build_seconds;
}

static double plan_of(const save_round *round)
{
    return round->stats.plan_seconds;
}

static double transfer_of(const save_round *round)
{
    return round->stats.transfer_seconds;
}

static double sync_of(const save_round *round)
{
    return round->stats.sync_seconds;
}

/* Opening, renaming, closing, freeing. */
static double other_of(const save_round *round)
{
    double known = plan_of(round) + transfer_of(round) + sync_of(round);

    return round->seconds > known ? round->seconds - known : 0;
}

static const struct phase_row {
    const char *name;
    round_number number;
} phase_rows[] = {
    {"plan", plan_of}, {"transfer", transfer_of}, {"sync", sync_of}, {"other", other_of}};

enum { N_PHASES = sizeof phase_rows / sizeof phase_rows[0] };

static double median_of(const save_bench *bench, round_number number)
{
    double values[MOST_ROUNDS];

    for (size_t i = 0; i < bench->n_rounds; i++)
        values[i] = number(&bench->rounds[i]);
    return median(values, bench->n_rounds);
}

/* Bytes of tensors, not of the file: what the user wanted moved. */
static double rate(const save_bench *bench, double seconds)
{
    return seconds > 0 ? (double)bench->tensors.nbytes / seconds / 1073741824.0 : 0;
}

static void limits(const save_bench *bench, double *least, double *most)
{
    *least = *most = bench->rounds[0].seconds;
    for (size_t i = 1; i < bench->n_rounds; i++) {
        double seconds = bench->rounds[i].seconds;
        *least = seconds < *least ? seconds : *least;
        *most = seconds > *most ? seconds : *most;
    }
}

static const berth_stats *last_stats(const save_bench *bench)
{
    return &bench->rounds[bench->n_rounds - 1].stats;
}

static json_t *rounds_json(const save_bench *bench)
{
    json_t *array = json_array();

    for (size_t i = 0; i < bench->n_rounds; i++) {
        const save_round *round = &bench->rounds[i];
        json_t *object =
            json_pack("{s:f,s:f,s:f}", "seconds", round->seconds, "GiB_per_s",
                      rate(bench, round->seconds), "build_seconds", round->build_seconds);
        json_t *phases = json_object();
        for (size_t k = 0; k < N_PHASES; k++)
            json_object_set_new(phases, phase_rows[k].name, json_real(phase_rows[k].number(round)));
        json_object_set_new(object, "phases", phases);
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *report_json(const save_bench *bench)
{
    double seconds = median_of(bench, total_of), least, most;
    json_t *phases = json_object();

    limits(bench, &least, &most);
    for (size_t i = 0; i < N_PHASES; i++)
        json_object_set_new(phases, phase_rows[i].name,
                            json_real(median_of(bench, phase_rows[i].number)));
    return json_pack(
        "{s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:b,s:f,s:o,s:I,s:I,s:o}", "GiB_per_s",
        rate(bench, seconds), "seconds", seconds, "seconds_min", least, "seconds_max", most,
        "nbytes", (json_int_t)bench->tensors.nbytes, "file_nbytes", (json_int_t)bench->file_nbytes,
        "tensors", (json_int_t)bench->tensors.n, "shape", bench->options->shape.name, "method",
        last_stats(bench)->method, "reason", last_stats(bench)->reason, "durability",
        bench->durability, "crc32", !strcmp(bench->crc32, "on"), "build_seconds",
        median_of(bench, build_of), "phases", phases, "peak_nbytes", (json_int_t)bench->peak_nbytes,
        "written_nbytes", (json_int_t)(bench->written_nbytes / bench->n_rounds), "rounds",
        rounds_json(bench));
}

/* One object, also with --stats. */
static int print_report(const save_bench *bench)
{
    json_t *report = report_json(bench);

    if (bench->options->common.stats)
        json_object_set_new(report, "stats", stats_json(last_stats(bench)));
    return print_json(report);
}

static int report_text(const save_bench *bench)
{
    double seconds = median_of(bench, total_of), least, most;
    char size[32], peak[32];

    limits(bench, &least, &most);
    printf("%zu tensors (%s), %s; %s (%s), durability %s, CRC-32 %s\n", bench->tensors.n,
           bench->options->shape.name, human_nbytes(bench->tensors.nbytes, size),
           last_stats(bench)->method, last_stats(bench)->reason, bench->durability, bench->crc32);
    printf("%.2f GiB/s: %.4f s, the median of %zu (%.4f to %.4f)\n", rate(bench, seconds), seconds,
           bench->n_rounds, least, most);
    for (size_t i = 0; i < N_PHASES; i++)
        printf("  %-9s %.4f s\n", phase_rows[i].name, median_of(bench, phase_rows[i].number));
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
        common_children,
        NULL,
        NULL};
    save_options options = {.shape = {.name = "uniform"}, .rounds = 3};
    save_bench bench = {.options = &options};
    berth_stats unused;
    berth_call call;
    progress bar;
    int code = EXIT_TROUBLE;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    berth_config_get("save.durability", bench.durability, sizeof bench.durability, NULL);
    berth_config_get("save.compute_crc32", bench.crc32, sizeof bench.crc32, NULL);
    /* From here on a signal only cancels: what was written is removed before this ends. */
    progress_begin(&bar, "save", &options.common, &call, &unused);
    bench.rounds = calloc((size_t)options.rounds, sizeof *bench.rounds);
    if (!bench.rounds)
        trouble("out of memory");
    else if (bench_tensors_list(&options.shape, &bench.tensors) == 0 &&
             bench_tensors_fill(&bench.tensors) == 0)
        code = run_rounds(&bench);
    if (code == EXIT_YES)
        code = options.common.json ? print_report(&bench) : report_text(&bench);
    if (code == EXIT_YES && options.common.stats && !options.common.json)
        print_stats(last_stats(&bench));
    bench_tensors_free(&bench.tensors);
    free(bench.rounds);
    return signal_code(code);
}
