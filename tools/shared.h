/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `berth` command: what its subcommands share. Like everything under tools/,
 * it sees only the installed <berth.h>.
 */
#ifndef BERTH_TOOLS_SHARED_H
#define BERTH_TOOLS_SHARED_H

#include <argp.h>
#include <berth.h>
#include <berth/more.h>
#include <jansson.h>
#include <stdio.h>

/* Exit codes: yes; broken, different or not found; wrong usage or trouble. After a signal: 128 +
 * its number. */
enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_TROUBLE = 2 };

/* What `repacked` means for a user. */
#define REPACKED_ADVICE "readers that calculate offsets misread this file; `berth convert` mends it"

/* Options that every subcommand takes. */
typedef struct common {
    bool json;
    bool quiet;
    bool stats;
} common;

/* Their parser, the only child of every subcommand's parser. --set takes effect when it is parsed.
 */
extern const struct argp_child common_children[];

/*
 * The commands, in the order of `berth --help`: identifier, words, what it does. Each has a
 * run_NAME, which gets its own argv and returns the exit code, and a NAME_argp. The help, the man
 * page and the completions of shells are made from these rows and parsers.
 */
#define COMMANDS(COMMAND)                                                                          \
    COMMAND(ls, "ls", "list the tensors of a checkpoint")                                          \
    COMMAND(info, "info", "show what a file is and what it contains")                              \
    COMMAND(map, "map", "show where the bytes of a file lie; as a picture, too")                   \
    COMMAND(show, "show", "show values: epoch, rates, settings, a few elements")                   \
    COMMAND(verify, "verify", "check a whole file, every checksum included")                       \
    COMMAND(cat, "cat", "write one tensor's elements to standard output")                          \
    COMMAND(copy, "copy", "copy a checkpoint, with a new layout if options say so")                \
    COMMAND(convert, "convert", "convert between .pt, .safetensors and older .pt files")           \
    COMMAND(diff, "diff", "compare two checkpoints")                                               \
    COMMAND(clean, "clean", "list and remove temporary files of killed saves")                     \
    COMMAND(config, "config", "show every option, its value and where it comes from")              \
    COMMAND(bench_save, "bench save", "time one save of a checkpoint into the current folder")     \
    COMMAND(bench_load, "bench load",                                                              \
            "time one load of a checkpoint, cold or warm, or only its opening")                    \
    COMMAND(bench_rows, "bench rows",                                                              \
            "time reading rows of a table that is larger than its memory")                         \
    COMMAND(demo, "demo", "make a checkpoint, save, verify, map and show it")

typedef struct command {
    const char *name; /* one word, or two: "bench save" */
    const char *summary;
    const struct argp *argp;
    int (*run)(int argc, char **argv);
} command;

#define DECLARE_COMMAND(name, words, summary)                                                      \
    int run_##name(int argc, char **argv);                                                         \
    extern const struct argp name##_argp;
COMMANDS(DECLARE_COMMAND)

/* All of them; the last has no name. */
extern const command commands[];

/* ---- options.c ---- */

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
/*
 * Sets load.check=data, unless the option is set. For commands that write new checksums: they must
 * not hide that the input was broken.
 */
void set_load_check_data_by_default(void);
/* Sets load.tied_names=rule, unless the option is set. */
void read_tied_names_by_default(void);

/* ---- shared.c ---- */

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
/* Whether name ends in an extension such as ".safetensors". */
bool has_extension(const char *name, const char *extension);
/*
 * X4: a file without a name (/dev/fd/3 of a memfd) is written in place, so it cannot be the file
 * that is read. Returns 0, or EXIT_TROUBLE after printing why.
 */
int check_in_place_output_has_name(const char *in, const char *out);
/* W11: the same with save.replace=in_place, of any file that is open for reading: after the inputs
 * were opened, and before the output is. */
int check_in_place_output_is_not_read(const char *out);
/* For an output that does not hold what the input does. Returns 0, or EXIT_TROUBLE after a message.
 */
int check_output_is_another_file(const char *in, const char *out);

/*
 * Adds `nbytes` to *counted if the name is long. Refuses a sum that is far larger than in any real
 * file (P3): with deep nesting and long keys a small file can have very long names. Returns 0, or
 * EXIT_TROUBLE after printing why.
 */
int check_total_of_long_names(size_t *counted, size_t nbytes);

/* ---- set.c ---- */

