/* SPDX-License-Identifier: BSD-3-Clause */
/* A zip's directory, read and checked, and the records that it lists. */
#ifndef BTH_LOAD_OPEN_DIRECTORY_READ_H
#define BTH_LOAD_OPEN_DIRECTORY_READ_H

#include "format/zip/zip.h"
#include "load/open/head_cache.h"

typedef struct bth_container {
    bool known; /* the directory was parsed; else it is zero */
    bth_zip_end end;
    bth_zip_directory directory;
} bth_container;

/*
 * Reads the end records (Z1 to Z3) and the directory's bytes, which live until the next use of the
 * cache. One read, if the last tail_nbytes (at least BTH_ZIP_TAIL_NBYTES) hold both; else two.
 */
int bth_container_get(bth_container *container, bth_head_cache *cache, uint64_t tail_nbytes,
                      const uint8_t **directory, berth_error *error);
/* Parses them (Z3, Z4, Z8, Z9). */
int bth_container_parse(bth_container *container, const uint8_t *directory, berth_error *error);
/* Both. */
int bth_container_read(bth_container *container, bth_head_cache *cache, uint64_t tail_nbytes,
                       berth_error *error);
void bth_container_free(bth_container *container);

/* The entry of a record, or NULL. */
bth_zip_entry *bth_container_find(const bth_container *container, const char *record);
/*
 * The same, faster for records that follow each other: *next, at first 0, is the entry behind the
 * one that was found last.
 */
bth_zip_entry *bth_container_find_next(const bth_container *container, const char *record,
                                       size_t record_nbytes, size_t *next);

/* Whether a local header's name is "<archive>/<record>". */
bool bth_local_has_name(const bth_zip_local *local, const char *archive, const char *record);
/*
 * Compares local headers (Z5) and descriptors (Z6) with their entries, from by_offset[first] on;
 * the storages' descriptors only if all_descriptors. No record may reach into the next one (Z7).
 */
int bth_container_check_headers(bth_container *container, bth_head_cache *cache, size_t first,
                                bool all_descriptors, berth_error *error);

/* Z5 to Z7 of all that lies from by_offset[first] to the directory: nothing else checks it. */
int bth_container_check_rest(bth_container *container, bth_head_cache *cache, size_t first,
                             berth_error *error);

/* Local header and descriptor of the entry at directory.by_offset[i]. */
int bth_container_check_entry(bth_container *container, bth_head_cache *cache, size_t i,
                              berth_error *error);

/*
 * All bytes of a record whose local header was checked, inflated if deflated. Compares the CRC, if
 * there is one (Z10). *bytes live until the next use of the cache, or, if *owned is not NULL, until
 * that is released.
 */
int bth_container_bytes(const bth_zip_entry *entry, bth_head_cache *cache, const uint8_t **bytes,
                        uint8_t **owned, berth_error *error);

#endif
