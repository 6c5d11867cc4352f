/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench: dispatches to a benchmark. */
#include <stdio.h>
#include <string.h>

#include "tools/bench.h"

static const command benchmarks[] = {
    {"save", "save a checkpoint into the current folder, and remove it", run_bench_save},
    {"load", "load a checkpoint, cold or warm, or only open it", run_bench_load},
    {"rows", "read rows of a table that is larger than the memory for it", run_bench_rows},
};

static const size_t n_benchmarks = sizeof benchmarks / sizeof benchmarks[0];

static void print_help(FILE *out)
{
    fputs("Usage: berth bench BENCHMARK [OPTION...]\n"
          "Time one run of Berth on this machine. tools/bench repeats runs and compares them with "
          "other\n"
          "programs.\n\n"
          "Benchmarks:\n",
          out);
    for (size_t i = 0; i < n_benchmarks; i++)
        fprintf(out, "  %-8s  %s\n", benchmarks[i].name, benchmarks[i].summary);
    fputs("\n`berth bench BENCHMARK --help` lists its options.\n", out);
}

int run_bench(int argc, char **argv)
{
    char name[48];

    if (argc < 2) {
        print_help(stderr);
        return EXIT_TROUBLE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?")) {
        print_help(stdout);
        return finish_output(EXIT_YES);
    }
    for (size_t i = 0; i < n_benchmarks; i++)
        if (!strcmp(argv[1], benchmarks[i].name)) {
            snprintf(name, sizeof name, "%s %s", argv[0], benchmarks[i].name);
            argv[1] = name; /* argp shows it in usage lines and errors */
            return benchmarks[i].run(argc - 1, argv + 1);
        }
    return print_trouble("unknown benchmark '%s'; `berth bench --help` lists all", argv[1]);
}
