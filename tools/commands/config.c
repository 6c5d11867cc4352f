/* SPDX-License-Identifier: BSD-3-Clause */
/* berth config: every option, its value, and where the value comes from. */
#include <berth/config.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/nearest.h"
#include "tools/common/options.h"
#include "tools/common/report.h"

typedef struct config_options {
    common common;
    positional words;
    bool changed;
    bool export;
} config_options;

static const struct argp_option own_options[] = {
    {"changed", 'c', NULL, 0, "show only what differs from the defaults, as NAME=VALUE lines", 1},
    {"export", 'e', NULL, 0,
     "print what differs from the defaults as lines for a shell, which give its children the same "
     "values: eval \"$(berth config --export)\"",
     1},
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
    case 'e':
        options->export = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static const char *option_value(const berth_option *option)
{
    return option->text ? option->text : option->value;
}

static json_t *option_json(const berth_option *option)
{
    return json_pack("{s:s,s:o,s:o,s:s,s:s,s:s,s:s,s:s,s:s,s:b}", "name", option->name, "value",
                     text_json(option_value(option)), "source", text_json(option->source),
                     "default", option->initial, "type", option->type, "unit", option->unit,
                     "bounds", option->bounds, "aliases", option->aliases, "help", option->help,
                     "is_default", option->is_default);
}

static int option_show(const char *name, bool json)
{
    berth_option option;
    berth_error error;

    if (berth_config_describe(NULL, name, &option, &error) < 0)
        return fail(&error);
    if (json)
        return print_json(option_json(&option));
    printf("%s = ", option.name);
    print_shown(stdout, option_value(&option));
    printf("   (%s)\n    %s\n    %s; %s; default %s", option.source, option.help, option.type,
           option.bounds, option.initial);
    if (option.unit[0])
        printf("; in %s", option.unit);
    if (option.aliases[0])
        printf("; also called %s", option.aliases);
    putchar('\n');
    return finish_output(EXIT_YES);
}

/* "export NAME=value"; a value that a shell would read in another way is quoted. */
static void print_export(const char *line, size_t n)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_=./,:%+@-";
    bool is_plain = strspn(line, plain) >= n;
    size_t name_n = strcspn(line, "=") + 1;

    printf("export %.*s%s", (int)name_n, line, is_plain ? "" : "'");
    for (size_t i = name_n; i < n; i++)
        if (line[i] == '\'')
            fputs("'\\''", stdout);
        else
            putchar(line[i]);
    puts(is_plain ? "" : "'");
}

/* Prints the lines of one form. */
static int options_print_lines(berth_config_form form)
{
    berth_error error;
    int64_t n = berth_config_print(NULL, form, NULL, 0, &error);

    if (n < 0)
        return fail(&error);
    char *text = malloc((size_t)n + 1);
    if (!text)
        return print_trouble("out of memory");
    berth_config_print(NULL, form, text, (size_t)n + 1, NULL);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (form == BERTH_CONFIG_VARIABLES)
            print_export(line, (size_t)(end - line));
        else
            printf("%.*s\n", (int)(end - line), line);
    free(text);
    return finish_output(EXIT_YES);
}

/* Options are shown also if a variable is invalid; then what is wrong is printed, too. */
static int environment_check(int code)
{
    berth_error error;
    berth_config *config = berth_config_new(&error);

    berth_config_free(config);
    return config ? code : fail(&error);
}

static int options_show_all(bool json)
{
    json_t *array = json ? json_array() : NULL;
    berth_option option;
    berth_error error;
    char value[512];

    for (size_t i = 0; berth_config_name(i); i++) {
        if (berth_config_describe(NULL, berth_config_name(i), &option, &error) < 0) {
            json_decref(array);
            return fail(&error);
        }
        if (json)
            json_array_append_new(array, option_json(&option));
        else { /* a value may be a path: F7 */
            (void)berth_show_text(option_value(&option), strlen(option_value(&option)),
                                  BERTH_TEXT_PLAIN, value, sizeof value);
            printf("%-32s %-12s %s\n", option.name, value, option.source);
        }
    }
    return json ? print_json(array) : finish_output(EXIT_YES);
}

const struct argp config_argp = {
    .options = own_options,
    .parser = config_parse,
    .args_doc = "[NAME]",
    .doc = "Show every option, its value, and where the value was set. With NAME, describe one "
           "option.",
    .children = common_children};

/* `berth config NAME VALUE`, `berth config NAME=VALUE`: as git config sets. */
static int option_fail_set(const char *name, size_t n, const char *value)
{
    char own_name[64], whole[100], word[4 * sizeof whole];
    berth_error error;

    snprintf(own_name, sizeof own_name, "%.*s", (int)n, name); /* none is so long */
    if (berth_config_set(own_name, value, "berth config", &error) < 0)
        return fail(&error);
    bool is_long = strlen(own_name) + strlen(value) + 2 > sizeof whole;
    snprintf(whole, sizeof whole, "%s=%s", own_name, is_long ? "VALUE" : value);
    if (!print_word(whole, word, sizeof word))
        snprintf(word, sizeof word, "%s=VALUE", own_name);
    return print_trouble("`berth config` sets nothing: add `--set %s` to a command, or "
                         "`eval \"$(berth config --export --set %s)\"` sets it for this shell",
                         word, word);
}

int run_config(int argc, char **argv)
{
    config_options options = {.words = {.max = 2}};

    parse_options(&config_argp, argc, argv, &options);
    if (options.common.stats)
        return print_trouble("--stats does not apply: nothing is saved or loaded");
    char **words = options.words.words;
    size_t n = options.words.n ? strcspn(words[0], "=") : 0;
    bool has_value = n > 0 && words[0][n] != '\0';
    if (options.words.n && n == 0)
        return print_trouble(
            "a name of an option is empty: a variable of the shell that is not set?");
    if (options.words.n == 2 && has_value)
        return print_trouble("too many arguments: '%s' has its value", words[0]);
    if (options.words.n == 2 || has_value)
        return option_fail_set(words[0], n, has_value ? words[0] + n + 1 : words[1]);
    if (options.words.n)
        return environment_check(option_show(words[0], options.common.json));
    if (options.changed || options.export)
        return options_print_lines(options.export ? BERTH_CONFIG_VARIABLES : BERTH_CONFIG_CHANGED);
    return environment_check(options_show_all(options.common.json));
}