/*
 * For a command that cannot take several files as one checkpoint: refuses an index and a DCP
 * directory. Returns 0, or EXIT_NO after printing what to do.
 */
int check_is_one_file(const char *path);

/* ---- globals.c ---- */

/* The classes and functions that the pickle of a file names. */
typedef struct named_globals {
    json_t *all; /* of {"module", "name", "allowed"}, each once */
    json_t *seen;
    size_t n_refused;
    berth_error error; /* why they cannot be listed, or not all of them */
} named_globals;

/* No verdict is lost if they cannot be listed: globals->error says why. globals_free is due. */
void globals_find(const char *path, named_globals *globals);
/* Adds one that is not allowed. */
void globals_note(named_globals *globals, const char *module, const char *name);
/* Adds those of a source. */
void globals_add(const berth_source *source, named_globals *globals);
/* How much of a refusal stands before the global that it names, if the list will name it. */
size_t globals_find_said(const named_globals *globals, const char *message);
/* As members of a report. */
void globals_set_json(const named_globals *globals, json_t *report);
void globals_free(named_globals *globals);
/* Prints `before` and those that are not allowed, without a newline. False: there are none. */
bool globals_print_refused(const named_globals *globals, const char *before);

/* ---- shards.c ---- */

/* A checkpoint in several files, and the index that names them. */
typedef struct shard_set {
    const char *path; /* of the index */
    json_t *json;
    json_t *map;        /* from the names of tensors to files */
    const char **files; /* their names, each once, in order */
    char **paths;       /* of the files; of URLs what may be shown, as keep_url has it */
    size_t n_files;
    berth_checkpoint **checkpoints; /* of the files; NULL: not opened */
} shard_set;

/* By its name: model.safetensors.index.json. */
bool is_shard_index(const char *path);
/* Reads the index. Returns 0, or an exit code after printing why; shard_set_free is due in any
 * case. */
int shard_set_read(const char *path, shard_set *set);
void shard_set_free(shard_set *set);
/*
 * Opens the files. Returns 0, or an exit code after printing why; quietly: tries all of them, and
 * prints nothing.
 */
int shard_set_open(shard_set *set, bool quietly);
/* The checkpoint of a file; NULL: it is not open. */
berth_checkpoint *shard_set_find(const shard_set *set, const char *file);

/* ---- folders.c ---- */

/*
 * The path of the one index, or the one model file, in a folder; any other word as it is, and so
 * that of a DCP directory. NULL: there are several, or none, and why was printed.
 */
const char *resolve_folder(const char *word);

/* ---- files.c ---- */

/* The files that a command was given. An index stands for its files, and comes after them. */
typedef struct files {
    bool is_several;
    size_t n_headings;
    const char *path;         /* of the file at hand */
    shard_set *set;           /* the file at hand is the index of this set; else NULL */
    const shard_set *part_of; /* the file at hand is one of this set's; else NULL */
    const char *part;         /* its name there */
    json_t *reports;          /* with --json, if there are several */
} files;

/* Reports on the file at hand. Returns its exit code. */
typedef int (*file_function)(void *context, files *all);
/*
 * Calls the function for each word and each file of an index; with_indices: for the index, too.
 * Returns the largest exit code; after a signal (128 and more) no more files are begun.
 */
int for_each_file(const positional *words, const common *options, bool with_indices,
                  file_function function, void *context);
/* Of several files: the line that begins a block, or the beginning of a line. */
void files_print_heading(files *all);
void files_print_prefix(const files *all);
/*
 * Prints the report of one file; of several, keeps it for an array of objects, each with "file". A
 * report that is an array becomes their "items". A file without a report gets its "exit_code".
 * Releases it. Returns EXIT_YES or EXIT_TROUBLE.
 */
int files_print_json(files *all, json_t *report);
/* Whether the file at hand is one that an index names and that is not there. */
bool files_is_missing(const files *all, const berth_error *failure);
/* As fail(), but for such a file the answer is EXIT_NO. */
int files_fail(const files *all, const berth_error *failure);

/* ---- manual.c, completion.c ---- */

/* `berth --man`: the man page as roff. Returns EXIT_YES or EXIT_TROUBLE. */
int print_manual(void);
/* `berth --completion bash`, zsh or fish. Returns EXIT_YES or EXIT_TROUBLE. */
int print_completion(const char *shell);

/* ---- colour.c ---- */

