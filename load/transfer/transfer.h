/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The transfer engine: workers move, sum and swap ranges of a source. It knows neither storages nor
 * records: the caller's functions name them. One call does all, with an access of its own:
 *
 *   bth_transfer_once
 *
 * Or step by step, where the caller has the access, the choices and the memory:
 *
 *   bth_transfer_measure_requests   ranges -> requests: how many, and how much memory they need
 *   bth_transfer_cut       where they go
 *   bth_transfer_run       moves all; or bth_wing_to_device.run, for devices
 *   bth_transfer_end       frees requests and buffers
 */
#ifndef BTH_LOAD_TRANSFER_TRANSFER_H
#define BTH_LOAD_TRANSFER_TRANSFER_H

#include "io/memory_region.h"
#include "load/transfer/requests.h"
#include "load/transfer/source_access.h"

/* The functions of the caller; each may be NULL. Thread-safe. */
typedef struct bth_transfer_calls {
    void *context;
    /* Adds the name of the range's owner to an error. Returns the error's code. */
    int (*name)(void *context, const bth_range *range, berth_error *error);
    /* Bytes [begin, end) of the source are at `bytes`; they hold some of the range. */
    void (*look)(void *context, const bth_range *range, const uint8_t *bytes, uint64_t begin,
                 uint64_t end);
    /* A request with this range failed. 0: the transfer goes on; ranges get is_unread. */
    int (*failed)(void *context, const bth_range *range, berth_error *error);
} bth_transfer_calls;

typedef struct bth_transfer {
    bth_access *access;
    const struct berth_config *config;
    const berth_params *params; /* for its progress; or NULL */
    bth_transfer_calls calls;
    bth_requests requests;   /* the caller sets ranges, n_ranges and use; and chunk_nbytes, or 0:
                                io.chunk_nbytes */
    bool with_crc32;         /* ranges get their CRCs */
    bool is_cold;            /* the ranges are not in the page cache, as far as is known */
    bool is_warm;            /* they are; both false: not known */
    bool is_in_memory;       /* mapped bytes are memory of the library: always present */
    const uint8_t *memory;   /* bth_transfer_once: the source's first byte, if the ranges are
                                mapped or in memory already; NULL: the engine chooses a method */
    uint64_t earlier_nbytes; /* of progress: done before this transfer, */
    uint64_t later_nbytes;   /* and to be done after it */
    /* The engine's: */
    bth_request *list;
    bool is_swapped; /* some range has a unit */
    bool any_late;   /* some range is swapped or moved after all of it is read */
    bool is_advised; /* the system is told which requests are next */
    uint64_t buffer_nbytes;
    unsigned n_workers;
    bth_region *buffers;      /* one for each worker, made when it needs one */
    uint8_t *region;          /* new memory of requests.region_nbytes; NULL: none */
    bth_pages_front front;    /* in the region */
    bth_pages pages;          /* of the region, and of new memory of the caller */
    atomic_bool is_cancelled; /* the caller's progress function has said so */
    /* Results, of all workers: */
    atomic_uint_fast64_t done_nbytes;
    atomic_uint_fast64_t moved_nbytes; /* read */
    atomic_uint_fast64_t n_reads;
    atomic_uint_fast64_t disk_nanoseconds;   /* reading, */
    atomic_uint_fast64_t render_nanoseconds; /* summing and swapping, */
    atomic_uint_fast64_t crc32_nanoseconds;  /* of that: summing */
} bth_transfer;

/* Measures; requests.region_nbytes, n_requests and nbytes are known then. */
int bth_transfer_measure_requests(bth_transfer *transfer, berth_error *error);
/* `region`, `mapped`: as for bth_requests_cut. */
int bth_transfer_cut(bth_transfer *transfer, uint8_t *region, const uint8_t *mapped,
                     berth_error *error);
/* Moves all of it. An error names the owner and the byte. */
int bth_transfer_run(bth_transfer *transfer, berth_error *error);
void bth_transfer_end(bth_transfer *transfer); /* of zeros: nothing */
/*
 * All steps, with one choice for all ranges, for BTH_USE_CALLER and BTH_USE_CHECKSUMS. Locks
 * nothing. through_cache: load.method=auto leaves the bytes in the page cache for the next load.
 * Sets the choice of the ranges.
 */
int bth_transfer_once(bth_transfer *transfer, bth_reader *reader, bool through_cache,
                      berth_error *error);

/* ---- parts of bth_transfer_run, for workers of another pool; contexts are the transfer ---- */

int bth_transfer_report_progress(void *context);
/* Moves request number `task` to its memory. */
int bth_transfer_run_request(void *context, uint64_t task, unsigned worker, berth_error *error);
/* After all requests: ranges get the CRCs of their parts, and fell_back. */
void bth_transfer_merge_request_results(bth_transfer *transfer);
/* Adds the name of the range's owner to an error. Returns its code. */
int bth_transfer_add_range_to_error(const bth_transfer *transfer, const bth_range *range,
                                    berth_error *error);

#endif
