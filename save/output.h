/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the image is written: a file, a descriptor, memory, or a function of the caller. */
#ifndef BTH_SAVE_OUTPUT_H
#define BTH_SAVE_OUTPUT_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "config/options.h"
#include "io/direct.h"

/* Shorter ranges are copied into the tile: a piece of its own costs as much. */
#define BTH_MIN_ZERO_COPY_NBYTES ((size_t)64 * 1024)

/* To whole units; `unit` is a power of two. */
static inline uint64_t bth_round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* What an output requires of the memory and of the ranges that it writes. */
typedef struct bth_output_constraints {
    uint32_t block_nbytes;       /* ranges are whole blocks; a power of two; 0 or 1: any range */
    uint32_t memory_alignment;   /* of every piece, if there are blocks */
    size_t min_zero_copy_nbytes; /* shorter ranges are copied; 0: all are */
    bool large_pages_only;       /* memory in small pages is better copied to large ones */
    uint64_t tile_nbytes;        /* how much is best written at a time; 0: no matter */
} bth_output_constraints;

/* A file that is an output, through the page cache or by direct writes. */
typedef struct bth_output_file {
    int fd;
    bth_direct direct;     /* the caller closes it at the end, and `fd` */
    atomic_bool is_direct; /* until a request is refused */
    atomic_bool is_early;  /* buffered writes go on to the disk at once */
    bool began_direct;
    const char *reason;
} bth_output_file;

typedef struct bth_output {
    /* Writes all pieces one after the other, or sets the error. May change the array. From several
     * threads at once, unless in_order. One piece, if there are no zero-copy ranges. */
    int (*write)(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                 berth_error *error);
    /* Reads what was written. NULL: impossible. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
    const bth_output_file *file; /* NULL: it is none, and its room is not known */
    void *context;
    bool in_order;             /* offsets must follow each other */
    const berth_sink *placing; /* tiles of tile_nbytes are made in its memory; NULL: in the run's */
    unsigned n_threads;        /* unless io.threads is set; 0: no matter */
    unsigned n_placed;         /* tiles that `placing` holds for each thread */
    bth_output_constraints constraints;
    const char *reason;
} bth_output;

/* The pointers must live as long as the output. */
bth_output bth_output_of_sink(const berth_sink *sink);
/* Calls its step, for a file of nbytes, and takes what it needs. */
int bth_output_begin_sink(bth_output *output, uint64_t nbytes, berth_error *error);
/* failure: what a function of the sink returned. Returns the status. */
int bth_sink_fail(berth_error *error, int failure, uint64_t offset);
bth_output bth_output_of_fd(const int *fd);       /* at its own position, in order */
bth_output bth_output_of_memory(uint8_t *memory); /* which holds the whole image */

/* ---- a file, through the page cache or by direct writes ---- */

/*
 * `fd` is open for reading and writing, and its file has nbytes bytes. Buffered writes replace
 * direct ones that are impossible, and file->reason says why.
 */
bth_output bth_output_file_begin(bth_output_file *file, int fd, uint64_t nbytes,
                                 const struct berth_config *config);
/* The method that was used and its reason, for the statistics. Static texts. */
const char *bth_output_file_method(const bth_output_file *file, const char **reason);

/* The I/O method for a file of nbytes bytes that is open as `fd`: save.method, or
 * chosen from conditions. Returns the reason, a static text. */
const char *bth_output_method_choose(const struct berth_config *config, int fd, uint64_t nbytes,
                                     bool *is_direct);

/* RLIMIT_FSIZE. A write beyond it would raise SIGXFSZ, which kills (F5). */
uint64_t bth_output_file_size_limit(void);
/* How large a file can grow: its own room and the free room. UINT64_MAX: not known. */
uint64_t bth_output_file_own_and_free_room(int fd);

/* ---- a full disk (W1) ---- */

/*
 * "... at byte N: No space left on device (812 MiB missing)": how many of nbytes have no room. If
 * the room is not known (UINT64_MAX), or seems to be enough (a quota, a limit): how many are not
 * written.
 */
int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t room_nbytes, uint64_t nbytes, uint64_t written_nbytes);

#endif
