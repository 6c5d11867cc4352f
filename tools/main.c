/* SPDX-License-Identifier: BSD-3-Clause */
/* The `berth` command: finds the subcommand and runs it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"

static const command commands[] = {
    {"ls", "list the tensors of a checkpoint", run_ls},
    {"info", "tell what a file is and holds", run_info},
    {"verify", "check everything a file says, every CRC included", run_verify},
    {"cat", "write one tensor's elements to standard output", run_cat},
    {"copy", "copy a checkpoint, with a new layout if options say so", run_copy},
    {"convert", "convert between .pt, .safetensors and older .pt files", run_convert},
    {"diff", "compare two checkpoints", run_diff},
    {"clean", "list and remove what killed saves left in a folder", run_clean},
    {"config", "show every option, its value and where it comes from", run_config},
    {"bench", "measure how fast checkpoints are saved here", run_bench},
    {"demo", "make a checkpoint, save, verify, map and show it", run_demo},
};

static const size_t n_commands = sizeof commands / sizeof commands[0];

static void print_help(FILE *out)
{
    fputs("Usage: berth COMMAND [OPTION...] [ARGUMENT...]\n"
          "Save, load and examine PyTorch checkpoints without running anything of them.\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fputs("\n`berth COMMAND --help` tells a command's options.\n"
          "Exit codes: 0 yes; 1 broken, different or not found; 2 usage or trouble;\n"
          "129, 130 or 143 when its terminal goes, interrupted or terminated.\n",
          out);
}

/*
 * getopt tells options that it does not know as they are, and names of strangers' files may look
 * like options: `berth ls *`.
 */
static int check_options(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (argv[i][0] == '-' && has_control(argv[i]))
            return trouble("'%s' is no option: it holds control characters; if it is a file, "
                           "write ./ before its name",
                           argv[i]);
    return 0;
}

static int run_command(const command *chosen, int argc, char **argv)
{
    char name[32];

    if (check_options(argc, argv))
        return EXIT_TROUBLE;
    snprintf(name, sizeof name, "berth %s", chosen->name);
    argv[0] = name; /* argp shows it in usage lines and errors */
    argp_err_exit_status = EXIT_TROUBLE;
    return chosen->run(argc, argv);
}

int main(int argc, char **argv)
{
    /* A reader that leaves early, as `head` does, ends us without a word, whatever we inherit. */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN); /* X14: a limit of standard output is an error, too */
    keep_standard_descriptors();
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
    return trouble("there is no command '%s'; `berth --help` lists them", argv[1]);
}
