/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench load: how fast a checkpoint becomes memory, or only opens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_load.h"

enum { KEY_COLD = 256, KEY_WARM, KEY_OPEN, KEY_DEVICE };

typedef struct load_options {
    bench_options bench;
    positional words;
    bool is_cold;
    bool is_warm;
    bool only_open;
    const char *device; /* NULL: main memory */
} load_options;

typedef struct load_bench {
    const load_options *options;
    bench_folder folder; /* of the file, if this made it */
    load_subject subject;
    bench_rounds rounds;
    bench_rounds parses;     /* of data.pkl alone, with --open */
    load_round last;         /* the last round */
    uint64_t peak_nbytes;    /* of memory; the most of all rounds */
    uint64_t fetched_nbytes; /* from the device, by all rounds */
    double residency;        /* before the rounds: cold, the most; else the least; -1: not told */
    char check[16], prefetch[16];
} load_bench;

static const struct argp_option own_options[] = {
    {"cold", KEY_COLD, NULL, 0,
     "before each round, evict the file from the page cache; says so if it could not", 1},
    {"warm", KEY_WARM, NULL, 0, "before each round, read the file into it: the default", 1},
    {"open", KEY_OPEN, NULL, 0, "only open it, until every tensor has its name and address", 1},
    {"device", KEY_DEVICE, "NAME", 0,
     "where all storages go: cuda:0, or simulated:0 (cpu: to main memory)", 1},
    {0}};

static const char *const load_phases[] = {"open", "names", "transfer", "touch", NULL};
static const char *const open_phases[] = {"open", "names", "addresses", NULL};
static const char *const no_phases[] = {NULL};

static error_t parse(int key, char *word, struct argp_state *state)
{
    load_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->bench;
        return 0;
    case KEY_COLD:
        options->is_cold = true;
        return 0;
    case KEY_WARM:
        options->is_warm = true;
        return 0;
    case KEY_OPEN:
        options->only_open = true;
        return 0;
    case KEY_DEVICE:
        options->device = strcmp(word, "cpu") == 0 ? NULL : word;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (options->is_cold && options->is_warm)
            usage_error(state, "--cold and --warm exclude each other");
        if (options->only_open && options->device)
            usage_error(state, "--open brings nothing to a device: --device does not apply");
        if (options->words.n && options->bench.is_shaped)
            usage_error(state, "a file has its own tensors: --size, --tensors and --shape do not "
                               "apply");
        return 0;
    default:
        return take_positional(key, word, state, &options->words);
    }
}

/* ---- the file ---- */

static int make_file(load_bench *bench)
{
    const bench_options *options = &bench->options->bench;
    bench_tensors tensors = {0};
    int code = bench_tensors_list(&options->shape, &tensors);

    if (code == 0)
        code = bench_tensors_fill(&tensors, NULL);
    if (code == 0)
        code = bench_folder_make(&bench->folder);
    if (code == 0)
        code = bench_tensors_save(&tensors, bench->folder.path, &options->common);
    bench_tensors_free(&tensors);
    bench->subject.path = bench->folder.path;
    return code;
}

/* Opens it, which takes long once a process: no round pays for that. */
static int open_device(const char *device)
{
    uintptr_t nothing;
    berth_error error;

    return device && berth_device_memory_new(device, 0, &nothing, &error) < 0 ? fail(&error) : 0;
}

/* ---- running ---- */

/* Cold, or warm, and how much of the file is really in the page cache. */
static int set_cache(load_bench *bench)
{
    const char *path = bench->subject.path;
    bool is_cold = bench->options->is_cold;
    int code = is_cold ? file_evict(path) : file_warm(path);
    double part = file_residency(path);

    if (code != 0)
        return code;
    if (bench->rounds.n == 0 || part < 0 ||
        (is_cold ? part > bench->residency : part < bench->residency))
        bench->residency = part;
    return 0;
}

