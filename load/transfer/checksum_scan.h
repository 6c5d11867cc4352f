/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One pass over a source that reads every byte once, in parallel and in order: CRCs of records, and
 * with them the local headers and descriptors that lie between.
 */
#ifndef BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H
#define BTH_LOAD_TRANSFER_CHECKSUM_SCAN_H

#include <stdatomic.h>

#include "config/options.h"
#include "format/zip/zip_read.h"
#include "io/source.h"

/* One record. The array is in the file's order, and no two overlap. */
typedef struct bth_swept {
    const bth_zip_entry *entry; /* NULL: a stream's storage, of which nothing is known but where */
    uint64_t offset;            /* of the data, as it lies in the file */
    uint64_t nbytes;
    bool wants_header;     /* was not compared yet: is looked at on the way; `offset` is computed */
    bool wants_descriptor; /* the same */
    bool is_left_out;      /* nbytes is 0: it is only here to have its place */
    /* Results: */
    bool header_is_good; /* was met, and agrees with entry and offset (Z5). False proves nothing: it
                            may lie across two blocks */
    bool descriptor_is_good; /* the same (Z6) */
    uint32_t crc32;
    atomic_bool is_unread; /* of a request that failed it has bytes, too: the others say nothing */
} bth_swept;

/* How, and how it was done. */
typedef struct bth_sweep_order {
    const berth_params
        *call;          /* its progress is told how many of the records' bytes are done; NULL */
    bool through_cache; /* the bytes are asked for again soon: they shall be in the page cache */
    bool goes_on;       /* after a request for bytes that the disk cannot read */
    berth_error unread; /* result: the first of those */
    const char *method; /* results, static; unchanged where nothing had to be read */
    const char *reason;
} bth_sweep_order;

/* Whether no more than some bytes are lost, and the order is to go on then. */
bool bth_sweep_goes_on(const bth_sweep_order *order, const berth_error *error);
/* Reads and sums all of them. */
int bth_sweep(bth_reader *reader, const struct berth_config *config, bth_sweep_order *order,
              bth_swept *records, size_t n_records, berth_error *error);

#endif
