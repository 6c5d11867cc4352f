/* SPDX-License-Identifier: BSD-3-Clause */
/* berth config: every option, its value, and where the value comes from. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"

typedef struct config_options {
    common common;
    positional words;
    bool changed;
} config_options;

static const struct argp_option own_options[] = {
    {"changed", 'c', NULL, 0, "show only what differs from the defaults, as NAME=VALUE lines", 1},
    {0}};

static error_t config_parse(int key, char *word, struct argp_state *state)
{
    config_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'c':
        options->changed = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static json_t *option_json(const berth_option *option)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "name", option->name, "value",
                     option->value, "source", option->source, "default", option->initial, "type",
                     option->type, "unit", option->unit, "bounds", option->bounds, "aliases",
                     option->aliases, "help", option->help);
}

static void print_option_text(const berth_option *option)
{
    printf("%s = %s   (%s)\n", option->name, option->value, option->source);
    printf("    %s\n", option->help);
    printf("    %s; %s; default %s", option->type, option->bounds, option->initial);
    if (option->unit[0])
        printf("; in %s", option->unit);
    if (option->aliases[0])
        printf("; also called %s", option->aliases);
    putchar('\n');
}

static int option_show(const char *name, bool json)
{
    berth_option option;
    berth_error error;

    if (berth_config_describe(name, &option, &error) < 0)
        return fail(&error);
    if (json)
        return print_json(option_json(&option));
    print_option_text(&option);
    return finish_output(EXIT_YES);
}

static int options_show_changed(void)
{
    berth_error error;
    int64_t n = berth_config_print(NULL, BERTH_CONFIG_CHANGED, NULL, 0, &error);

    if (n < 0)
        return fail(&error);
    char *text = malloc((size_t)n + 1);
    if (!text)
        return print_trouble("out of memory");
    berth_config_print(NULL, BERTH_CONFIG_CHANGED, text, (size_t)n + 1, NULL);
    fputs(text, stdout);
    free(text);
    return finish_output(EXIT_YES);
}

static int options_show_all(bool json)
{
    json_t *array = json ? json_array() : NULL;
    berth_option option;
    berth_error error;

    for (size_t i = 0; berth_config_name(i); i++) {
        if (berth_config_describe(berth_config_name(i), &option, &error) < 0) {
            json_decref(array);
            return fail(&error);
        }
        if (json)
            json_array_append_new(array, option_json(&option));
        else
            printf("%-32s %-12s %s\n", option.name, option.value, option.source);
    }
    return json ? print_json(array) : finish_output(EXIT_YES);
}

int run_config(int argc, char **argv)
{
    static const struct argp argp = {
        own_options,
        config_parse,
        "[NAME]",
        "Show every option, its value, and where the value was set. With NAME, describe one "
        "option.",
        common_children,
        NULL,
        NULL};
    config_options options = {.words = {.max = 1}};

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (options.common.stats)
        return print_trouble("--stats does not apply: nothing is saved or loaded");
    if (options.words.n)
        return option_show(options.words.words[0], options.common.json);
    return options.changed ? options_show_changed() : options_show_all(options.common.json);
}
