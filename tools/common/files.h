/* SPDX-License-Identifier: BSD-3-Clause */
/* One report on each of several files. */
#ifndef BERTH_TOOLS_FILES_H
#define BERTH_TOOLS_FILES_H

#include "tools/common/options.h"
#include "tools/common/shards.h"

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

#endif
