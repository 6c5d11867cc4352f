/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The interface of load/open/. Opening reads the head of a file, and the directory if needed. It
 * fills bth_contents: what is in the file, and where. It reads no bytes of storages.
 */
#ifndef BTH_LOAD_OPEN_OPEN_H
#define BTH_LOAD_OPEN_OPEN_H

#include "config/options.h"
#include "format/names/names.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/memory_region.h"
#include "io/source.h"

/* The alignment of a file that has .format_version but no .storage_alignment: PyTorch's own. */
#define BTH_DEFAULT_ALIGNMENT 64
/* This much of the head is enough to recognise the kind of a file. */
#define BTH_HEAD_MIN_NBYTES 512

/* ---- head_cache.c ---- */

/*
 * Keeps the head and the last other range of a source. Other ranges are read. If the source is
 * memory, nothing is copied. Not thread-safe.
 */
typedef struct bth_head_cache {
    bth_reader *reader;
    bth_pages pages;
    const uint8_t *head; /* the source's first bytes; they may move when the head grows */
    uint64_t head_nbytes;
    bth_region head_region; /* zeros if the source is memory */
    uint64_t head_capacity;
    bth_region buffer; /* the other range: [at, at + nbytes) of the source */
    uint64_t capacity;
    uint64_t at;
    uint64_t nbytes;
} bth_head_cache;

void bth_head_cache_initialize(bth_head_cache *cache, bth_reader *reader, int64_t large_pages);
void bth_head_cache_free(bth_head_cache *cache);

/* Extends the head to nbytes, or to the whole source. Reads only the missing bytes. */
int bth_head_cache_extend_head(bth_head_cache *cache, uint64_t nbytes, berth_error *error);

/*
 * *bytes: [offset, offset + nbytes) of the source; valid until the next call. If it must read, it
 * reads up to `ahead` bytes.
 */
int bth_head_cache_get_or_read(bth_head_cache *cache, uint64_t offset, uint64_t nbytes,
                               uint64_t ahead, const uint8_t **bytes, berth_error *error);

/* The same as an input of format/zip/. */
bth_zip_input bth_head_cache_input(bth_head_cache *cache);

/* What follows must not: said in front of its place, "storage" or "tensor". */
#define BTH_FOLLOW_LAST " follow the last "

/* ---- directory_read.c: a zip's directory, read and checked, and the records that it lists ---- */

typedef struct bth_container {
    bool known; /* the directory was parsed; else it is zero */
    bth_zip_end end;
    bth_zip_directory directory;
} bth_container;

/*
 * Reads the end records (Z1 to Z3) and the directory's bytes, which are valid until the next use of
 * the cache. One read if the last tail_nbytes (>= BTH_ZIP_TAIL_NBYTES) hold both; else two.
 */
int bth_container_read_directory_bytes(bth_container *container, bth_head_cache *cache,
                                       uint64_t tail_nbytes, const uint8_t **directory,
                                       berth_error *error);
/* Parses them (Z3, Z4, Z8, Z9). */
int bth_container_parse_directory(bth_container *container, const uint8_t *directory,
                                  berth_error *error);
/* Both. */
int bth_container_read(bth_container *container, bth_head_cache *cache, uint64_t tail_nbytes,
                       berth_error *error);
void bth_container_free(bth_container *container);

/* The entry of a record, or NULL. */
bth_zip_entry *bth_container_find(const bth_container *container, const char *record);
/* Entry i in the file's order. */
static inline bth_zip_entry *bth_container_entry_in_file_order(const bth_container *container,
                                                               size_t i)
{
    return &container->directory.entries[container->directory.by_offset[i]];
}

/*
 * Compares local headers (Z5) and descriptors (Z6) with their entries, from by_offset[first] on. No
 * record may overlap the next one (Z7). As load.check does: below BTH_CHECK_HEADERS no descriptors
 * of storages, below BTH_CHECK_DIRECTORY there may be gaps.
 */
int bth_container_check_records_from(bth_container *container, bth_head_cache *cache, size_t first,
                                     int64_t load_check, berth_error *error);

/* Local header and descriptor of the entry at directory.by_offset[i]. */
int bth_container_check_entry(bth_container *container, bth_head_cache *cache, size_t i,
                              berth_error *error);

/*
 * *bytes: the data of a record whose local header was checked, inflated if deflated. Compares the
 * CRC, if the file has one (Z10). If *owned is not NULL, the caller releases it, and it holds the
 * bytes. Else they are valid until the next use of the cache.
 */
int bth_entry_read_data(const bth_zip_entry *entry, bth_head_cache *cache, const uint8_t **bytes,
                        uint8_t **owned, berth_error *error);

/* Checks the version record, if there is one, as PyTorch does when it opens the file (Z11). */
int bth_container_check_version(const bth_container *container, bth_head_cache *cache,
                                berth_error *error);

/* ---- contents_read.c ---- */

/* Numbers of records in the directory, for berth_info. */
typedef struct bth_record_counts {
    bool known;
    size_t n_records;
    size_t n_unknown_records;
    size_t n_crc32;
} bth_record_counts;

/* The format of the file. Only a zip has a directory and CRCs. */
typedef enum bth_container_kind {
    BTH_CONTAINER_ZIP,
    BTH_CONTAINER_LEGACY,
    BTH_CONTAINER_SAFETENSORS,
} bth_container_kind;

