/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of load/open/ share while a file is being opened. Private to them. */
#ifndef BTH_LOAD_OPEN_OPEN_STEPS_H
#define BTH_LOAD_OPEN_OPEN_STEPS_H

#include "load/open/open.h"

typedef struct bth_opening {
    bth_contents *contents; /* filled step by step */
    const struct berth_config *config;
    bth_head_cache cache;
} bth_opening;

/* ---- head_read.c: records found in the head, without the directory ---- */

/*
 * Finds data.pkl and the small records in the head. *reason is NULL if that worked, else a static
 * text that says why not: then the directory must be read. *next_offset: where the first storage's
 * header is expected.
 */
int bth_head_read(bth_opening *opening, uint64_t *next_offset, const char **reason,
                  berth_error *error);
/* Parses a small text record and keeps what it says (Z11). */
int bth_small_record_read(bth_contents *contents, int which, const uint8_t *bytes, size_t nbytes,
                          uint64_t offset, berth_error *error);

/* ---- layout_check.c: the file against the layout and the directory ---- */

/* By the layout of this file, data begins at multiples of this. */
uint32_t bth_layout_alignment(const bth_contents *contents);
/* Sets the offsets of all storages by the layout; the first header is expected at `cursor`. */
int bth_layout_compute(bth_opening *opening, uint64_t cursor, berth_error *error);
/* Compares the small records' headers with the layout; the last one ends at `cursor`. */
int bth_layout_check_small(const bth_contents *contents, uint64_t cursor, berth_error *error);
/* The same with the directory: for a file whose storages are elsewhere (FORMAT.md 6). */
int bth_layout_check_small_listed(const bth_contents *contents, berth_error *error);
/* Compares the local header of the first storage, if it is in the head. */
int bth_layout_check_first(const bth_opening *opening, uint64_t cursor, berth_error *error);
/*
 * Every storage has its record, stored and of exactly its size (T1, Z9). A record that is longer by
 * less than an item sets has_longer_record.
 */
int bth_storages_check_entries(bth_contents *contents, berth_error *error);
/* Takes the storages' offsets from their entries, whose local headers were read. */
int bth_storages_set_offsets(bth_contents *contents, berth_error *error);

/* ---- directory_check.c: the directory as a whole ---- */

/*
 * Sets the counts if the directory, whose end records were found, is byte for byte what the layout
 * renders for the records that are known without it (Z3 to Z9, Z11, T1). If it is not, that is no
 * error. Records behind the storages are compared with their own headers.
 */
int bth_directory_check_rendered(bth_opening *opening, const uint8_t *directory,
                                 berth_error *error);
/* Counts the entries of a directory that was parsed. */
bth_record_counts bth_directory_count(const bth_contents *contents);

#endif
