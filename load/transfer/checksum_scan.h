/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checksum scan reads every byte of a source once, in parallel: it sums records, and looks at the
 * local headers and descriptors between them.
 */
#ifndef BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H
#define BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H

#include "config/options.h"
#include "format/zip/zip.h"
#include "io/source.h"

/* One record. The array is in the order of the file, and no two overlap. */
typedef struct bth_scan_record {
    const bth_zip_entry *entry; /* NULL: a storage of a legacy file, which has no entry */
    uint64_t offset;            /* of the data in the file */
    uint64_t nbytes;
    bool wants_header;     /* the header was not compared yet; `offset` is computed */
    bool wants_descriptor; /* the same */
    bool is_left_out;      /* nbytes is 0: it only keeps its place in the array */
    /* Results: */
    bool header_is_good;     /* it was seen, and agrees with entry and offset (Z5). False proves
                                nothing: two requests may share it */
    bool descriptor_is_good; /* the same (Z6) */
    uint32_t crc32;
    bool is_unread; /* a request with bytes of it failed: the other results say nothing */
} bth_scan_record;

/* How to scan, and how it was done. */
typedef struct bth_scan {
    const berth_params *params; /* for its progress; or NULL */
    bool through_cache; /* the bytes are read again soon: they should be in the page cache */
    bool goes_on;       /* after a request for bytes that the disk cannot read */
    berth_error unread; /* result: the first of those */
    const char *method; /* results, static; unchanged if nothing is read */
    const char *reason;
} bth_scan;

/* Whether the error only says that some bytes are lost, and the scan goes on then. */
bool bth_scan_goes_on(const bth_scan *scan, const berth_error *error);
/* Reads and sums all of them. */
int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *scan,
                     bth_scan_record *records, size_t n_records, berth_error *error);

#endif
