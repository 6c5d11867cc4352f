/* SPDX-License-Identifier: BSD-3-Clause */
/* The `berth` command: runs the subcommand that was named. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/common/nearest.h"
#include "tools/common/report.h"

#define COMMAND_ROW(name, words, summary) {words, summary, &name##_argp, run_##name},

const command commands[] = {COMMANDS(COMMAND_ROW){0}};

/* Whether the words begin with those of a command: their number, else 0. */
static int command_match(const command *row, int n_words, char **words)
{
    size_t n = strcspn(row->name, " ");
    bool has_two = row->name[n] == ' ';

    if (n_words < 1 + has_two || strlen(words[0]) != n || strncmp(row->name, words[0], n) != 0)
        return 0;
    return has_two && strcmp(row->name + n + 1, words[1]) != 0 ? 0 : 1 + has_two;
}

/* "bench" is the first word of three commands. NULL: all commands. */
static bool command_is_in_group(const command *row, const char *group)
{
    size_t n = group ? strlen(group) : 0;

    return !group || (!strncmp(row->name, group, n) && row->name[n] == ' ');
}

static bool is_group(const char *word)
{
    for (const command *row = commands; row->name; row++)
        if (command_is_in_group(row, word))
            return true;
    return false;
}

static void print_help(FILE *out, const char *group)
{
    if (group)
        fprintf(out, "Usage: berth %s COMMAND [OPTION...] [ARGUMENT...]\n\nCommands:\n", group);
    else
        fputs("Usage: berth COMMAND [OPTION...] [ARGUMENT...]\n"
              "Save, load and examine PyTorch checkpoints. Code in them is never run.\n"
              "A FILE can be -, standard input, or a URL; OUT can be -, standard output.\n\n"
              "Commands:\n",
              out);
    for (const command *row = commands; row->name; row++)
        if (command_is_in_group(row, group))
            fprintf(out, "  %-10s  %s\n", row->name, row->summary);
    fputs("\n`berth COMMAND --help` lists the options of a command. `berth --man` prints the man "
          "page,\n"
          "`berth --completion SHELL` the completions for bash, zsh or fish.\n"
          "Exit codes: 0 yes; 1 broken, different or not found; 2 wrong usage or trouble;\n"
          "129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.\n",
          out);
}

static int run_command(const command *chosen, int argc, char **argv)
{
    char name[48];

    /* getopt prints unknown options as they are. A file name can look like an option (`berth ls
     * *`) and can contain control characters. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (argv[i][0] == '-' && !is_shown_as_it_is(argv[i]))
            return print_trouble(
                "'%s' is not an option: it contains characters that are not shown; for a file, "
                "write ./ before its name",
                argv[i]);
    snprintf(name, sizeof name, "berth %s", chosen->name);
    argv[0] = name; /* argp shows it in usage lines and errors */
    return chosen->run(argc, argv);
}

static bool is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "-?");
}

/* `berth help`, `berth help ls`, `berth --help ls`, `berth bench`, `berth bench --help`. -1: it
 * asks for no help. */
static int help_if_requested(int n_words, char **words)
{
    static char option[] = "--help";
    bool group = n_words > 0 && is_group(words[0]);

    if (n_words == 0 || (group && n_words == 1)) {
        print_help(stderr, group ? words[0] : NULL);
        return EXIT_TROUBLE;
    }
    bool asks = !strcmp(words[0], "help") || is_help(words[0]);
    if (is_help(words[group]) ? group || n_words == 1 : asks && n_words == 1) {
        print_help(stdout, group ? words[0] : NULL);
        return finish_output(EXIT_YES);
    }
    if (!asks)
        return -1;
    if (n_words == 2 && is_group(words[1])) {
        print_help(stdout, words[1]);
        return finish_output(EXIT_YES);
    }
    for (const command *row = commands; row->name; row++) {
        int n = command_match(row, n_words - 1, words + 1);
        if (n > 0) {
            words[n] = option;
            return run_command(row, 2, words + n - 1);
        }
    }
    return -1;
}

/* What people know from other programs, and what it is here. */
static const char *const elsewhere[][2] = {
    {"version", "--version"}, {"-v", "--version"}, {"man", "--man"}, {"completion", "--completion"},
    {"test", "verify"},       {"check", "verify"}, {"list", "ls"},   {"stat", "info"},
    {"print", "show"},        {"cp", "copy"},      {"cmp", "diff"},  {"compare", "diff"}};

static const char *find_elsewhere(const char *word)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(word, elsewhere[i][0]) == 0)
            return elsewhere[i][1];
    return NULL;
}

/* The file or URL of a word that is no command. U1: of a URL nothing is shown. */
static int fail_missing_command(const char *word)
{
    struct stat status;
    char file[512] = "";

    if (find_elsewhere(word))
        return 0;
    if (!strstr(word, "://")) {
        if (stat(word, &status) < 0 || !S_ISREG(status.st_mode))
            return 0;
        (void)print_word(word, file, sizeof file);
    }
    return print_trouble("a command is missing: `berth info%s%s` shows what the file contains; "
                         "`berth --help` lists all commands",
                         *file ? " " : "", file);
}

static int fail_unknown_command(int n_words, char **words)
{
    static const char *const options[] = {"--help", "--version", "--man", "--completion"};
    bool asks_for_help = n_words > 1 && (!strcmp(words[0], "help") || is_help(words[0]));

    words += asks_for_help;
    n_words -= asks_for_help;
    const char *group = is_group(words[0]) && n_words > 1 ? words[0] : NULL;
    char word[NEAREST_NBYTES], hint[NEAREST_HINT_NBYTES];
    nearest near = {.word = word};

    snprintf(word, sizeof word, "%s%s%s", group ? group : "", group ? " " : "",
             words[group != NULL]);
    for (size_t i = 0; !group && i < sizeof options / sizeof *options; i++)
        nearest_offer(&near, options[i]);
    for (const command *row = commands; row->name; row++)
        if (command_is_in_group(row, group))
            nearest_offer(&near, row->name);
    const char *same = group ? NULL : find_elsewhere(word);
    if (same)
        snprintf(near.found, sizeof near.found, "%s", same);
    return print_trouble("unknown command '%s'%s; `berth%s%s --help` lists all", word,
                         nearest_hint(&near, "berth ", hint), group ? " " : "", group ? group : "");
}

/* So that no file that the command opens becomes standard input, output or error (X10). */
static void fill_closed_standard_descriptors(void)
{
    int fd;

    /* O_PATH: neither readable nor writable, so that lost output is still an error. */
    do
        fd = open("/", O_PATH | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

int main(int argc, char **argv)
{
    /* A reader that stops early, such as `head`, ends us silently, even if SIGPIPE was ignored. */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN); /* X14: a write beyond the limit of a file is an error */
    fill_closed_standard_descriptors();
    int code = help_if_requested(argc - 1, argv + 1);
    if (code >= 0)
        return code;
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("berth %s\n", berth_version());
        return finish_output(EXIT_YES);
    }
    if (!strcmp(argv[1], "--man"))
        return print_manual();
    if (!strcmp(argv[1], "--completion"))
        return print_completion(argc > 2 ? argv[2] : "");
    for (const command *row = commands; row->name; row++) {
        int n = command_match(row, argc - 1, argv + 1);
        if (n > 0)
            return run_command(row, argc - n, argv + n);
    }
    code = fail_missing_command(argv[1]);
    return code ? code : fail_unknown_command(argc - 1, argv + 1);
}
