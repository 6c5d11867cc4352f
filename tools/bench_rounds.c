/* SPDX-License-Identifier: BSD-3-Clause */
/* What the rounds of a benchmark took: medians, limits, rates. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"

int bench_rounds_begin(bench_rounds *rounds, uint64_t n)
{
    rounds->items = calloc((size_t)n, sizeof *rounds->items);
    return rounds->items ? 0 : trouble("out of memory");
}

void bench_rounds_free(bench_rounds *rounds)
{
    free(rounds->items);
    rounds->items = NULL;
}

/* The median of the number that lies `at` bytes into each round. */
static double median_of(const bench_rounds *rounds, size_t at)
{
    double values[BENCH_MOST_ROUNDS];

    for (size_t i = 0; i < rounds->n; i++)
        memcpy(&values[i], (const char *)&rounds->items[i] + at, sizeof values[i]);
    return median(values, rounds->n);
}

static double median_of_phase(const bench_rounds *rounds, size_t i)
{
    return median_of(rounds, offsetof(bench_round, phases) + i * sizeof(double));
}

static double rate(const bench_rounds *rounds, double seconds)
{
    return seconds > 0 ? (double)rounds->nbytes / seconds / 1073741824.0 : 0;
}

static void limits(const bench_rounds *rounds, double *least, double *most)
{
    *least = *most = rounds->items[0].seconds;
    for (size_t i = 1; i < rounds->n; i++) {
        double seconds = rounds->items[i].seconds;
        *least = seconds < *least ? seconds : *least;
        *most = seconds > *most ? seconds : *most;
    }
}

static json_t *phases_json(const bench_rounds *rounds, const bench_round *round)
{
    json_t *phases = json_object();

    for (size_t i = 0; rounds->phases[i]; i++)
        json_object_set_new(phases, rounds->phases[i],
                            json_real(round ? round->phases[i] : median_of_phase(rounds, i)));
    return phases;
}

static json_t *each_json(const bench_rounds *rounds)
{
    json_t *array = json_array();

    for (size_t i = 0; i < rounds->n; i++) {
        const bench_round *round = &rounds->items[i];
        json_array_append_new(array, json_pack("{s:f,s:f,s:f,s:o}", "seconds", round->seconds,
                                               "GiB_per_s", rate(rounds, round->seconds),
                                               rounds->before, round->before_seconds, "phases",
                                               phases_json(rounds, round)));
    }
    return array;
}

json_t *bench_rounds_json(const bench_rounds *rounds)
{
    double seconds = median_of(rounds, offsetof(bench_round, seconds)), least, most;

    limits(rounds, &least, &most);
    return json_pack("{s:f,s:f,s:f,s:f,s:I,s:f,s:o,s:o}", "GiB_per_s", rate(rounds, seconds),
                     "seconds", seconds, "seconds_min", least, "seconds_max", most, "nbytes",
                     (json_int_t)rounds->nbytes, rounds->before,
                     median_of(rounds, offsetof(bench_round, before_seconds)), "phases",
                     phases_json(rounds, NULL), "rounds", each_json(rounds));
}

void bench_rounds_print(const bench_rounds *rounds)
{
    double seconds = median_of(rounds, offsetof(bench_round, seconds)), least, most;

    limits(rounds, &least, &most);
    printf("%.2f GiB/s: %.4f s, the median of %zu (%.4f to %.4f)\n", rate(rounds, seconds), seconds,
           rounds->n, least, most);
    for (size_t i = 0; rounds->phases[i]; i++)
        printf("  %-9s %.4f s\n", rounds->phases[i], median_of_phase(rounds, i));
}