/* Loads once; what is measured about memory and device is measured around just that. */
static int load_once(load_bench *bench, const berth_params *call)
{
    bench_round *round = &bench->rounds.items[bench->rounds.n];

    reset_peak();
    uint64_t resident = resident_nbytes(), fetched = fetched_nbytes();
    int code = load_run(&bench->subject, call, bench->options->only_open, &bench->last);
    uint64_t peak = peak_nbytes();
    if (peak > resident && peak - resident > bench->peak_nbytes)
        bench->peak_nbytes = peak - resident;
    bench->fetched_nbytes += fetched_nbytes() - fetched;
    for (size_t i = 0; bench->rounds.phases[i]; i++) {
        round->phases[i] = bench->last.phases[i];
        round->seconds += round->phases[i];
    }
    load_round_end(&bench->last);
    return code;
}

static int run_round(load_bench *bench)
{
    const load_options *options = bench->options;
    berth_params call;
    progress bar;
    char what[48];

    double begin = seconds_now();
    int code = set_cache(bench);
    bench->rounds.items[bench->rounds.n].before_seconds = seconds_now() - begin;
    if (code != 0 || signal_code(0))
        return code;
    snprintf(what, sizeof what, "load, round %zu", bench->rounds.n + 1);
    progress_begin(&bar, what, &options->bench.common, &call, NULL);
    code = load_once(bench, &call);
    progress_end(&bar);
    bench->rounds.n += code == 0;
    if (code == 0 && options->only_open && bench->subject.pickle_nbytes) {
        code = load_parse(&bench->subject, &bench->parses.items[bench->parses.n].seconds);
        bench->parses.n += code == 0;
    }
    return code;
}

static int run_rounds(load_bench *bench)
{
    uint64_t n = bench->options->bench.rounds;
    int code = load_look_at(&bench->subject);

    bench->rounds.nbytes = bench->subject.nbytes;
    bench->parses.nbytes = bench->subject.pickle_nbytes;
    if (code == 0)
        code = bench_rounds_begin(&bench->rounds, n);
    if (code == 0)
        code = bench_rounds_begin(&bench->parses, n);
    for (uint64_t i = 0; i < n && code == 0 && !signal_code(0); i++)
        code = run_round(bench);
    return signal_code(code);
}

/* ---- telling ---- */

/* Of a cold file some pages stay, where another process has it mapped or the system is busy. */
static bool was_cold(const load_bench *bench)
{
    return bench->options->is_cold && bench->residency >= 0 && bench->residency <= 0.01;
}

static void remark_residency(const load_bench *bench)
{
    const char *path = bench->subject.path;

    if (bench->options->bench.common.quiet)
        return;
    if (bench->residency < 0)
        fprintf(stderr, "berth: %s: the system does not tell how much of it was in memory before\n",
                path);
    else if (bench->options->is_cold && !was_cold(bench))
        fprintf(stderr, "berth: %s: it could not be evicted: %.0f %% stayed in the page cache\n",
                path, bench->residency * 100);
    else if (!bench->options->is_cold && bench->residency < 0.99)
        fprintf(stderr, "berth: %s: only %.0f %% of it were in the page cache\n", path,
                bench->residency * 100);
}

/* Else the statistics of opening are all there is. */
static bool has_fetched(const load_round *round)
{
    return round->fetch.n_storages > 0;
}

static const char *device_of(const load_bench *bench)
{
    return bench->subject.device ? bench->subject.device : "cpu";
}

/* One object, also with --stats. */
static int print_report(const load_bench *bench)
{
    const load_options *options = bench->options;
    const load_round *last = &bench->last;
    json_t *report = bench_rounds_json(&bench->rounds);

    json_object_update_new(
        report,
        json_pack(
            "{s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:b,s:o,s:I,s:I,s:I,s:I,s:I}", "file_nbytes",
            (json_int_t)bench->subject.file_nbytes, "tensors", (json_int_t)bench->subject.n_tensors,
            "storages", (json_int_t)bench->subject.n_storages, "device", device_of(bench), "method",
            last->method, "reason", last->reason, "check", bench->check, "prefetch",
            bench->prefetch, "cold", was_cold(bench), "resident_before",
            bench->residency < 0 ? json_null() : json_real(bench->residency), "open_requests",
            (json_int_t)last->open.n_requests, "n_requests",
            (json_int_t)last->open.n_requests + (json_int_t)last->fetch.n_requests, "moved_nbytes",
            (json_int_t)last->open.moved_nbytes + (json_int_t)last->fetch.moved_nbytes,
            "fetched_nbytes", (json_int_t)(bench->fetched_nbytes / bench->rounds.n), "peak_nbytes",
            (json_int_t)bench->peak_nbytes));
    if (!options->words.n)
        json_object_set_new(report, "shape", json_string(options->bench.shape.name));
    if (bench->parses.n)
        json_object_set_new(report, "parse", bench_rounds_json(&bench->parses));
    if (options->bench.common.stats)
        json_object_set_new(report, "stats",
                            stats_json(has_fetched(last) ? &last->fetch : &last->open));
    return print_json(report);
}

