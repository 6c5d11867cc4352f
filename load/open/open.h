/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The door of load/open/. Opening reads the head of a file, and its directory where that is needed.
 * It fills bth_contents: what is in the file, and where. It reads no bytes of storages.
 */
#ifndef BTH_LOAD_OPEN_OPEN_H
#define BTH_LOAD_OPEN_OPEN_H

#include "config/options.h"
#include "format/names/names.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/region.h"
#include "io/source.h"

/* The alignment of a file that has .format_version but no .storage_alignment: PyTorch's own. */
#define BTH_DEFAULT_ALIGNMENT 64
/* So much of a file's head is enough to recognise its kind. */
#define BTH_HEAD_MIN_NBYTES 512

/* ---- head_cache.c: what opening has read of a source ---- */

/*
 * The head, which is kept, and one other range. A range that is in neither is read; of a source in
 * memory nothing is copied. Not thread-safe.
 */
typedef struct bth_head_cache {
    bth_reader *reader;
    const uint8_t *head; /* the source's first bytes; they may move when the head grows */
    uint64_t head_nbytes;
    bth_region head_region; /* zeros where the source is memory */
    uint64_t head_capacity;
    bth_region buffer; /* the other range: [at, at + nbytes) of the source */
    uint64_t capacity;
    uint64_t at;
    uint64_t nbytes;
} bth_head_cache;

void bth_head_cache_begin(bth_head_cache *cache, bth_reader *reader);
void bth_head_cache_free(bth_head_cache *cache);

/* Makes the head nbytes long, or as long as the source. Reads only what is missing. */
int bth_head_cache_grow(bth_head_cache *cache, uint64_t nbytes, berth_error *error);

/*
 * Sets *bytes to [offset, offset + nbytes) of the source; they live until the next call. If they
 * must be read, up to `ahead` bytes are read.
 */
int bth_head_cache_get(bth_head_cache *cache, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                       const uint8_t **bytes, berth_error *error);

/* The same for the record check. */
bth_zip_input bth_head_cache_input(bth_head_cache *cache);

/* ---- directory_read.c: a zip's directory, read and checked, and the records that it lists ---- */

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

/* ---- contents_read.c ---- */

/* How many records the directory lists: a part of berth_info. */
typedef struct bth_record_counts {
    bool known;
    size_t n_records;
    size_t n_unknown_records;
    size_t n_crc32;
} bth_record_counts;

/* What is in the file, and where. Constant once the checkpoint is open, except for the last part.
 */
typedef struct bth_contents {
    bool is_legacy;
    char *archive;            /* top folder; "" for the legacy format */
    bth_pickle_survey survey; /* of data.pkl in the head */
    bth_region values;        /* memory of the tree */
    berth_tree *tree;
    berth_value *root;
    bth_zip_entry small[BTH_N_SMALL]; /* as found in the head; use bth_small_entry */
    int64_t format_version;           /* 0: no such record */
    int64_t storage_alignment;        /* 0: no such record */
    bool is_big;                      /* byte order of the storages' elements */
    bool byteorder_recorded;
    bool calculated_offsets;
    uint64_t central_nbytes; /* of the storages in the directory, by the layout */
    bool keeps_directory;    /* opening always parses it: verification needs it */
    uint64_t layout_end;     /* of the last storage, by the layout */
    bool has_longer_record;  /* T1: a record is longer than its elements, so offsets cannot be
                                calculated */

    /* Made when first needed, under the checkpoint's lock: */
    bth_container container;
    bth_record_counts counts;
    bth_names *names;
} bth_contents;

/* NULL: there is no such record. */
static inline const bth_zip_entry *bth_small_entry(const bth_contents *contents, int which)
{
    return contents->small[which].record ? &contents->small[which] : NULL;
}

/* Fills empty contents from what the reader gives. On failure bth_contents_free frees them, too. */
int bth_contents_read(bth_contents *contents, bth_reader *reader, const struct berth_config *config,
                      berth_error *error);
void bth_contents_free(bth_contents *contents);
/* Fails with one clear sentence for each kind of file that is neither a zip nor the legacy format.
 * The cache has at least BTH_HEAD_MIN_NBYTES, or all of the file. */
int bth_refuse_kind(const bth_head_cache *cache, berth_error *error);

/* Reads the directory if opening did not (load.check=none). Under the lock. */
int bth_contents_need_directory(bth_contents *contents, bth_reader *reader, berth_error *error);
/* Counts the records. Under the lock. */
int bth_contents_need_counts(bth_contents *contents, bth_reader *reader, berth_error *error);

/* ---- layout_check.c: storages and their entries, once the directory was read ---- */

/* The entry of a storage's record. BERTH_E_ARCHIVE: there is none. */
int bth_storage_entry(const bth_contents *contents, const berth_storage *storage,
                      const bth_zip_entry **entry, berth_error *error);
/* The reverse, for all at once: sets storages[index of the entry]; not for other entries. */
int bth_storages_of_entries(const bth_contents *contents, const berth_storage **storages,
                            berth_error *error);
/*
 * Compares the layout with the directory, and with local headers where those were read: small
 * records, then storages. The first difference is BERTH_E_OFFSETS.
 */
int bth_layout_check(const bth_contents *contents, berth_error *error);

#endif
