/* SPDX-License-Identifier: BSD-3-Clause */
/* Options and words of a subcommand, and what it asks of the configuration. */
#ifndef BERTH_TOOLS_OPTIONS_H
#define BERTH_TOOLS_OPTIONS_H

#include <argp.h>
#include <berth.h>

/* Options that every subcommand takes. */
typedef struct common {
    bool json;
    bool quiet;
    bool stats;
} common;

/* Their parser, the only child of every subcommand's parser. --set takes effect when it is parsed.
 */
extern const struct argp_child common_children[];

/* Positional arguments of a subcommand, in order: min to max of them, in argv. */
typedef struct positional {
    char **words;
    int n;
    int min;
    int max;
} positional;

/*
 * Parses the words of a command into `options`, the input of its parser. Wrong usage and --help end
 * the process.
 */
void parse_options(const struct argp *argp, int argc, char **argv, void *options);

/* Calls the function for each option of a parser and its children that has a name. */
void for_each_option(const struct argp *argp,
                     void (*function)(void *context, const struct argp_option *option),
                     void *context);

/* Whether all commands have the option. */
bool option_is_common(const struct argp_option *option);

/* Called by parsers: stores one positional word, or checks their number at the end. */
error_t parse_positional(int key, char *word, struct argp_state *state, positional *words);

/* Arguments of a subcommand without options of its own, and the parser's function for it. */
typedef struct plain_options {
    common common;
    positional words;
} plain_options;

error_t parse_plain_options(int key, char *word, struct argp_state *state);

/* argp_error without control characters: a word can be any file name, `berth ls *`. */
void print_usage_error_and_exit(const struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A number from 1 to `max`; anything else is an error of usage. */
uint64_t parse_count(const char *word, uint64_t max, const char *option, struct argp_state *state);

/* "2GiB" or "2G", "512M", "4096", and "2GB" for 2,000,000,000: the bytes, at least 1; anything else
 * is an error of usage. */
uint64_t parse_nbytes(const char *word, const char *option, struct argp_state *state);

/* The value in force of an option as text, cut to fit. */
void option_copy_value(const char *name, char *text, size_t nbytes);
bool option_is(const char *name, const char *text);
/* Whether an option has its default value: no --set, no environment. */
bool option_is_default(const char *name);
/* Sets an option, unless the user has. */
void option_set_default(const char *name, const char *value);

#endif
