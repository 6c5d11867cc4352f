/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `berth` command: what its subcommands share. Like everything under tools/,
 * it sees only the installed <berth.h>.
 */
#ifndef BERTH_TOOLS_COMMAND_H
#define BERTH_TOOLS_COMMAND_H

#include <argp.h>
#include <berth.h>
#include <jansson.h>
#include <stdio.h>

/* Exit codes: yes; broken, differs or not found; usage or trouble. A signal gives 128 + its number.
 */
enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_TROUBLE = 2 };

/* Options that every subcommand takes. */
typedef struct common {
    bool json;
    bool quiet;
    bool stats;
} common;

/* Their parser, as the one child of every subcommand's; --set is carried out as it is met. */
extern const struct argp_child common_children[];

/* One row a subcommand; run gets its own argv and returns the exit code. */
typedef struct command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} command;

int run_ls(int argc, char **argv);
int run_info(int argc, char **argv);
int run_verify(int argc, char **argv);
int run_cat(int argc, char **argv);
int run_copy(int argc, char **argv);
int run_convert(int argc, char **argv);
int run_diff(int argc, char **argv);
int run_config(int argc, char **argv);
int run_bench(int argc, char **argv);
int run_demo(int argc, char **argv);
int run_clean(int argc, char **argv);

/* ---- common.c ---- */

/* Positional arguments of a subcommand: `least` to `most` of them, collected in order. */
typedef struct positional {
    const char *words[2];
    int n;
    int least;
    int most;
} positional;

/* Takes one positional word, or checks their number at the end: call from a parser's function. */
error_t take_positional(int key, char *word, struct argp_state *state, positional *words);

/* What a subcommand takes that has no options of its own, and the parser's function for it. */
typedef struct plain_options {
    common common;
    positional words;
} plain_options;

error_t parse_plain(int key, char *word, struct argp_state *state);

/* Whether nobody set it: no --set, no environment. */
bool is_default(const char *name);
/*
 * For what is written anew, with sums that fit whatever was read: load.check=data, unless somebody
 * said how much is to be compared.
 */
void compare_sums_by_default(void);

