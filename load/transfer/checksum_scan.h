/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checksum scan reads every byte of a source once, in parallel: it sums records, and checks the
 * local headers and descriptors between them.
 */
#ifndef BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H
#define BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H

#include "config/options.h"
#include "format/zip/zip.h"
#include "io/source.h"

/* One record. The array is in the order of the file, and no two overlap. */
typedef struct bth_scan_record {
    const bth_zip_entry *entry; /* NULL: a storage of a file without a directory: */
    const berth_storage *storage;
    uint64_t offset;       /* of the data in the file */
    uint64_t nbytes;       /* of a deflated one: when it is inflated */
    bool is_deflated;      /* `entry` is; its header was checked */
    bool wants_header;     /* the header was not compared yet; `offset` is computed */
    bool wants_descriptor; /* the same */
    bool is_left_out;      /* not scanned; nbytes is 0 */
    /* Results: */
    bool header_is_good;     /* it agrees with entry and offset (Z5). False proves nothing: two
                                requests may share it */
    bool descriptor_is_good; /* the same (Z6) */
    uint32_t crc32;
    bool is_unread; /* a request for bytes of it failed: the other results are not valid */
} bth_scan_record;

/* Options and results of a scan. */
typedef struct bth_scan {
    const berth_params *params; /* for its progress; or NULL */
    bool through_cache;         /* leaves the bytes in the page cache: they are read again soon */
    bool defers_bad;            /* a record that cannot be inflated is only marked as unread: the
                                   caller scans it again, alone, for its error */
    bool goes_on;               /* goes on after a request that the disk cannot read */
    berth_error unread;         /* result: the first such error */
    const char *method;         /* results, static; unchanged if nothing is read */
    const char *reason;
} bth_scan;

/* Whether the scan goes on after the error: only some bytes are lost. */
/* The disk cannot read these bytes; others it can. */
bool bth_error_is_of_bad_disk(const berth_error *error);
bool bth_scan_goes_on(const bth_scan *scan, const berth_error *error);
/* Reads and sums all of them. */
int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *scan,
                     bth_scan_record *records, size_t n_records, berth_error *error);

#endif
