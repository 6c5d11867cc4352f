/* SPDX-License-Identifier: BSD-3-Clause */
/* Options that `berth bench save` and `berth bench load` share. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/common/options.h"

enum { KEY_SIZE = 512, KEY_TENSORS, KEY_DEVICE };

static const struct argp_option options_of_both[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "without FILE: bytes of all tensors, e.g. 4GiB (2GiB)", 1},
    {"tensors", KEY_TENSORS, "N", 0, "without FILE: how many tensors (one for each 64 MiB)", 1},
    {"device", KEY_DEVICE, "NAME", 0, "where the tensors are: cuda:0, simulated:0, or cpu (cpu)",
     1},
    {0}};

static error_t bench_parse(int key, char *word, struct argp_state *state)
{
    enum { MAX_TENSORS = 50000000 };
    bench_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case KEY_SIZE:
        options->nbytes = parse_nbytes(word, "--size", state);
        options->is_sized = true;
        return 0;
    case KEY_TENSORS:
        options->n_tensors = parse_count(word, MAX_TENSORS, "--tensors", state);
        options->is_sized = true;
        return 0;
    case KEY_DEVICE:
        options->device = strcmp(word, "cpu") == 0 ? NULL : word;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (options->words.n && options->is_sized)
            print_usage_error_and_exit(
                state, "FILE has tensors of its own: --size and --tensors do not apply");
        if (!options->nbytes)
            options->nbytes = UINT64_C(2) << 30;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static const struct argp bench_argp = {options_of_both, bench_parse, NULL, NULL,
                                       common_children, NULL,        NULL};

const struct argp_child bench_children[] = {{&bench_argp, 0, NULL, 0}, {0}};
