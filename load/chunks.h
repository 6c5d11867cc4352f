/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The work of bringing storages: chunks are read, directly or not, or made present where they are
 * mapped; summed and swapped while they are in the processor's cache; and what is not aligned for
 * its elements is moved where it is.
 */
#ifndef BERTH_LOAD_CHUNKS_H
#define BERTH_LOAD_CHUNKS_H

#include "load/checkpoint.h"
#include "load/spans.h"

typedef struct berth_chunks {
    berth_checkpoint *checkpoint;
    const struct berth_config *config;
    const berth_call *call; /* for its progress; or NULL */
    bool with_crc32;        /* items get their CRCs */
    berth_spans *spans;     /* measured and cut into: */
    berth_chunk *chunks;
    atomic_uint_fast64_t done_nbytes;
    atomic_uint_fast64_t moved_nbytes; /* read */
    atomic_uint_fast64_t n_requests;
} berth_chunks;

/* Brings all chunks by io.threads workers. An error names the record and the byte. */
int berth_chunks_run(berth_chunks *work, berth_error *error);

#endif
