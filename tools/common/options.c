/* SPDX-License-Identifier: BSD-3-Clause */
/* Parsing of the words of a subcommand, and the options that all share. */
#include <berth/config.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/nearest.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

enum { KEY_SET = 256, KEY_CONFIG, KEY_JSON, KEY_STATS, KEY_USAGE, KEY_COLOUR, KEY_TRACE };

static const struct argp_option common_options[] = {
    {"set", KEY_SET, "NAME=VALUE", 0, "set an option for this run: load.check=data", 10},
    {"config", KEY_CONFIG, "FILE", 0,
     "set the options of a file of NAME=VALUE lines, as berth config --changed prints them", 10},
    {"json", KEY_JSON, NULL, 0, "print JSON", 10},
    {"stats", KEY_STATS, NULL, 0,
     "print what was done, and how fast: on standard error, or as JSON", 10},
    {"trace", KEY_TRACE, "FILE", 0,
     "write what was done when to this file, which https://ui.perfetto.dev opens; the same as "
     "--set "
     "trace=FILE",
     10},
    {"quiet", 'q', NULL, 0, "no progress, no remarks", 10},
    {"color", KEY_COLOUR, "WHEN", 0,
     "auto, always or never; auto: on a terminal, unless NO_COLOR is set or TERM is dumb", 10},
    {"help", 'h', NULL, 0, "show this help", -1},
    {NULL, '?', NULL, OPTION_HIDDEN, NULL, -1},
    {"usage", KEY_USAGE, NULL, 0, "show all options in a few lines", -1},
    {0}};

void print_usage_error_and_exit(const struct argp_state *state, const char *format, ...)
{
    char text[1024], shown[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)berth_show_text(text, strlen(text), BERTH_TEXT_PLAIN, shown, sizeof shown);
    argp_error(state, "%s", shown);
}

/* ---- setting ---- */

/* --set NAME=VALUE becomes the program's value of that option. */
static void set_option(const char *assignment, struct argp_state *state)
{
    const char *equals = strchr(assignment, '=');
    berth_error error;
    char name[64];

    if (!equals || (size_t)(equals - assignment) >= sizeof name)
        print_usage_error_and_exit(state, "--set needs NAME=VALUE");
    else {
        memcpy(name, assignment, (size_t)(equals - assignment));
        name[equals - assignment] = '\0';
        if (berth_config_set(name, equals + 1, "--set", &error) < 0)
            print_usage_error_and_exit(state, "%s", error.message);
    }
}

/* Unknown options are skipped, with a remark: the file may be of another version. */
static void set_options_of_file(const char *path, struct argp_state *state)
{
    enum { MAX_NBYTES = 1 << 20 };
    static char text[MAX_NBYTES + 1];
    char source[PATH_MAX + sizeof "file "] = "file "; /* a longer path cannot be opened */
    berth_error error;
    FILE *file = fopen(path, "re");

    if (!file) {
        print_usage_error_and_exit(state, "%s: %s", path, strerror(errno));
        return;
    }
    size_t n = fread(text, 1, sizeof text, file);
    if (ferror(file))
        print_usage_error_and_exit(state, "%s: %s", path, strerror(errno));
    (void)fclose(file);
    if (n == sizeof text || memchr(text, 0, n))
        print_usage_error_and_exit(state, "%s: not a text of options", path);
    text[n] = '\0';
    register_remark_printer(state->input);
    (void)berth_show_text(path, strlen(path), BERTH_TEXT_PLAIN, source + 5, sizeof source - 5);
    if (berth_config_parse(text, source, &error) < 0)
        print_usage_error_and_exit(state, "%s: %s", path, error.message);
}

