/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the image is written: a file, a descriptor, memory, or a function of the caller. */
#ifndef BTH_SAVE_OUTPUT_H
#define BTH_SAVE_OUTPUT_H

#include <sys/uio.h>

#include "berth.h"

typedef struct bth_output {
    /* Writes all of it, or sets the error. From several threads at once unless in_order. */
    int (*write)(void *context, const void *buffer, size_t nbytes, uint64_t offset,
                 berth_error *error);
    /* The same for pieces, one after the other. NULL: each is written by itself. */
    int (*write_pieces)(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                        berth_error *error);
    /* Reads what was written. NULL: impossible. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
    /* How large the output can grow. NULL: not known. */
    uint64_t (*room)(void *context);
    void *context;
    bool in_order;          /* offsets must follow each other */
    bool takes_any_memory;  /* zero-copy: pieces of the caller's memory */
    bool wants_large_pages; /* memory in small pages is better copied to large ones */
    /* Offsets and lengths of pieces are multiples of it, the last one padded. 0: any. */
    uint32_t block_nbytes;
    uint32_t memory_alignment; /* of every piece, if there are blocks */
    const char *reason;
} bth_output;

/* Statistics of a run. Filled on failure, too. */
typedef struct bth_run_stats {
    uint64_t moved_nbytes;
    uint64_t n_requests;
    uint64_t zero_copy_nbytes; /* of moved_nbytes: never copied */
    uint64_t n_deferred;       /* deferred blocks */
    size_t n_deferred_max;     /* at one time */
    uint64_t memory_nbytes;    /* buffers of all workers */
    /* Sums of all workers: waiting for devices, rendering with CRCs, CRCs alone, writing. */
    double device_seconds, render_seconds, crc32_seconds, write_seconds;
} bth_run_stats;

/* Memory that holds the whole image. */
typedef struct bth_output_memory {
    uint8_t *bytes;
    uint64_t nbytes;
} bth_output_memory;

/* The pointers must live as long as the output. */
bth_output bth_output_of_sink(const berth_sink *sink);
bth_output bth_output_of_fd(const int *fd); /* at its own position, in order */
bth_output bth_output_of_memory(bth_output_memory *memory);

#endif
