/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the image is written: a file, a descriptor, memory, or a function of the caller. */
#ifndef BTH_SAVE_OUTPUT_H
#define BTH_SAVE_OUTPUT_H

#include <sys/uio.h>

#include "berth.h"

/* Shorter ranges are copied into the tile: a piece of its own costs as much. */
#define BTH_MIN_ZERO_COPY_NBYTES ((size_t)64 * 1024)

/* What an output requires of the memory and of the ranges that it writes. */
typedef struct bth_output_constraints {
    uint32_t block_nbytes;       /* ranges are whole blocks; a power of two; 0 or 1: any range */
    uint32_t memory_alignment;   /* of every piece, if there are blocks */
    size_t min_zero_copy_nbytes; /* shorter ranges are copied; 0: all are */
    bool large_pages_only;       /* memory in small pages is better copied to large ones */
    uint32_t tile_nbytes;        /* how much is best written at a time; 0: no matter */
} bth_output_constraints;

typedef struct bth_output {
    /* Writes all pieces one after the other, or sets the error. May change the array. From several
     * threads at once, unless in_order. One piece, if there are no zero-copy ranges. */
    int (*write)(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                 berth_error *error);
    /* Reads what was written. NULL: impossible. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
    /* How large the output can grow. NULL: not known. */
    uint64_t (*room)(void *context);
    void *context;
    bool in_order; /* offsets must follow each other */
    bth_output_constraints constraints;
    const char *reason;
} bth_output;

/* The pointers must live as long as the output. */
bth_output bth_output_of_sink(const berth_sink *sink);
bth_output bth_output_of_fd(const int *fd);       /* at its own position, in order */
bth_output bth_output_of_memory(uint8_t *memory); /* which holds the whole image */

#endif