/* Prints "berth: message" to stderr and returns the exit code that fits the error. */
int fail(const berth_error *error);
/* The same for trouble of the command's own, or a remark, in one line. Returns EXIT_TROUBLE. */
int trouble(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* argp_error, without control characters: words may be file names of strangers, `berth ls *`. */
void usage_error(const struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool has_control(const char *text);
/* Names come from strangers' files: control characters never reach the terminal. */
void print_name(FILE *out, const char *name);
/* EXIT_NO if the error is about what a file says, EXIT_TROUBLE if about reaching it. */
int exit_code(const berth_error *error);
/* Flushes stdout: `code`, or trouble if something could not be written. */
int finish_output(int code);

/* A JSON string of any text: where it is no UTF-8, as a file's text or name may be, with question
 * marks. */
json_t *json_text(const char *text);
/* Prints a JSON value and a newline to stdout; takes the reference. Returns EXIT_YES or trouble. */
int print_json(json_t *value);
/* From here on, remarks of the library go to stderr: what of a replaced file was not kept. */
void show_remarks(const common *options);
/*
 * Prints what an operation did to stderr, a line a fact, and no fact that is not known: `method`
 * NULL stands for work of the command's own, of which the library does not tell what it read for it
 * in how many requests.
 */
void print_stats(const berth_stats *stats);
/*
 * With --stats, tells what an operation did: on stderr, a line a fact, or with --json on stdout as
 * {"stats": {...}}. Returns `code`, or trouble if that cannot be written.
 */
int tell_stats(const common *options, const berth_stats *stats, int code);
json_t *stats_json(const berth_stats *stats);

/* "1.5 GiB". Buffer of 32 bytes; returned. */
const char *human_nbytes(uint64_t nbytes, char *buffer);
/* "[2, 3]"; cut if it does not fit. */
void shape_text(const berth_tensor *tensor, char *text, size_t nbytes);
/* Cuts a long text, which is then told by its beginning. */
void shorten(char *text);
/* Whether name ends in an extension such as ".safetensors". */
bool has_extension(const char *name, const char *extension);
/*
 * X4: a file without a name (/dev/fd/3 of a memfd) is written in place; who reads it meanwhile
 * would lose the old bytes, and have no new ones. Not 0: told.
 */
int refuse_in_place(const char *in, const char *out);

/* ---- progress.c ---- */

/* A bar on stderr, when that is a terminal and the work takes longer than a moment. */
typedef struct progress {
    const char *what;
    bool visible;
    bool drawn;
    double begin; /* seconds, monotonic */
    double last;
} progress;

/*
 * Readies a call: progress bar, cancel on SIGHUP, SIGINT and SIGTERM, statistics. `p` and
 * `stats` must outlive the call. progress_end clears the bar.
 */
void progress_begin(progress *p, const char *what, const common *options, berth_params *call,
                    berth_stats *stats);
void progress_end(progress *p);
/* Like progress_begin, for work that writes no file: signals end the process, as they do. */
void progress_show(progress *p, const char *what, const common *options, berth_params *call,
                   berth_stats *stats);
/* Tells a progress by hand, for work of the command's own. Not 0: cancelled. */
int progress_tell(void *p, uint64_t done_nbytes, uint64_t total_nbytes);
/* The exit code after a cancel: 129, 130 or 143; `otherwise` if no signal came. */
int signal_code(int otherwise);
/* Tells that work of the command's own was cancelled, and returns that code. */
int cancelled(const char *path);
/* Seconds since some moment, monotonic. */
double seconds_now(void);
/* Seconds since progress_begin. */
double progress_seconds(const progress *p);

/*
 * Names of thousands of bytes, made by depth or by a long key, cost a file almost nothing each:
 * counts `nbytes` more to *counted, and refuses when that becomes far more than any file has (P3).
 * 0, or EXIT_TROUBLE after telling.
 */
int count_long_name(size_t *counted, size_t nbytes);

/* ---- standard.c ---- */

/* First of all: whatever the command opens is never standard input, output or error (X10). */
void keep_standard_descriptors(void);

/* ---- elements.c ---- */

/* Swaps whole elements where this machine is not little-endian, as safetensors is. */
void to_or_from_little(berth_dtype dtype, void *bytes, size_t nbytes);
/*
 * Reads elements [first, first + n) of a tensor in row-major order, conjugate and negative bits
 * carried out, so that the bytes are the values. 0 or a status.
 */
int read_elements(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                  int64_t n, void *buffer, berth_error *error);
/*
 * How many elements to read at a time into a buffer of nbytes, at least 1 and no more than there
 * are; of the kinds of which several share a byte, all: they are only read whole, into as many
 * items.
 */
int64_t elements_per(const berth_tensor *tensor, size_t nbytes);

/* ---- leaves.c ---- */

/*
 * Tells a value that is neither tensor nor a container with items; `path` as ['a'][0]. Not 0 stops
 * the walk.
 */
typedef int (*leaf_function)(void *context, const char *path, const berth_value *value);
/*
 * Walks all leaves under root, each container once, without recursion. Returns what the function
 * returned, or EXIT_TROUBLE after telling that memory is gone.
 */
int walk_leaves(const berth_value *root, leaf_function function, void *context);

/* Tells a later way to a container with items: `path` leads to what `first` led to. */
typedef int (*alias_function)(void *context, const char *path, const char *first);
/* Like walk_leaves, for those. */
int walk_aliases(const berth_value *root, alias_function function, void *context);
/* A short text of a leaf, as Python would show it; allocated. */
char *leaf_text(const berth_value *value);

/* ---- safetensors_read.c, safetensors_write.c ---- */

/* The format's own limit: no reader takes a longer header. */
enum { SAFETENSORS_HEADER_LIMIT = 100000000 };

/*
 * Puts the tensors of a safetensors file into a dict of the tree: they view its bytes, which must
 * live as long as the tree. `name` is for what is told on stderr. Returns an exit code.
 */
int safetensors_values(const char *name, const void *bytes, size_t nbytes, berth_tree *tree,
                       berth_value *dict);
int convert_from_safetensors(const char *in, const char *out, const common *options);
int convert_to_safetensors(const char *in, const char *out, bool tensors_only,
                           const common *options);
/* One row a dtype that both formats have: safetensors' name; NULL if there is none. */
const char *safetensors_dtype_name(berth_dtype dtype);
berth_dtype safetensors_dtype(const char *name);

#endif
