/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One pass over a source that reads every byte once, in parallel and in order: CRCs of records, and
 * with them the local headers and descriptors that lie between.
 */
#ifndef BERTH_LOAD_SWEEP_H
#define BERTH_LOAD_SWEEP_H

#include "config/options.h"
#include "format/zip_read.h"
#include "io/source.h"

/* One record. The array is in the file's order, and no two overlap. */
typedef struct berth_swept {
    const berth_zip_entry
        *entry;      /* NULL: a stream's storage, of which nothing is known but where */
    uint64_t offset; /* of the data, as it lies in the file */
    uint64_t nbytes;
    bool wants_header;     /* was not compared yet: is looked at on the way; `offset` is computed */
    bool wants_descriptor; /* the same */
    bool is_left_out;      /* nbytes is 0: it is only here to have its place */
    /* Results: */
    bool header_is_good; /* was met, and agrees with entry and offset (Z5). False proves nothing: it
                            may lie across two blocks */
    bool descriptor_is_good; /* the same (Z6) */
    uint32_t crc32;
} berth_swept;

/* How, and how it was done. */
typedef struct berth_sweep_order {
    const berth_call *call; /* its progress is told how many of the records' bytes are done; NULL */
    bool through_cache; /* the bytes are asked for again soon: they shall be in the page cache */
    const char *method; /* results, static; unchanged where nothing had to be read */
    const char *reason;
} berth_sweep_order;

/* Reads and sums all of them. */
int berth_sweep(berth_reader *reader, const struct berth_config *config, berth_sweep_order *order,
                berth_swept *records, size_t n_records, berth_error *error);

#endif
