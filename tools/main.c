/* SPDX-License-Identifier: BSD-3-Clause */
/* The `berth` command: runs the subcommand that was named. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared.h"

static const command commands[] = {
    {"ls", "list the tensors of a checkpoint", run_ls},
    {"info", "show what a file is and what it contains", run_info},
    {"verify", "check a whole file, every checksum included", run_verify},
    {"show", "show values: epoch, rates, settings, a few elements", run_show},
    {"cat", "write one tensor's elements to standard output", run_cat},
    {"copy", "copy a checkpoint, with a new layout if options say so", run_copy},
    {"convert", "convert between .pt, .safetensors and older .pt files", run_convert},
    {"diff", "compare two checkpoints", run_diff},
    {"clean", "list and remove temporary files of killed saves", run_clean},
    {"config", "show every option, its value and where it comes from", run_config},
    {"bench", "time a save, a load, or rows of a table", run_bench},
    {"demo", "make a checkpoint, save, verify, map and show it", run_demo},
};

static const size_t n_commands = sizeof commands / sizeof commands[0];

static void print_help(FILE *out)
{
    fputs("Usage: berth COMMAND [OPTION...] [ARGUMENT...]\n"
          "Save, load and examine PyTorch checkpoints. Code in them is never run.\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fputs("\n`berth COMMAND --help` lists the options of a command.\n"
          "Exit codes: 0 yes; 1 broken, different or not found; 2 wrong usage or trouble;\n"
          "129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.\n",
          out);
}

/*
 * getopt prints unknown options as they are. A file name can look like an option (`berth ls *`) and
 * can contain control characters.
 */
static int check_options_for_control_chars(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (argv[i][0] == '-' && has_control(argv[i]))
            return print_trouble(
                "'%s' is not an option: it contains control characters; for a file, "
                "write ./ before its name",
                argv[i]);
    return 0;
}

static int run_command(const command *chosen, int argc, char **argv)
{
    char name[32];

    if (check_options_for_control_chars(argc, argv))
        return EXIT_TROUBLE;
    snprintf(name, sizeof name, "berth %s", chosen->name);
    argv[0] = name; /* argp shows it in usage lines and errors */
    argp_err_exit_status = EXIT_TROUBLE;
    return chosen->run(argc, argv);
}

int main(int argc, char **argv)
{
    /* A reader that stops early, such as `head`, ends us silently, even if SIGPIPE was ignored. */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN); /* X14: a write beyond the limit of a file is an error */
    fill_closed_standard_descriptors();
    if (argc < 2) {
        print_help(stderr);
        return EXIT_TROUBLE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return finish_output(EXIT_YES);
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("berth %s\n", berth_version());
        return finish_output(EXIT_YES);
    }
    for (size_t i = 0; i < n_commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return run_command(&commands[i], argc - 1, argv + 1);
    return print_trouble("unknown command '%s'; `berth --help` lists all", argv[1]);
}
