/* SPDX-License-Identifier: BSD-3-Clause */
/* What a command says: errors and exit codes, text for a terminal, colours, JSON, statistics. */
#ifndef BERTH_TOOLS_REPORT_H
#define BERTH_TOOLS_REPORT_H

#include <berth/more.h>
#include <jansson.h>
#include <stdio.h>

#include "tools/common/options.h"

/* Exit codes: yes; broken, different or not found; wrong usage or trouble. After a signal: 128 +
 * its number. */
enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_TROUBLE = 2 };

/* What `repacked` means for a user. */
#define REPACKED_ADVICE "readers that calculate offsets misread this file; `berth convert` mends it"

/* Prints "berth: message" to stderr and returns the exit code that fits the error. */
int fail(const berth_error *error);
/*
 * What the bytes behind the first object of a legacy file are, and what makes a file of them, in
 * one line without its end.
 */
void print_behind(FILE *out, const char *path, uint64_t file_nbytes, uint64_t behind_nbytes);
/* Remarks on files are left out from now on (--quiet). */
void be_quiet(void);
/* Unless quiet: prints to stderr what is behind, if there are such bytes. */
void tell_behind(const char *path, berth_checkpoint *checkpoint, uint64_t behind_nbytes);
/* Prints a message of the command's own, in one line. Returns EXIT_TROUBLE. */
int print_trouble(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether berth_show_text changes nothing. */
bool is_shown_as_it_is(const char *text);
/* Prints a text from a file by berth_show_text, so that a terminal only shows it. */
void print_shown(FILE *out, const char *text);
/* Whether a file is not there. */
bool error_is_of_missing_file(const berth_error *error);
/* EXIT_NO if the error is in the content of a file, else EXIT_TROUBLE. */
int exit_code(const berth_error *error);
/* Flushes stdout. Returns `code`, or EXIT_TROUBLE if that fails. */
int finish_output(int code);

/* A JSON string of any text. What is not UTF-8 is in it as berth_show_text shows it. */
json_t *text_json(const char *text);
/* An array of n numbers. */
json_t *json_ints(const int64_t *numbers, int32_t n);
/* Prints a JSON value and a newline to stdout, and releases it. Returns EXIT_YES or EXIT_TROUBLE.
 */
int print_json(json_t *value);
/* Prints what the library logs to stderr, such as attributes that a replaced file lost. */
void register_remark_printer(const common *options);
/*
 * Prints what an operation did to stderr, one fact a line. If `method` is NULL, the command did the
 * work itself, and the library does not know the requests.
 */
void print_stats(const berth_stats *stats);
/*
 * With --stats, prints what an operation did: to stderr, or with --json to stdout as
 * {"stats": {...}}. Returns `code`, or EXIT_TROUBLE if that fails.
 */
int print_stats_if_requested(const common *options, const berth_stats *stats, int code);
json_t *stats_json(const berth_stats *stats);

/* "1.5 GiB". Buffer of 32 bytes; returned. */
const char *human_nbytes(uint64_t nbytes, char *buffer);
/* "[2, 3]", cut if it does not fit. */
void shape_text(const berth_tensor *tensor, char *text, size_t nbytes);
/* Cuts a long text and adds "...". */
void shorten(char *text);
/*
 * Adds `nbytes` to *counted if the name is long. Refuses a sum that is far larger than in any real
 * file (P3): with deep nesting and long keys a small file can have very long names. Returns 0, or
 * EXIT_TROUBLE after printing why.
 */
int check_total_of_long_names(size_t *counted, size_t nbytes);

/* ---- colours of standard output ---- */

typedef enum colour { PLAIN, BOLD, FAINT, RED, GREEN, BLUE, YELLOW, MAGENTA } colour;

/* "auto", "always" or "never"; false: another word. */
bool colour_set(const char *word);
/* What changes the colour of the following text of standard output; "" where it has none. */
const char *paint(colour chosen);
/* Prints a text from a file in a colour, without control characters. */
void print_painted(colour chosen, const char *text);

#endif