typedef enum colour { PLAIN, BOLD, FAINT, RED, GREEN, BLUE, YELLOW, MAGENTA } colour;

/* "auto", "always" or "never"; false: another word. */
bool colour_set(const char *word);
/* What changes the colour of the following text of standard output; "" where it has none. */
const char *paint(colour chosen);
/* Prints a text from a file in a colour, without control characters. */
void print_painted(colour chosen, const char *text);

/* ---- nearest.c ---- */

enum { NEAREST_NBYTES = 64, NEAREST_HINT_NBYTES = 160 };

/* The search for the name that is most similar to a word. */
typedef struct nearest {
    const char *word;
    char found[NEAREST_NBYTES]; /* "": none is near */
    size_t distance;
} nearest;

void nearest_offer(nearest *best, const char *candidate);
/* "; the nearest is '--json'", or "". Buffer of NEAREST_HINT_NBYTES; returned. */
const char *nearest_hint(const nearest *best, const char *prefix, char *buffer);
/* The path as a word of a command line, in quotes if it needs them. False, and "": it is too long,
 * or a terminal does not show it. */
bool print_word(const char *path, char *text, size_t room);

/* ---- select.c ---- */

enum { MAX_GLOBS = 64 };

typedef struct globs {
    char *patterns[MAX_GLOBS];
    bool is_used[MAX_GLOBS];
    size_t n;
} globs;

/* Which values of a checkpoint a command is about. */
typedef struct selection {
    common common;
    globs only, without;
    const char *root; /* name or path; NULL: all */
} selection;

/* Their parsers, for --only and --without, or for --root too; they include the common options. */
extern const struct argp_child selection_children[];
extern const struct argp_child selection_and_root_children[];

bool selection_is_all(const selection *selected);
bool selection_has_globs(const selection *selected);
/* Whether --only and --without choose this name. */
bool selection_has_name(selection *selected, const char *name);
/*
 * Whether --root, --only and --without may choose something of this value, before it is read. A
 * pattern is for what is inside of it only if it begins with its name and a dot.
 */
bool selection_needs(selection *selected, const char *name);
/* Reports patterns that matched no name. Returns 0 or EXIT_NO. */
int selection_check_used(const selection *selected, const char *path);
/*
 * *value: what --root names, or the whole. Returns 0, or an exit code after printing why.
 */
int select_root(const selection *selected, const berth_checkpoint *checkpoint,
                const berth_value **value);
/*
 * Makes of a value what --only and --without choose. Containers that nothing is left in are left
 * out; what shared storages still does. *tree is the caller's to free in any case; the checkpoint
 * must outlive it. Returns 0, or an exit code after printing why.
 */
int select_values(selection *selected, const char *path, berth_tree **tree,
                  const berth_value **value);

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
 * Sets the params: progress bar, cancelling on SIGHUP, SIGINT and SIGTERM, statistics. `p` and
 * `stats` must outlive the call. progress_finish clears the bar.
 */
void progress_begin(progress *p, const char *what, const common *options, berth_params *params,
                    berth_stats *stats);
void progress_finish(progress *p);
/* Like progress_begin, for work that writes no file: signals end the process as usual. */
void progress_begin_without_signals(progress *p, const char *what, const common *options,
                                    berth_params *params, berth_stats *stats);
/* Reports progress of the command's own work. Not 0: cancelled. */
int progress_report(void *p, uint64_t done_nbytes, uint64_t total_nbytes);
/* The exit code after a signal: 129, 130 or 143; `otherwise` if none came. */
int caught_signal_code_or(int otherwise);
/* Prints that the command's own work was cancelled. Returns that exit code. */
int print_cancelled(const char *path);
/* Seconds since a fixed moment, monotonic. */
double seconds_now(void);
/* Seconds since progress_begin. */
double progress_elapsed_seconds(const progress *p);

/* ---- standard_descriptors.c ---- */

/* Called first, so that no file that the command opens becomes standard input, output or error
 * (X10). */
void fill_closed_standard_descriptors(void);

/* ---- standard_files.c ---- */

/* Whether a word is "-". */
bool is_standard(const char *word);
/*
 * The path of an input: the word, of a folder what resolve_folder finds, or for "-" one that leads
 * to standard input. A pipe is read into an unlinked temporary first; a pipe that has another name
 * is refused. NULL: why was printed.
 */
