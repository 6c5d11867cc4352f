/* SPDX-License-Identifier: BSD-3-Clause */
/* One opening of a file, and how a refusal says what a file is. Private to load/open/. */
#ifndef BTH_LOAD_OPEN_OPEN_STEPS_H
#define BTH_LOAD_OPEN_OPEN_STEPS_H

#include "load/open/open.h"

typedef struct bth_opening {
    bth_contents *contents; /* filled step by step */
    const struct berth_config *config;
    bth_head_cache cache;
    bool looks_repacked;    /* it differs from the layout: the directory and all headers decide */
    berth_error difference; /* what differs first; no error: it is not known */
} bth_opening;

/* ---- head_records.c: records found in the head, without the directory ---- */

/*
 * Finds data.pkl and the small records in the head. *reason: NULL after success; else a static
 * text, and the directory must be read. *next_offset: where the layout expects the header of the
 * first storage.
 */
int bth_head_read(bth_opening *opening, uint64_t *next_offset, const char **reason,
                  berth_error *error);
/* Parses a small text record and stores its value (Z11). */
int bth_small_record_parse(bth_contents *contents, int which, const uint8_t *bytes, size_t nbytes,
                           uint64_t offset, berth_error *error);

/* ---- layout_check.c: the file against the layout and the directory ---- */

/* Sets the offsets of all storages by the layout; the first header is expected at `cursor`. */
int bth_layout_compute_storage_offsets(bth_opening *opening, uint64_t cursor, berth_error *error);
/* Compares the small records' headers with the layout; the last one ends at `cursor`. */
int bth_layout_check_small_records(const bth_contents *contents, uint64_t cursor,
                                   berth_error *error);
/* The same with the directory, for a file whose storages do not follow the layout (FORMAT.md 6). */
int bth_layout_check_small_records_listed(const bth_contents *contents, berth_error *error);
/* Compares the local header of the first storage, if it is in the head. */
int bth_layout_check_first_storage(const bth_opening *opening, uint64_t cursor, berth_error *error);
/*
 * Checks that every storage has its record, with exactly its size (T1). If a record is longer by
 * less than an item, sets has_longer_record. Counts those that are deflated (Z12).
 */
int bth_storages_check_entries(bth_contents *contents, berth_error *error);
/* Copies the storages' offsets from their entries, whose local headers were read. */
int bth_storages_set_listed_offsets(bth_contents *contents, berth_error *error);

/* ---- exported_program.c: .pt2 files of torch.export (E1 to E3) ---- */

/* Whether the archive is one whose weights can be read. */
bool bth_archive_is_exported_program(const bth_container *container);
/*
 * Makes the root from the weights: the state_dict of the model, or a dict of them by the models'
 * names if there are several.
 */
int bth_exported_read(bth_opening *opening, berth_error *error);

/* ---- layout_check.c: the directory as a whole ---- */

/*
 * Renders the directory by the layout, for the records that are known without it (Z3 to Z9, Z11,
 * T1). If the file's directory has the same bytes, sets the counts. A difference is no error.
 * Records after the storages are compared with their own headers.
 */
int bth_directory_compare_rendered(bth_opening *opening, const uint8_t *directory,
                                   berth_error *error);

/* ---- refused_kinds.c: how a refusal says what a file is ---- */

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

/* A step without a stand-in, of the file. */
#define BTH_STEP(before, after, does)                                                              \
    {                                                                                              \
        before, after, does, NULL, false                                                           \
    }
#define BTH_NO_STEP BTH_STEP(NULL, NULL, NULL)

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
