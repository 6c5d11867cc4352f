/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Options: a trainer registers its own beside Berth's. --help lists both, --NAME=VALUE sets one
 * (--save.durability=file --trainer.interval=20), a watch reports a change, a block has a patch,
 * and a child process gets the same values.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <berth.h>
#include <berth/config.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const berth_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    return 2;
}

static int register_options(berth_error *error)
{
    static const berth_option_row rows[] = {{.name = "interval",
                                             .type = "int",
                                             .minimum = 1,
                                             .maximum = 1000000,
                                             .initial = "100",
                                             .unit = "steps",
                                             .help = "Steps between two checkpoints.",
                                             .classes = BERTH_CLASS_SPEED},
                                            {.name = "keep",
                                             .type = "enum",
                                             .choices = "all | last",
                                             .initial = "last",
                                             .help = "Which checkpoints stay.",
                                             .classes = BERTH_CLASS_SPEED}};

    return berth_config_register("trainer", rows, sizeof rows / sizeof *rows, error);
}

static void print_change(void *context, const berth_option *option)
{
    (void)context;
    printf("%s is now %s (%s)\n", option->name, option->value, option->source);
}

static int print_help(void)
{
    berth_error error;
    berth_option option;

    printf("usage: config [--help] [--NAME=VALUE ...]\n\n");
    for (size_t i = 0; berth_config_name(i); i++) {
        if (berth_config_describe(NULL, berth_config_name(i), &option, &error) < 0)
            return fail(&error);
        printf("  --%s=%s\n      %s Default: %s.\n", option.name, option.bounds, option.help,
               option.initial);
    }
    return 0;
}

/* "--NAME=VALUE" */
static int set_option(const char *word)
{
    char name[64];
    berth_error error;
    const char *begin = word + 2, *equals = strchr(word, '=');

    if (strncmp(word, "--", 2) != 0 || !equals || (size_t)(equals - begin) >= sizeof name) {
        fprintf(stderr, "%s: unknown option; --help lists them\n", word);
        return 2;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(equals - begin), begin);
    return berth_config_set(name, equals + 1, NULL, &error) < 0 ? fail(&error) : 0;
}

/* Sets the variables that give a child the values in force here. */
static int export_options(void)
{
    char text[8192];
    berth_error error;
    int64_t n = berth_config_print(NULL, BERTH_CONFIG_VARIABLES, text, sizeof text, &error);

    if (n < 0)
        return fail(&error);
    if ((size_t)n >= sizeof text) {
        fprintf(stderr, "too many options are changed\n");
        return 2;
    }
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *equals = strchr(line, '=');
        *equals = '\0';
        if (setenv(line, equals + 1, 1) != 0) {
            perror("setenv");
            return 2;
        }
    }
    return 0;
}

/* The child is this program again; its options come from the environment. */
static int run_child(const char *program)
{
    int status;

    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (export_options() == 0)
            execl(program, program, "--child", (char *)NULL);
        _exit(2);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        perror("child");
        return 2;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static int print_changed(const char *who)
{
    char text[8192];
    berth_error error;

    if (berth_config_print(NULL, BERTH_CONFIG_CHANGED, text, sizeof text, &error) < 0)
        return fail(&error);
    printf("%s, changed options:\n%s", who, text);
    return 0;
}

static int run_parent(const char *program)
{
    berth_option keep;
    berth_error error;

    /* The last checkpoint of a run is written with more care, whatever the others are. */
    BERTH_WITH_CONFIG("save.durability=full trainer.keep=all")
    {
        if (berth_config_describe(NULL, "trainer.keep", &keep, &error) < 0)
            return fail(&error);
        printf("in the block: trainer.keep=%s\n", keep.value);
    }
    int code = print_changed("parent");
    return code ? code : run_child(program);
}

int main(int argc, char **argv)
{
    berth_error error;

    if (register_options(&error) < 0)
        return fail(&error);
    if (argc == 2 && strcmp(argv[1], "--child") == 0)
        return print_changed("child");
    if (berth_config_watch("trainer.interval", print_change, NULL, &error) < 0)
        return fail(&error);
    for (int i = 1; i < argc; i++) {
        int code = strcmp(argv[i], "--help") == 0 ? print_help() : set_option(argv[i]);
        if (code != 0 || strcmp(argv[i], "--help") == 0)
            return code;
    }
    return run_parent(argv[0]);
}