static int report_text(load_bench *bench)
{
    const load_round *last = &bench->last;
    char size[32], peak[32];

    printf("%zu tensors, %s to %s; %s (%s), check %s, %s\n", bench->subject.n_tensors,
           human_nbytes(bench->subject.nbytes, size), device_of(bench), last->method, last->reason,
           bench->check,
           was_cold(bench)           ? "cold"
           : bench->options->is_cold ? "meant to be cold"
                                     : "warm");
    bench_rounds_print(&bench->rounds);
    printf("requests: %llu, %llu of them to open it; memory: %s at most\n",
           (unsigned long long)last->open.n_requests + last->fetch.n_requests,
           (unsigned long long)last->open.n_requests, human_nbytes(bench->peak_nbytes, peak));
    if (bench->parses.n) {
        fputs("parsing data.pkl, from memory: ", stdout);
        bench_rounds_print(&bench->parses);
    }
    return finish_output(EXIT_YES);
}

static int report(load_bench *bench)
{
    const common *options = &bench->options->bench.common;

    remark_residency(bench);
    if (options->json)
        return print_report(bench);
    int code = report_text(bench);
    if (code == EXIT_YES && options->stats)
        print_stats(has_fetched(&bench->last) ? &bench->last.fetch : &bench->last.open);
    return code;
}

/* What is in force: debug compares all headers, and that is what is measured then. */
static void get_options(load_bench *bench)
{
    int64_t debug = 0;

    berth_config_get("load.check", bench->check, sizeof bench->check, NULL);
    berth_config_get("load.prefetch", bench->prefetch, sizeof bench->prefetch, NULL);
    if (berth_config_get_int("debug", &debug, NULL) == 0 && debug &&
        strcmp(bench->check, "data") != 0)
        (void)snprintf(bench->check, sizeof bench->check, "headers (debug)");
}

int run_bench_load(int argc, char **argv)
{
    static const struct argp argp = {
        own_options,
        parse,
        "[FILE]",
        "Load a checkpoint several times, each time into memory of its own, and tell how fast. "
        "Without FILE one is made in the current folder, and removed. Where it is mapped, touch is "
        "the phase in which every byte is looked at. The options that count: --set "
        "load.method=read, load.check=data, load.prefetch=populate, io.threads=1.",
        bench_children,
        NULL,
        NULL};
    load_options options = {.bench = {.shape = {.name = "uniform"}, .rounds = 3},
                            .words = {.most = 1}};
    load_bench bench = {.options = &options,
                        .rounds = {.before = "prepare_seconds"},
                        .parses = {.before = "prepare_seconds", .phases = no_phases}};
    berth_params call;
    progress bar;
    int code = 0;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    get_options(&bench);
    bench.rounds.phases = options.only_open ? open_phases : load_phases;
    /* From here on a signal only cancels: what was made is removed before this ends. */
    progress_begin(&bar, "load", &options.bench.common, &call, NULL);
    bench.subject.path = options.words.words[0];
    bench.subject.device = options.device;
    code = open_device(options.device);
    if (code == 0 && !bench.subject.path)
        code = make_file(&bench);
    if (code == 0)
        code = run_rounds(&bench);
    if (bench_folder_remove_file(&bench.folder) != 0 || bench_folder_remove(&bench.folder) != 0)
        code = EXIT_TROUBLE;
    if (code == EXIT_YES)
        code = report(&bench);
    bench_rounds_free(&bench.rounds);
    bench_rounds_free(&bench.parses);
    return signal_code(code);
}
