/* SPDX-License-Identifier: BSD-3-Clause */
/* How a refusal says what a file is. Private to refused_kinds.c, refused_pickles.c and
 * refused_archives.c, but for words of command lines. */
#ifndef BTH_LOAD_OPEN_REFUSAL_H
#define BTH_LOAD_OPEN_REFUSAL_H

#include "load/open/open.h"

/* More of a name, a title or a text of the file is not shown. */
#define BTH_SHOWN_NBYTES 100

/* A longer path is no word of a command. */
#define BTH_WORD_NBYTES 200

/* With bth_folder_word_make. */
#define BTH_DCP_TO_TORCH "`berth convert %s NEW.pt` makes a checkpoint of its directory"
#define BTH_RESAVES(load) "python3 -c \"import sys, numpy, torch; torch.save(" load ", 'NEW.pt')\" "

/* What a file is, and the command that helps: `before FILE after` does. */
typedef struct bth_file_kind {
    const char *what;
    const char *before; /* NULL: no command helps */
    const char *after;
    const char *does;
} bth_file_kind;

/* Fails with BERTH_E_NOT_CHECKPOINT, and the kind's sentence. */
int bth_file_kind_refuse(const bth_file_kind *kind, const bth_reader *reader, berth_error *error);

/* A file or a folder as a word of a command line. */
typedef struct bth_file_word {
    char text[BTH_WORD_NBYTES + 12];
} bth_file_word;

/* In quotes if it needs them. Names that are no UTF-8, or longer, are not shown:
 * "FILE". */
bth_file_word bth_file_word_make(const bth_reader *reader);
/* The same of the folder in which the file is; "DIRECTORY". */
bth_file_word bth_folder_word_make(const bth_reader *reader);

/* ---- refused_pickles.c: by the first bytes; nothing happens to any other file ---- */

/* A tar archive, among them the checkpoints of before 2017. */
void bth_head_refuse_tar(const bth_head_cache *cache, berth_error *error);
/* The legacy format in another protocol than 2 and 3. */
void bth_head_refuse_legacy_protocol(const bth_head_cache *cache, berth_error *error);
/* Any other pickle: by torch.distributed.checkpoint, or bare. */
void bth_head_refuse_pickle(const bth_head_cache *cache, berth_error *error);

#endif
