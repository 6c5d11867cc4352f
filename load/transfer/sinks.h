/* SPDX-License-Identifier: BSD-3-Clause */
/* Sinks of transfers: the caller's memory, and checksum scans. */
#ifndef BTH_LOAD_TRANSFER_SINKS_H
#define BTH_LOAD_TRANSFER_SINKS_H

#include "config/options.h"
#include "format/zip/zip.h"
#include "io/source.h"
#include "load/transfer/requests.h"

/* ---- a long range of a source to the caller's memory, by bth_transfer_once ---- */

/* Whether the range is long enough for workers. */
bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes);
/* The range has its place, and `memory`. Of a deflated record: also `inflated_from` (Z12). All of
 * it is inflated, for its CRC. */
int bth_read_range(bth_reader *reader, const struct berth_config *config, bth_range range,
                   bool through_cache, berth_error *error);
/* The same for bytes that are already at `memory`. is_mapped (F2): if the file was truncated after
 * it was mapped, that is an error, if it is detected in time. */
int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error);

/* ---- checksum scans ---- */

/* A scan reads every byte of a source once, in parallel: it sums records, and checks the local
 * headers and descriptors between them. */

/* One record. The array is in the order of the file, and no two overlap. */
typedef struct bth_scan_record {
    uint64_t offset;            /* of the data in the file */
    const bth_zip_entry *entry; /* NULL: a storage of a file without a directory: */
    const berth_storage *storage;
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

/* The disk cannot read these bytes; others it can. */
bool bth_error_is_of_bad_disk(const berth_error *error);
/* Reads and sums all of them. */
int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *scan,
                     bth_scan_record *records, size_t n_records, berth_error *error);

#endif
