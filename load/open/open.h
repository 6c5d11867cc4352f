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
#include "load/open/directory_read.h"

/* The alignment of a file that has .format_version but no .storage_alignment: PyTorch's own. */
#define BTH_DEFAULT_ALIGNMENT 64
/* So much of a file's head is enough to recognise its kind. */
#define BTH_HEAD_MIN_NBYTES 512

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
/* The reverse, for all at once: storages[index of the entry] becomes 1 + the storage's index. Other
 * entries are left as they are. */
int bth_storages_of_entries(const bth_contents *contents, size_t *storages, berth_error *error);
/*
 * Compares the layout with the directory, and with local headers where those were read: small
 * records, then storages. The first difference is BERTH_E_OFFSETS.
 */
int bth_layout_check(const bth_contents *contents, berth_error *error);

#endif
