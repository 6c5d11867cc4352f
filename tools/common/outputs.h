/* SPDX-License-Identifier: BSD-3-Clause */
/* What a word stands for as an output: checks before it is written, and who may read it. */
#ifndef BERTH_TOOLS_OUTPUTS_H
#define BERTH_TOOLS_OUTPUTS_H

#include <berth.h>

#include "tools/common/options.h"

berth_target output_target(const char *word);
/* Of commands that save one file: its word goes to berth_params.base. */
#define BASE_OPTION                                                                                \
    {                                                                                              \
        "base", 'b', "FILE", 0,                                                                    \
            "an earlier checkpoint on OUT's file system, or OUT itself: share its blocks where "   \
            "they "                                                                                \
            "are equal, instead of writing them (XFS, btrfs)",                                     \
            1                                                                                      \
    }

/* berth_save_to there: standard output, a path, or a URL of S3. */
int save_output(const char *word, const berth_content *content, const berth_params *params,
                berth_error *error);
/* A file of any format there, as a whole or not at all. Returns an exit code. */
int save_bytes(const char *word, const void *bytes, size_t nbytes);
/* Refuses a path without a character. Returns an exit code. */
int refuse_empty(const char *word);
/* Refuses a URL, of any scheme, where something is written. Returns an exit code. */
int check_written_path(const char *word);
/* A URL of S3: nothing can be written to others. */
bool is_written_url(const char *word);
/* Of a command that can write to s3://, too. Refuses other URLs, and "-" where it makes no sense.
 * Returns 0, or EXIT_TROUBLE after printing why. */
int check_output(const char *word, const common *options);
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
 * F6: nobody reads what a command writes who could not read all that it was made of: the file, or
 * the files of the folder. Rights of URLs, and of a pipe as standard input, are not known.
 */
void note_input(const char *path);
/* The same for standard input: a file that a shell has opened. input_path() does it. */
void note_standard_input(void);
/* Sets save.readers for a new file there, unless the user has. */
void limit_readers_of(const char *out);

#endif
