/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench load: the speed of loading a checkpoint, or only of opening it. */
#include <berth/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_load.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

enum { KEY_COLD = 256, KEY_WARM, KEY_OPEN };

typedef struct load_bench {
    bench_options options;
    bool is_warm; /* --warm was given */
    bool only_open;
    bench_folder folder; /* of the file, if this made it */
    bench_cache cache;
    load_subject subject;
    bench_run run;
    double parse_seconds; /* of data.pkl alone, with --open; -1: not measured */
    load_result loaded;
    char check[16], prefetch[16];
} load_bench;

static const struct argp_option own_options[] = {
    {"cold", KEY_COLD, NULL, 0, "first evict the file from the page cache", 1},
    {"warm", KEY_WARM, NULL, 0, "first read the file into the page cache: the default", 1},
    {"open", KEY_OPEN, NULL, 0, "only open it, and get each tensor's name and address", 1},
    {0}};

static const char *const load_phases[] = {"open", "names", "transfer", "touch", NULL};
static const char *const open_phases[] = {"open", "names", "addresses", NULL};

static error_t bench_load_parse(int key, char *word, struct argp_state *state)
{
    load_bench *bench = state->input;

    (void)word;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &bench->options;
        return 0;
    case KEY_COLD:
        bench->cache.is_cold = true;
        return 0;
    case KEY_WARM:
        bench->is_warm = true;
        return 0;
    case KEY_OPEN:
        bench->only_open = true;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (bench->cache.is_cold && bench->is_warm)
            print_usage_error_and_exit(state, "--cold and --warm exclude each other");
        if (bench->only_open && bench->options.device)
            print_usage_error_and_exit(state,
                                       "--open moves nothing to a device: --device does not apply");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- running ---- */

static int load_make_file(load_bench *bench)
{
    bench_tensors tensors = {0};
    int code =
        bench_tensors_list_equal_sizes(&tensors, bench->options.n_tensors, bench->options.nbytes);

    if (code == 0)
        code = bench_folder_make(&bench->folder);
    if (code == 0)
        code = bench_tensors_fill_and_save(&tensors, bench->folder.path, &bench->options.common);
    bench_tensors_free(&tensors);
    bench->subject.path = bench->folder.path;
    return code;
}

/* Opens the device before the load: the first opening in a process is slow. */
static int open_device(const char *device)
{
    uintptr_t nothing;
    berth_error error;

    return device && berth_device_memory_new(device, 0, &nothing, &error) < 0 ? fail(&error) : 0;
}

/* Memory and disk are measured around the load alone. */
static int load_once(load_bench *bench)
{
    bench_run *run = &bench->run;
    berth_params params;
    progress bar;

    progress_begin(&bar, "load", &bench->options.common, &params, NULL);
    bench_run_begin_memory_and_disk(run);
    int code = load_run(&bench->subject, &params, bench->only_open, &bench->loaded);
    bench_run_end_memory_and_disk(run);
    progress_finish(&bar);
    for (int i = 0; run->phases[i]; i++)
        bench_run_add_phase_seconds(run, i, bench->loaded.phases[i]);
    load_result_close_checkpoint(&bench->loaded);
    return code;
}

static int load_prepare_and_run(load_bench *bench)
{
    int code = open_device(bench->options.device);

    if (code == 0 && !bench->subject.path)
        code = load_make_file(bench);
    if (code == 0)
        code = load_subject_read_info(&bench->subject);
    bench->run.nbytes = bench->subject.nbytes;
    if (code == 0)
        code = bench_cache_set_and_measure(&bench->cache, bench->subject.path);
    if (code == 0 && !caught_signal_code_or(0))
        code = load_once(bench);
    if (code == 0 && bench->only_open && bench->subject.pickle_nbytes)
        code = load_measure_parsing(&bench->subject, &bench->parse_seconds);
    if (bench_folder_remove(&bench->folder) != 0)
        code = EXIT_TROUBLE;
    return caught_signal_code_or(code);
}

/* ---- the report ---- */

static void load_warn_page_cache(const load_bench *bench)
{
    const char *path = bench->subject.path;
    double part = bench->cache.before;

    if (bench->options.common.quiet)
        return;
    if (part < 0)
        fprintf(stderr, "berth: %s: cannot measure how much of it was in the page cache\n", path);
    else if (bench->cache.is_cold && !bench_cache_was_cold(&bench->cache))
        fprintf(stderr, "berth: %s: cannot be evicted: %.0f %% stayed in the page cache\n", path,
                part * 100);
    else if (!bench->cache.is_cold && part < 0.99)
        fprintf(stderr, "berth: %s: only %.0f %% of it was in the page cache\n", path, part * 100);
}

/* False: only the opening has statistics. */
static bool load_has_transfer_stats(const load_result *result)
{
    return result->fetch.n_storages > 0;
}

static const char *load_device_name(const load_bench *bench)
{
    return bench->subject.device ? bench->subject.device : "cpu";
}

/* One object, also with --stats. */
static int load_print_json_report(const load_bench *bench)
{
    const load_result *loaded = &bench->loaded;
    json_t *report = bench_run_json(&bench->run);

    json_object_update_new(
        report,
        json_pack("{s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:b,s:o,s:I,s:I,s:I}", "file_nbytes",
                  (json_int_t)bench->subject.file_nbytes, "tensors",
                  (json_int_t)bench->subject.n_tensors, "storages",
                  (json_int_t)bench->subject.n_storages, "device", load_device_name(bench),
                  "method", loaded->method, "reason", loaded->reason, "check", bench->check,
                  "prefetch", bench->prefetch, "cold", bench_cache_was_cold(&bench->cache),
                  "resident_before", bench_cache_part_json(&bench->cache), "open_requests",
                  (json_int_t)loaded->open.n_requests, "n_requests",
                  (json_int_t)loaded->open.n_requests + (json_int_t)loaded->fetch.n_requests,
                  "moved_nbytes",
                  (json_int_t)loaded->open.moved_nbytes + (json_int_t)loaded->fetch.moved_nbytes));
    if (bench->parse_seconds >= 0)
        json_object_set_new(report, "parse",
                            json_pack("{s:f,s:I}", "seconds", bench->parse_seconds, "nbytes",
                                      (json_int_t)bench->subject.pickle_nbytes));
    if (bench->options.common.stats)
        json_object_set_new(
            report, "stats",
            stats_json(load_has_transfer_stats(loaded) ? &loaded->fetch : &loaded->open));
    return print_json(report);
}

static int load_print_text_report(const load_bench *bench)
{
    const load_result *loaded = &bench->loaded;
    char size[32], peak[32];

    printf("%zu tensors, %s to %s; %s (%s), check %s, %s\n", bench->subject.n_tensors,
           human_nbytes(bench->subject.nbytes, size), load_device_name(bench), loaded->method,
           loaded->reason, bench->check,
           bench_cache_was_cold(&bench->cache) ? "cold"
           : bench->cache.is_cold              ? "not fully evicted"
                                               : "warm");
    bench_run_print(&bench->run);
    printf("requests: %llu, %llu of them to open it; memory: %s at most\n",
           (unsigned long long)loaded->open.n_requests + loaded->fetch.n_requests,
           (unsigned long long)loaded->open.n_requests, human_nbytes(bench->run.peak_nbytes, peak));
    if (bench->parse_seconds >= 0)
        printf("parsing data.pkl, from memory: %.4f s, %.0f MB/s\n", bench->parse_seconds,
               (double)bench->subject.pickle_nbytes / bench->parse_seconds / 1e6);
    if (bench->options.common.stats)
        print_stats(load_has_transfer_stats(loaded) ? &loaded->fetch : &loaded->open);
    return finish_output(EXIT_YES);
}

/* The options that apply: with debug=on, load.check is at least headers. */
static void load_query_check_and_prefetch_options(load_bench *bench)
{
    option_copy_value("load.check", bench->check, sizeof bench->check);
    option_copy_value("load.prefetch", bench->prefetch, sizeof bench->prefetch);
    if (option_is("debug", "on") && strcmp(bench->check, "data") != 0)
        (void)snprintf(bench->check, sizeof bench->check, "headers (debug)");
}

const struct argp bench_load_argp = {
    own_options,
    bench_load_parse,
    "[FILE]",
    "Load FILE, or a new file of random bytes, once; print how long each phase took. If the "
    "file is mapped, the phase touch reads every byte. Options that matter: --set "
    "load.method=read, load.check=data, load.prefetch=populate, io.threads=1. "
    "tools/bench/load compares with other programs.",
    bench_children,
    NULL,
    NULL};

int run_bench_load(int argc, char **argv)
{
    load_bench bench = {.options = {.words = {.max = 1}}, .parse_seconds = -1};
    berth_params params;
    progress bar;

    parse_options(&bench_load_argp, argc, argv, &bench);
    int code = bench_check_file(&bench.options.words);
    if (code)
        return code;
    load_query_check_and_prefetch_options(&bench);
    bench.run.phases = bench.only_open ? open_phases : load_phases;
    bench.subject.path = bench.options.words.n ? bench.options.words.words[0] : NULL;
    bench.subject.device = bench.options.device;
    /* From here on a signal only cancels, so that the file is removed. */
    progress_begin(&bar, "load", &bench.options.common, &params, NULL);
    code = load_prepare_and_run(&bench);
    if (code == EXIT_YES) {
        load_warn_page_cache(&bench);
        code = bench.options.common.json ? load_print_json_report(&bench)
                                         : load_print_text_report(&bench);
    }
    return caught_signal_code_or(code);
}
