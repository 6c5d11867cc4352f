/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/rows.h - rows of tables that are larger than memory: embeddings.
 */
#ifndef BERTH_ROWS_H
#define BERTH_ROWS_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A cache of rows, for tables that are larger than memory: embeddings. Rows of 2-dimensional
 * tensors are requested in batches, ahead of their use. Rows that are not in memory are read by
 * threads of the cache; neighbours are read together:
 *
 *     berth_rows_limits limits = {.cache_nbytes = 1 << 30};
 *     berth_rows_new(&limits, NULL, &rows, &error);
 *     berth_rows_add(rows, model, berth_find_tensor(model, "embedding.weight", &error), &table,
 *                    &error);
 *     berth_rows_prefetch(rows, table, ids, n, &ticket, &error);
 *     ...                                                        // the batch before this one
 *     berth_rows_wait(rows, ticket, pointers, &error);
 *     ...                                                        // pointers[i] is row ids[i]
 *     berth_rows_release(rows, ticket, NULL);
 *
 * Or one call copies rows of any number of ids to the caller's memory:
 *
 *     berth_rows_part part = {.table = table, .ids = ids, .n = n, .output = output};
 *     berth_rows_gather(rows, &part, 1, NULL, &error);
 *
 * Shapes: a table has shape [rows, row elements] and is contiguous. A row is its bytes in this
 * machine's order. Rows are aligned to 64 bytes. If every row is shorter, the alignment is the
 * longest row's length, rounded up to a power of two. All rows of the cache take the memory of the
 * longest one: give tables of very different rows caches of their own.
 *
 * Lifetime: a row stays where it is as long as a ticket for it is live. Of the other rows, those
 * that were requested longest ago are evicted first. A row has `ways` lines of the cache to be in.
 * If live tickets hold all of these, the row is read into the scratch, for its ticket alone.
 *
 * Rows are for reading only: tickets share them. Rows of a storage that is in memory
 * (berth_tensor_data) are copied from there; a later write to that memory does not change rows that
 * are in the cache.
 *
 * Threads: any, at the same time, also with the same ticket, except for berth_rows_free. Release a
 * ticket only when no thread uses its rows any more.
 */
typedef struct berth_rows berth_rows;

/* A request for rows, live until it is released. Never 0; a cache never gives one twice. */
typedef uint64_t berth_ticket;

/*
 * The memory of a cache; all of it is taken when the cache is made. Live tickets need 20 bytes per
 * id and 1 KiB each besides.
 */
typedef struct berth_rows_limits {
    uint64_t cache_nbytes;   /* lines, and 20 bytes of bookkeeping for each */
    uint64_t scratch_nbytes; /* rows that found no line, and up to a half for reading neighbours.
                                0: an eighth of cache_nbytes, in addition to it */
    uint64_t ways;           /* lines that a row can be in: 1 to 64; 0: 16 */
    uint64_t reserved[5];    /* 0 */
} berth_rows_limits;

/*
 * Makes an empty cache. io.threads threads read rows. io.threads=0: 16 threads, because they mostly
 * wait; where reads do not wait, one for each processor. io.threads=1: none, and berth_rows_wait
 * reads.
 * Parameters: limits: see berth_rows_limits; copied. params: only its config is used.
 * Lifetime: *rows is the caller's, to be freed with berth_rows_free; NULL on failure.
 * Errors: BERTH_E_MEMORY: there is not that much memory, or io.memory_nbytes is less than both
 * limits together; the message names the missing bytes. BERTH_E_ARGUMENT: invalid limits.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_new(const berth_rows_limits *limits,
                                              const berth_params *params, berth_rows **rows,
                                              berth_error *error);

/*
 * Ends all reading and frees the cache. Live tickets and their pointers end with it.
 * Parameters: rows: NULL: does nothing.
 * Threads: no other thread may be in a call with this cache.
 */
BERTH_API void berth_rows_free(berth_rows *rows);

/*
 * Adds a table. If its rows are longer than those of all tables before, the cache is emptied.
 * Parameters: tensor: may be a part of one that was handed out. table: receives the table's number,
 * 0 for the first.
 * Shapes: 2 dimensions, contiguous, no sub-byte dtype.
 * Lifetime: the checkpoint must live as long as the cache.
 * Errors: BERTH_E_MEMORY: the limits are too small for `ways` of its rows, or for one in the
 * scratch; the message names the tensor and the missing bytes. BERTH_E_BUSY: the cache would be
 * emptied, but tickets are live.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_add(berth_rows *rows, berth_checkpoint *checkpoint,
                                              const berth_tensor *tensor, size_t *table,
                                              berth_error *error);

/*
 * Requests rows of a table, and does not wait.
 * Parameters: ids: n of them, in any order; an id may occur several times. They are copied.
 * Lifetime: *ticket is live until berth_rows_release. On failure it is 0, nothing is held, and
 * nothing was evicted.
 * Errors: BERTH_E_ARGUMENT: an id is no row of the table (the message names both), or there is no
 * such table. BERTH_E_BUSY: live tickets hold too many rows; the message names the missing bytes.
 * BERTH_E_MEMORY: the rows would not fit even without other tickets.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_prefetch(berth_rows *rows, size_t table,
                                                   const int64_t *ids, size_t n,
                                                   berth_ticket *ticket, berth_error *error);

/*
 * Waits until all rows of a ticket are there, and helps to read them.
 * Parameters: pointers: receives one pointer per id, in the order of the ids; NULL: only wait.
 * Lifetime: the rows stay where they are until the ticket is released.
 * Errors: BERTH_E_ARGUMENT: the ticket is not live. A failed read names record and byte. A row that
 * two tickets requested is read once, and fails for both. Rows that were not read are not kept: the
 * next request reads them again.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_wait(berth_rows *rows, berth_ticket ticket,
                                               const void **pointers, berth_error *error);

/*
 * Ends a ticket, so that its rows may be evicted. What is still to be read for it is read first.
 * Errors: BERTH_E_ARGUMENT: the ticket is not live; nothing is done.
 */