const char *input_path(const char *word);
berth_target output_target(const char *word);
/* A file of any format there, as a whole or not at all. Returns an exit code. */
int save_bytes(const char *word, const void *bytes, size_t nbytes);
#define STDIN_PATH "/dev/stdin"
/*
 * F6: nobody reads what a command writes who could not read all that it was made of: the file, or
 * the files of the folder. Rights of URLs, and of a pipe as standard input, are not known.
 */
void note_input(const char *path);
/* The same for standard input: a file that a shell has opened. input_path() does it. */
void note_standard_input(void);
/* Sets save.readers for a new file there, unless the user has. */
void limit_readers_of(const char *out);
/* Refuses a URL, of any scheme, where something is written. Returns an exit code. */
int check_written_path(const char *word);
/* Refuses "-" where it makes no sense. Returns 0, or EXIT_TROUBLE after printing why. */
int check_output(const char *word, const common *options);

/* ---- urls.c ---- */

/*
 * Called for each positional word. Of a URL only what may be shown goes on (U1): the word without
 * user, password and query, which the functions below know by its address. Others are returned.
 */
char *keep_url(char *word);
/*
 * The same for a file in the folder of a URL that keep_url has, or below it: berth_url_beside.
 * NULL: no memory.
 */
char *keep_url_beside(const char *path, const char *name);
/* The word that keep_url was given. */
const char *kept_word(const char *word);
/*
 * Makes a source of a path or a URL. A URL is opened once, and belongs to the process; that it
 * cannot be opened is remembered, too. Returns 0 or a status.
 */
int find_source(const char *path, berth_source *source, berth_error *error);
/* Opens URLs for find_source, several at a time: most of the time is waiting. */
void open_urls(char *const *paths, size_t n);
/*
 * Reads all of what a URL leads to, which the caller frees. Returns 0, or EXIT_TROUBLE after
 * printing why: among others, that it is larger.
 */
int read_url(const char *path, uint64_t max_nbytes, char **bytes, uint64_t *nbytes);
/* The same as berth_open, also for a URL. */
int open_file_or_url(const char *path, const berth_params *params, berth_checkpoint **checkpoint,
                     berth_error *error);
/* The same as berth_archive_open. */
int open_archive(const char *path, const berth_params *params, berth_archive **archive,
                 berth_error *error);
/* Puts the words of the network in the place of "the source did not read". */
void explain_url(berth_error *error);
/* Whether reading a URL has failed since it was opened, and why. */
bool url_failed(const char *path, berth_error *error);

/* ---- elements_read.c ---- */

/*
 * How many elements to read at a time into a buffer of nbytes: 1 or more, at most all. Of kinds
 * that share a byte: all, because they are only read whole.
 */
int64_t elements_per_chunk(const berth_tensor *tensor, size_t nbytes);

/* ---- elements_text.c ---- */

/* The shortest text that reads back as the same number. */
void print_float(FILE *out, double number);
/* One element: a number, True or False, "(1.0, 2.0j)", or else its bytes. */
void print_element(FILE *out, berth_dtype dtype, const uint8_t *at);

/* ---- non_tensor_values.c ---- */

/* Containers and objects that are in a tree more than once, but no tensors. */
typedef struct repeated_values repeated_values;
/* Finds them, without recursion. NULL: no memory. */
repeated_values *repeated_values_find(const berth_value *root);
void repeated_values_free(repeated_values *all);
/* Called by a later walk when it enters a value. Returns 0, or a status if memory is out. */
int repeated_values_note_path(repeated_values *all, const berth_walk *walk,
                              const berth_value *value);
/* The path that was noted for a value; NULL: none. */
const char *repeated_values_first_path(const repeated_values *all, const berth_value *value);
/* A place for the caller's own note on a repeated value, NULL at first; NULL: it is not repeated.
 */
void **repeated_values_note(const repeated_values *all, const berth_value *value);

/* Called with a later path to a container with items; `first` is its first path. */
typedef int (*alias_function)(void *context, const char *path, const char *first);
/*
 * Calls the function for all such paths under root, without recursion. Returns its last result, or
 * EXIT_TROUBLE after printing that memory is out.
 */
int walk_aliases(const berth_value *root, alias_function function, void *context);
/* A short text of a leaf, as Python would show it; allocated. */
char *leaf_text(const berth_value *value);
/* The same of at most max_nbytes of a text or bytes; "..." follows what was cut. */
char *leaf_text_start(const berth_value *value, size_t max_nbytes);

#endif