static error_t parse_common(int key, char *word, struct argp_state *state)
{
    common *options = state->input;
    berth_error error;

    switch (key) {
    case KEY_SET:
        set_option(word, state);
        return 0;
    case KEY_CONFIG:
        set_options_of_file(keep_url(word), state); /* U1 */
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    case KEY_STATS:
        options->stats = true;
        return 0;
    case KEY_TRACE:
        if (berth_config_set("trace", word, "--trace", &error) < 0)
            print_usage_error_and_exit(state, "%s", error.message);
        return 0;
    case 'q':
        options->quiet = true;
        be_quiet();
        return 0;
    case KEY_COLOUR:
        if (!colour_set(word))
            print_usage_error_and_exit(state, "--color: '%s' is not auto, always or never", word);
        return 0;
    case 'h':
    case '?':
        argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
        return 0;
    case ARGP_KEY_END: /* a trace that cannot be written is told by the log alone */
        if (!option_is_default("trace"))
            register_remark_printer(options);
        return 0;
    case KEY_USAGE:
        argp_state_help(state, state->out_stream, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp common_argp = {common_options, parse_common, NULL, NULL, NULL, NULL, NULL};

const struct argp_child common_children[] = {{&common_argp, 0, NULL, 0}, {0}};

bool option_is_common(const struct argp_option *option)
{
    return option >= common_options &&
           option < common_options + sizeof common_options / sizeof *common_options;
}

void option_copy_value(const char *name, char *text, size_t nbytes)
{
    berth_option option = {0};

    (void)berth_config_describe(NULL, name, &option, NULL);
    (void)snprintf(text, nbytes, "%s", option.value);
}

bool option_is(const char *name, const char *text)
{
    berth_option option;

    return berth_config_describe(NULL, name, &option, NULL) == 0 && !strcmp(option.value, text);
}

bool option_is_default(const char *name)
{
    berth_option option;

    return berth_config_describe(NULL, name, &option, NULL) == 0 &&
           !strcmp(option.source, "default");
}

void option_set_default(const char *name, const char *value)
{
    if (option_is_default(name))
        (void)berth_config_set(name, value, NULL, NULL); /* a valid value */
}

error_t parse_positional(int key, char *word, struct argp_state *state, positional *words)
{
    switch (key) {
    case ARGP_KEY_ARG: /* all options come before: getopt has moved them */
        if (words->n == 0)
            words->words = state->argv + state->next - 1;
        if (words->n == words->max)
            print_usage_error_and_exit(state, "too many arguments: at most %d", words->max);
        else
            words->words[words->n++] = keep_url(word);
        return 0;
    case ARGP_KEY_END:
        if (words->n < words->min)
            print_usage_error_and_exit(state, "an argument is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

error_t parse_plain_options(int key, char *word, struct argp_state *state)
{
    plain_options *options = state->input;

    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &options->common;
        return 0;
    }
    return parse_positional(key, word, state, &options->words);
}

uint64_t parse_count(const char *word, uint64_t max, const char *option, struct argp_state *state)
{
    char *end;

    errno = 0;
    uint64_t n = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno || n < 1 || n > max)
        print_usage_error_and_exit(state, "%s: '%s' is not a number from 1 to %" PRIu64, option,
                                   word, max);
    return n;
}

static bool text_to_nbytes(const char *text, uint64_t *nbytes)
{
    static const char units[] = "BKMGT";
    char *end;

    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || errno || !number)
        return false;
    const char *unit = *end ? strchr(units, *end) : units;
    bool is_decimal = unit && unit > units && strcmp(end + 1, "B") == 0;
    if (!unit || (*end && !is_decimal && strcmp(end + 1, "") != 0 &&
                  (unit == units || strcmp(end + 1, "iB") != 0)))
        return false;
    for (; is_decimal && unit > units; unit--) {
        if (number > UINT64_MAX / 1000)
            return false;
        number *= 1000;
    }
    unsigned shift = 10 * (unsigned)(unit - units);
    *nbytes = number << shift;
    return number <= UINT64_MAX >> shift;
}

uint64_t parse_nbytes(const char *word, const char *option, struct argp_state *state)
{
    uint64_t nbytes = 0;

    if (!text_to_nbytes(word, &nbytes))
        print_usage_error_and_exit(state, "%s: '%s' is not a number of bytes such as 4GiB", option,
                                   word);
    return nbytes;
}

/* ---- options that do not exist ---- */

void for_each_option(const struct argp *argp,
                     void (*function)(void *context, const struct argp_option *option),
                     void *context)
{
    for (const struct argp_option *option = argp->options; option && option->key; option++)
        if (option->name)
            function(context, option);
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        for_each_option(child->argp, function, context);
}

/* The search for a long option. */
typedef struct option_search {
    nearest near;
    size_t n;                        /* bytes of its name */
    const struct argp_option *found; /* it begins with that name */
} option_search;

static void option_search_offer(void *context, const struct argp_option *option)
{
    option_search *search = context;

    if (!strncmp(option->name, search->near.word, search->n) &&
        (!search->found || option->name[search->n] == '\0'))
        search->found = option;
    nearest_offer(&search->near, option->name);
}

/* Says more than getopt does. *takes_next: the next word is the option's argument. */
static void check_long_option(const struct argp *argp, const char *name_of_command,
                              const char *word, bool *takes_next)
{
    char name[NEAREST_NBYTES], hint[NEAREST_HINT_NBYTES];
    option_search search = {.near.word = name, .n = strcspn(word + 2, "=")};

    *takes_next = false;
    snprintf(name, sizeof name, "%.*s", (int)(search.n < sizeof name ? search.n : 0), word + 2);
    search.n = strlen(name);
    for_each_option(argp, option_search_offer, &search);
    if (search.n > 0 && search.found) {
        *takes_next = search.found->arg && !strchr(word, '=');
        return;
    }
    exit(print_trouble("no option '%s'%s; `%s --help` lists all", word,
                       nearest_hint(&search.near, "--", hint), name_of_command));
}

void parse_options(const struct argp *argp, int argc, char **argv, void *options)
{
    bool takes_next = false;

    for (int i = 1; i < argc && (takes_next || strcmp(argv[i], "--") != 0); i++)
        if (takes_next)
            takes_next = false;
        else if (!strncmp(argv[i], "--", 2))
            check_long_option(argp, argv[0], argv[i], &takes_next);
    argp_err_exit_status = EXIT_TROUBLE;
    (void)argp_parse(argp, argc, argv, ARGP_NO_HELP, NULL, options);
}
