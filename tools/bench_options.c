/* SPDX-License-Identifier: BSD-3-Clause */
/* Options that all benchmarks share: which checkpoint, and how often. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tools/bench.h"

enum { KEY_SIZE = 512, KEY_TENSORS, KEY_SHAPE, KEY_ROUNDS };

static const struct argp_option options_of_all[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "of all tensors, e.g. 4GiB (2GiB; llama and small: their own)",
     1},
    {"tensors", KEY_TENSORS, "N", 0, "how many (as many as make 64 MiB each; small: 100,000)", 1},
    {"shape", KEY_SHAPE, "NAME", 0,
     "uniform: all of one size, the default; llama: those of a 1.1 billion parameter model in "
     "bfloat16; small: 1 to 4 KiB each; one: a single tensor",
     1},
    {"rounds", KEY_ROUNDS, "N", 0, "measure so often (3)", 1},
    {0}};

uint64_t parse_count(const char *word, uint64_t most, const char *what, struct argp_state *state)
{
    char *end;

    errno = 0;
    uint64_t n = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno || n < 1 || n > most)
        usage_error(state, "%s wants a number from 1 to %" PRIu64 ", not '%s'", what, most, word);
    return n;
}

static error_t parse(int key, char *word, struct argp_state *state)
{
    bench_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case KEY_SIZE:
        if (!parse_nbytes(word, &options->shape.nbytes) || !options->shape.nbytes)
            usage_error(state, "--size wants bytes such as 4GiB, not '%s'", word);
        break;
    case KEY_TENSORS:
        options->shape.n_tensors = parse_count(word, 50000000, "--tensors", state);
        break;
    case KEY_SHAPE:
        options->shape.name = word;
        break;
    case KEY_ROUNDS:
        options->rounds = parse_count(word, BENCH_MOST_ROUNDS, "--rounds", state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    options->is_shaped = true;
    return 0;
}

static const struct argp bench_argp = {options_of_all,  parse, NULL, NULL,
                                       common_children, NULL,  NULL};

const struct argp_child bench_children[] = {{&bench_argp, 0, NULL, 0}, {0}};
