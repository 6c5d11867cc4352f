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
    uint64_t before_nbytes; /* of progress: done already, */
    uint64_t behind_nbytes; /* and to be done after this */
    atomic_uint_fast64_t done_nbytes;
    atomic_uint_fast64_t moved_nbytes; /* read */
    atomic_uint_fast64_t n_requests;
    atomic_uint_fast64_t disk_nanoseconds;   /* of all workers: reading, */
    atomic_uint_fast64_t render_nanoseconds; /* summing and swapping, */
    atomic_uint_fast64_t crc32_nanoseconds;  /* of that: summing */
} berth_chunks;

/* Brings all chunks by io.threads workers. An error names the record and the byte. */
int berth_chunks_run(berth_chunks *work, berth_error *error);

/* ---- of it, for who has workers of its own ---- */

unsigned berth_chunks_n_workers(const berth_chunks *work, uint64_t n_tasks);
/* A berth_pool_watch; its context is the berth_chunks. */
int berth_chunks_watch(void *context);
/* Brings one chunk to chunk->memory. */
int berth_chunk_bring(berth_chunks *work, berth_chunk *chunk, berth_error *error);
/* When all have come: gives items the CRCs of their parts, and says which had a request refused. */
void berth_chunks_join(berth_chunks *work);

#endif
