/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A zip's directory, fetched and checked, and the records it lists: what archives, the fallback of
 * checkpoints, cross-checks and verification stand on.
 */
#ifndef BTH_LOAD_OPEN_DIRECTORY_READ_H
#define BTH_LOAD_OPEN_DIRECTORY_READ_H

#include "format/zip/zip_read.h"
#include "load/open/head_cache.h"

typedef struct bth_container {
    bool known; /* the directory was parsed; else it is zero */
    bth_zip_end end;
    bth_zip_directory directory;
} bth_container;

/*
 * Reads the end records (Z1 to Z3) and the directory's bytes, which live until the next use of the
 * window: in one read if the last `tail_nbytes` bytes, or BTH_ZIP_TAIL_NBYTES, hold both; in two
 * if not. What the head holds is not read again.
 */
int bth_container_fetch(bth_container *container, bth_window *window, uint64_t tail_nbytes,
                        const uint8_t **directory, berth_error *error);
/* Then what they say (Z3, Z4, Z8, Z9). */
int bth_container_parse(bth_container *container, const uint8_t *directory, berth_error *error);
/* Both. */
int bth_container_read(bth_container *container, bth_window *window, uint64_t tail_nbytes,
                       berth_error *error);
void bth_container_free(bth_container *container);

/* The entry of a record, or NULL. */
bth_zip_entry *bth_container_find(const bth_container *container, const char *record);
/*
 * The same for one of many records that follow each other: *next, at first 0, is where it is looked
 * for first, behind the last one that was found.
 */
bth_zip_entry *bth_container_find_next(const bth_container *container, const char *record,
                                       size_t record_nbytes, size_t *next);

/*
 * Z5: compares the local header of an entry, which then knows where its data is; reads as far as
 * `end`.
 */
int bth_container_check_local(bth_zip_entry *entry, bth_window *window, uint64_t end,
                              berth_error *error);

/*
 * Reads the local headers from directory.by_offset[first] on and compares them with their entries
 * (Z5), which then know their data_offset; then the descriptors (Z6): of all, or of all but
 * storages. No record may reach into the next one (Z7).
 */
int bth_container_check_headers(bth_container *container, bth_window *window, size_t first,
                                bool all_descriptors, berth_error *error);

/*
 * Z5 to Z7 of what lies from directory.by_offset[first] to the directory, which nothing else tells
 * to be what the directory lists, and no more than that.
 */
int bth_container_check_rest(bth_container *container, bth_window *window, size_t first,
                             berth_error *error);

/* Local header and descriptor of one entry, the one at directory.by_offset[i]. */
int bth_container_check_entry(bth_container *container, bth_window *window, size_t i,
                              berth_error *error);

/*
 * The whole of one record whose local header was checked, inflated if deflated, its CRC compared
 * where there is one (Z10). *bytes lives until the next use of the window, or until *owned, which
 * is NULL if not needed, is released.
 */
int bth_container_bytes(const bth_zip_entry *entry, bth_window *window, const uint8_t **bytes,
                        uint8_t **owned, berth_error *error);

#endif
