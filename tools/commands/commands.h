/* SPDX-License-Identifier: BSD-3-Clause */
/* The commands of `berth`: a source each. */
#ifndef BERTH_TOOLS_COMMANDS_H
#define BERTH_TOOLS_COMMANDS_H

#include <argp.h>

/*
 * The commands, in the order of `berth --help`: identifier, words, what it does. Each has a
 * run_NAME, which gets its own argv and returns the exit code, and a NAME_argp. The help, the man
 * page and the completions of shells are made from these rows and parsers.
 */
#define COMMANDS(COMMAND)                                                                          \
    COMMAND(ls, "ls", "list the tensors of a checkpoint")                                          \
    COMMAND(info, "info", "show what a file is and what it contains")                              \
    COMMAND(map, "map", "show where the bytes of a file lie; as a picture, too")                   \
    COMMAND(show, "show", "show values: epoch, rates, settings, a few elements")                   \
    COMMAND(verify, "verify", "check a whole file, every checksum included")                       \
    COMMAND(cat, "cat", "write one tensor's elements to standard output")                          \
    COMMAND(copy, "copy", "copy a checkpoint, with a new layout if options say so")                \
    COMMAND(convert, "convert", "convert between .pt, .safetensors and older .pt files")           \
    COMMAND(diff, "diff", "compare two checkpoints")                                               \
    COMMAND(clean, "clean", "list and remove temporary files of killed saves")                     \
    COMMAND(config, "config", "show every option, its value and where it comes from")              \
    COMMAND(bench_save, "bench save", "time one save of a checkpoint into the current folder")     \
    COMMAND(bench_load, "bench load",                                                              \
            "time one load of a checkpoint, cold or warm, or only its opening")                    \
    COMMAND(bench_rows, "bench rows",                                                              \
            "time reading rows of a table that is larger than its memory")                         \
    COMMAND(demo, "demo", "make a checkpoint, save, verify, map and show it")

typedef struct command {
    const char *name; /* one word, or two: "bench save" */
    const char *summary;
    const struct argp *argp;
    int (*run)(int argc, char **argv);
} command;

#define DECLARE_COMMAND(name, words, summary)                                                      \
    int run_##name(int argc, char **argv);                                                         \
    extern const struct argp name##_argp;
COMMANDS(DECLARE_COMMAND)

/* All of them; the last has no name. */
extern const command commands[];

/* `berth --man`: the man page as roff. Returns EXIT_YES or EXIT_TROUBLE. */
int print_manual(void);
/* `berth --completion bash`, zsh or fish. Returns EXIT_YES or EXIT_TROUBLE. */
int print_completion(const char *shell);

#endif
