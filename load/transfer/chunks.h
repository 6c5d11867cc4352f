/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The work of bringing storages: chunks are read, directly or not, or made present where they are
 * mapped; summed and swapped while they are in the processor's cache; and what is not aligned for
 * its elements is moved where it is.
 */
#ifndef BTH_LOAD_TRANSFER_CHUNKS_H
#define BTH_LOAD_TRANSFER_CHUNKS_H

#include "load/checkpoint.h"
#include "load/transfer/spans.h"

typedef struct bth_chunks {
    berth_checkpoint *checkpoint;
    const struct berth_config *config;
    const berth_params *call; /* for its progress; or NULL */
    bool with_crc32;          /* items get their CRCs */
    bth_spans *spans;         /* measured and cut into: */
    bth_chunk *chunks;
    uint64_t before_nbytes; /* of progress: done already, */
    uint64_t behind_nbytes; /* and to be done after this */
    atomic_uint_fast64_t done_nbytes;
    atomic_uint_fast64_t moved_nbytes; /* read */
    atomic_uint_fast64_t n_requests;
    atomic_uint_fast64_t disk_nanoseconds;   /* of all workers: reading, */
    atomic_uint_fast64_t render_nanoseconds; /* summing and swapping, */
    atomic_uint_fast64_t crc32_nanoseconds;  /* of that: summing */
} bth_chunks;

/* Brings all chunks by io.threads workers. An error names the record and the byte. */
int bth_chunks_run(bth_chunks *work, berth_error *error);

/* ---- of it, for who has workers of its own ---- */

unsigned bth_chunks_n_workers(const bth_chunks *work, uint64_t n_tasks);
/* A bth_pool_watch; its context is the bth_chunks. */
int bth_chunks_watch(void *context);
/* Brings one chunk to chunk->memory. */
int bth_chunk_bring(bth_chunks *work, bth_chunk *chunk, berth_error *error);
/* When all have come: gives items the CRCs of their parts, and says which had a request refused. */
void bth_chunks_join(bth_chunks *work);

#endif
