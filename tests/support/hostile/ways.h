/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every way to read one file, and what each says of it: "read", or its sentence. Those that check
 * less may be told less, but nobody is told anything else (One reading).
 */
#ifndef TESTS_SUPPORT_WAYS_H
#define TESTS_SUPPORT_WAYS_H

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/load/describe.h"

/* In fours: load.check from none to data. */
enum way {
    OPEN_NONE,
    OPEN_DIRECTORY,
    OPEN_HEADERS,
    OPEN_DATA,
    OFF_NONE,
    OFF_DIRECTORY,
    OFF_HEADERS,
    OFF_DATA,
    ARCHIVE_NONE,
    ARCHIVE_DIRECTORY,
    ARCHIVE_HEADERS,
    ARCHIVE_DATA,
    VERIFY,
    VERIFY_DEBUG,
    N_WAYS
};

#define N_IN_FOURS 12

static const char *const way_names[N_WAYS] = {
    "open-none",       "open-directory", "open-headers", "open-data",    "off-none",
    "off-directory",   "off-headers",    "off-data",     "archive-none", "archive-directory",
    "archive-headers", "archive-data",   "verify",       "verify-debug"};

static const char *const check_options[4] = {"load.check=none", "load.check=directory",
                                             "load.check=headers", "load.check=data"};

typedef char said[800];

/* Whether it says "read". */
bool is_read(const char *text);
/* Whether it was read as a repacked file is: by the directory, although it has .format_version. */
bool is_repacked(const char *text);
/* Whether it was opened as one, and then could not be read. */
bool is_opened_only(const char *text);
void remove_opened_mark(said text);

/* One file, read in one way with these options; `more`: of memory, some more. */
void verdict_on_bytes(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                      const char *more, bool debug);
void verdict_on_file(said text, const char *path, const char *options, bool debug);
void verdict_on_pieces(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                       bool debug);
void verdict_on_archive(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                        bool debug);
void ask_way(said text, enum way way, const uint8_t *bytes, size_t nbytes, const char *path);

/* In which folder this program was built, the command lies; "" where it was not. */
const char *command_path(void);
/* Runs one subcommand on the file and keeps what it says of it; returns its exit code. */
int run_command(said text, const char *words, const char *path, const char *more, bool debug);

#endif
