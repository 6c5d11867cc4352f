/* SPDX-License-Identifier: BSD-3-Clause */
/* How a refusal says what a file is. Private to refused_kinds.c and refused_archives.c, but for
 * steps. */
#ifndef BTH_LOAD_OPEN_REFUSAL_H
#define BTH_LOAD_OPEN_REFUSAL_H

#include "load/open/open.h"

/* More of a name, a title or a text of the file is not shown. */
#define BTH_SHOWN_NBYTES 100

/* A longer path is no word of a command. */
#define BTH_WORD_NBYTES 200

/* The next step: a command, `before PATH after`, and what it does. */
typedef struct bth_step {
    const char *before; /* NULL: no command helps */
    const char *after;
    const char *does; /* may be "" */
    const char
        *without;   /* in place of the command and what it does, if there is no path that it can
                       take; NULL: what stands before the path names the tool. "": nothing */
    bool of_folder; /* it takes the file's folder */
} bth_step;

#define BTH_RESAVES(load) "python3 -c \"import sys, numpy, torch; torch.save(" load ", 'NEW.pt')\" "
#define BTH_IF_NUMBERS "if they are numbers in this machine's byte order"

/* What a file is, and what helps. */
typedef struct bth_file_kind {
    const char *what;
    bth_step step;
} bth_file_kind;

/* Fails with BERTH_E_NOT_CHECKPOINT, and the kind's sentence. */
int bth_file_kind_refuse(const bth_file_kind *kind, const bth_reader *reader, berth_error *error);

/* Appends `lead` and the step to the message. Memory and descriptors have no path, and names that
 * are long or no UTF-8 are no words of a command line. Of a source with a stand-in, such as a URL,
 * only `berth` reads that. */
int bth_error_append_step(berth_error *error, const char *lead, const bth_step *step,
                          const bth_reader *reader);
/* The step that leaves out what follows the first nbytes. */
int bth_error_append_leaves_out(berth_error *error, uint64_t nbytes, const char *after,
                                const bth_reader *reader);
/* "`berth convert DIRECTORY NEW.pt` makes a checkpoint of its directory" */
extern const bth_step bth_dcp_to_torch;

#endif
