/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs that are URLs, by adapters/curl. */
#ifndef BERTH_TOOLS_URLS_H
#define BERTH_TOOLS_URLS_H

#include <berth/more.h>

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
/* Refuses a word that begins with another scheme. Returns 0, or EXIT_TROUBLE after printing why. */
int check_scheme(const char *word);
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
                 berth_archive_info *info, berth_error *error);
/* Puts the words of the network in the place of "the source did not read". */
void explain_url(berth_error *error);
/* Whether reading a URL has failed since it was opened, and why. */
bool url_failed(const char *path, berth_error *error);

#endif
