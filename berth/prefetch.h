/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/prefetch.h - loads of a checkpoint ahead of their use.
 */
#ifndef BERTH_PREFETCH_H
#define BERTH_PREFETCH_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Loads the bytes of a selection ahead of the consumer, who uses them: in the file's order, on
 * io.threads threads of its own. It works in passes: never more than one pass lies ahead of the
 * consumer. More passes (load.prefetch_passes) therefore need less memory. 0 passes: as few as fit
 * into io.memory_nbytes or, where that is 0, into half of the free memory. The device's own
 * readahead counts as part of a pass, unless the pass is shorter than four readaheads.
 *
 * The option load.prefetch chooses the method (off: populate):
 *   populate  reads pages and makes them present in the map, so that using them waits for nothing
 *   advise    asks the system to read; the bytes may still be on their way when
 *             berth_prefetch_advance returns
 *   read      reads through a small buffer, so that the page cache holds the bytes; also where
 *             storages are not mapped (load.mmap=off and others), or the system cannot populate
 * berth_prefetch_get_stats says which method it was.
 *
 * Bytes that are in memory already, or that another prefetch of the checkpoint is loading, are not
 * requested again. Nothing is ever dropped: the system drops pages when it needs memory, as it does
 * for any file, and keeps what was written to a copy-on-write map. Left out are storages that have
 * memory of their own, are read directly, or are on a device. A checkpoint from memory, or from a
 * function of the caller, has nothing to prefetch: that is no error, and all calls return at once.
 *
 * Lifetime: free it before berth_close.
 * Threads: any, at the same time, except for berth_prefetch_free, which is the last call.
 */
typedef struct berth_prefetch berth_prefetch;

/*
 * Keeps the pages in memory until berth_prefetch_free (mlock). Only with populate and a map. Locks
 * do not add up: if two prefetches lock the same pages, freeing the first one unlocks them.
 */
#define BERTH_PREFETCH_LOCK 1u
/* The consumer uses the bytes once, in order (MADV_SEQUENTIAL): pages behind it are dropped first.
 */
#define BERTH_PREFETCH_SEQUENTIAL 2u

/*
 * Begins to load, and returns at once.
 * Parameters: selection: NULL: all storages. flags: 0 or BERTH_PREFETCH_LOCK,
 * BERTH_PREFETCH_SEQUENTIAL. params: only its config is used.
 * Lifetime: *prefetch is the caller's, to be freed with berth_prefetch_free; NULL on failure.
 * Errors: BERTH_E_MEMORY: io.memory_nbytes is too small for one window (the message names the
 * missing bytes), or the pages may not be locked (RLIMIT_MEMLOCK).
 */
BERTH_API BERTH_MUST_CHECK int berth_prefetch_begin(berth_checkpoint *checkpoint,
                                                    const berth_selection *selection,
                                                    uint32_t flags, const berth_params *params,
                                                    berth_prefetch **prefetch, berth_error *error);

/*
 * The consumer is about to use elements of this tensor, and is done with all that lies before them
 * in the file. Waits until their bytes are there, and lets one pass behind them be loaded. Returns
 * at once for tensors that are not part of the prefetch. Tensors may be used in any order. The
 * furthest one used so far decides what is ahead.
 * Parameters: tensor: NULL, with first 0 and n -1: all that is left is loaded, as if it were one
 * pass, and waited for. first, n: elements [first, first + n) in row-major order; n < 0: all from
 * `first` on. If the tensor is not contiguous, all of it.
 * Errors: what went wrong. Then nothing more is loaded; the tensor can still be used, as without a
 * prefetch.
 */
BERTH_API int berth_prefetch_advance(berth_prefetch *prefetch, const berth_tensor *tensor,
                                     int64_t first, int64_t n, berth_error *error);

/*
 * Ends a prefetch: no request begins any more; waits for those that have begun (one per thread at
 * most), and frees it. An error that no call has returned goes to the log.
 * Parameters: prefetch: NULL: does nothing.
 * Threads: the last call on a prefetch.
 */
BERTH_API void berth_prefetch_free(berth_prefetch *prefetch);

/*
 * What a prefetch has done so far. Bytes are those of whole pages.
 * Lifetime: texts are static.
 */
typedef struct berth_prefetch_stats {
    uint64_t n_passes; /* planned */
    uint64_t n_passes_begun;
    uint64_t n_passes_done;
    uint64_t pass_nbytes;       /* of one pass: so much at most lies ahead of the consumer */
    uint64_t window_nbytes;     /* of one request */
    uint64_t requested_nbytes;  /* of the selection */
    uint64_t resident_nbytes;   /* were in memory before. 0 where the system reports that only to
                                   the file's owner and writers (Linux before 6.5) */
    uint64_t shared_nbytes;     /* another prefetch was loading them */
    uint64_t loaded_nbytes;     /* loaded by this one; advise: requested */
    uint64_t peak_ahead_nbytes; /* loaded or being loaded ahead of the consumer, at most */
    uint64_t n_requests;        /* advices and reads */
    uint64_t n_threads;
    double wait_seconds; /* in berth_prefetch_advance, of all threads */
    const char *method;  /* "populate", "advise", "read", "populate, then read",
                            "advise, then read", "none" */
    const char *reason;  /* why this method */
    uint64_t reserved[4];
} berth_prefetch_stats;

/*
 * Copies the statistics as they are now.
 * Errors: BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_prefetch_get_stats(berth_prefetch *prefetch, berth_prefetch_stats *stats,
                                       berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_PREFETCH_H */