BERTH_API int berth_rows_release(berth_rows *rows, berth_ticket ticket, berth_error *error);

/* A part of a gather: ids of one table, and where their rows go. */
typedef struct berth_rows_part {
    size_t table;
    const void *ids; /* int64_t, or int32_t */
    size_t n;        /* ids */
    void *output;
    uint64_t stride_nbytes; /* from one row of the output to the next; 0: the length of a row */
    bool ids_are_32_bit;
    bool pruned_to_zero; /* the id -1 stands for no row: its output is zeros */
    uint64_t reserved[4];
} berth_rows_part;

/* What a gather needs. */
typedef struct berth_rows_gather_estimate {
    uint64_t n_ids;
    uint64_t n_passes;      /* more only if very many ids are of few rows */
    uint64_t memory_nbytes; /* beside ids, outputs and the cache */
    uint64_t output_nbytes; /* of the rows, without what lies between them */
    uint64_t reserved[4];
} berth_rows_gather_estimate;

/*
 * Both functions that follow: with `gathers` the first, and `estimate` may be NULL; else the
 * second.
 */
BERTH_API BERTH_MUST_CHECK int
berth_rows_gather_or_estimate(berth_rows *rows, const berth_rows_part *parts, size_t n_parts,
                              const berth_params *params, bool gathers,
                              berth_rows_gather_estimate *estimate, berth_error *error);

/*
 * Copies rows of one or several tables to the caller's memory. The cache may be smaller than they
 * are: rows that find no line in it, because the gather or live tickets hold the others, go from
 * the file to the output. Rows of the gather evict only rows that were requested before it.
 *
 * The ids are taken in load.rows_passes passes, each for a range of rows. Beside ids and output, N
 * ids in M passes need at most 20 N / M bytes and 2 MiB.
 * Parameters: parts: n_parts of them. Row i of a part's output is the row of its id i. The ids may
 * be in any order and repeated. Outputs may not overlap. params: only its config and its progress
 * are used; bytes of progress are those of the output.
 * Lifetime: parts and ids must not change, and outputs are nobody else's, until this returns.
 * Errors: BERTH_E_ARGUMENT: an id is no row of its table (the message names part, position, id and
 * table), or a part is invalid: then no byte was written. BERTH_E_MEMORY: there is not enough
 * memory, or io.memory_nbytes leaves too little beside the cache. BERTH_E_BUSY: a million tickets
 * are live. BERTH_E_CANCELLED: by the progress function. A failed read names record and byte. After
 * errors other than BERTH_E_ARGUMENT the outputs hold some rows; the cache is as good as before.
 * Threads: any, at the same time; io.threads=1: the calling thread reads.
 */
BERTH_MUST_CHECK static inline int berth_rows_gather(berth_rows *rows, const berth_rows_part *parts,
                                                     size_t n_parts, const berth_params *params,
                                                     berth_error *error)
{
    return berth_rows_gather_or_estimate(rows, parts, n_parts, params, true, NULL, error);
}

/*
 * Estimates the memory of a gather, and does nothing else. The ids are not read, and may be NULL,
 * as the outputs may.
 * Parameters: as of berth_rows_gather.
 * Errors: as of berth_rows_gather, before it begins; the estimate is zeros.
 * Threads: any.
 */
BERTH_MUST_CHECK static inline int berth_rows_estimate(berth_rows *rows,
                                                       const berth_rows_part *parts, size_t n_parts,
                                                       const berth_params *params,
                                                       berth_rows_gather_estimate *estimate,
                                                       berth_error *error)
{
    return berth_rows_gather_or_estimate(rows, parts, n_parts, params, false, estimate, error);
}

/* What a cache has done so far. */
typedef struct berth_rows_stats {
    uint64_t n_requests;       /* that got a ticket, and gathers */
    uint64_t n_refused;        /* that found no room */
    uint64_t n_tickets;        /* live now */
    uint64_t n_ids;            /* requested */
    uint64_t n_unique;         /* distinct ids of each request, or pass: n_hits + n_misses */
    uint64_t n_hits;           /* found in a line */
    uint64_t n_awaited;        /* part of n_hits: another ticket was reading them */
    uint64_t n_misses;         /* to be read */
    uint64_t n_conflicts;      /* part of n_misses: into the scratch */
    uint64_t n_evictions;      /* rows that were evicted */
    uint64_t n_reads;          /* requests to the file */
    uint64_t n_merged;         /* part of n_reads: of more than one row */
    uint64_t requested_nbytes; /* of the rows to be read */
    uint64_t read_nbytes;      /* the same with what lies between neighbours */
    uint64_t n_lines;          /* of the cache */
    uint64_t line_nbytes;
    uint64_t n_passes;   /* of gathers */
    uint64_t n_streamed; /* part of n_misses: past the cache, to the output of a gather */
    uint64_t reserved[2];
} berth_rows_stats;

/*
 * Copies the statistics as they are now.
 * Errors: BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_rows_get_stats(berth_rows *rows, berth_rows_stats *stats, berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_ROWS_H */
