/* SPDX-License-Identifier: BSD-3-Clause */
/* What a word of a command line stands for as an input, and opening it. */
#ifndef BERTH_TOOLS_INPUTS_H
#define BERTH_TOOLS_INPUTS_H

#include "tools/common/select.h"
#include "tools/common/set.h"

/* Whether a word is "-". */
bool is_standard(const char *word);
#define STDIN_PATH "/dev/stdin"
/* Whether name ends in an extension such as ".safetensors". */
bool has_extension(const char *name, const char *extension);
/*
 * The path of an input: the word, of a folder what resolve_folder finds, or for "-" one that leads
 * to standard input. A pipe is read into an unlinked temporary first; a pipe that has another name
 * is refused. NULL: why was printed.
 */
const char *input_path(const char *word);
/*
 * For a command that cannot take several files as one checkpoint: refuses an index and a DCP
 * directory. Returns 0, or EXIT_NO after printing what to do.
 */
int check_is_one_file(const char *path);

typedef struct input {
    berth_checkpoint *checkpoint;
    file_set *set; /* NULL: a file */
} input;

/*
 * Opens any of them. Returns 0, or an exit code after printing why; input_close is due then, too.
 * selected: of a DCP directory, a value that it does not need is None and is not read.
 */
int input_open_selected(const char *path, const berth_params *params, selection *selected,
                        input *opened);
/* The same, of all values. */
int input_open(const char *path, const berth_params *params, input *opened);
/* The same, but the error of a single file is the caller's to print: error->code is 0 of a set. */
int input_open_quietly(const char *path, const berth_params *params, input *opened,
                       berth_error *error);
void input_close(input *opened);

#endif