/* What is in the file, and where. Constant after opening, except for the last part. */
typedef struct bth_contents {
    bth_container_kind kind;
    char *archive;            /* top folder; NULL if it is no zip */
    berth_value *metadata;    /* of safetensors; NULL: none */
    bth_pickle_survey survey; /* of data.pkl in the head */
    bth_region values;        /* memory of the tree */
    berth_tree *tree;
    berth_value *root;
    bth_zip_entry small[BTH_N_SMALL]; /* as found in the head; use bth_contents_small_record */
    int64_t format_version;           /* 0: no such record */
    int64_t storage_alignment;        /* 0: no such record */
    bool is_big;                      /* byte order of the storages' elements */
    bool byteorder_recorded;
    bool calculated_offsets;
    bool is_program; /* of torch.export: it has no data.pkl */
    bool repacked;   /* it has .format_version, but its directory differs from the layout (Z13) */
    uint64_t behind_nbytes;  /* of the legacy format: of further objects in the file */
    uint64_t central_nbytes; /* of the storages in the directory, by the layout */
    bool keeps_directory;    /* opening always parses it: verification needs it */
    uint64_t layout_end;     /* of the last storage, by the layout */
    size_t n_deflated;       /* storages that are deflated (Z12) */
    const bth_zip_entry *first_deflated;
    bool has_longer_record; /* T1: a record is longer than its elements: offsets cannot be
                               calculated */

    /* Filled at the first use, under the checkpoint's lock: */
    bth_container container;
    bth_record_counts counts;
    bth_names *names;
} bth_contents;

static inline bool bth_contents_are_zip(const bth_contents *contents)
{
    return contents->kind == BTH_CONTAINER_ZIP;
}

/* NULL: no such record. */
static inline const bth_zip_entry *bth_contents_small_record(const bth_contents *contents,
                                                             int which)
{
    return contents->small[which].record ? &contents->small[which] : NULL;
}

/* Fills empty contents. The caller calls bth_contents_free, after a failure, too. */
int bth_contents_read(bth_contents *contents, bth_reader *reader, const struct berth_config *config,
                      berth_error *error);
void bth_contents_free(bth_contents *contents);

/* Reads the directory if opening did not (load.check=none). Under the lock. */
int bth_contents_ensure_directory(bth_contents *contents, bth_reader *reader, berth_error *error);

/*
 * ---- refused_kinds.c, refused_archives.c: what a file is that is no checkpoint ----
 *
 * Each but the last sets BERTH_E_NOT_CHECKPOINT with one sentence that says it, and a command to
 * paste if one helps. A sentence holds no unprintable bytes of the file.
 */

/* For a file that is neither a zip nor in the legacy format. Reads 64 KiB of it at most. */
int bth_refuse_kind(bth_head_cache *cache, berth_error *error);
/* After a path could not be opened: adds what a checkpoint in a folder needs. */
int bth_folder_explain(const berth_source *source, berth_error *error);
/* For a zip: refuses it if its first record lies in no folder and its name tells what it is. */
int bth_archive_check_first_name(const bth_head_cache *cache, berth_error *error);
/* For a zip whose directory was read: refuses it if it has no data.pkl, or is a program. */
int bth_archive_check_is_checkpoint(const bth_container *container, const bth_reader *reader,
                                    berth_error *error);

/* After an error of the directory: adds it if a file in the archive could be opened by itself, or
 * what makes a checkpoint of the archive. */
int bth_archive_explain_directory(const uint8_t *directory, size_t nbytes, const bth_reader *reader,
                                  berth_error *error);

/* After an error about the end records: says it if bytes follow the archive, or another one
 * precedes it. `tail`: the file's last nbytes. */
int bth_archive_refuse_end(bth_head_cache *cache, const uint8_t *tail, size_t nbytes,
                           berth_error *error);

/*
 * After a pickle of nbytes was refused: adds the global that it names and should not, or else the
 * command that saves a file of another protocol again.
 */
int bth_pickle_explain_refusal(const uint8_t *bytes, size_t nbytes, const bth_reader *reader,
                               berth_error *error);
/* The same for the pickles of the legacy format. */
int bth_legacy_explain_refusal(bth_head_cache *cache, berth_error *error);
/*
 * After an error of an object that begins at this offset of the file, behind others: adds what
 * takes it out, or what keeps the others. The error is of a source that begins there; now it is of
 * the file.
 */
int bth_later_object_explain(const bth_reader *file, uint64_t offset, berth_error *error);

/* ---- layout_check.c: storages and their entries, after the directory was read ---- */

/* The entry of a storage's record. BERTH_E_ARCHIVE: there is none. */
int bth_storage_entry(const bth_contents *contents, const berth_storage *storage,
                      const bth_zip_entry **entry, berth_error *error);
/* The reverse for all storages: sets storages[index of the entry]. Skips other entries. */
int bth_entries_find_storages(const bth_contents *contents, const berth_storage **storages,
                              berth_error *error);
/*
 * Compares the layout with the directory, and with the local headers that were read, unless it
 * ignores them: first small records, then storages. The first difference is BERTH_E_OFFSETS.
 */
int bth_layout_check(const bth_contents *contents, bool ignores_local, berth_error *error);
/* Counts the records. Under the lock. */
int bth_contents_ensure_record_counts(bth_contents *contents, bth_reader *reader,
                                      berth_error *error);

#endif
